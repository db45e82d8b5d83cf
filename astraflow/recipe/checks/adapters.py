"""Rules on settings that the chosen adapter, or the device it gets, would leave without effect."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case, ignored
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

_LARGEST_CHUNK = 1_000_000
_GPU_ATTENTION = ("flash_attention_2", "kernels-community/flash-attn2", "varlen")


def _other_adapters(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    for section, backend, names in (
        ("rollout", recipe.rollout.backend, case.known.inference_backends),
        ("trainer", recipe.trainer.backend, case.known.trainer_backends),
    ):
        for name in names:
            if name != backend and getattr(getattr(recipe, section), name, None) is not None:
                by = f"{section}.backend"
                yield ignored(f"{section}.{name}", by, f"the backend is `{backend}`")


def _ranks(case: Case) -> Iterator[Problem]:
    if case.recipe.trainer.gpus and case.written("trainer.cpu_ranks"):
        yield ignored("trainer.cpu_ranks", "trainer.gpus", "each GPU has one rank")


def _fsdp(case: Case) -> Iterator[Problem]:
    settings, gpus = case.tuning, case.recipe.trainer.gpus
    if case.recipe.trainer.backend != "fsdp" or settings is None:
        return
    if gpus:
        if settings.threads is not None:
            yield ignored("trainer.fsdp.threads", "trainer.gpus", "the trainer has GPUs")
    else:
        if settings.offload_optimizer:
            why = "without a GPU everything is in host memory"
            yield ignored("trainer.fsdp.offload_optimizer", "trainer.gpus", why)
        if settings.attention in _GPU_ATTENTION:
            yield Problem(
                what=f"the attention kernels `{settings.attention}` need a GPU, and the trainer "
                "has none",
                paths=("trainer.fsdp.attention", "trainer.gpus"),
                hint="set `trainer.fsdp.attention` to `auto`",
            )
    if settings.layout == "packed" and settings.attention == "sdpa":
        yield Problem(
            what="sdpa does not know where packed sequences end, so each pass computes attention "
            "over all of them and masks it",
            paths=("trainer.fsdp.layout", "trainer.fsdp.attention"),
            hint="set `trainer.fsdp.layout` to `auto`",
            severity="warning",
        )


def _sglang(case: Case) -> Iterator[Problem]:
    recipe, settings = case.recipe, case.engine
    if recipe.rollout.backend != "sglang" or settings is None:
        return
    path = "rollout.sglang"
    if settings.mem_fraction_static > 0.95:
        yield Problem(
            what=f"{settings.mem_fraction_static:.0%} of a GPU for weights and cache leave nothing "
            "for activations and the CUDA context",
            paths=(f"{path}.mem_fraction_static",),
            hint="0.8 is the default; lower it when a server ends with out-of-memory",
            severity="warning",
        )
    if settings.chunked_prefill_size == 0:
        yield Problem(
            what="a prefill in chunks of 0 tokens never ends",
            paths=(f"{path}.chunked_prefill_size",),
            hint="-1 prefills without chunks, null leaves the choice to SGLang",
        )
    chunk = settings.chunked_prefill_size
    if chunk is not None and not (chunk <= 0 or 16 <= chunk <= _LARGEST_CHUNK):
        does = "in tiny pieces" if chunk < 16 else "whole, whatever its length"
        yield Problem(
            what=f"a prefill in chunks of {chunk} tokens computes every prompt {does}",
            paths=(f"{path}.chunked_prefill_size",),
            hint="8192 is usual, -1 prefills without chunks, null leaves the choice to SGLang",
            severity="warning",
        )
    if settings.start_timeout_s < 10:
        yield Problem(
            what=f"{settings.start_timeout_s:g} s are too short for a server to load",
            paths=(f"{path}.start_timeout_s",),
            hint="600 is the default",
            severity="warning",
        )
    if settings.waiting_target > settings.max_running_requests:
        yield Problem(
            what=f"{settings.waiting_target} requests should wait in front of a server that "
            f"decodes {settings.max_running_requests}: they would only grow stale",
            paths=(f"{path}.waiting_target", f"{path}.max_running_requests"),
            hint="4 is the default",
            severity="warning",
        )
    allowed_s = recipe.limits.ready_s
    if case.written(f"{path}.start_timeout_s") and settings.start_timeout_s > allowed_s:
        yield Problem(
            what=f"a server may take {settings.start_timeout_s:g} s to start, and the role that "
            f"starts it has {allowed_s:g} s",
            paths=(f"{path}.start_timeout_s", "limits.ready_s"),
            hint=f"raise `limits.ready_s` to at least {settings.start_timeout_s:g}",
        )


def _transformers(case: Case) -> Iterator[Problem]:
    settings, gpus = case.engine, case.recipe.rollout.gpus
    if case.recipe.rollout.backend != "transformers" or settings is None:
        return
    paths = ("rollout.transformers.device", "rollout.gpus")
    if settings.device == "cuda" and not gpus:
        yield Problem(
            what="the engine should run on a GPU, and `rollout.gpus` is 0",
            paths=paths,
            hint="set `rollout.gpus`, or `rollout.transformers.device` to `auto`",
        )
    if settings.device == "cpu" and gpus:
        yield Problem(
            what=f"the engine should run on the CPU, and the {gpus} GPUs of rollout would idle",
            paths=paths,
            hint="set `rollout.gpus` to 0, or `rollout.transformers.device` to `auto`",
        )


RULES = (_other_adapters, _ranks, _fsdp, _sglang, _transformers)
