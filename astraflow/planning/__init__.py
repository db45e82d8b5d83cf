"""
What a run will need and do, from its recipe alone: memory, speed, and what to change.

    gpus.py         facts of GPUs
    devices.py      those of this host
    memory.py       bytes of each part on a GPU, against its memory
    host.py         host memory and /dev/shm
    throughput.py   tokens/s of both sides, who waits, the split that balances them
    plan.py         all of it for one recipe
"""

from astraflow.planning.devices import Device, read_devices, visible_devices
from astraflow.planning.gpus import Gpu, known_gpu, read_hardware
from astraflow.planning.host import HostPlan, plan_host
from astraflow.planning.memory import MemoryPlan, Part, plan_memory
from astraflow.planning.plan import Plan, plan_recipe
from astraflow.planning.throughput import Split, Throughput, plan_throughput

__all__ = [
    "Device",
    "Gpu",
    "HostPlan",
    "MemoryPlan",
    "Part",
    "Plan",
    "Split",
    "Throughput",
    "known_gpu",
    "plan_host",
    "plan_memory",
    "plan_recipe",
    "plan_throughput",
    "read_devices",
    "read_hardware",
    "visible_devices",
]
