"""
Measurements that a user can repeat: each prints what was done, on what, and every figure's unit.

    weights.py   a new version from the trainer's weights to proved weights elsewhere
    swaps.py     new versions into an engine that is sampling
    rollout.py   sampling through RaaS against the bare engine
    trainer.py   whole optimizer steps of one rank
    models.py    random checkpoints with the shape of a real model
"""

__all__: list[str] = []
