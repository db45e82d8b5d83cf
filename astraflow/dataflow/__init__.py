"""
The dataflow service: prompts out under leases, groups in, batches out within the staleness bound.

    prompts.py   the endless seeded order of prompts
    dispatch.py  leases: who samples what, until when
    filters.py   why a group is refused
    buffer.py    groups that wait for a batch
    batches.py   groups to one packed batch
    evaluate.py  evaluation of one pinned version
    flow.py      the rules that tie these together, without any I/O but the store
    store.py     everything in one SQLite file
    service.py   the process: HTTP in front of the flow
"""

from astraflow.dataflow.flow import Flow

__all__ = ["Flow"]
