"""How fast and how safely this machine grades: integers, real golds, formulas, bombs."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.grading.math_answers import grade_quickly
from astraflow.grading.pool import GradingPool
from astraflow.grading.reward import GradeRequest
from astraflow.records import Outcome

__all__ = ["Throughput", "measure_bombs", "measure_golds", "measure_integers", "respell"]

_BOMBS = (
    r"9^{9^{9^{9}}}",
    r"\binom{10^{9}}{5 \cdot 10^{8}}",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k^{3}}",
    r"\sum_{k=1}^{900} \frac{x^{k}}{k+y}",
    r"\prod_{k=1}^{100000} (x+k)",
    r"x^{n+10^{10}}",
    r"e^{e^{e^{e^{10}}}}",
    r"\int_0^1 \frac{\sin(x^3+\cos(x^5))}{\sqrt{1+x^7+\ln(2+x)}} dx",
    r"\int \frac{\sin(x^3)}{x^5+1} dx",
    r"((((x^2+1)^{20}+1)^{20}+1)^{20}+1)^{20}",
    r"\lim_{x \to 0} \frac{\sin(\tan x)-\tan(\sin x)}{x^7}",
    "1" + "+1" * 900,
    "x" * 1200,
    "(" * 300 + "1" + ")" * 300,
    "7" * 1900,
    r"\sqrt{" * 60 + "2" + "}" * 60,
)
"""Answers that would hold computer algebra for seconds to centuries."""


_NO_SUM = (
    ",", "=", "<", ">", ":", "%", "\\text", "\\mbox", "\\in", "\\le", "\\ge", "\\pm", "\\circ",
    "\\begin", "\\$",
)  # fmt: skip
"""Signs of golds that are no number: intervals, units, matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One measurement."""

    name: str
    """What was graded."""

    answers: int
    """Answers (count)."""

    wrong_verdicts: int
    """Answers whose verdict was not the right one (count)."""

    wall_s: float
    """From the first answer to the last verdict, workers started before (s)."""

    timed_out: int = 0
    """Answers that met the hard limit (count)."""

    slowest_s: float = 0.0
    """The longest that one answer took (s)."""

    memory_start_bytes: int = 0
    """Resident memory after a tenth of the answers, with all workers (bytes)."""

    memory_end_bytes: int = 0
    """Resident memory at the end, with all workers (bytes)."""

    @property
    def answers_per_s(self) -> float:
        """Rate."""
        return self.answers / self.wall_s


def measure_integers(*, answers: int, workers: int) -> Throughput:
    """Grade integers in boxes, every second one wrong."""
    draw = random.Random(1)
    numbers = [draw.randrange(-(10**6), 10**6) for _ in range(answers)]
    requests = [
        GradeRequest(gold=str(n), completion=f"so it is \\boxed{{{n + index % 2}}}.")
        for index, n in enumerate(numbers)
    ]
    return _measure("integers", requests, [index % 2 == 0 for index in range(answers)], workers)


def measure_golds(golds: Sequence[str], *, answers: int, workers: int, algebra: bool) -> Throughput:
    r"""
    Grade golds against themselves in other spellings, mixed.

    Args:
        golds: Golds of a real dataset.
        answers: Pairs; the golds are gone through again and again (count).
        workers: Processes for formulas (count).
        algebra: Take only golds that are formulas, and write each answer as a sum with zero, so
            that no textual shortcut applies.
    """
    if algebra:
        golds = [gold for gold in golds if _is_formula(gold)]
    pairs = [(golds[i % len(golds)], i // len(golds)) for i in range(answers)]
    random.Random(1).shuffle(pairs)
    written = [_sum(gold, turn) if algebra else respell(gold, turn) for gold, turn in pairs]
    requests = [
        GradeRequest(gold=gold, completion=rf"Thus \boxed{{{answer}}}")
        for (gold, _), answer in zip(pairs, written, strict=True)
    ]
    name = "formulas through computer algebra" if algebra else "golds against themselves"
    return _measure(name, requests, [True] * answers, workers)


def measure_bombs(*, bombs: int, ordinary: int, workers: int) -> Throughput:
    """Grade ordinary answers, right and wrong, with bombs spread among them."""
    draw = random.Random(1)
    tasks = [(_ordinary(draw, index), index % 3 != 2) for index in range(ordinary)]
    for index in range(bombs):
        bomb = rf"\boxed{{{_BOMBS[index % len(_BOMBS)]}}}"
        tasks.append((GradeRequest(gold="4", completion=bomb), False))
    draw.shuffle(tasks)
    return _measure(
        f"{bombs} bombs among ordinary answers",
        [t[0] for t in tasks],
        [t[1] for t in tasks],
        workers,
    )


def respell(gold: str, turn: int) -> str:
    """Write a gold in one of four ways that mean the same."""
    ways = (gold, gold.replace("\\frac", "\\dfrac"), f" {gold} .", f"${gold}$")
    return ways[turn % len(ways)]


def _sum(gold: str, turn: int) -> str:
    return f"{turn}+({gold})-{turn}"


def _is_formula(gold: str) -> bool:
    """Say whether a gold is one formula that only computer algebra can compare with a sum."""
    plain = not any(sign in gold for sign in _NO_SUM)
    return plain and grade_quickly(gold=gold, completion=rf"\boxed{{{_sum(gold, 1)}}}") is None


def _ordinary(draw: random.Random, index: int) -> GradeRequest:
    """Make a small answer: an integer, a fraction or a formula; each third one is wrong."""
    off = 1 if index % 3 == 2 else 0
    a, b = draw.randrange(2, 999), draw.randrange(2, 999)
    kind = index % 4
    if kind == 0:
        return GradeRequest(gold=str(a), completion=rf"\boxed{{{a + off}}}")
    if kind == 1:
        return GradeRequest(gold=rf"\frac{{{a}}}{{{b}}}", completion=rf"\boxed{{{a + off}/{b}}}")
    if kind == 2:
        return GradeRequest(gold=rf"{a}\sqrt{{7}}", completion=rf"\boxed{{\sqrt{{7}}*{a + off}}}")
    return GradeRequest(gold=f"{a}x+{b}", completion=rf"\boxed{{{b + off}+{a}x}}")


def _measure(
    name: str, requests: Sequence[GradeRequest], expected: Sequence[bool], workers: int
) -> Throughput:
    pool = GradingPool(workers=workers)
    pool.warm_up()
    # the first formula waits for the workers' start, which is not what is measured
    list(pool.grade_many([GradeRequest(gold="x+1", completion=r"\boxed{1+x}")] * workers))
    mistakes = timed_out = 0
    slowest_s = 0.0
    memory_bytes = [0, 0]
    started_s = time.perf_counter()
    try:
        for index, result in enumerate(pool.grade_many(requests)):
            mistakes += (result.outcome is Outcome.RIGHT) is not expected[index]
            timed_out += result.outcome is Outcome.TIMED_OUT
            slowest_s = max(slowest_s, result.graded_s)
            if index == len(requests) // 10:
                memory_bytes[0] = pool.memory_bytes()
        wall_s = time.perf_counter() - started_s
        memory_bytes[1] = pool.memory_bytes()
    finally:
        pool.shut_down()
    return Throughput(
        name=name,
        answers=len(requests),
        wrong_verdicts=mistakes,
        wall_s=wall_s,
        timed_out=timed_out,
        slowest_s=slowest_s,
        memory_start_bytes=memory_bytes[0],
        memory_end_bytes=memory_bytes[1],
    )
