"""avg@k, pass@k, maj@k, intervals and comparisons, worked out by hand."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from astraflow.cli.bars import time_left
from astraflow.dataflow.store import Store
from astraflow.errors import RecipeError
from astraflow.evaluation import compare_saved, find_saved, solve_rates, to_markdown
from astraflow.evaluation.answers import read_version, write_answers
from astraflow.evaluation.results import read_problems, read_rows
from astraflow.grading.statistics import Problem, compare, pass_at_k, score
from astraflow.records import FinishReason, GradedSample, Outcome


def _problem(name: str, right: str, answers: str = "") -> Problem:
    return Problem(
        id=name, right=tuple(mark == "+" for mark in right), answers=tuple(answers.split())
    )


def test_pass_at_k_is_the_chance_of_one_right_in_k_drawn_without_return() -> None:
    # 4 samples, 2 right: both of a pair are wrong in 1 of 6 pairs
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 4, 1) == 1.0
    # fewer wrong ones than are drawn: one right is certain
    assert pass_at_k(10, 3, 8) == 1.0


def test_pass_at_more_than_was_sampled_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 2, 5)


def test_scores_of_three_problems_are_what_a_hand_finds() -> None:
    found = score(
        [
            _problem("a", "+++-", "7 7 7 8"),
            _problem("b", "+---", "1 2 2 2"),
            _problem("c", "----", "5 5 6 6"),
        ]
    )
    assert found.avg_at_k.value == pytest.approx((3 + 1 + 0) / 12)
    assert found.pass_at_k.value == pytest.approx(2 / 3)
    assert found.maj_at_k.value == pytest.approx(1 / 3)


def test_tied_votes_are_shared() -> None:
    assert score([_problem("a", "++--", "3 3 4 4")]).maj_at_k.value == 0.5
    assert score([_problem("a", "+---", "3 4 5 6")]).maj_at_k.value == 0.25


def test_samples_without_an_answer_do_not_vote() -> None:
    silent = Problem(id="a", right=(True, False, False), answers=("3", "", ""))
    assert score([silent]).maj_at_k.value == 1.0


def test_interval_of_equal_problems_has_no_width() -> None:
    found = score([_problem(str(i), "+") for i in range(20)]).avg_at_k
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_interval_is_as_wide_as_the_binomial_says() -> None:
    # 50 of 100 right: the standard error is 0.05, so 95 % lie within 0.098 of one half
    problems = [_problem(str(i), "+" if i % 2 else "-") for i in range(100)]
    found = score(problems, seed=3).avg_at_k
    assert found.low == pytest.approx(0.402, abs=0.02)
    assert found.high == pytest.approx(0.598, abs=0.02)
    assert score(problems, seed=3).avg_at_k == found


def test_comparison_pairs_problems_by_name_and_not_by_place() -> None:
    before = [_problem("a", "--"), _problem("b", "++")]
    after = [_problem("b", "++"), _problem("a", "++")]
    found = compare(before, after)
    assert found.value == 0.5
    # a gained 1 and b nothing: a resample of two is 0, 0.5 or 1
    assert (found.low, found.high) == (0.0, 1.0)


def test_comparison_of_other_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="same problems"):
        compare([_problem("a", "+")], [_problem("b", "+")])


def _sample(outcome: str, text: str, *, finish: str = "stop", tokens: int = 5) -> dict[str, Any]:
    reward = 1.0 if outcome == "right" else 0.0
    return {
        "text": text, "outcome": outcome, "reward": reward, "finish": finish, "tokens": tokens,
    }  # fmt: skip


def _folder(path: Path, rows: dict[str, list[dict[str, Any]]], *, samples: int = 2) -> Path:
    path.mkdir()
    plan = {"samples": samples, "answer": "boxed", "sha256": {"set": "1"}}
    (path / "plan.json").write_text(json.dumps(plan))
    lines = [
        json.dumps({"dataset": "set", "id": key, "gold": "1", "failed": "", "samples": found})
        for key, found in rows.items()
    ]
    (path / "generations.jsonl").write_text("".join(line + "\n" for line in lines))
    return path


def test_answers_that_never_came_count_as_wrong(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "e", {"a": [_sample("right", r"\boxed{1}")], "b": []})
    problems = read_problems(folder)["set"]
    assert [problem.right for problem in problems] == [(True, False), (False, False)]


def test_votes_of_one_value_in_two_spellings_are_one(tmp_path: Path) -> None:
    rows = [_sample("right", r"\boxed{0.5}"), _sample("right", r"\boxed{\frac12}")]
    [problem] = read_problems(_folder(tmp_path / "e", {"a": rows}))["set"]
    assert len(set(problem.answers)) == 1


def test_line_that_a_kill_cut_is_left_out_and_removed(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "e", {"a": [_sample("right", "x")]})
    with (folder / "generations.jsonl").open("a") as file:
        file.write('{"dataset": "set", "id": "b", "samp')
    assert [row["id"] for row in read_rows(folder)] == ["a"]
    assert (folder / "generations.jsonl").read_text().endswith("}\n")


def test_newest_row_of_a_problem_that_failed_and_was_tried_again_counts(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "e", {"a": []})
    again = {
        "dataset": "set",
        "id": "a",
        "gold": "1",
        "failed": "",
        "samples": [_sample("right", "x")],
    }
    with (folder / "generations.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert [len(row["samples"]) for row in read_rows(folder)] == [1]


def test_evaluation_and_run_write_the_same_table(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "e", {"a": [_sample("right", "x"), _sample("wrong", "y")], "b": []})
    write_answers(folder, version=7)
    assert solve_rates(folder / "results.sqlite") == {"set": {"a": {7: 0.5}}}
    store = Store(tmp_path / "rollouts.sqlite")
    for version, outcomes in ((0, "wrong wrong"), (5, "right wrong")):
        store.add_answers(
            [_graded(outcome) for outcome in outcomes.split()],
            version=version, dataset="set", prompt_id="a",
        )  # fmt: skip
    store.close()
    assert solve_rates(tmp_path / "rollouts.sqlite") == {"set": {"a": {0: 0.0, 5: 0.5}}}
    assert read_version(tmp_path / "rollouts.sqlite", 5)["set"][0].right == (True, False)


def _graded(outcome: str) -> GradedSample:
    return GradedSample(
        token_ids=(1,), logprobs=(0.0,), versions=(0,), finish=FinishReason.STOP,
        reward=float(outcome == "right"), outcome=Outcome(outcome),
    )  # fmt: skip


def test_saved_evaluations_of_a_run_are_found_by_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "rollouts.sqlite")
    for version, outcome in ((0, "wrong"), (9, "right")):
        store.add_answers([_graded(outcome)], version=version, dataset="set", prompt_id="a")
    store.close()
    before, after = find_saved(f"{tmp_path}@0"), find_saved(str(tmp_path))
    assert before is not None
    assert after is not None
    assert compare_saved(before, after, seed=1)["set"]["value"] == 1.0
    with pytest.raises(RecipeError) as raised:
        find_saved(f"{tmp_path}@3")
    assert "0, 9" in raised.value.hint
    assert find_saved(str(tmp_path / "absent")) is None


def test_evaluations_without_a_common_problem_are_not_compared(tmp_path: Path) -> None:
    one = find_saved(str(_folder(tmp_path / "one", {"a": []})))
    other = find_saved(str(_folder(tmp_path / "other", {"b": []})))
    assert one is not None
    assert other is not None
    with pytest.raises(RecipeError, match="share no problem"):
        compare_saved(one, other, seed=1)


def test_solve_rates_of_training_groups_are_in_the_store(tmp_path: Path) -> None:
    Store(tmp_path / "rollouts.sqlite").close()
    with sqlite3.connect(tmp_path / "rollouts.sqlite") as db:
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
    assert names == {"solve_rates", "training_solve_rates"}


def test_markdown_has_intervals_settings_and_the_comparison() -> None:
    interval = {"value": 0.5, "low": 0.25, "high": 0.75}
    row = {
        "problems": 4, "avg_at_k": interval, "pass_at_k": interval, "maj_at_k": interval,
        "truncated_frac": 0.125, "no_answer_frac": 0.0, "failed": 0, "answer_tokens_mean": 9.4,
    }  # fmt: skip
    text = to_markdown(
        {
            "label": "m", "samples": 2, "temperature": 0.6, "max_new_tokens": 64, "seed": 1,
            "datasets": {"set": row}, "sha256": {"set": "ab" * 32}, "versions": {"torch": "2"},
            "compared": {
                "before": "x", "after": "m", "datasets": {"set": {**interval, "problems": 4}},
            },
        }
    )  # fmt: skip
    assert "| set | 4 | 50.0 % (25.0 to 75.0) |" in text
    assert "| 12.5 % | 0.0 % | 0 | 9 tokens |" in text
    assert "m minus x, paired:" in text
    assert "temperature 0.6, at most 64 tokens, seed 1" in text


def test_time_left_is_told_once_a_tenth_is_done() -> None:
    assert time_left(done=1, left=99, elapsed_s=60.0) == "time left not known yet"
    # 10 in 60 s, so 90 more take 540 s
    assert time_left(done=10, left=90, elapsed_s=60.0) == "9 min 0 s left"
    assert time_left(done=90, left=10, elapsed_s=90.0) == "10 s left"
