"""
The trainer: a launcher process and one process a rank.

    service.py      the launcher: starts the ranks with torch.distributed.run and watches them
    ranks.py        one rank: builds the backend and runs the loop
    loop.py         batch in, optimizer steps, version out
    minibatches.py  a batch's tensors, advantages, and its split over updates and ranks
    checkpoints.py  complete or absent: write, find, verify, prune
"""

from astraflow.trainer.checkpoints import Checkpoint, find_checkpoint

__all__ = ["Checkpoint", "find_checkpoint"]
