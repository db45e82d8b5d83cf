"""Grade four answers in the process that grades a run, so that a broken parser shows now."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator

from astraflow.doctor.finding import Finding, Subject, fail, ok, skipped
from astraflow.errors import NotReadyError
from astraflow.grading import GradeRequest
from astraflow.grading.process import GradingProcess, WorkerDiedError, WorkerHungError
from astraflow.records import Outcome

__all__ = ["examine_grader"]

_TIMEOUT_S = 10.0
_CURE = "`pip install 'astraflow-rl[train]'` into a fresh environment"
# The third needs the LaTeX parser, which is what a wrong antlr breaks.
_CASES = (
    (r"\frac{1}{2}", r"so it is \boxed{0.5}", Outcome.RIGHT),
    ("7", r"\boxed{8}", Outcome.WRONG),
    (r"\frac{\sqrt{3}}{3}", r"\boxed{\frac{1}{\sqrt{3}}}", Outcome.RIGHT),
    ("7", "it is seven", Outcome.NO_ANSWER),
)


def examine_grader(subject: Subject) -> Iterator[Finding]:
    """Start a grading worker, ask it, and end it."""
    if importlib.util.find_spec("math_verify") is None:
        yield skipped("grader", "math_verify is not installed", _CURE)
        return
    process, started = GradingProcess(), time.perf_counter()
    try:
        process.start()
        for gold, completion, right in _CASES:
            request = GradeRequest(gold=gold, completion=completion)
            outcome = process.ask(request, timeout_s=_TIMEOUT_S)
            if outcome != right:
                found = f"`{completion}` against `{gold}` is {outcome.value}, not {right.value}"
                yield fail("grader", found, _CURE)
                return
    except NotReadyError as error:
        yield fail("grader", error.what, f"{error.hint}; {_CURE}")
    except (WorkerDiedError, WorkerHungError) as error:
        what = str(error) or f"an answer took more than {_TIMEOUT_S:g} s"
        yield fail("grader", what, _CURE)
    else:
        took_s = time.perf_counter() - started
        yield ok("grader", f"{len(_CASES)} answers graded right, {took_s:.1f} s with its start")
    finally:
        process.kill()
