"""
The supervisor: starts the roles of a run, watches them, and leaves nothing behind.

    plan.py        recipe to role plans, pure
    preflight.py   read a recipe and check it against this installation and this machine
    folders.py     the run folder: number, latest link, resolved copy
    child.py       one process: pipes, log, stop, kill
    orphans.py     descendants that left their group
    state.py       what is known of the run, from events
    watch.py       heartbeats, progress and memory
    supervisor.py  the state machine
    summary.py     summary.json
"""

from astraflow.supervisor.plan import RolePlan, RunPlan, plan_run
from astraflow.supervisor.state import RunState
from astraflow.supervisor.supervisor import Supervisor

__all__ = ["RolePlan", "RunPlan", "RunState", "Supervisor", "plan_run"]
