"""A checkpoint is whole or it is not one; the last whole one is never removed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from astraflow.errors import RecipeError
from astraflow.trainer.checkpoints import (
    Checkpoint,
    begin,
    commit,
    find_checkpoint,
    prune,
    verify,
)


def _save(folder: Path, step: int, *, content: bytes = b"weights") -> Checkpoint:
    scratch = begin(folder, step=step)
    (scratch / "trainer" / "rank-0.safetensors").write_bytes(content + bytes([step % 256]))
    (scratch / "dataflow.msgpack").write_bytes(b"\x80")
    return commit(scratch, step=step, ranks=1)


def _steps(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_committed_checkpoint_is_whole_named_by_its_step_and_lists_every_file(
    tmp_path: Path,
) -> None:
    checkpoint = _save(tmp_path, 50)
    assert checkpoint == Checkpoint(step=50, folder=tmp_path / "step-000050")
    assert verify(checkpoint) == ""
    assert find_checkpoint(tmp_path) == checkpoint
    assert _steps(tmp_path) == ["step-000050"]
    meta = json.loads((checkpoint.folder / "checkpoint.json").read_text())
    assert (meta["step"], meta["ranks"]) == (50, 1)
    assert set(meta["files"]) == {"trainer/rank-0.safetensors", "dataflow.msgpack"}


def test_newest_is_found_and_an_older_one_when_asked_for(tmp_path: Path) -> None:
    for step in (10, 20, 1_000_000, 9):
        _save(tmp_path, step)
    assert find_checkpoint(tmp_path).step == 1_000_000
    assert find_checkpoint(tmp_path, step=10).step == 10
    with pytest.raises(RecipeError, match="no whole checkpoint of step 15") as raised:
        find_checkpoint(tmp_path, step=15)
    assert raised.value.hint == "steps there: 9, 10, 20, 1000000"


def test_nothing_to_resume_from_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RecipeError) as raised:
            find_checkpoint(folder)
        assert raised.value.hint == "start the run without `--resume`"


def test_half_written_one_is_skipped_and_its_leavings_do_not_enter_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _save(tmp_path, 25)
    scratch = begin(tmp_path, step=50)  # killed while it was being written
    (scratch / "trainer" / "rank-0.safetensors").write_bytes(b"half")
    unmarked = tmp_path / "step-000075"  # renamed by hand, or the mark was lost
    (unmarked / "trainer").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(tmp_path).step == 25
    assert "step-000075` is no whole checkpoint and is skipped" in caplog.text
    scratch = begin(tmp_path, step=50)
    assert [path.name for path in scratch.rglob("*")] == ["trainer"]


def _truncate(folder: Path) -> None:
    path = folder / "trainer" / "rank-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _flip(folder: Path) -> None:
    path = folder / "dataflow.msgpack"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]))


def _lose(folder: Path) -> None:
    (folder / "trainer" / "rank-0.safetensors").unlink()


def _mark(content: bytes) -> object:
    return lambda folder: (folder / "checkpoint.json").write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [_truncate, _flip, _lose]
    + [_mark(c) for c in (b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"{}", b'{"files": 3}')],
)  # fmt: skip
def test_damaged_one_is_skipped_for_the_one_before_and_the_log_says_why(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    good = _save(tmp_path, 25)
    newest = _save(tmp_path, 50)
    damage(newest.folder)
    assert verify(newest)
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(tmp_path) == good
    assert "step-000050` is damaged and skipped" in caplog.text
    with pytest.raises(RecipeError, match="no whole checkpoint of step 50"):
        find_checkpoint(tmp_path, step=50)


def test_every_flipped_bit_of_the_mark_is_seen_or_harmless(tmp_path: Path) -> None:
    checkpoint = _save(tmp_path, 25)
    mark = checkpoint.folder / "checkpoint.json"
    content = mark.read_bytes()
    files = json.loads(content)["files"]
    for bit in range(len(content) * 8):
        spoiled = bytearray(content)
        spoiled[bit // 8] ^= 1 << (bit % 8)
        mark.write_bytes(spoiled)
        if not verify(checkpoint):  # white space, the step or the number of ranks
            assert json.loads(spoiled)["files"] == files


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        _save(tmp_path, step)
    assert [path.name for path in prune(tmp_path, keep=2)] == ["step-000010", "step-000020"]
    assert _steps(tmp_path) == ["step-000030", "step-000040"]
    assert prune(tmp_path, keep=2) == []
    assert prune(tmp_path / "absent", keep=2) == []


def test_old_ones_stay_while_the_newest_is_damaged(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        _save(tmp_path, step)
    _flip(tmp_path / "step-000030")
    assert prune(tmp_path, keep=1) == []
    assert find_checkpoint(tmp_path).step == 20
    _save(tmp_path, 40)
    prune(tmp_path, keep=1)
    assert find_checkpoint(tmp_path).step == 40


def test_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    _save(tmp_path, 10, content=b"first")
    again = _save(tmp_path, 10, content=b"second")
    assert (again.folder / "trainer" / "rank-0.safetensors").read_bytes() == b"second\x0a"
    assert verify(again) == ""
    assert _steps(tmp_path) == ["step-000010"]
