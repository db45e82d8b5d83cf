"""Grading rules on rows of every kind, golds that verify, ballots, and answers that hang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow.grading import GradeRequest, GradingPool, check_gold, grade, unverified_golds
from astraflow.grading.boxes import AnswerPlace
from astraflow.grading.datasets import vote_of
from astraflow.grading.limits import TooLargeError, check_symbolic
from astraflow.grading.math_answers import ballot, gold_text, grade_at_once
from astraflow.grading.throughput import measure_bombs, measure_golds, measure_integers
from astraflow.records import FinishReason, Outcome

_ROWS = Path(__file__).parent / "data" / "grading_rows.jsonl"
_MATH = Path(__file__).parents[2] / ".." / "shared" / "data" / "math"


def test_every_row_of_every_kind_is_graded_right_and_within_the_limit() -> None:
    rows = [json.loads(line) for line in _ROWS.read_text(encoding="utf-8").splitlines()]
    pool = GradingPool(workers=2)
    requests = [GradeRequest(gold=gold_text(r["gold"]), completion=r["completion"]) for r in rows]
    results = list(pool.grade_many(requests))
    pool.shut_down()
    wrong = [
        (row["gold"], row["completion"], result.outcome.value)
        for row, result in zip(rows, results, strict=True)
        if result.reward != row["expected"]
    ]
    assert wrong == []
    assert max(result.graded_s for result in results) < 3.5


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("17", r"\text{not }17"),
        ("17", r"\text{at most }17"),
        ("17", r"17\text{ is wrong}"),
        ("17", r"17\text{ or more}"),
        ("17", r"\ne 17"),
        ("17", r"\not= 17"),
        ("5", r"\text{January }5"),
        ("2 million", "2"),
        (r"5\text{ years old}", r"5\text{ months old}"),
        (r"20\%\text{ increase}", r"20\%\text{ decrease}"),
        (r"\angle ABC", r"\angle ACB"),
        (r"|x|", "x"),
        (r"\ln|x|", r"\ln x"),
        (r"\sum_{k=1}^{n} k", r"\sum_{k=1}^{n} k^2"),
    ],
)
def test_answer_that_says_something_else_is_not_paid(gold: str, answer: str) -> None:
    assert grade(gold=gold, completion=rf"\boxed{{{answer}}}")[1] == 0.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"),
        ("n!", r"\prod_{k=1}^{n} k"),
        (r"\ln(ab)", r"\ln a + \ln b"),
        (r"\frac{1}{2}", r"\sin 30^\circ"),
        ("0.5", r"\frac{1}{2} \text{ OR } 0.5"),
        (r"\frac{1}{2}, \frac{-1 \pm \sqrt{13}}{4}", r"\frac{\pm\sqrt{13}-1}{4}, 0.5"),
        (r"(x,y)=(1,2)", "x=1, y=2"),
        ("(2,5)", "]2,5["),
        (r"\frac{5}{9}", r"\\frac{5}{9}"),
        ("7", r"7^{\text{th}}"),
        ("2500000000", "2.5 billion"),
        (r"\frac{1}{6}", "0.1(6)"),
        (r"\frac{2}{11}", r"0.\dot{1}\dot{8}"),
    ],
)
def test_same_answer_in_another_form_is_paid(gold: str, answer: str) -> None:
    assert grade(gold=gold, completion=rf"\boxed{{{answer}}}")[1] == 1.0


def test_identical_text_pays_however_large_it_is() -> None:
    tower = "9^{9^{9^{9}}}"
    assert grade(gold=tower, completion=rf"\boxed{{{tower}}}")[1] == 1.0
    assert grade(gold="see figure", completion=r"\boxed{see figure}")[1] == 0.0


@pytest.mark.parametrize(
    "formula",
    [
        r"9^{9^{9^{9^{9}}}}",
        r"\sum_{k=1}^{900} \frac{x^{k}}{k}",
        r"\int \sin(x^3) dx",
        r"\frac{x}{" * 20 + "2" + "}" * 20,
        r"(10!)!",
    ],
)
def test_formula_beyond_the_limits_is_refused_before_algebra_sees_it(formula: str) -> None:
    with pytest.raises(TooLargeError):
        check_symbolic(formula)


@pytest.mark.parametrize(
    "formula",
    [r"\sum_{k=1}^{100} \frac{x^{k}}{k}", r"\int_0^1 x^2 dx", r"\frac{2x}{3}", "5^{6.29248125}"],
)
def test_ordinary_formula_is_within_the_limits(formula: str) -> None:
    check_symbolic(formula)


def test_golds_that_do_not_verify_are_named_with_what_went_wrong() -> None:
    golds = {
        "a": "12",
        "b": r"\frac{1}{2}",
        "c": r"3,-\frac{3}{2",
        "d": "N/A",
        "e": "4:40 a.m.",
        "f": r"x^{2}+1",
        "g": r"\text{Thursday}",
    }
    assert unverified_golds(golds) == {
        "c": Outcome.GOLD_UNPARSABLE,
        "d": Outcome.GOLD_UNPARSABLE,
    }
    assert all(check_gold(golds[key]) for key in "abefg")


@pytest.mark.skipif(not _MATH.is_dir(), reason="../shared/data is not beside this checkout")
def test_every_gold_of_math500_verifies_against_itself() -> None:
    lines = (_MATH / "math500.jsonl").read_text(encoding="utf-8").splitlines()
    assert unverified_golds({str(i): json.loads(t)["answer"] for i, t in enumerate(lines)}) == {}


def test_votes_count_numbers_by_value_and_formulas_by_spelling() -> None:
    assert ballot("0.5") == ballot(r"\frac12") == ballot(r"\dfrac{1}{2}")
    assert ballot("x + 1") == ballot("x+1")
    assert ballot("2") != ballot("3")
    assert ballot("") == ""


async def test_answer_that_hung_once_is_not_waited_for_again() -> None:
    pool = GradingPool(workers=1, timeout_s=0.3)
    # 1,200 letters are one product: the parser alone needs longer than this pool allows
    bomb = [GradeRequest(gold="x+1", completion=rf"{i} \boxed{{{'xy' * 600}}}") for i in range(9)]
    results = await pool.grade(bomb)
    await pool.close()
    assert {result.reward for result in results} == {0.0}
    if results[0].outcome is Outcome.TIMED_OUT:
        assert sum(result.graded_s > 0.25 for result in results) == 1


def test_measurements_find_no_wrong_verdict_in_small() -> None:
    golds = [r"\frac{1}{2}", "12", r"2\sqrt{3}", r"(1,2)"]
    assert measure_integers(answers=200, workers=1).wrong_verdicts == 0
    assert measure_golds(golds, answers=16, workers=1, algebra=False).wrong_verdicts == 0
    assert measure_golds(golds, answers=4, workers=1, algebra=True).wrong_verdicts == 0
    assert measure_bombs(bombs=4, ordinary=40, workers=1).wrong_verdicts == 0


_BACKTRACKS = (
    "3 " + "a" * 60 + "!",
    "12" + "ab" * 500 + "7?",
    "\\" * 400 + "x",
    "<answer>" * 3000,
    "the answer is " + " " * 30_000 + "x. " * 20,
    "#### " * 5000,
    "0_" + " " * 1500 + "z",
    "{" * 1500,
    "5 km/h " * 200 + "!",
)


@pytest.mark.parametrize("text", _BACKTRACKS)
@pytest.mark.parametrize("place", ["boxed", "any"])
def test_no_text_makes_an_event_loop_wait(text: str, place: AnswerPlace) -> None:
    # A reader that backtracks would take minutes to centuries: the suite's limit ends it.
    for completion in (text, rf"so \boxed{{{text}}}", f"so #### {text}"):
        quick = grade_at_once(gold="12 km", completion=completion, answer=place)
        assert quick is None or quick[0] is not Outcome.RIGHT
        vote_of(completion, finish=FinishReason.STOP, place=place)


def test_only_digits_and_the_golds_own_text_are_graded_in_the_event_loop() -> None:
    assert grade_at_once(gold="72", completion=r"\boxed{72}") == (Outcome.RIGHT, 1.0)
    assert grade_at_once(gold="0.5", completion=r"\boxed{\frac{1}{2}}") == (Outcome.RIGHT, 1.0)
    assert grade_at_once(gold="x+1", completion=r"\boxed{x+1}") == (Outcome.RIGHT, 1.0)
    assert grade_at_once(gold="72", completion="no box") == (Outcome.NO_ANSWER, 0.0)
    assert grade_at_once(gold="3 km", completion=r"\boxed{3 kilometers}") is None


def test_long_unit_like_words_are_graded_and_wrong() -> None:
    completion = rf"\boxed{{7 {'metersandfeet' * 9}!}}"
    assert grade(gold="72", completion=completion) == (Outcome.WRONG, 0.0)
