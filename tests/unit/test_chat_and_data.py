"""Prompts as a model reads them, and datasets as people have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.data import load_prompts
from astraflow.data.chat import PromptRenderer, load_tokenizer, stop_ids
from astraflow.errors import DataError, RecipeError
from astraflow.testing import tiny_model_path

_SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
_QWEN = _SHARED / "tokenizers" / "qwen3"
_needs_shared = pytest.mark.skipif(not _QWEN.is_dir(), reason="../shared/data is not here")


class _Twice:
    """A tokenizer whose template writes a start token that it adds once more itself."""

    chat_template = "x"
    eos_token_id = 2
    bos_token_id = 1

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> list[int]:
        return [1, 1, 7, 8]

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        return ""


def _file(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_start_token_stands_once() -> None:
    renderer = PromptRenderer(_Twice(), model="m")
    assert renderer.render("2+2", instruction="", thinking=False) == (1, 7, 8)


def test_base_model_without_template_is_refused_with_the_cure() -> None:
    bare = _Twice()
    bare.chat_template = ""
    with pytest.raises(RecipeError) as raised:
        PromptRenderer(bare, model="some/base")
    assert "-Instruct" in raised.value.hint


@_needs_shared
def test_thinking_off_closes_an_empty_block_in_the_prompt() -> None:
    tokenizer = load_tokenizer(str(_QWEN))
    renderer = PromptRenderer(tokenizer, model="qwen")
    off = tokenizer.decode(renderer.render("2+2?", instruction="Box it.", thinking=False))
    on = tokenizer.decode(renderer.render("2+2?", instruction="Box it.", thinking=True))
    assert off.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert on.endswith("<|im_start|>assistant\n")
    assert "2+2?\nBox it.<|im_end|>" in off


def test_every_end_token_that_a_checkpoint_names_stops(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 128001}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128001, 128009]}')
    assert stop_ids(_Twice(), str(tmp_path)) == (2, 128001, 128009)


def test_shipped_model_stops_at_the_end_of_its_turn() -> None:
    tokenizer = load_tokenizer(str(tiny_model_path()))
    assert tokenizer.eos_token_id in stop_ids(tokenizer, str(tiny_model_path()))


def test_golds_become_text_and_duplicates_are_counted(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        {"problem": "a", "answer": 33},
        {"problem": "b", "answer": ["70"]},
        {"problem": "a", "answer": "33"},
    )
    loaded = load_prompts(str(path))
    assert [prompt.answer for prompt in loaded.prompts] == ["33", "70"]
    assert loaded.dropped == {"duplicate": 1}


@pytest.mark.parametrize("answer", [None, "", [], ["1", "2"]])
def test_row_without_a_gold_is_refused_with_its_number(tmp_path: Path, answer: object) -> None:
    path = _file(tmp_path, {"problem": "a", "answer": "1"}, {"problem": "b", "answer": answer})
    with pytest.raises(DataError, match="row 2"):
        load_prompts(str(path))


def test_missing_column_names_those_there_are(tmp_path: Path) -> None:
    path = _file(tmp_path, {"question": "a", "answer": "1"})
    with pytest.raises(DataError) as raised:
        load_prompts(str(path))
    assert "question" in raised.value.hint


def test_known_set_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    rows = [{"problem": f"p{i}", "answer": "1"} for i in range(15)]
    (tmp_path / "aime24.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="has 30 problems"):
        load_prompts("aime24", root=tmp_path)


def test_empty_file_is_an_error_and_not_an_empty_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no usable row"):
        load_prompts(str(_file(tmp_path)))


def test_additions_that_are_held_out_are_never_trained_on() -> None:
    train = {prompt.problem for prompt in load_prompts("additions").prompts}
    held_out = {prompt.problem for prompt in load_prompts("additions_test").prompts}
    assert len(train) == 7600
    assert len(held_out) == 500
    assert not train & held_out


@_needs_shared
@pytest.mark.parametrize(
    ("name", "rows"),
    [("aime24", 30), ("aime25", 30), ("amc23", 40), ("minerva_math", 272), ("math500", 500),
     ("deepscaler", 38046), ("gsm8k", 7473)],
)  # fmt: skip
def test_known_sets_load_from_a_local_folder_by_name(name: str, rows: int) -> None:
    assert len(load_prompts(name, root=_SHARED / "math").prompts) == rows


def test_set_that_is_not_here_is_an_error_at_once_when_offline(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    code = "from astraflow.data import load_prompts; load_prompts('amc', offline=True)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 1
    assert "astraflow data fetch amc" in done.stderr
