"""
Measurements that a user can repeat: each prints what was done, on what, and every figure's unit.

    weights.py   a new version from the trainer's weights to proved weights elsewhere
"""

__all__: list[str] = []
