"""Sample and grade every problem; each is on disk as soon as it is done, so a stop loses little."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from astraflow.data import PromptSet, load_prompts
from astraflow.dataflow.prompts import PromptOrder
from astraflow.errors import AstraFlowError, RecipeError
from astraflow.evaluation.answers import write_answers
from astraflow.evaluation.markdown import to_markdown
from astraflow.evaluation.plan import EvaluationPlan, stand_in_recipe
from astraflow.evaluation.results import GENERATIONS, PLAN, read_rows, summarize
from astraflow.grading import report_golds
from astraflow.raas.service import build_engine, build_workflow
from astraflow.raas.workflow import Workflow
from astraflow.records import Prompt, SampleGroup
from astraflow.wire.messages import Lease

__all__ = ["Progress", "run_evaluation"]

_START_WITHIN_S = 900.0
_RESULTS = "results.json"
_TABLE = "results.md"
# Problems in flight: enough for any engine's batch, and little that a stop would lose.
_IN_FLIGHT_SAMPLES = 512


class Progress(Protocol):
    """Shows how far one dataset is."""

    def advance(self) -> None:
        """Note that one more problem is done."""
        ...


ShowProgress = Callable[[str, int, int], AbstractContextManager[Progress]]
"""Makes a progress of a dataset's name, its problems and how many of them are done already."""


def run_evaluation(plan: EvaluationPlan, folder: Path, *, progress: ShowProgress) -> dict[str, Any]:
    """
    Run an evaluation, or what is left of it, and return its results.

    Args:
        plan: What is evaluated.
        folder: Where generations and results are kept; one that exists is continued.
        progress: Shows how far each dataset is.

    Raises:
        RecipeError: the folder holds another evaluation, or a dataset is named twice.
        DataError: a dataset cannot be loaded.
    """
    started_s = time.monotonic()
    _check_names(plan.datasets)
    sets = [load_prompts(name, root=plan.root, max_rows=plan.max_rows) for name in plan.datasets]
    _claim(folder, plan, {loaded.name: loaded.sha256 for loaded in sets})
    unverified = {
        loaded.name: len(report_golds(loaded.name, {p.id: p.answer for p in loaded.prompts}))
        for loaded in sets
    }
    asyncio.run(_sample_all(plan, sets, folder, progress))
    results = summarize(
        plan, sets, folder, unverified=unverified, wall_s=time.monotonic() - started_s
    )
    (folder / _RESULTS).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (folder / _TABLE).write_text(to_markdown(results), encoding="utf-8")
    write_answers(folder, version=plan.version)
    return results


def _check_names(datasets: Sequence[str]) -> None:
    if not datasets:
        raise RecipeError("no dataset was named", hint="`--datasets math500,aime24`")
    twice = [name for name, count in Counter(datasets).items() if count > 1]
    if twice:
        raise RecipeError(
            f"`--datasets` names `{twice[0]}` more than once", hint="name each dataset once"
        )


def _claim(folder: Path, plan: EvaluationPlan, sha256: dict[str, str]) -> None:
    """Write down what this folder is for, or check that it is for the same."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PLAN
    if not path.is_file():
        facts = {**plan.to_json(), "sha256": sha256}
        path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    facts = {**plan.identity(), "sha256": sha256}
    different = [key for key, value in facts.items() if known.get(key) != value]
    if different:
        raise RecipeError(
            f"`{folder}` holds an evaluation with another {', '.join(different)}",
            hint="give another folder with `--out`",
        )


async def _sample_all(
    plan: EvaluationPlan,
    sets: Sequence[PromptSet],
    folder: Path,
    progress: ShowProgress,
) -> None:
    # a problem that failed is tried again
    done = {(row["dataset"], row["id"]) for row in read_rows(folder) if not row["failed"]}
    todo = {
        loaded.name: [p for p in loaded.prompts if (loaded.name, p.id) not in done]
        for loaded in sets
    }
    if not any(todo.values()):
        return
    recipe = stand_in_recipe(plan)
    gpus = tuple(range(plan.gpus))
    engine = build_engine(recipe, gpus=gpus, run_folder=folder, run_id=f"eval/{folder.name}")
    try:
        await engine.start(within_s=_START_WITHIN_S)
        async with build_workflow(recipe, engine) as workflow:
            with (folder / GENERATIONS).open("a", encoding="utf-8") as file:
                for loaded in sets:
                    left = len(todo[loaded.name])
                    total = len(loaded.prompts)
                    with progress(loaded.name, total, total - left) as bar:
                        async for row in _groups(plan, loaded, todo[loaded.name], workflow):
                            file.write(json.dumps(row, ensure_ascii=False) + "\n")
                            file.flush()
                            bar.advance()
    finally:
        await engine.close()


async def _groups(
    plan: EvaluationPlan, loaded: PromptSet, prompts: Sequence[Prompt], workflow: Workflow
) -> AsyncIterator[dict[str, Any]]:
    """Yield one row a problem as they finish, a bounded number at work at a time."""
    places = {prompt.id: index for index, prompt in enumerate(loaded.prompts)}
    waiting = iter(prompts)
    tasks: dict[asyncio.Task[dict[str, Any]], None] = {}
    limit = max(1, _IN_FLIGHT_SAMPLES // plan.samples)
    while True:
        for prompt in _next(waiting, limit - len(tasks)):
            lease = _lease(plan, prompt, places[prompt.id])
            tasks[asyncio.create_task(_run(workflow, lease, loaded.name))] = None
        if not tasks:
            return
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            del tasks[task]
            yield task.result()


def _next(prompts: Iterator[Prompt], count: int) -> list[Prompt]:
    taken: list[Prompt] = []
    with contextlib.suppress(StopIteration):
        while len(taken) < count:
            taken.append(next(prompts))
    return taken


def _lease(plan: EvaluationPlan, prompt: Prompt, place: int) -> Lease:
    return Lease(
        lease_id=f"{prompt.dataset}/{prompt.id}",
        purpose="evaluate",
        prompt=prompt,
        position=place,
        samples=plan.samples,
        temperature=plan.temperature,
        max_new_tokens=plan.max_new_tokens,
        # From the problem's place alone: a resumed evaluation draws what an unbroken one would.
        seed=PromptOrder(1, seed=plan.seed).seed_of(place),
    )


async def _run(workflow: Workflow, lease: Lease, dataset: str) -> dict[str, Any]:
    head = {"dataset": dataset, "id": lease.prompt.id, "gold": lease.prompt.answer}
    try:
        return {**head, "failed": "", "samples": _rows(await workflow.run(lease))}
    except AstraFlowError as error:
        return {**head, "failed": str(error), "samples": []}


def _rows(group: SampleGroup) -> list[dict[str, Any]]:
    return [
        {
            "text": sample.text,
            "outcome": sample.outcome.value,
            "reward": sample.reward,
            "finish": sample.finish.value,
            "tokens": len(sample.token_ids),
        }
        for sample in group.samples
    ]
