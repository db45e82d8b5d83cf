"""
What a run will need, from its recipe alone: memory of a trainer's rank and of an engine.

    gpus.py     facts of GPUs
    memory.py   bytes of each part, against a GPU
"""

from astraflow.planning.gpus import Gpu, read_hardware
from astraflow.planning.memory import MemoryPlan, Part, plan_memory

__all__ = ["Gpu", "MemoryPlan", "Part", "plan_memory", "read_hardware"]
