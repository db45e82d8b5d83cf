"""
The FSDP trainer on one and two gloo ranks.

This file is also the program of a rank: the tests start it once for each rank.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from astraflow.interfaces import TrainerContext
from astraflow.recipe.schema import OptimizerSection
from astraflow.records import TrainBatch
from astraflow.testing.miniature import ModelType, make_miniature
from astraflow_fsdp import FsdpSettings
from astraflow_fsdp.backend import FsdpBackend
from astraflow_fsdp.microbatches import take
from astraflow_fsdp.selfcheck import probe_batch

pytestmark = pytest.mark.slow

LENGTHS = (9, 30, 4, 17, 23, 12)
# Sums in another order move float32 by about 1e-7; a wrong weight of a micro-batch by far more.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def _context(model: Path, **changes: Any) -> TrainerContext:
    settings = FsdpSettings(**changes.pop("settings", {}))
    values: dict[str, Any] = {
        "model_path": str(model),
        "dtype": "float32",
        "master_dtype": "float32",
        # Adam divides by the gradient's size: a large eps keeps rounding from being blown up.
        "optimizer": OptimizerSection(lr=1e-2, eps=1e-3, weight_decay=0.1),
        "total_updates": 10,
        "tokens_per_microbatch": 4096,
        "temperature": 0.7,
        "needs_reference": False,
        "seed": 1,
        "device": "cpu",
    }
    return TrainerContext(settings=settings, **(values | changes))


def _batch() -> TrainBatch:
    batch = probe_batch(LENGTHS, vocabulary=36)
    generator = torch.Generator().manual_seed(5)
    batch.advantages.copy_(torch.randn(batch.num_tokens, generator=generator))
    return batch


def _loss(logprobs: torch.Tensor, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, Any]]:
    total = sum(LENGTHS) - len(LENGTHS)
    weighted = -logprobs * batch.advantages * batch.answer_mask
    return weighted.sum() / total, {"tokens": batch.answer_mask.sum().float()}


def _share(batch: TrainBatch, share: list[int]) -> TrainBatch:
    return take(batch, share, padded=False, device=torch.device("cpu")).batch


def _train(backend: FsdpBackend, share: list[int], steps: int) -> list[float]:
    batch = _share(_batch(), share)
    return [backend.step(batch, _loss).loss for _ in range(steps)]


def _rank_main(rank: int, world: int, folder: Path) -> None:
    """Run one rank of a job that a test described in ``job.json``."""
    job = json.loads((folder / "job.json").read_text())
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    backend = FsdpBackend(_context(Path(job["model"]), **job["context"]))
    if job.get("restore"):
        backend.restore(Path(job["restore"]))
    losses = _train(backend, job["shares"][rank], job["steps"] - 1)
    if job.get("poisoned_rank") == rank:
        _poison(backend)
    batch = _share(_batch(), job["shares"][rank])
    report = backend.step(batch, _loss)
    backend.save(folder / "saved")
    pieces = {f"{s.spec.name}@{s.first}": s.values for s in backend.shards()}
    shapes = {s.spec.name: list(s.spec.shape) for s in backend.shards()}
    save_file(pieces, folder / f"shards-{rank}.safetensors")
    answer = {
        "losses": [*losses, report.loss],
        "grad_norm": report.grad_norm,
        "skipped": report.skipped,
        "tokens": report.sums["tokens"],
        "shapes": shapes,
    }
    (folder / f"answer-{rank}.json").write_text(json.dumps(answer))
    backend.close()


def _poison(backend: FsdpBackend) -> None:
    """Put NaN into one element of this rank's gradient of the next step."""
    optimizer = backend._optimizer
    healthy = optimizer._gradients

    def poisoned() -> list[torch.Tensor | None]:
        gradients = healthy()
        gradient = gradients[3]
        assert gradient is not None
        gradient[0] = math.nan
        return gradients

    optimizer._gradients = poisoned  # type: ignore[method-assign]


def _run(folder: Path, model: Path, shares: list[list[int]], **job: Any) -> dict[str, Any]:
    """Start a process for each share; return rank 0's answer and the whole parameters."""
    folder.mkdir()
    description = {"model": str(model), "shares": shares, "context": {}, "steps": 2, **job}
    (folder / "job.json").write_text(json.dumps(description))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(len(shares)), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(shares))
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in ranks:
            process.kill()
    answers = [json.loads((folder / f"answer-{r}.json").read_text()) for r in range(len(shares))]
    assert all(answer["losses"] == answers[0]["losses"] for answer in answers)
    pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for rank in range(len(shares)):
        for key, values in load_file(folder / f"shards-{rank}.safetensors").items():
            name, first = key.split("@")
            pieces.setdefault(name, []).append((int(first), values))
    shapes = {name: shape for answer in answers for name, shape in answer["shapes"].items()}
    whole = {}
    for name, parts in pieces.items():
        parts.sort(key=lambda part: part[0])
        ends = [first + len(values) for first, values in parts]
        assert [first for first, _ in parts] == [0, *ends[:-1]]
        whole[name] = torch.cat([values for _, values in parts]).reshape(shapes[name])
    return {**answers[0], "weights": whole}


def _assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["losses"] == pytest.approx(other["losses"], abs=1e-6)
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    assert one["weights"].keys() == other["weights"].keys()
    for name, values in one["weights"].items():
        torch.testing.assert_close(values, other["weights"][name], **CLOSE, msg=name)


ALL = list(range(len(LENGTHS)))


@pytest.mark.parametrize(("kind", "tie"), [("qwen3", True), ("llama", False), ("qwen3_5", True)])
def test_step_is_the_same_for_any_microbatch_size_and_number_of_ranks(
    kind: ModelType, tie: bool, tmp_path: Path
) -> None:
    model = make_miniature(kind, tmp_path / "model", seed=3, tie=tie, dtype="float32")
    one = _run(tmp_path / "one", model, [ALL])
    small = _run(tmp_path / "small", model, [ALL], context={"tokens_per_microbatch": 31})
    # The second rank has one sequence, hence fewer micro-batches, and idles through the rest.
    two = _run(
        tmp_path / "two",
        model,
        [ALL[:-1], ALL[-1:]],
        context={
            "tokens_per_microbatch": 40,
            "settings": {"gradient_checkpointing": True, "logprob_chunk_tokens": 3},
        },
    )
    assert one["tokens"] == sum(LENGTHS) - len(LENGTHS)
    assert ("lm_head.weight" in one["weights"]) is not tie
    _assert_same(one, small)
    _assert_same(one, two)


def test_packed_and_padded_microbatches_give_one_gradient(tmp_path: Path) -> None:
    model = make_miniature("qwen3", tmp_path / "model", seed=3, tie=True, dtype="float32")
    packed = _run(tmp_path / "a", model, [ALL], context={"settings": {"layout": "packed"}})
    padded = _run(tmp_path / "b", model, [ALL], context={"settings": {"layout": "padded"}})
    _assert_same(packed, padded)


def test_what_two_ranks_saved_one_rank_goes_on_from(tmp_path: Path) -> None:
    model = make_miniature("qwen3", tmp_path / "model", seed=3, tie=False, dtype="float32")
    straight = _run(tmp_path / "straight", model, [ALL], steps=3)
    _run(tmp_path / "first", model, [ALL[:3], ALL[3:]], steps=2)
    resumed = _run(
        tmp_path / "resumed", model, [ALL], steps=1, restore=str(tmp_path / "first" / "saved")
    )
    straight["losses"] = straight["losses"][-1:]
    _assert_same(straight, resumed)


def test_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all(tmp_path: Path) -> None:
    model = make_miniature("llama", tmp_path / "model", seed=3, tie=True, dtype="float32")
    shares = [ALL[:3], ALL[3:]]
    good = _run(tmp_path / "good", model, shares, steps=1)
    bad = _run(tmp_path / "bad", model, shares, steps=2, poisoned_rank=1)
    assert (good["skipped"], bad["skipped"]) == (False, True)
    for name, values in good["weights"].items():
        assert torch.equal(values, bad["weights"][name]), name
    for rank in (0, 1):
        before = load_file(tmp_path / "good" / "saved" / f"rank-{rank:05d}.safetensors")
        after = load_file(tmp_path / "bad" / "saved" / f"rank-{rank:05d}.safetensors")
        for name in before.keys() - {"rng.cpu"}:
            assert torch.equal(before[name], after[name]), name


def test_decay_parameters_stay_float32_and_equal_on_all_ranks(tmp_path: Path) -> None:
    model = make_miniature("qwen3_5", tmp_path / "model", seed=3, tie=True, dtype="bfloat16")
    stored = load_file(model / "model.safetensors")
    two = _run(tmp_path / "two", model, [ALL[:3], ALL[3:]], steps=1, context={"dtype": "bfloat16"})
    one = _run(tmp_path / "one", model, [ALL], steps=1, context={"dtype": "bfloat16"})
    name = "model.language_model.layers.0.linear_attn.A_log"
    assert two["weights"][name].dtype == torch.float32
    assert two["weights"]["model.language_model.norm.weight"].dtype == torch.bfloat16
    assert not torch.equal(two["weights"][name], stored[name])
    # bfloat16 computing: the two runs differ by its rounding, of 1 part in 256
    torch.testing.assert_close(one["weights"][name], two["weights"][name], atol=2e-3, rtol=0)
    assert {key: value.dtype for key, value in two["weights"].items()} == {
        key: stored[key].dtype for key in two["weights"]
    }


if __name__ == "__main__":
    _rank_main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
