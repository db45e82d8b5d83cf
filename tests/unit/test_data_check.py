"""`astraflow data check` and what it counts; hub-backed sets are pinned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app, register
from astraflow.data import dataset_names, find_entry
from astraflow.data.inspection import inspect_dataset, measure_lengths
from astraflow.data.overlap import shared_problems
from astraflow.errors import DataError
from astraflow.records import Prompt
from astraflow.testing import tiny_model_path

_MATH = Path(__file__).parents[2] / ".." / "shared" / "data" / "math"
_needs_shared = pytest.mark.skipif(not _MATH.is_dir(), reason="../shared/data is not here")
_LONG = "a train leaves the station at noon and travels north at sixty miles an hour for two hours"


def _file(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _check(*arguments: str) -> list[dict[str, Any]]:
    register()
    done = CliRunner().invoke(app, ["data", "check", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return list(json.loads(done.stdout))


def test_bad_rows_are_counted_with_their_numbers_and_stop_nothing(tmp_path: Path) -> None:
    name = _file(
        tmp_path / "mine.jsonl",
        {"problem": "a", "answer": "1"},
        {"problem": "", "answer": "1"},
        {"problem": "b", "answer": None},
        {"problem": "a", "answer": "1"},
        {"problem": "a", "answer": "2"},
        {"problem": "c", "answer": "N/A"},
    )
    [report] = _check(name)
    assert report["rows"] == 6
    assert report["usable"] == 2
    assert report["empty_problems"]["rows"] == [2]
    assert report["empty_answers"]["rows"] == [3]
    assert report["duplicates"]["rows"] == [4]
    assert report["same_problem_other_answer"]["rows"] == [5]
    assert report["golds_that_do_not_verify"]["golds"] == {"mine-6": "N/A"}


def test_lengths_are_in_characters_without_a_tokenizer_and_say_so(tmp_path: Path) -> None:
    name = _file(
        tmp_path / "m.jsonl", *({"problem": "x" * n, "answer": "1"} for n in (3, 125, 300))
    )
    [report] = _check(name)
    lengths = report["prompt_length"]
    assert (lengths["unit"], lengths["median"], lengths["longest"]) == ("characters", 125, 300)
    filled = {label: count for label, count in lengths["histogram"].items() if count}
    assert filled == {"below 125": 1, "125 to 249": 1, "250 to 499": 1}


def test_lengths_are_in_tokens_of_the_rendered_prompt_with_a_tokenizer() -> None:
    [report] = _check("additions_test", "--tokenizer", str(tiny_model_path()), "--no-golds")
    assert report["prompt_length"]["unit"] == "tokens"
    # "10 + 10 = ?" has 11 characters of one token each, and the template adds to it
    assert report["prompt_length"]["median"] > 11
    assert "golds_that_do_not_verify" not in report


def test_training_set_is_compared_with_the_evaluation_sets_named_beside_it(tmp_path: Path) -> None:
    shared = {"problem": _LONG, "answer": "120"}
    other = {"problem": "how many primes lie between one and one hundred inclusive", "answer": "25"}
    train = _file(tmp_path / "train.jsonl", shared, other)
    held_out = _file(tmp_path / "held.jsonl", {**shared, "problem": _LONG + " exactly"})
    [report] = _check(train, "--against", held_out)
    assert report["overlap"][held_out] == {"problems": 1, "ids": ["train-1"]}


def _prompt(text: str) -> Prompt:
    return Prompt(id=text[:8], problem=text, answer="1", dataset="d")


def test_short_question_inside_a_long_one_is_no_overlap() -> None:
    clause = "what is the sum of the first ten primes"
    long = f"{clause} " + " ".join(f"word{i}" for i in range(40))
    assert shared_problems([_prompt(long)], [_prompt(clause)]) == []
    assert len(shared_problems([_prompt(clause)], [_prompt(clause)])) == 1


def test_histogram_counts_each_prompt_once() -> None:
    prompts = [_prompt("x" * size) for size in (1, 31, 32, 2048)]
    lengths = measure_lengths(prompts, unit="tokens", length=len)
    assert lengths.histogram["below 32"] == 2
    assert lengths.histogram["32 to 63"] == 1
    assert lengths.histogram["from 2048"] == 1
    assert (lengths.median, lengths.longest) == (31, 2048)


def test_every_hub_set_is_pinned_to_a_commit() -> None:
    entries = [find_entry(name) for name in dataset_names()]
    hub = [entry for entry in entries if entry is not None and entry.hub_id]
    assert len(hub) == 11
    assert all(re.fullmatch(r"[0-9a-f]{40}", entry.revision or "") for entry in hub)


def test_unknown_set_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        inspect_dataset("aime26", root=tmp_path)
    assert "aime25" in raised.value.hint


@_needs_shared
@pytest.mark.parametrize(
    ("name", "rows"),
    [("aime24", 30), ("aime25", 30), ("amc23", 40), ("amc83", 83), ("minerva_math", 272),
     ("math500", 500), ("olympiadbench", 675), ("gsm8k_test", 1319), ("gsm8k", 7473),
     ("deepscaler", 38046)],
)  # fmt: skip
def test_local_copies_have_the_rows_that_their_sources_page_says(name: str, rows: int) -> None:
    found = inspect_dataset(name, root=_MATH)
    assert found.rows == rows
    bad = (found.empty_problems, found.empty_answers, found.duplicates, found.contradictions)
    assert bad == ([], [], [], [])


@_needs_shared
def test_no_evaluation_problem_is_in_the_training_set() -> None:
    train = inspect_dataset("deepscaler", root=_MATH).prompts
    for name in ("math500", "aime24", "aime25", "amc83", "minerva_math", "olympiadbench"):
        assert shared_problems(train, inspect_dataset(name, root=_MATH).prompts) == []
