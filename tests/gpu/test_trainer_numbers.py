"""The FSDP trainer in bfloat16 on a GPU, against plain transformers in float32 on the same GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from transformers import Qwen3Config, Qwen3ForCausalLM

from astraflow.interfaces import TrainerContext
from astraflow.recipe.schema import OptimizerSection
from astraflow.records import TrainBatch
from astraflow_fsdp import FsdpSettings
from astraflow_fsdp.backend import FsdpBackend
from astraflow_fsdp.selfcheck import probe_batch

pytestmark = pytest.mark.gpu

_LENGTHS = (300, 41, 700, 128)
_VOCABULARY = 8192
# Stated tolerances, about twice what an H200 showed: bfloat16 keeps 8 bits, and errors add up.
_LOGPROB_MEAN_NATS = 0.01
_GRADIENT_RELATIVE = 0.04


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    torch.manual_seed(3)
    # Stored in bfloat16, so that both sides start from the same numbers.
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def backend(model: Path, request: pytest.FixtureRequest) -> Iterator[FsdpBackend]:
    made = FsdpBackend(
        TrainerContext(
            model_path=str(model),
            dtype="bfloat16",
            master_dtype="float32",
            optimizer=OptimizerSection(lr=1e-6),
            total_updates=10,
            tokens_per_microbatch=1024,
            temperature=1.0,
            needs_reference=False,
            settings=FsdpSettings(compile=request.param, gradient_checkpointing="half"),
            seed=1,
            device="cuda",
        )
    )
    yield made
    made.close()


def _loss(logprobs: torch.Tensor, micro: TrainBatch) -> tuple[torch.Tensor, dict[str, Any]]:
    return -(logprobs * micro.advantages.to(logprobs.device)).sum(), {}


def _reference(model: Path, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Score each sequence alone in float32; return log-probabilities and gradients by name."""
    policy = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).cuda()
    scored = torch.zeros(batch.num_tokens)
    for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        ids = batch.token_ids[start:end].cuda()
        logits = policy(ids[None], use_cache=False).logits[0, :-1]
        logprobs = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        weight = (batch.advantages * batch.answer_mask)[start + 1 : end].cuda()
        (-(logprobs * weight).sum()).backward()
        scored[start + 1 : end] = logprobs.detach().cpu()
    gradients = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
    return scored * batch.answer_mask, gradients


def test_logprobs_and_gradients_agree_with_float32(backend: FsdpBackend, model: Path) -> None:
    batch = probe_batch(_LENGTHS, vocabulary=_VOCABULARY)
    batch.advantages.copy_(torch.linspace(-1, 1, batch.num_tokens) * batch.answer_mask)
    expected, gradients = _reference(model, batch)
    got = backend.logprobs(batch)
    gaps = (got - expected)[batch.answer_mask].abs()
    assert float(gaps.mean()) < _LOGPROB_MEAN_NATS
    for micro in backend._microbatches(batch, backend._plan(batch)):
        backend._backward(micro, _loss)
    for piece in backend._pieces:
        mine, reference = piece.gradient(), gradients[piece.name].reshape(-1)
        assert mine is not None
        error = float((mine.float() - reference).norm() / reference.norm())
        assert error < _GRADIENT_RELATIVE, piece.name
