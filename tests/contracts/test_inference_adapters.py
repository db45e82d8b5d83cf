"""Every inference adapter that runs without a GPU keeps the contracts of astraflow.testing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow.interfaces import InferenceBackend, InferenceContext
from astraflow.learning.policy import load_policy
from astraflow.plugins import build_plugin, load_plugin
from astraflow.records import SampleRequest
from astraflow.testing import contracts
from astraflow.testing.miniature import ModelType, make_miniature

# name of the adapter, architecture, reproducible
CASES: list[tuple[str, ModelType, bool]] = [
    ("transformers", "qwen3", False),
    ("transformers", "llama", False),
    ("transformers", "qwen3", True),
    ("transformers", "qwen3_5", False),
]


def _request(**changes: Any) -> SampleRequest:
    values: dict[str, Any] = {
        "request_id": "r",
        "group_id": "g",
        "group_size": 1,
        "prompt_ids": (3, 17, 18, 19, 20, 8, 4),
        "max_new_tokens": 60,
        "temperature": 0.7,
        "seed": 11,
        "stop_ids": (2,),
    }
    return SampleRequest(**(values | changes))


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[InferenceBackend, contracts.Score]:
    name, kind, reproducible = request.param
    model = make_miniature(
        kind, tmp_path_factory.mktemp("model"), seed=5, tie=True, dtype="float32"
    )
    plugin = load_plugin("inference_backends", name)
    context = InferenceContext(
        model_path=str(model),
        dtype="float32",
        context_length=256,
        settings=plugin.settings(),
        gpus=(),
        tensor_parallel=1,
        data_parallel=1,
        reproducible=reproducible,
        log_folder=model,
        run_id="contracts",
    )
    return build_plugin(plugin, context), _full_forward(model)


def _full_forward(model: Path) -> contracts.Score:
    policy = load_policy(str(model), dtype=torch.float32)

    def score(prompt: Sequence[int], answer: Sequence[int], temperature: float) -> Sequence[float]:
        ids = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            logits = policy.model(input_ids=ids, use_cache=False).logits[0].float()
        logprobs = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
        picked: list[float] = logprobs.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
        return picked

    return score


async def test_logprobs_are_those_of_a_full_forward_at_the_same_temperature(built: Any) -> None:
    backend, score = built
    async with contracts.started(backend):
        await contracts.check_logprobs(backend, _request(), score, tolerance=1e-4)


async def test_samples_of_a_group_differ_and_come_back_with_their_seeds(built: Any) -> None:
    async with contracts.started(built[0]) as backend:
        await contracts.check_seeds(backend, _request())


async def test_stop_token_ends_an_answer_and_is_its_last(built: Any) -> None:
    async with contracts.started(built[0]) as backend:
        await contracts.check_stop_finish(backend, _request())


async def test_answer_without_a_stop_token_is_as_long_as_it_may_be(built: Any) -> None:
    async with contracts.started(built[0]) as backend:
        await contracts.check_length_finish(backend, _request())


async def test_holding_ends_no_answer_and_aborts_none(built: Any) -> None:
    async with contracts.started(built[0]) as backend:
        await contracts.check_holding(backend, _request(max_new_tokens=240))


async def test_cancelling_frees_a_row_and_disturbs_no_neighbor(built: Any) -> None:
    async with contracts.started(built[0]) as backend:
        await contracts.check_cancelling_frees(backend, _request(max_new_tokens=240))
