"""The transformers engine: both ways of decoding, new weights in mid-answer, failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.errors import AstraFlowError, ProofError, RecipeError, StaleBaseError, WireError
from astraflow.interfaces import (
    Encoding,
    InferenceContext,
    TensorPatch,
    TensorSpec,
    WeightUpdate,
)
from astraflow.learning.policy import load_policy
from astraflow.recipe.schema import Recipe
from astraflow.records import FinishReason, PolicyVersion, SampleRequest
from astraflow.testing.contracts import group_of, sample_all, started
from astraflow.testing.miniature import make_miniature
from astraflow.weights.hashes import segment_hash
from astraflow_transformers import TransformersSettings, plugin
from astraflow_transformers.backend import TransformersBackend

NAME = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_miniature("qwen3", folder, seed=5, tie=True, dtype="float32")


def _backend(model: Path | str, **changes: Any) -> TransformersBackend:
    settings = TransformersSettings(**changes.pop("settings", {}))
    values: dict[str, Any] = {
        "model_path": str(model),
        "dtype": "float32",
        "context_length": 256,
        "settings": settings,
        "gpus": (),
        "tensor_parallel": 1,
        "data_parallel": 1,
        "reproducible": False,
        "log_folder": Path("."),
        "run_id": "unit",
    }
    return TransformersBackend(InferenceContext(**(values | changes)))


@pytest.fixture
async def backend(model: Path) -> AsyncIterator[TransformersBackend]:
    made = _backend(model)
    async with started(made):
        yield made


def _request(**changes: Any) -> SampleRequest:
    values: dict[str, Any] = {
        "request_id": "r",
        "group_id": "g",
        "group_size": 1,
        "prompt_ids": (3, 17, 18, 4),
        "max_new_tokens": 50,
        "temperature": 1.0,
        "seed": 3,
        "stop_ids": (2,),
    }
    return SampleRequest(**(values | changes))


def _update(
    model: Path, *, version: int, base: int | None = None, scale: float = 1.0, **changes: Any
) -> WeightUpdate:
    """Return an update with the embedding scaled, whole."""
    weights = load_policy(str(model), dtype=torch.float32).model.get_parameter(NAME).data * scale
    flat = weights.reshape(-1)
    content = memoryview(flat.numpy().view(np.uint8))
    values: dict[str, Any] = {
        "spec": TensorSpec(name=NAME, dtype="F32", shape=tuple(weights.shape)),
        "first": 0,
        "count": flat.numel(),
        "encoding": Encoding.DENSE,
        "payload": content,
        "base_hash": 0,
        "target_hash": segment_hash(flat),
    }
    patch = TensorPatch(**(values | changes))
    return WeightUpdate(
        version=PolicyVersion(version),
        base=None if base is None else PolicyVersion(base),
        patches=(patch,),
        wire_bytes=0,
    )


async def test_continuous_and_group_decoding_draw_the_same_answers(model: Path) -> None:
    # Different groups, prompts of three lengths, more answers than rows.
    requests = [
        request
        for group in range(6)
        for request in group_of(
            _request(
                request_id=f"r{group}",
                group_id=f"g{group}",
                prompt_ids=(3, 17, *range(7, 9 + group % 3), 4),
                seed=100 * group,
            ),
            4,
        )
    ]
    results = []
    for reproducible in (False, True):
        backend = _backend(model, reproducible=reproducible, settings={"max_batch": 10})
        async with started(backend):
            results.append(await sample_all(backend, requests))
    for one, other in zip(*results, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def test_reproducible_answers_are_the_same_bits_next_to_other_work(model: Path) -> None:
    group = group_of(_request(), 4)
    others = [
        request
        for index in range(5)
        for request in group_of(_request(request_id=f"o{index}", group_id=f"o{index}"), 4)
    ]
    backend = _backend(model, reproducible=True)
    async with started(backend):
        alone = await sample_all(backend, group)
        crowded = await sample_all(backend, [*others, *reversed(group)])
    assert alone == list(reversed(crowded[-4:]))


async def test_models_own_generation_settings_play_no_part(model: Path, tmp_path: Path) -> None:
    folder = make_miniature("qwen3", tmp_path / "m", seed=5, tie=True, dtype="float32")
    (folder / "generation_config.json").write_text(
        '{"do_sample": true, "top_k": 1, "top_p": 0.1, "temperature": 0.1, "eos_token_id": 2}'
    )
    answers = []
    for path in (model, folder):
        backend = _backend(path)
        async with started(backend):
            answers.append(await sample_all(backend, group_of(_request(), 8)))
    assert answers[0] == answers[1]


async def test_answer_carries_the_version_of_each_token(
    backend: TransformersBackend, model: Path
) -> None:
    tasks = [
        asyncio.create_task(backend.sample(request))
        for request in group_of(_request(stop_ids=(), max_new_tokens=250), 8)
    ]
    while (await backend.read_load()).running == 0:
        await asyncio.sleep(0)
    async with backend.held():
        await backend.install(_update(model, version=4, scale=3.0))
    for sample in await asyncio.gather(*tasks):
        versions = sample.versions
        assert set(versions) == {0, 4}
        assert list(versions) == sorted(versions)
    assert backend.version == 4


async def test_installed_weights_are_those_that_sample(
    backend: TransformersBackend, model: Path
) -> None:
    async with backend.held():
        await backend.install(_update(model, version=1, base=0, scale=3.0))
    sample = await backend.sample(_request())
    policy = load_policy(str(model), dtype=torch.float32)
    policy.model.get_parameter(NAME).data *= 3.0
    prompt = _request().prompt_ids
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *sample.token_ids]])).logits[0]
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(
        1, torch.tensor(sample.token_ids)[:, None]
    )
    assert sample.logprobs == pytest.approx(expected[:, 0].tolist(), abs=1e-4)


async def test_delta_against_a_version_we_do_not_hold_is_refused(
    backend: TransformersBackend, model: Path
) -> None:
    async with backend.held():
        with pytest.raises(StaleBaseError, match="against version 3"):
            await backend.install(_update(model, version=4, base=3, scale=2.0))
    assert backend.version == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": TensorSpec(name="model.nothing", dtype="F32", shape=(1,))},
        {"spec": TensorSpec(name=NAME, dtype="BF16", shape=(37, 64))},
        {"spec": TensorSpec(name=NAME, dtype="F32", shape=(64, 37))},
        {"first": 1},
    ],
    ids=["unknown", "type", "shape", "range"],
)
async def test_patch_that_does_not_fit_the_model_changes_nothing(
    backend: TransformersBackend, model: Path, changes: Any
) -> None:
    expected = await backend.sample(_request())
    async with backend.held():
        with pytest.raises(WireError):
            await backend.install(_update(model, version=1, scale=2.0, **changes))
    assert await backend.sample(_request()) == expected


@pytest.mark.parametrize("by_error", [False, True])
async def test_tensor_without_proof_ends_the_engine_unless_cured(
    backend: TransformersBackend, model: Path, by_error: bool
) -> None:
    async with backend.held():
        with pytest.raises(ProofError) as caught:
            await backend.install(_update(model, version=1, scale=2.0, target_hash=1))
        assert caught.value.tensors == (NAME,)
        await backend.install(_update(model, version=1, scale=2.0))
    assert backend.version == 1
    waiting = asyncio.create_task(backend.sample(_request(stop_ids=(), max_new_tokens=250)))

    async def leave_it_unproved() -> None:
        async with backend.held():
            with pytest.raises(ProofError):
                await backend.install(_update(model, version=2, scale=3.0, target_hash=1))

    async def leave_it_unproved_by_another_error() -> None:
        async with backend.held():
            with contextlib.suppress(ProofError):
                await backend.install(_update(model, version=2, scale=3.0, target_hash=1))
            raise WireError("the sender is gone")

    with pytest.raises(ProofError, match="unproved"):
        await (leave_it_unproved_by_another_error() if by_error else leave_it_unproved())
    with pytest.raises(ProofError):
        await waiting
    with pytest.raises(ProofError):
        await backend.sample(_request())


async def test_failure_of_the_engines_thread_reaches_every_waiting_call(
    backend: TransformersBackend,
) -> None:
    outside = [_request(prompt_ids=(10**6,)), _request(request_id="s", prompt_ids=(10**6, 3))]
    results = await asyncio.gather(
        *(backend.sample(request) for request in outside), return_exceptions=True
    )
    assert all(isinstance(result, AstraFlowError) for result in results)
    with pytest.raises(AstraFlowError, match="IndexError"):
        await backend.sample(_request())


async def test_request_beyond_the_context_is_refused_by_itself(
    backend: TransformersBackend,
) -> None:
    with pytest.raises(AstraFlowError, match="context_length"):
        await backend.sample(_request(max_new_tokens=253))
    assert (await backend.sample(_request())).token_ids


async def test_lone_request_of_a_group_is_answered(model: Path) -> None:
    backend = _backend(model, reproducible=True)
    async with started(backend):
        sample = await backend.sample(replace(_request(), group_size=8))
    assert sample.finish in (FinishReason.STOP, FinishReason.LENGTH)


async def test_checkpoint_that_is_not_there_is_a_recipe_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no .safetensors"):
        await _backend(tmp_path).start(within_s=60)


def test_recipe_that_spreads_one_copy_over_gpus_is_refused() -> None:
    recipe = Recipe.model_validate(
        {
            "model": {"path": "x", "context_length": 64},
            "rollout": {"backend": "transformers", "tensor_parallel": 2, "max_new_tokens": 8},
            "data": {"train": "x"},
            "trainer": {"steps": 1, "batch_size": 8},
        }
    )
    assert plugin.refuses is not None
    assert "tensor_parallel = 2" in plugin.refuses(recipe)
