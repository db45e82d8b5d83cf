"""
RaaS, rollout as a service: pulls leases, samples and grades, hands groups back.

    workflow.py   the seam: a lease becomes a graded group
    rlvr.py       the built-in workflow: ask once, grade the answer
    admission.py  how many groups to ask for
    episodes.py   leases in flight, from asking to handing back
    intake.py     new versions: prepared while sampling goes on, installed while it is held
    service.py    the process
"""

from astraflow.raas.workflow import Workflow, WorkflowContext

__all__ = ["Workflow", "WorkflowContext"]
