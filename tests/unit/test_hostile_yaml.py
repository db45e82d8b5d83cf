"""Files and options that no recipe should be: each is refused in words, at its place, at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app, register
from astraflow.errors import RecipeError
from astraflow.supervisor.preflight import inspect_recipe

_BASE = b"extends: qwen3-1.7b-m2po-2gpus-full\n"
_LONGEST_S = 1.0

# Ten anchors of nine aliases each: 9^10 values once written out.
_LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9))
    for name in range(ord("b"), ord("k"))
)

# What is written, words of the error, and where it points: `line:column`, or the file alone.
_FILES: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "this file is empty", "1:1"),
    "a comment alone": (b"# later\n", "this file is empty", "1:1"),
    "a list": (b"- a\n- b\n", "this file holds a list", "1:1"),
    "a word": (b"hello\n", "this file holds one value", "1:1"),
    "null": (b"~\n", "this file holds one value", "1:1"),
    "aliases of aliases": (_LAUGHS, "more than 10000 values", "5:8"),
    "an alias inside its anchor": (b"seed: &s [*s]\n", "inside its own anchor", "1:11"),
    "an unknown alias": (b"seed: *one\n", "undefined alias `*one`", "1:7"),
    "ten megabytes": (b"description: " + b"x" * 10_000_000, "larger than 200,000 bytes", ""),
    "too many keys": (
        b"".join(b"k%d: 1\n" % n for n in range(16_000)),
        "more than 10000 values",
        "5000:8",
    ),
    "a thousand brackets": (b"[" * 1000, "nests more than 32 levels", "1:34"),
    "a thousand brackets in a value": (b"a: " + b"[" * 1000, "nests more than 32", "1:36"),
    "a thousand dashes": (b"- " * 1000, "nests more than 32 levels", "1:67"),
    "six hundred levels of keys": (
        b"".join(b" " * level + b"a:\n" for level in range(600)),
        "nests more than 32 levels",
        "33:33",
    ),
    "tabs": (b"trainer:\n\tsteps: 3\n", "cannot start any token", "2:1"),
    "a NUL byte": (b"seed: 1\ndescription: a\x00b\n", "U+0000", "2:15"),
    "a bell": (b"seed: 1\x07\n", "U+0007", "1:8"),
    "latin-1": (b"seed: 1\ndescription: caf\xe9\n", "0xe9 is not UTF-8", "2:17"),
    "UTF-16": ("seed: 1\n".encode("utf-16"), "is not UTF-8", "1:1"),
    "two documents": (_BASE + b"---\nseed: 2\n", "another document", "2:1"),
    "text after the end": (_BASE + b"...\nmore\n", "another document", "3:1"),
    "an object of Python": (
        _BASE + b"seed: !!python/object/apply:os.system ['true']\n",
        "has the tag `tag:yaml.org,2002:python/object/apply:os.system`",
        "2:7",
    ),
    "binary": (_BASE + b"description: !!binary aGVsbG8=\n", "yaml.org,2002:binary`", "2:14"),
    "a tag of one's own": (_BASE + b"trainer: !mine {steps: 99}\n", "tag `!mine`", "2:10"),
    "a future version": (b"%YAML 9.9\n---\nseed: 1\n", "incompatible YAML", "1:1"),
    "an open quote": (b"description: 'x\nseed: 1\n", "found unexpected end", "3:1"),
    "an unknown escape": (b'description: "\\q"\n', "unknown escape", "1:16"),
    "half a surrogate pair": (_BASE + b'description: "\\ud800"\n', "U+D800", "2:14"),
    "an escaped NUL": (_BASE + b'model: {path: "a\\0b"}\n', "U+0000", "2:15"),
    "a number as key": (_BASE + b"1: 2\n", "a key is `1`", "2:1"),
    "null as key": (_BASE + b"~: 2\n", "a key is `~`", "2:1"),
    "no key": (_BASE + b": 2\n", "keys are words", "2:1"),
    "true as key": (_BASE + b"trainer: {true: 2}\n", "a key is `true`", "2:11"),
    "a list as key": (_BASE + b"? [a, b]\n: 3\n", "a key is a list", "2:3"),
    "a merge key": (
        _BASE + b"data: &d {max_rows: 99}\nmodel: {<<: *d}\n",
        "`<<` merges mappings in YAML 1.1",
        "3:9",
    ),
    "itself as parent": (b"seed: 1\nextends: hostile.yaml\n", "circle: hostile -> hostile", "2:10"),
    "a missing parent": (b"extends: nope\n", "no recipe called `nope`", "1:10"),
    "a list of parents": (b"extends: [a, b]\n", "must be one recipe's name", "1:10"),
    "no parent": (b"extends:\nseed: 1\n", "must be one recipe's name", "1:8"),
    "an endless file as parent": (b"extends: /dev/zero\n", "no recipe called", "1:10"),
    "a folder as parent": (b"extends: .\n", "no recipe called `.`", "1:10"),
    "a parent with too long a name": (b"extends: " + b"a" * 5000, "no recipe called", "1:10"),
    "nobody's home as parent": (b"extends: ~nobody-at-all/x.yaml\n", "no recipe called", "1:10"),
    "a number of 5,000 digits": (_BASE + b"seed: " + b"9" * 5000, "whole number", "2:7"),
    "a batch beyond all memory": (
        _BASE + b"trainer: {batch_size: 999999999999999999}\n",
        "at most 1048576",
        "2:23",
    ),
    "a rate beyond all numbers": (
        _BASE + b"trainer: {optimizer: {lr: 1e999}}\n",
        "finite number",
        "2:27",
    ),
    "nothing for a section": (_BASE + b"trainer:\nseed: 2\n", "a section of keys", "2:8"),
    "nothing for a value": (_BASE + b"trainer:\n  steps:\nseed: 2\n", "is `null`", "3:8"),
    "null for a section": (_BASE + b"trainer: ~\n", "a section of keys", "2:10"),
    "a list for a section": (_BASE + b"trainer: [1, 2]\n", "a section of keys", "2:10"),
    "one beta": (_BASE + b"trainer: {optimizer: {betas: [0.9]}}\n", "takes more", "2:30"),
    "three betas": (
        _BASE + b"trainer: {optimizer: {betas: [0.9, 0.9, 0.9]}}\n",
        "at most 2",
        "2:30",
    ),
    "a word where two types do": (
        _BASE + b"trainer: {fsdp: {gradient_checkpointing: some}}\n",
        "`true` or `false`, or one of 'half'",
        "2:42",
    ),
    "a path longer than any": (
        _BASE + b"data: {train: " + b"a" * 5000 + b".jsonl}\n",
        "no file on this machine",
        "2:15",
    ),
}

_OPTIONS = {
    "trainer.steps": "not of the form",
    "=": "not of the form",
    "=3": "not of the form",
    "a." * 500 + "b=1": "not of the form",
    "trainor.steps=3": "unknown key `trainor`",
    "extends=quickstart": "unknown key `extends`",
    "trainer=7": "a section of keys",
    "trainer.steps=": "`trainer.steps` is `null`",
    "trainer.steps=[1": "expected ',' or ']'",
    "trainer.steps={a": "expected ',' or '}'",
    "trainer.steps=3\n---\n4": "another document",
    "trainer.steps=*x": "undefined alias",
    "trainer.steps=!!int 3": "`trainer.steps` has the tag",
    "trainer.steps=\x00": "U+0000",
    "trainer.optimizer.lr.x=3": "must be a number",
    "evaluation.datasets.0=math500": "a list in brackets",
}


def _errors(path: Path) -> tuple[RecipeError, ...]:
    try:
        return inspect_recipe(str(path)).errors
    except RecipeError as error:
        return (error,)


@pytest.mark.parametrize("name", _FILES)
def test_hostile_file_is_refused_at_its_place_with_a_cure(tmp_path: Path, name: str) -> None:
    written, words, place = _FILES[name]
    path = tmp_path / "hostile.yaml"
    path.write_bytes(written)
    started = time.monotonic()
    errors = _errors(path)
    assert time.monotonic() - started < _LONGEST_S
    told = [error for error in errors if words in error.what]
    assert told, [str(error) for error in errors]
    assert told[0].where.endswith(f"hostile.yaml:{place}" if place else "hostile.yaml")
    assert told[0].hint


@pytest.mark.parametrize("option", _OPTIONS)
def test_hostile_option_is_refused_by_its_own_text_with_a_cure(option: str) -> None:
    errors = inspect_recipe("qwen3-1.7b-m2po-2gpus-full", [option]).errors
    told = [error for error in errors if _OPTIONS[option] in error.what]
    assert told, [str(error) for error in errors]
    assert told[0].where == f"--set {option}"
    assert told[0].hint


@pytest.mark.parametrize(
    "written",
    [
        b"\xef\xbb\xbf" + _BASE,
        _BASE.replace(b"\n", b"\r\n") + b"seed: 3\r\n",
        b"%YAML 1.2\n---\n" + _BASE,
        _BASE + b"seed: &n 3\ntrainer: {optimizer: {warmup_updates: *n}}\n",
        _BASE + "description: 数学 😀\n".encode(),
    ],
    ids=["byte order mark", "CRLF", "directive", "one alias", "all of Unicode"],
)
def test_unusual_file_that_is_right_is_read(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(written)
    assert _errors(path) == ()


def test_lines_count_the_same_with_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(_BASE.replace(b"\n", b"\r\n") + b"rollout:\r\n  temperature: 0\r\n")
    (error,) = _errors(path)
    assert error.where.endswith("mine.yaml:3:16")


def test_change_of_an_alias_does_not_reach_its_anchor(tmp_path: Path) -> None:
    # `keep` is known below `checkpoint` alone: it is dropped there where it is refused
    path = tmp_path / "mine.yaml"
    path.write_bytes(_BASE + b"checkpoint: &c {keep: 3}\nevaluation: *c\n")
    findings = inspect_recipe(str(path))
    assert [error.what for error in findings.errors] == ["unknown key `evaluation.keep`"]
    assert findings.resolved is not None
    assert findings.resolved.recipe.checkpoint.keep == 3


def test_chain_of_twenty_parents_is_refused(tmp_path: Path) -> None:
    for number in range(20):
        text = f"extends: r{number + 1}.yaml\n"
        (tmp_path / f"r{number}.yaml").write_text(text)
    (tmp_path / "r20.yaml").write_bytes(_BASE)
    (error,) = _errors(tmp_path / "r0.yaml")
    assert "more than 16 recipes extend one another" in error.what


def test_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    # a folder cannot stand for it, as it is no file; a link in a circle can be neither
    path = tmp_path / "round.yaml"
    path.symlink_to(path)
    (error,) = _errors(path)
    assert "no recipe called" in error.what


def test_command_ends_with_2_and_no_traceback(tmp_path: Path) -> None:
    register()
    path = tmp_path / "hostile.yaml"
    path.write_bytes(_LAUGHS)
    done = CliRunner().invoke(app, ["validate", str(path), "quickstart"])
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)
    assert "hostile.yaml:5:8" in done.output
    assert "quickstart: ok" in done.output
