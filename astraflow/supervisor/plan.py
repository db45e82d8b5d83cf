"""From a recipe to role plans: commands, environments, GPUs. Pure: nothing is started here."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astraflow.recipe.schema import Recipe

__all__ = ["DATAFLOW_ADDRESS", "RolePlan", "RunPlan", "kernel_environment", "plan_run"]

# Threads of two processes that share the cores must sleep while they wait for each other: by
# default they spin, and each process then takes the other's time.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}

DATAFLOW_ADDRESS = "{dataflow}"
"""Stands in a command for the address that the dataflow service will report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """How one role is started."""

    name: str
    """``dataflow``, ``raas-0`` ... or ``trainer``."""

    kind: str
    """``dataflow``, ``raas`` or ``trainer``."""

    command: tuple[str, ...]
    """What a person could type."""

    environment: dict[str, str]
    """Set on top of the supervisor's own environment."""

    gpus: tuple[int, ...]
    """Devices, as numbered on this host; empty for the CPU."""

    exit_code: int
    """The run's exit code when this role ends on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Every role of a run, in the order of their start."""

    dataflow: RolePlan
    raas: tuple[RolePlan, ...]
    trainer: RolePlan
    ports: str
    """How the roles find each other."""

    def roles(self) -> tuple[RolePlan, ...]:
        """Return all of them, in the order of their start."""
        return (self.dataflow, *self.raas, self.trainer)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"roles": [asdict(role) for role in self.roles()], "ports": self.ports}


def plan_run(
    recipe: Recipe,
    run_folder: Path,
    *,
    resume_from: Path | None = None,
) -> RunPlan:
    """
    Plan a run.

    Rollout instances take the first GPUs, the trainer the ones after, or the same ones.

    Args:
        recipe: The validated recipe.
        run_folder: Where ``recipe.json`` lies.
        resume_from: A checkpoint to continue from.
    """
    rollout, trainer = recipe.rollout, recipe.trainer
    per_instance = rollout.gpus // rollout.instances
    first_of_trainer = 0 if trainer.shares_gpus else rollout.gpus
    resume = ("--resume-from", str(resume_from)) if resume_from else ()
    folder = ("--run-folder", str(run_folder))
    to_dataflow = ("--dataflow", DATAFLOW_ADDRESS)
    host = ("--host", recipe.network.host)
    return RunPlan(
        dataflow=_role("dataflow", "dataflow", (*folder, *host, *resume), {}, (), 10),
        raas=tuple(
            _role(
                f"raas-{index}",
                "raas",
                (*folder, *to_dataflow, *host, "--instance", str(index)),
                _PASSIVE,
                tuple(range(index * per_instance, (index + 1) * per_instance)),
                11,
            )
            for index in range(rollout.instances)
        ),
        trainer=_role(
            "trainer",
            "trainer",
            (*folder, *to_dataflow, *resume),
            {**_PASSIVE, **_trainer_environment(recipe)},
            tuple(range(first_of_trainer, first_of_trainer + trainer.gpus)),
            12,
        ),
        ports=f"every role binds port 0 on {recipe.network.host} and reports the port it was given",
    )


def kernel_environment() -> dict[str, str]:
    """
    Return what the kernels of linear-attention layers need before they are imported.

    fla's Triton kernels for the gated delta rule give no right gradient on Hopper; its tilelang
    ones do, and they need the CUDA toolkit's folder.
    """
    return {
        "FLA_TILELANG": os.environ.get("FLA_TILELANG", "1"),
        "CUDA_HOME": os.environ.get("CUDA_HOME") or "/usr/local/cuda",
    }


def _trainer_environment(recipe: Recipe) -> dict[str, str]:
    """Set what libraries need before they are imported."""
    if not recipe.trainer.gpus:
        return {}
    return {
        **kernel_environment(),
        "PYTORCH_CUDA_ALLOC_CONF": os.environ.get(
            "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
        ),
    }


def _role(
    name: str,
    kind: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    gpus: tuple[int, ...],
    exit_code: int,
) -> RolePlan:
    command = (sys.executable, "-m", "astraflow", "serve", kind, *arguments)
    if kind == "raas" and gpus:
        command += ("--gpus", ",".join(map(str, range(len(gpus)))))
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    return RolePlan(
        name=name,
        kind=kind,
        command=command,
        environment={**environment, **visible},
        gpus=gpus,
        exit_code=exit_code,
    )
