"""The RaaS process: one engine, one workflow, pulling work until the run needs no more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from astraflow.data.chat import PromptRenderer, load_tokenizer, stop_ids
from astraflow.errors import AstraFlowError
from astraflow.interfaces import InferenceBackend, InferenceContext, Sampler
from astraflow.metrics import prometheus_text
from astraflow.plugins import adapter_settings, build_plugin, load_plugin, recipe_type
from astraflow.raas.episodes import Episodes, sample_with_retries
from astraflow.raas.intake import Intake
from astraflow.raas.watched import WatchedReward, WatchedSampler
from astraflow.raas.workflow import Workflow, WorkflowContext
from astraflow.recipe.files import read_resolved
from astraflow.recipe.schema import Recipe
from astraflow.wire.auth import read_token
from astraflow.wire.client import ServiceClient
from astraflow.wire.role import Role
from astraflow.wire.server import bind, build_app, serve
from astraflow.wire.waits import Waits

__all__ = ["build_engine", "build_workflow", "run_raas"]

log = logging.getLogger(__name__)

_CANCEL_S = 5.0


async def run_raas(
    role: Role,
    *,
    run_folder: Path,
    dataflow: str,
    name: str,
    gpus: tuple[int, ...],
    host: str,
    port: int,
    run_id: str,
    patience_s: float | None = None,
) -> None:
    """
    Run one instance until asked to stop.

    Args:
        role: The process's frame.
        run_folder: Where recipe.json lies.
        dataflow: Address of the dataflow service.
        name: Of this instance, among all of the run.
        gpus: Devices, as this process numbers them; empty for the CPU.
        host: Interface.
        port: 0 takes a free one.
        run_id: The run, as its trainer names it.
        patience_s: Time for the dataflow service to come back when it goes (s); None takes
            `limits.ready_s`.
    """
    recipe = read_resolved(run_folder / "recipe.json", recipe_type=recipe_type()).recipe
    token = read_token(run_folder)
    client = ServiceClient(dataflow, token, patience_s=patience_s or recipe.limits.ready_s)
    engine = build_engine(recipe, gpus=gpus, run_folder=run_folder, run_id=run_id)
    try:
        with role.waits.waiting("engine: start", deadline_s=recipe.limits.ready_s):
            await engine.start(within_s=recipe.limits.ready_s)
        episodes = Episodes(name, recipe, engine, client, role.waits)
        intake = Intake(
            name,
            engine,
            client,
            lambda: episodes.last_beat,
            run_id=run_id,
            token=token,
            waits=role.waits,
            adopted=lambda lineage: setattr(episodes, "lineage", lineage),
            patience_s=recipe.limits.ready_s,
        )
        async with build_workflow(recipe, engine, role.waits) as workflow:
            await _run(role, engine, episodes, intake, workflow, token, host, port)
    finally:
        await engine.close()
        await client.close()


def build_engine(
    recipe: Recipe, *, gpus: tuple[int, ...], run_folder: Path, run_id: str
) -> InferenceBackend:
    """
    Build the recipe's inference adapter for one instance.

    Raises:
        PluginError: the adapter or a library of its is absent.
    """
    plugin = load_plugin("inference_backends", recipe.rollout.backend)
    context = InferenceContext(
        model_path=recipe.model.path,
        dtype=recipe.model.dtype,
        context_length=recipe.model.context_length,
        settings=adapter_settings(recipe.rollout, plugin),
        gpus=gpus,
        tensor_parallel=recipe.rollout.tensor_parallel,
        data_parallel=max(recipe.rollout.data_parallel // recipe.rollout.instances, 1),
        # On-policy runs are the ones that must reproduce bit for bit.
        reproducible=recipe.dataflow.max_staleness == 0,
        log_folder=run_folder / "logs",
        run_id=run_id,
    )
    engine: InferenceBackend = build_plugin(plugin, context)
    return engine


@contextlib.asynccontextmanager
async def build_workflow(
    recipe: Recipe, engine: Sampler, waits: Waits | None = None
) -> AsyncIterator[Workflow]:
    """
    Build the recipe's workflow with its reward, whose processes end with the block.

    Args:
        recipe: The run.
        engine: Where answers are sampled.
        waits: Where it is noted what answers wait for.

    Raises:
        PluginError: a plug-in is absent.
        RecipeError: the model has no tokenizer or no chat template.
    """
    tokenizer = load_tokenizer(recipe.model.path)
    section = recipe.workflow
    reward = load_plugin("rewards", section.reward).build(
        workers=section.grading_workers,
        timeout_s=section.grading_timeout_s,
        answer=section.answer,
    )
    waits = waits or Waits()
    context = WorkflowContext(
        recipe=recipe,
        renderer=PromptRenderer(
            tokenizer, model=recipe.model.path, chat=section.chat, examples=section.examples
        ),
        reward=WatchedReward(reward, waits, within_s=recipe.limits.no_progress_s),
        sample=partial(
            sample_with_retries,
            WatchedSampler(engine, waits, within_s=recipe.rollout.request_timeout_s),
            timeout_s=recipe.rollout.request_timeout_s,
            retries=recipe.rollout.max_retries,
        ),
        stop_ids=stop_ids(tokenizer, recipe.model.path, section.stop),
    )
    try:
        yield load_plugin("workflows", section.name).build(context)
    finally:
        await reward.close()


async def _run(
    role: Role,
    engine: InferenceBackend,
    episodes: Episodes,
    intake: Intake,
    workflow: Workflow,
    token: str,
    host: str,
    port: int,
) -> None:
    def numbers() -> dict[str, Any]:
        return {
            "version": int(engine.version),
            **episodes.numbers(),
            "weights": intake.numbers(),
        }

    listener = bind(host, port)
    app = build_app(
        {},
        token=token,
        healthy=lambda: True,
        metrics=lambda: prometheus_text("raas", numbers()),
    )
    server = await serve(app, listener)
    http = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    endless = [
        http,
        asyncio.create_task(episodes.pull(workflow), name="pull"),
        asyncio.create_task(episodes.report(), name="report"),
        asyncio.create_task(episodes.beat(), name="beat"),
        asyncio.create_task(intake.run(), name="intake"),
        asyncio.create_task(role.beat(numbers), name="events"),
        asyncio.create_task(role.stop.wait(), name="stop"),
    ]
    bound_host, bound_port = listener.getsockname()[:2]
    role.ready(address=f"http://{bound_host}:{bound_port}")
    done, _ = await asyncio.wait(endless, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = server.force_exit = True  # idle keep-alive connections do not count
    # First no more work, then hand back what is there: a lease asked for after that is nobody's.
    for task in endless[1:]:
        task.cancel()
    await asyncio.wait(endless[1:], timeout=_CANCEL_S)
    with contextlib.suppress(AstraFlowError):
        await episodes.leave()
    await asyncio.wait([http], timeout=6)
    for task in done:
        task.result()  # raises what ended the instance, if something did
