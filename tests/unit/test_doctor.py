"""Planted faults: each is named, with its cure; and a healthy machine passes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app, register
from astraflow.doctor import CHECKS, Finding, Subject
from astraflow.doctor.compute import examine_compute
from astraflow.doctor.deadline import perform
from astraflow.doctor.finding import Check, ok
from astraflow.doctor.gated_delta import examine_rule
from astraflow.doctor.inputs import examine_datasets, examine_model, examine_tokenizer
from astraflow.doctor.isolation import ask_child
from astraflow.doctor.libraries import examine_libraries
from astraflow.doctor.network import examine_loopback, examine_ports, examine_proxies
from astraflow.doctor.storage import examine_run_folder, examine_shared_memory
from astraflow.recipe.models import local_path
from astraflow.supervisor.preflight import require_recipe

_GIB = 2**30


def _subject(tmp_path: Path, *sets: str, recipe: str | None = None) -> Subject:
    resolved = require_recipe(recipe, sets).resolved if recipe else None
    return Subject(recipe=resolved, offline=False, runs=tmp_path / "runs")


def _model(tmp_path: Path) -> Path:
    """Copy the shipped model, to be damaged."""
    return Path(shutil.copytree(local_path("builtin:tiny"), tmp_path / "model"))


def _recipe(tmp_path: Path, model: Path) -> Subject:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: quickstart\nmodel: {{path: {model}}}\n")
    return _subject(tmp_path, recipe=str(path))


def _statvfs(free_bytes: int) -> os.statvfs_result:
    blocks = free_bytes // 4096
    return os.statvfs_result((4096, 4096, 10**9, blocks, blocks, 10**6, 10**6, 10**6, 0, 255))


def _worst(findings: list[Finding]) -> Finding:
    order = ("fail", "warn", "skipped", "ok")
    return min(findings, key=lambda finding: order.index(finding.verdict))


@pytest.mark.parametrize("damage", ["cut", "header", "gone"])
def test_damaged_weights_are_named_with_the_file(tmp_path: Path, damage: str) -> None:
    model = _model(tmp_path)
    subject = _recipe(tmp_path, model)
    assert [f.verdict for f in examine_model(subject)] == ["ok"]
    (file,) = model.glob("*.safetensors")
    content = file.read_bytes()
    if damage == "gone":
        index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        file.write_bytes(content[:-1000] if damage == "cut" else b"\xff" * 8 + content[8:])
    (finding,) = examine_model(subject)
    assert finding.verdict == "fail"
    assert (file.name if damage != "gone" else "00002") in finding.found
    assert "hf download" in finding.cure


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    model = _model(tmp_path)
    subject = _recipe(tmp_path, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    check = Check(name="tokenizer", run=examine_tokenizer)
    finding = _worst(list(perform(check, subject)))
    assert finding.verdict == "fail"
    assert "tokenizer" in finding.found


def test_datasets_of_a_recipe_are_counted(tmp_path: Path) -> None:
    findings = list(examine_datasets(_subject(tmp_path, recipe="quickstart")))
    assert [(f.name, f.verdict) for f in findings] == [
        ("dataset additions", "ok"),
        ("dataset additions_test", "ok"),
    ]
    assert findings[1].found.startswith("500 problems")


def test_proxy_without_exception_for_loopback_is_warned_about(tmp_path: Path) -> None:
    proxy = {"http_proxy": "http://proxy:3128"}
    (finding,) = examine_proxies(_subject(tmp_path), proxy)
    assert (finding.verdict, finding.cure) == ("warn", "`export NO_PROXY=127.0.0.1,localhost`")
    spared = {**proxy, "NO_PROXY": "127.0.0.1,localhost"}
    assert [f.verdict for f in examine_proxies(_subject(tmp_path), spared)] == ["ok"]


def test_run_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    (finding,) = examine_run_folder(_subject(tmp_path))
    assert finding.verdict == "fail"
    assert "--runs DIR" in finding.cure


def test_full_disk_is_a_failure(tmp_path: Path) -> None:
    findings = list(examine_run_folder(_subject(tmp_path), lambda _: _statvfs(_GIB // 100)))
    assert _worst(findings).name == "disk space"
    assert _worst(findings).verdict == "fail"


def test_tiny_shared_memory_names_the_option_of_the_container(tmp_path: Path) -> None:
    (finding,) = examine_shared_memory(_subject(tmp_path), tmp_path, lambda _: _statvfs(64 * 2**20))
    assert finding.verdict in ("warn", "fail")
    assert "--shm-size" in finding.cure


def test_port_that_somebody_holds_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        subject = _subject(
            tmp_path,
            "rollout.sglang.server_args.nccl_port=" + str(port),
            recipe="qwen3-1.7b-m2po-2gpus-full",
        )
        (finding,) = examine_ports(subject)
    assert finding.verdict == "fail"
    assert "rollout.sglang.server_args.nccl_port" in finding.found
    assert f":{port}" in finding.cure
    assert [f.verdict for f in examine_loopback(subject)] == ["ok"]


def test_wrong_version_of_a_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda n: "3.0.0" if n == "transformers" else real(n)
    )
    finding = _worst(list(examine_libraries(_subject(tmp_path, recipe="quickstart"))))
    assert finding.verdict == "fail"
    assert "transformers" in finding.found
    assert "3.0.0" in finding.found
    assert "pip install" in finding.cure


def test_torch_is_executed_and_agrees_with_its_references(tmp_path: Path) -> None:
    findings = list(examine_compute(_subject(tmp_path)))
    names = {finding.name: finding.verdict for finding in findings}
    assert names["matmul cpu"] == names["attention sdpa float32 cpu"] == "ok"
    assert names["all-reduce gloo"] == "ok"
    assert "fail" not in names.values()


def _chunked_rule(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    output, _ = torch_chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    return output


def test_gated_delta_recurrence_agrees_with_the_chunked_rule_of_transformers() -> None:
    finding = examine_rule(_chunked_rule, label="x", device="cpu", dtype="float32", tolerance=1e-4)
    assert finding.verdict == "ok", finding.found


def test_gated_delta_kernel_with_a_wrong_gradient_is_named_with_its_cure() -> None:
    def wrong(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        # the right values; the decay gets no gradient
        return _chunked_rule(q, k, v, g.detach() + 0 * g, beta)

    finding = examine_rule(wrong, label="x", device="cpu", dtype="float32")
    assert finding.verdict == "fail"
    assert "dg 1.0e+00" in finding.found
    assert "triton" in finding.found
    assert "tilelang" in finding.cure


def test_gated_delta_kernel_that_refuses_is_a_finding() -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("not on this GPU\nmore")

    finding = examine_rule(refuses, label="x", device="cpu", dtype="float32")
    assert finding.verdict == "fail"
    assert "refuse: not on this GPU (" in finding.found


def test_check_that_breaks_or_hangs_is_a_finding(tmp_path: Path) -> None:
    def broken(_: Subject) -> list[Finding]:
        raise ZeroDivisionError("by zero")

    (finding,) = perform(Check(name="x", run=broken), _subject(tmp_path))
    assert finding.verdict == "fail"
    assert "ZeroDivisionError: by zero" in finding.found
    left, right = socket.socketpair()
    with left, right:
        waits = Check(name="y", run=lambda _: [ok("y", str(right.recv(1)))], within_s=0.05)
        (finding,) = perform(waits, _subject(tmp_path))
    assert finding.found == "gave no answer within 0.05 s"


def test_library_that_kills_its_process_is_a_finding() -> None:
    (finding,) = ask_child("os:abort_with", {}, within_s=20.0)
    assert finding.verdict == "fail"


def test_every_check_has_a_name_of_its_own() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)


def test_command_ends_well_here_and_with_code_4_on_a_failure(tmp_path: Path) -> None:
    register()
    runner = CliRunner()
    runs = str(tmp_path / "runs")
    good = runner.invoke(app, ["doctor", "quickstart", "--json", "--runs", runs, "--offline"])
    assert good.exit_code == 0, good.output
    verdicts = {f["name"]: f["verdict"] for f in json.loads(good.stdout)["findings"]}
    assert verdicts["model"] == verdicts["tokenizer"] == verdicts["grader"] == "ok"
    (tmp_path / "runs").write_text("in the way")
    assert runner.invoke(app, ["doctor", "--runs", runs]).exit_code == 4
