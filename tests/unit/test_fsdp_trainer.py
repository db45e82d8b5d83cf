"""The FSDP trainer on one rank: scoring, layouts, learning rate, shards, export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from astraflow.errors import HardwareError, RecipeError
from astraflow.interfaces import TrainerContext
from astraflow.learning import MinibatchTotals, build_objective
from astraflow.learning.policy import load_policy
from astraflow.recipe.schema import AlgorithmSection, OptimizerSection
from astraflow.records import PolicyVersion, TrainBatch
from astraflow.testing.miniature import ModelType, make_miniature
from astraflow_fsdp import FsdpSettings, head, plugin
from astraflow_fsdp.attention import choose_attention
from astraflow_fsdp.backend import FsdpBackend
from astraflow_fsdp.export import export
from astraflow_fsdp.microbatches import cut
from astraflow_fsdp.optimizer import learning_rate
from astraflow_fsdp.selfcheck import check_isolation, probe_batch

Build = Callable[..., FsdpBackend]
LENGTHS = (9, 30, 4, 17)


@pytest.fixture
def build() -> Iterator[Build]:
    """Build backends, and leave the process group at the end."""
    made: list[FsdpBackend] = []

    def one(model: Path, **changes: Any) -> FsdpBackend:
        settings = FsdpSettings(**changes.pop("settings", {}))
        values: dict[str, Any] = {
            "model_path": str(model),
            "dtype": "float32",
            "master_dtype": "float32",
            "optimizer": OptimizerSection(lr=1e-2),
            "total_updates": 10,
            "tokens_per_microbatch": 64,
            "temperature": 0.7,
            "needs_reference": False,
            "settings": settings,
            "seed": 1,
            "device": "cpu",
        }
        backend = FsdpBackend(TrainerContext(**(values | changes)))
        made.append(backend)
        return backend

    yield one
    for backend in made:
        backend.close()


def _model(folder: Path, kind: ModelType = "qwen3", dtype: str = "float32") -> Path:
    return make_miniature(kind, folder, seed=3, tie=True, dtype=dtype)


def _step(backend: FsdpBackend, batch: TrainBatch) -> Any:
    objective = build_objective(AlgorithmSection(name="grpo", kl_coef=0.0))
    totals = MinibatchTotals(
        answer_tokens=int(batch.answer_mask.sum()),
        sequences=batch.num_sequences,
        max_new_tokens=30,
    )
    batch.behavior_logprobs.copy_(backend.logprobs(batch))
    batch.advantages.copy_(torch.linspace(-1, 1, batch.num_tokens))
    return backend.step(batch, lambda logprobs, micro: objective.loss(logprobs, micro, totals))


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen3_5"])
def test_scores_are_those_of_each_sequence_alone(
    kind: ModelType, build: Build, tmp_path: Path
) -> None:
    model = _model(tmp_path, kind)
    batch = probe_batch(LENGTHS, vocabulary=36)
    layouts = ["padded"] if kind == "qwen3_5" else ["padded", "packed"]
    policy = load_policy(str(model), dtype=torch.float32).model
    for layout in layouts:
        scored = build(model, settings={"layout": layout}).logprobs(batch)
        for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
            ids = batch.token_ids[start:end]
            with torch.no_grad():
                logits = policy(ids[None], use_cache=False).logits[0]
            alone = (logits / 0.7).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
            torch.testing.assert_close(scored[start + 1 : end], alone, atol=1e-5, rtol=0)
            assert scored[start] == 0


def test_packing_a_model_that_leaks_between_sequences_is_refused(
    build: Build, tmp_path: Path
) -> None:
    model = make_miniature("qwen3_5", tmp_path, seed=3, tie=True, dtype="float32")
    with pytest.raises(HardwareError, match="change each other's"):
        build(model, settings={"layout": "packed"})


def test_self_check_lets_rounding_pass() -> None:
    together, swapped, alone = torch.zeros(35), torch.zeros(35), torch.full((35,), 1e-3)
    scores = iter((together, swapped, alone))
    worst = check_isolation(lambda *_: next(scores), vocabulary=9, dtype=torch.float32)
    assert worst == pytest.approx(1e-3)


@pytest.mark.parametrize("swapped", [1e-4, float("nan")])
def test_self_check_refuses_a_score_that_neighbors_move(swapped: float) -> None:
    scores = iter((torch.zeros(35), torch.full((35,), swapped)))
    with pytest.raises(HardwareError, match="change each other's"):
        check_isolation(lambda *_: next(scores), vocabulary=9, dtype=torch.bfloat16)


def test_logits_never_exist_for_more_than_one_chunk(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    original = head._logits

    def counted(hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows.append(len(hidden))
        return original(hidden, *rest)

    monkeypatch.setattr(head, "_logits", counted)
    backend = build(_model(tmp_path), settings={"logprob_chunk_tokens": 7})
    rows.clear()
    batch = probe_batch(LENGTHS, vocabulary=36)
    _step(backend, batch)
    answers = int(batch.answer_mask.sum())
    assert max(rows) == 7
    # once to score, once forward and once again in the backward pass of the step
    assert sum(rows) == 3 * answers


def test_reference_stays_where_the_run_began(build: Build, tmp_path: Path) -> None:
    backend = build(_model(tmp_path), needs_reference=True)
    batch = probe_batch(LENGTHS, vocabulary=36)
    before = backend.logprobs(batch, of="reference")
    assert torch.equal(before, backend.logprobs(batch))
    _step(backend, batch)
    assert torch.equal(before, backend.logprobs(batch, of="reference"))
    assert not torch.equal(before, backend.logprobs(batch))


def test_first_ratio_is_one(build: Build, tmp_path: Path) -> None:
    backend = build(_model(tmp_path))
    batch = probe_batch(LENGTHS, vocabulary=36)
    report = _step(backend, batch)
    assert report.sums["ratio_sum"] / report.sums["answer_tokens"] == pytest.approx(1, abs=1e-4)


def test_microbatches_hold_the_limit_counting_pads() -> None:
    lengths = [4, 10, 6, 10, 1]
    assert cut(lengths, limit_tokens=20, padded=False) == [[1, 3], [2, 0, 4]]
    assert cut(lengths, limit_tokens=20, padded=True) == [[1, 3], [2, 0, 4]]
    assert cut(lengths, limit_tokens=12, padded=True) == [[1], [3], [2, 0], [4]]
    assert cut([30], limit_tokens=12, padded=False) == [[0]]
    assert cut([], limit_tokens=12, padded=True) == []


def test_learning_rate_rises_then_falls_to_zero_at_the_last_update() -> None:
    section = OptimizerSection(lr=0.1, schedule="linear", warmup_updates=2)
    rates = [learning_rate(section, update=u, total_updates=6) for u in range(6)]
    assert rates == pytest.approx([0.05, 0.1, 0.075, 0.05, 0.025, 0.0])
    cosine = OptimizerSection(lr=0.1, schedule="cosine")
    assert learning_rate(cosine, update=1, total_updates=4) == pytest.approx(0.05)
    assert learning_rate(cosine, update=3, total_updates=4) == pytest.approx(0.0)
    assert learning_rate(OptimizerSection(lr=0.03), update=9, total_updates=10) == 0.03


def test_shards_are_published_in_the_serving_type_and_tied_once(
    build: Build, tmp_path: Path
) -> None:
    model = _model(tmp_path, dtype="bfloat16")
    stored = load_file(model / "model.safetensors")
    shards = list(build(model, dtype="bfloat16").shards())
    assert {shard.spec.name for shard in shards} == stored.keys()
    for shard in shards:
        assert (shard.spec.dtype, shard.first) == ("BF16", 0)
        assert torch.equal(shard.values, stored[shard.spec.name].reshape(-1))


def test_small_steps_gather_in_float32_masters_and_reach_the_shards(
    build: Build, tmp_path: Path
) -> None:
    # Each step is far below half a bfloat16 spacing of most weights; many of them are not.
    backend = build(
        _model(tmp_path, dtype="bfloat16"),
        dtype="bfloat16",
        optimizer=OptimizerSection(lr=1e-5, weight_decay=0.0),
    )
    batch = probe_batch(LENGTHS, vocabulary=36)
    before = torch.cat([shard.values.clone() for shard in backend.shards()])
    changed = []
    for _ in range(12):
        _step(backend, batch)
        now = torch.cat([shard.values for shard in backend.shards()])
        changed.append(int((now != before).sum()))
    assert 0 < changed[0] < changed[-1]


def test_saved_state_comes_back_bit_for_bit(build: Build, tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    backend = build(model)
    batch = probe_batch(LENGTHS, vocabulary=36)
    _step(backend, batch)
    backend.version = PolicyVersion(7)
    backend.save(tmp_path / "saved")
    random = torch.rand(3)
    _step(backend, batch)
    after = [shard.values.clone() for shard in backend.shards()]
    other = build(model)
    other.restore(tmp_path / "saved")
    assert other.version == 7
    assert torch.equal(torch.rand(3), random)
    _step(other, batch)
    for one, two in zip(after, other.shards(), strict=True):
        assert torch.equal(one, two.values)


def test_checkpoint_of_another_model_is_refused(build: Build, tmp_path: Path) -> None:
    build(_model(tmp_path / "a")).save(tmp_path / "saved")
    other = build(_model(tmp_path / "b", "qwen3_5"))
    with pytest.raises(RecipeError, match="another model"):
        other.restore(tmp_path / "saved")
    with pytest.raises(RecipeError, match="no checkpoint"):
        other.restore(tmp_path / "a")


@pytest.mark.parametrize("file_bytes", [4 << 30, 60_000])
def test_exported_folder_loads_and_holds_what_was_trained(
    file_bytes: int, build: Build, tmp_path: Path
) -> None:
    model = _model(tmp_path / "model", "qwen3_5", dtype="bfloat16")
    backend = build(model, dtype="bfloat16")
    _step(backend, probe_batch(LENGTHS, vocabulary=36))
    backend.save(tmp_path / "saved")
    out = tmp_path / "out"
    export(tmp_path / "saved", out, model_path=str(model), dtype="bfloat16", file_bytes=file_bytes)
    assert (out / "tokenizer.json").is_file()
    assert (out / "model.safetensors.index.json").is_file() is (file_bytes < 1 << 30)
    exported: dict[str, torch.Tensor] = {}
    for path in out.glob("*.safetensors"):
        exported |= load_file(path)
    start = load_file(model / "model.safetensors")
    assert {k: v.dtype for k, v in exported.items()} == {k: v.dtype for k, v in start.items()}
    visual = next(name for name in start if ".visual." in name)
    assert torch.equal(exported[visual], start[visual])
    policy = load_policy(str(out), dtype=torch.bfloat16)
    live = {shard.spec.name: shard.values for shard in backend.shards()}
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter.reshape(-1), live[policy.names[name]])


def test_export_is_what_the_plugin_offers() -> None:
    assert plugin.export is not None
    assert plugin.needs == ("torch", "transformers", "safetensors")


def test_kernels_that_need_a_gpu_are_refused_without_one() -> None:
    assert choose_attention("auto", torch.device("cpu")) == "sdpa"
    with pytest.raises(HardwareError, match="needs a GPU"):
        choose_attention("varlen", torch.device("cpu"))


def test_export_of_a_float32_run_says_so_in_its_configuration(build: Build, tmp_path: Path) -> None:
    model = _model(tmp_path / "model", dtype="bfloat16")
    build(model).save(tmp_path / "saved")
    export(tmp_path / "saved", tmp_path / "out", model_path=str(model), dtype="float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("compiled", [False, True])
def test_head_in_chunks_has_the_values_and_gradients_of_a_float64_log_softmax(
    *, compiled: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 8, generator=generator, requires_grad=True)
    weight = torch.randn(11, 8, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 10, 3, 3, 7])
    upstream = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    head.HeadLogprobs.apply(hidden, weight, targets, 0.7, compiled).backward(upstream)
    h, w = (t.detach().double().requires_grad_() for t in (hidden, weight))
    expected = (h @ w.t() / 0.7).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    expected.backward(upstream.double())
    got = head.HeadLogprobs.apply(hidden, weight, targets, 0.7, compiled)
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=0)
    for mine, reference in ((hidden, h), (weight, w)):
        torch.testing.assert_close(mine.grad.double(), reference.grad, atol=1e-5, rtol=1e-5)


def test_bfloat16_head_does_not_round_its_logits() -> None:
    # One hidden width, so that logits are products: 5.03125 * 4.03125 = 20.282227, which bfloat16
    # would round to 20.25; the other logit is 0.
    hidden = torch.tensor([[5.03125]], dtype=torch.bfloat16)
    weight = torch.tensor([[4.03125], [0.0]], dtype=torch.bfloat16)
    compiled = False
    (got,) = head.HeadLogprobs.apply(hidden, weight, torch.tensor([1]), 1.0, compiled)
    assert float(got) == pytest.approx(-20.282227, abs=1e-5)
