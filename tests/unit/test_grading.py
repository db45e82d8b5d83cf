"""Grading: the settled policies, every row of the shared cases, and killable workers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from astraflow.grading import GradeRequest, GradingPool, check_gold, grade
from astraflow.grading.math_answers import gold_text
from astraflow.records import Outcome

_CASES = Path(__file__).parents[2] / ".." / "shared" / "cases" / "grading.jsonl"
# Where people differ, the settled policies decide: the last box counts, `boxed` pays only a box,
# a relative tolerance of 1e-6 holds for decimals.
_SETTLED = {"A010": 0, "A068": 1, "A140": 0, "A169": 0, "A210": 0, "A211": 0, "A221": 1}
_TOWER = r"\boxed{9^{9^{9^{9^{9}}}}}"


@pytest.mark.skipif(not _CASES.is_file(), reason="../shared/cases is not beside this checkout")
def test_every_shared_case_is_graded_as_settled() -> None:
    rows = [json.loads(line) for line in _CASES.read_text(encoding="utf-8").splitlines()]
    pool = GradingPool(workers=2)
    requests = [GradeRequest(gold=gold_text(r["gold"]), completion=r["completion"]) for r in rows]
    results = list(pool.grade_many(requests))
    pool.shut_down()
    wrong = [
        row["id"]
        for row, result in zip(rows, results, strict=True)
        if result.reward != _SETTLED.get(row["id"], row["expected"])
    ]
    assert wrong == []
    assert max(result.graded_s for result in results) < 3.5


@pytest.mark.parametrize(
    ("gold", "completion", "answer", "outcome"),
    [
        ("7", r"so \boxed{7}", "boxed", Outcome.RIGHT),
        ("7", r"first \boxed{7}, no: \boxed{8}", "boxed", Outcome.WRONG),
        ("7", "the answer is 7", "boxed", Outcome.NO_ANSWER),
        ("7", "the answer is 7", "any", Outcome.RIGHT),
        ("7", r"so \boxed{7", "boxed", Outcome.NO_ANSWER),
        ("24", r"\boxed 24", "boxed", Outcome.NO_ANSWER),
        ("1200", "#### 1,200", "any", Outcome.RIGHT),
        ("33", "there are 33 of them", "any", Outcome.NO_ANSWER),
        ("1.6", r"\boxed{1.61}", "boxed", Outcome.WRONG),
        ("4", r"2+2=4</think>\n\n\boxed{4}", "boxed", Outcome.RIGHT),
        (r"\frac{1}{2}", r"\boxed{0.5}", "boxed", Outcome.RIGHT),
    ],
)
def test_policy_decides(gold: str, completion: str, answer: str, outcome: Outcome) -> None:
    found, reward = grade(gold=gold, completion=completion, answer=answer)  # type: ignore[arg-type]
    assert found is outcome
    assert reward == float(outcome is Outcome.RIGHT)


def test_cut_answer_pays_only_for_a_box_closed_before_the_cut() -> None:
    closed = grade(gold="7", completion=r"\boxed{7} and then", truncated=True)
    assert closed == (Outcome.RIGHT, 1.0)
    assert grade(gold="7", completion=r"so \boxed{7", truncated=True)[1] == 0.0


@pytest.mark.parametrize("value", [33, 33.0, ["33"], b"33", "33"])
def test_gold_of_any_common_type_becomes_text(value: object) -> None:
    assert grade(gold=value, completion=r"\boxed{33}")[1] == 1.0


def test_gold_that_says_nothing_cannot_be_matched() -> None:
    assert not check_gold("see figure")
    assert not check_gold(None)
    assert check_gold(r"\frac{3}{4}")


async def test_tower_of_powers_costs_its_own_answer_and_no_other() -> None:
    pool = GradingPool(workers=2, timeout_s=1.0)
    requests = [GradeRequest(gold=str(n), completion=rf"\boxed{{{n}}}") for n in range(20)]
    requests += [GradeRequest(gold=r"x^2+1", completion=r"\boxed{1+x^2}")] * 5
    requests.insert(3, GradeRequest(gold="1", completion=_TOWER))
    results = await pool.grade(requests)
    await pool.close()
    assert results[3].reward == 0.0
    assert all(result.reward == 1.0 for i, result in enumerate(results) if i != 3)


async def test_event_loop_keeps_its_turn_while_formulas_are_graded() -> None:
    pool = GradingPool(workers=1, timeout_s=1.0)
    slow = asyncio.create_task(pool.grade([GradeRequest(gold="x", completion=_TOWER)] * 3))
    turns = 0
    while not slow.done():
        await asyncio.sleep(0.01)
        turns += 1
    await pool.close()
    assert turns >= 1


def test_closing_the_pool_with_a_hung_answer_is_quick() -> None:
    pool = GradingPool(workers=1, timeout_s=60.0)
    pool.warm_up()
    request = GradeRequest(gold=r"\sqrt{2}", completion=r"\boxed{\sqrt{2}+\sqrt{3}}")
    thread = threading.Thread(target=lambda: list(pool.grade_many([request])), daemon=True)
    thread.start()
    thread.join(30)
    started = time.monotonic()
    pool.shut_down()
    assert time.monotonic() - started < 5


def test_code_in_an_answer_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for text in (
        f"__import__('os').system('touch {marker}')",
        f"open('{marker}','w').write('x')",
        rf"\text{{__import__('pathlib').Path('{marker}').touch()}}",
    ):
        grade(gold="x+1", completion=rf"\boxed{{{text}}}")
    assert not marker.exists()
