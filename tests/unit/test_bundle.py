"""A bundle holds all that a run reads, proves it without network, and is whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from astraflow.bundling import collect, make_bundle, sources
from astraflow.cli.main import app, register
from astraflow.data import load, load_prompts
from astraflow.doctor import Finding, Subject
from astraflow.doctor.bundle import examine_bundle
from astraflow.doctor.inputs import examine_datasets, examine_model, examine_tokenizer
from astraflow.errors import AstraFlowError, HardwareError, RecipeError
from astraflow.recipe.files import ResolvedRecipe, list_recipes
from astraflow.recipe.models import local_path
from astraflow.supervisor.preflight import require_recipe

_KEY = "hf_" + "a" * 30


def _write_rows(path: Path, count: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"r{n}", "problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _recipe(tmp_path: Path, *sets: str) -> ResolvedRecipe:
    """Make a recipe of a model folder and two local datasets of the same file name."""
    home = tmp_path / "home"
    if not home.exists():
        shutil.copytree(local_path("builtin:tiny"), home / "model")
        # What lies in a model's folder as well, and is no part of the model.
        (home / "model" / "optimizer.pt").write_bytes(b"not ours")
        (home / "model" / ".cache").mkdir()
        (home / "model" / ".cache" / "token").write_text(_KEY)
    train = _write_rows(home / "data" / "mine.jsonl", 5)
    test = _write_rows(home / "test" / "mine.jsonl", 2)
    path = home / "mine.yaml"
    path.write_text(
        f"extends: quickstart\nmodel: {{path: {home / 'model'}}}\ndata: {{train: {train}}}\n"
        f"evaluation: {{datasets: [{test}, additions_test]}}\n"
    )
    resolved = require_recipe(str(path), sets).resolved
    assert resolved is not None
    return resolved


def _bundle(tmp_path: Path) -> Path:
    out = tmp_path / "bundle"
    make_bundle(_recipe(tmp_path), out)
    return out


def _read(folder: Path) -> ResolvedRecipe:
    resolved = require_recipe(str(folder / "recipe.yaml")).resolved
    assert resolved is not None
    return resolved


def _findings(folder: Path) -> list[Finding]:
    subject = Subject(recipe=_read(folder), offline=True, runs=folder.parent / "runs")
    return list(examine_bundle(subject))


def _refuse_network(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"no network here, and {address} was asked for")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ASTRAFLOW_DATA", raising=False)


def _invoke(arguments: Sequence[object]) -> Result:
    register()
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_bundle_passes_the_doctor_without_network_also_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _recipe(tmp_path)
    made = _invoke(["bundle", tmp_path / "home" / "mine.yaml", "--out", tmp_path / "bundle"])
    assert made.exit_code == 0, made.output
    assert f"astraflow doctor {tmp_path / 'bundle' / 'recipe.yaml'} --offline" in made.output
    shutil.rmtree(tmp_path / "home")
    moved = (tmp_path / "bundle").rename(tmp_path / "elsewhere")
    _refuse_network(monkeypatch)
    command = ["doctor", moved / "recipe.yaml", "--offline", "--json", "--runs", tmp_path / "runs"]
    done = _invoke(command)
    assert done.exit_code == 0, done.output
    verdicts = {f["name"]: f["verdict"] for f in json.loads(done.stdout)["findings"]}
    assert verdicts["bundle"] == verdicts["model"] == verdicts["tokenizer"] == "ok"
    train, test = moved / "data" / "mine.jsonl", moved / "data" / "2" / "mine.jsonl"
    assert verdicts[f"dataset {train}"] == verdicts[f"dataset {test}"] == "ok"


def test_bundle_reads_as_the_same_recipe_and_the_same_prompts(tmp_path: Path) -> None:
    before = _recipe(tmp_path)
    manifest = make_bundle(before, tmp_path / "bundle")
    after = _read(tmp_path / "bundle").recipe
    for section in ("rollout", "workflow", "algorithm", "trainer", "weights", "dataflow", "seed"):
        assert getattr(after, section) == getattr(before.recipe, section), section
    assert Path(after.model.path) == tmp_path / "bundle" / "model"
    wanted = manifest.datasets[before.recipe.data.train]
    again = load_prompts(after.data.train)
    # Ids come from the file's rows, so the hash does not depend on where the bundle lies.
    assert (len(again.prompts), again.sha256) == (5, wanted["sha256"])


def test_bundle_holds_neither_keys_nor_what_is_no_part_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", _KEY)
    folder = _bundle(tmp_path)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path.name for path in files if _KEY.encode() in path.read_bytes()]
    assert not {"optimizer.pt", "token"} & {path.name for path in files}
    resolved = _recipe(tmp_path, f"workflow.instruction='use {_KEY}'")
    with pytest.raises(RecipeError, match="looks like a key"):
        make_bundle(resolved, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_one_flipped_bit_is_named_with_its_file(tmp_path: Path, name: str) -> None:
    folder = _bundle(tmp_path)
    path = folder / "model" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (finding,) = _findings(folder)
    assert finding.verdict == "fail"
    assert f"{folder}/model/{name}" in finding.found
    assert "has the hash" in finding.found
    assert f"{folder}/model/{name}" in finding.cure


def test_missing_cut_and_extra_files_are_all_named(tmp_path: Path) -> None:
    folder = _bundle(tmp_path)
    (folder / "data" / "2" / "mine.jsonl").unlink()
    shard = folder / "model" / "model-00002-of-00002.safetensors"
    shard.write_bytes(b"from another model")
    config = folder / "model" / "generation_config.json"
    config = config if config.exists() else folder / "model" / "tokenizer_config.json"
    size = config.stat().st_size
    os.truncate(config, size - 1)
    # A run folder beside them is no fault.
    (folder / "runs").mkdir()
    resolved = _read_without_checks(folder)
    subject = Subject(recipe=resolved, offline=True, runs=tmp_path)
    found = {finding.found for finding in examine_bundle(subject)}
    assert found == {
        f"`{folder}/data/2/mine.jsonl` is missing",
        f"`{shard}` is not listed in bundle.json",
        f"`{config}` has {size - 1} bytes, and had {size}",
    }


def _read_without_checks(folder: Path) -> ResolvedRecipe:
    from astraflow.plugins import recipe_type
    from astraflow.recipe.files import load_recipe

    return load_recipe(str(folder / "recipe.yaml"), recipe_type=recipe_type())


def test_edited_recipe_is_named_and_one_that_extends_it_is_proved_too(tmp_path: Path) -> None:
    folder = _bundle(tmp_path)
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: {folder / 'recipe.yaml'}\ntrainer: {{steps: 7}}\n")
    resolved = require_recipe(str(child)).resolved
    subject = Subject(recipe=resolved, offline=True, runs=tmp_path)
    assert [finding.verdict for finding in examine_bundle(subject)] == ["ok"]
    with (folder / "recipe.yaml").open("a") as file:
        file.write("# a remark\n")
    (finding,) = examine_bundle(subject)
    assert finding.verdict == "fail"
    assert "recipe.yaml" in finding.found
    assert "--set" in finding.cure


def test_lost_list_is_told_and_damaged_list_is_an_error(tmp_path: Path) -> None:
    folder = _bundle(tmp_path)
    (folder / "bundle.json").write_text("{")
    with pytest.raises(AstraFlowError, match=r"bundle\.json` cannot be read"):
        _findings(folder)
    (folder / "bundle.json").unlink()
    assert [finding.verdict for finding in _findings(folder)] == ["skipped"]


def test_second_bundle_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = _bundle(tmp_path)
    before = (folder / "bundle.json").read_text()
    with pytest.raises(RecipeError, match="is not an empty folder") as caught:
        make_bundle(_recipe(tmp_path), folder)
    assert "name another folder" in caught.value.hint
    assert (folder / "bundle.json").read_text() == before


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), OSError(28, "No space left")])
def test_interrupted_copy_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    resolved = _recipe(tmp_path)
    real, copied = collect._copy, []

    def copy(source: Path, target: Path) -> collect.FileRecord:
        if copied:
            raise interruption
        copied.append(target)
        return real(source, target)

    monkeypatch.setattr(collect, "_copy", copy)
    with pytest.raises((KeyboardInterrupt, HardwareError)):
        make_bundle(resolved, tmp_path / "bundle")
    assert copied
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_killed_copy_is_hidden_and_has_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after SIGKILL: nothing is cleaned up.
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(collect, "_manifest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_bundle(_recipe(tmp_path), tmp_path / "bundle")
    (left,) = (path for path in tmp_path.iterdir() if path.name != "home")
    assert left.name.startswith(".bundle.partial-")
    assert not (left / "bundle.json").exists()


def test_too_small_a_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(HardwareError, match="are free at") as caught:
        make_bundle(_recipe(tmp_path), tmp_path / "bundle")
    assert "--out" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    resolved = _recipe(tmp_path)
    (weights,) = (tmp_path / "home" / "model").glob("*.safetensors")
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(RecipeError, match="no pickle"):
        make_bundle(resolved, tmp_path / "bundle")


def test_hub_model_and_hub_datasets_become_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = Path(shutil.copytree(local_path("builtin:tiny"), tmp_path / "hub" / commit))
    monkeypatch.setattr(sources, "_download", lambda path: snapshot)
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(30)]
    monkeypatch.setattr(load, "_from_hub", lambda entry, offline: rows)
    sets = ["model.path=Qwen/Qwen3-0.6B", "data.train=deepscaler", "evaluation.datasets=[aime24]"]
    sets.append("rollout.gpus=0")
    resolved = require_recipe("quickstart", [*sets, "model.context_length=64"]).resolved
    assert resolved is not None
    manifest = make_bundle(resolved, tmp_path / "bundle")
    assert manifest.model == {"path": "Qwen/Qwen3-0.6B", "revision": commit}
    assert {"data/deepscaler.jsonl", "data/aime24.source.json"} <= set(manifest.files)
    monkeypatch.undo()
    _refuse_network(monkeypatch)
    after = _read(tmp_path / "bundle")
    assert after.recipe.data.train == "deepscaler"
    subject = Subject(recipe=after, offline=True, runs=tmp_path)
    checks = (examine_bundle, examine_model, examine_tokenizer, examine_datasets)
    assert {f.verdict for check in checks for f in check(subject)} == {"ok"}
    root = tmp_path / "bundle" / "data"
    assert load_prompts("aime24", root=root).sha256 == manifest.datasets["aime24"]["sha256"]


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    tiny = Path(local_path("builtin:tiny"))
    monkeypatch.setattr(sources, "_download", lambda path: tiny)
    rows = [
        {"problem": f"What is {n}?", "question": f"What is {n}?", "answer": "1"} for n in range(500)
    ]
    sizes = {"aime24": 30, "aime25": 30, "minerva_math": 272}
    monkeypatch.setattr(
        load, "_from_hub", lambda entry, offline: rows[: sizes.get(entry.name, 500)]
    )
    resolved = require_recipe(str(path)).resolved
    assert resolved is not None
    make_bundle(resolved, tmp_path / "bundle")
    again = _read_without_checks(tmp_path / "bundle").recipe
    assert again.evaluation == resolved.recipe.evaluation
    assert again.trainer == resolved.recipe.trainer
    assert again.rollout == resolved.recipe.rollout
