"""The dataflow process: data in, the service up, housekeeping, until asked to stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from astraflow.data import load_prompts
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.service import DataflowService
from astraflow.dataflow.store import Store
from astraflow.grading import report_golds
from astraflow.metrics import prometheus_text
from astraflow.plugins import recipe_type
from astraflow.recipe.files import read_resolved
from astraflow.recipe.schema import Recipe
from astraflow.wire.auth import read_token
from astraflow.wire.role import Role
from astraflow.wire.server import bind, build_app, serve

__all__ = ["run_dataflow"]

log = logging.getLogger(__name__)


async def run_dataflow(
    role: Role,
    *,
    run_folder: Path,
    host: str,
    port: int,
    resume_from: Path | None,
    recover: bool = False,
) -> None:
    """
    Run the service until asked to stop.

    Args:
        role: The process's frame.
        run_folder: Where recipe.json and rollouts.sqlite lie.
        host: Interface.
        port: 0 takes a free one.
        resume_from: Checkpoint to go back to.
        recover: Continue from rollouts.sqlite, beside a trainer that goes on.
    """
    recipe = read_resolved(run_folder / "recipe.json", recipe_type=recipe_type()).recipe
    token = read_token(run_folder)
    listener = bind(host, port)
    store = Store(run_folder / "rollouts.sqlite")
    flow, golds = _load_flow(recipe, store)
    if resume_from is not None:
        flow.restore(resume_from / "dataflow.msgpack")
    service = DataflowService(flow, recipe, store, run_folder)
    if recover:
        service.recover()
    app = build_app(
        service.endpoints(token),
        token=token,
        healthy=lambda: True,
        metrics=lambda: prometheus_text("dataflow", service.numbers()),
    )
    server = await serve(app, listener)
    tasks = [
        asyncio.create_task(server.serve(sockets=[listener])),
        asyncio.create_task(service.keep_house(role)),
        asyncio.create_task(role.beat(service.numbers)),
        asyncio.create_task(role.stop.wait()),
    ]
    bound_host, bound_port = listener.getsockname()[:2]
    role.ready(address=f"http://{bound_host}:{bound_port}", prompts=flow.num_prompts)
    # A daemon: nobody waits for it at the end, and its workers end with this process.
    threading.Thread(target=_check_golds, args=(golds,), name="golds", daemon=True).start()
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = server.force_exit = True  # idle keep-alive connections do not count
    await asyncio.wait([tasks[0]], timeout=6)
    for task in tasks[1:]:
        task.cancel()
    store.close()
    for task in done:
        task.result()  # raises what ended the service, if something did


def _check_golds(sets: Mapping[str, Mapping[str, str]]) -> None:
    """Report golds that would be paid for their own text only, while the run goes on."""
    for name, golds in sets.items():
        report_golds(name, golds)


def _load_flow(recipe: Recipe, store: Store) -> tuple[Flow, dict[str, dict[str, str]]]:
    """Load every dataset; return the flow, and the golds of those that are not built in."""
    root = Path(recipe.data.root) if recipe.data.root else None
    train = load_prompts(
        recipe.data.train, root=root, columns=recipe.data.columns, max_rows=recipe.data.max_rows
    )
    log.info("%d prompts from %s; dropped %s", len(train.prompts), train.source, train.dropped)
    sets = {
        name: load_prompts(name, root=root, max_rows=recipe.evaluation.max_rows)
        for name in recipe.evaluation.datasets
    }
    golds = {
        loaded.name: {prompt.id: prompt.answer for prompt in loaded.prompts}
        for loaded in (train, *sets.values())
        if loaded.source != "built in"
    }
    evaluated = {name: loaded.prompts for name, loaded in sets.items()}
    dataset = f"{train.name}:{train.sha256}"
    return Flow(recipe, train.prompts, evaluated, store, dataset=dataset), golds
