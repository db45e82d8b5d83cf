"""One trainer rank; `torch.distributed.run -m astraflow.trainer.ranks` starts it."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path

import torch

from astraflow.errors import AstraFlowError
from astraflow.interfaces import TrainerBackend, TrainerContext
from astraflow.logs import configure
from astraflow.plugins import adapter_settings, build_plugin, load_plugin, recipe_type
from astraflow.recipe.files import read_resolved
from astraflow.recipe.schema import Recipe
from astraflow.trainer.loop import TrainingLoop
from astraflow.wire.auth import read_token
from astraflow.wire.events import Events, Lifeline, die_with_parent
from astraflow.wire.role import leave
from astraflow.wire.waits import Waits

__all__ = ["main"]

log = logging.getLogger(__name__)


def main() -> int:
    """Run this rank to its end and return its exit code."""
    arguments = _arguments()
    rank = int(os.environ["RANK"])
    die_with_parent()
    configure(f"trainer.{rank}")
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    Lifeline().watch(whole_group=False)
    # The launcher asks for a stop with a file; a stray Ctrl-C must not tear a step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    events = Events()
    try:
        _run(arguments, rank, events)
    except AstraFlowError as error:
        log.error("%s", error, exc_info=True)
        events.send("error", what=error.what[:1500], hint=error.hint[:1500], code=error.exit_code)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the edge of the rank: logged, reported, ended
        log.exception("rank %d ends with an error", rank)
        events.send(
            "error",
            what=f"rank {rank}: {type(error).__name__}: {error}"[:1500],
            hint=_hint(error),
            code=12,
        )
        return 12
    return 0


def _run(arguments: argparse.Namespace, rank: int, events: Events) -> None:
    resolved = read_resolved(arguments.run_folder / "recipe.json", recipe_type=recipe_type())
    recipe = resolved.recipe
    torch.manual_seed(recipe.seed)
    backend = _build_backend(recipe)
    loop = TrainingLoop(
        recipe=recipe,
        backend=backend,
        run_folder=arguments.run_folder,
        dataflow=arguments.dataflow,
        token=read_token(arguments.run_folder),
        rank=rank,
        ranks=int(os.environ["WORLD_SIZE"]),
        events=events,
        waits=Waits(),
    )
    try:
        loop.run(resume_from=arguments.resume_from)
    finally:
        loop.close()
        backend.close()


def _build_backend(recipe: Recipe) -> TrainerBackend:
    plugin = load_plugin("trainer_backends", recipe.trainer.backend)
    context = TrainerContext(
        model_path=recipe.model.path,
        dtype=recipe.model.dtype,
        master_dtype=recipe.trainer.master_dtype,
        optimizer=recipe.trainer.optimizer,
        total_updates=recipe.trainer.steps * recipe.algorithm.updates_per_step,
        tokens_per_microbatch=recipe.trainer.tokens_per_microbatch,
        temperature=recipe.rollout.temperature,
        needs_reference=recipe.algorithm.kl_coef > 0,
        settings=adapter_settings(recipe.trainer, plugin),
        seed=recipe.seed,
        device="cuda" if recipe.trainer.gpus else "cpu",
    )
    backend: TrainerBackend = build_plugin(plugin, context)
    return backend


def _hint(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return (
            "lower `trainer.tokens_per_microbatch`, or use more GPUs: "
            "`--set trainer.tokens_per_microbatch=8192`"
        )
    return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--dataflow", required=True)
    parser.add_argument("--resume-from", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    leave(main())
