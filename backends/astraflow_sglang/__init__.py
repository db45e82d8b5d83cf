"""The `sglang` inference adapter; importing this module imports no sglang."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow.interfaces import InferenceBackend, InferenceContext
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel
from astraflow.recipe.schema import Recipe

__all__ = ["SglangSettings", "plugin"]


class SglangSettings(RecipeModel):
    """Settings of the SGLang servers, one server for each copy of the model."""

    mem_fraction_static: float = Field(default=0.8, gt=0.05, lt=1.0)
    """Share of a GPU's memory for weights and key-value cache, 0 to 1. Lower it when a server
    ends with out-of-memory, or when trainer and server share one GPU."""

    max_running_requests: int = Field(default=128, ge=1)
    """Requests that one server decodes at once (count)."""

    attention_backend: Literal["auto", "triton", "fa3", "flashinfer"] = "auto"
    """Attention kernels; `auto` leaves the choice to SGLang."""

    sampling_backend: Literal["auto", "pytorch", "flashinfer"] = "auto"
    """Sampling kernels; `auto` leaves the choice to SGLang."""

    chunked_prefill_size: int | None = Field(default=None, ge=-1)
    """Prompt tokens that one step prefills; null leaves the choice to SGLang (tokens)."""

    waiting_target: int = Field(default=4, ge=1)
    """Requests that should wait in each server's queue so that it never runs dry; RaaS asks
    for more work below it (count)."""

    cuda_graph: bool = True
    """Capture decoding in CUDA graphs; off starts faster and decodes slower."""

    start_timeout_s: float = Field(default=600.0, gt=0)
    """Time for a server to load; a first start also compiles kernels (s)."""

    server_args: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Further options of `sglang serve` by their long names without dashes, such as
    `schedule_policy: lpm`; true passes the bare option. The server refuses what it does not
    know, and its log says so."""


_OURS = {
    *("model_path", "host", "port", "api_key", "tp_size", "dtype", "context_length"),
    *("skip_tokenizer_init", "custom_weight_loader", "mem_fraction_static"),
    *("max_running_requests", "attention_backend", "sampling_backend", "chunked_prefill_size"),
    *("disable_cuda_graph", "dp_size"),
}


def _refuses(recipe: Recipe) -> str:
    if not recipe.rollout.gpus:
        return "the `sglang` adapter needs `rollout.gpus` of at least 1"
    if recipe.rollout.tensor_parallel > 1:
        return (
            "the `sglang` adapter proves weights on whole tensors, so each copy of the model has "
            f"one GPU, and rollout.tensor_parallel is {recipe.rollout.tensor_parallel}; raise "
            "`rollout.data_parallel` instead"
        )
    settings = getattr(recipe.rollout, "sglang", None)
    given = settings.server_args if isinstance(settings, SglangSettings) else {}
    taken = sorted(set(given) & _OURS)
    if taken:
        return f"`rollout.sglang.server_args` may not set `{taken[0]}`: the adapter sets it"
    return ""


def _build(context: InferenceContext) -> InferenceBackend:
    from astraflow_sglang.backend import SglangBackend

    return SglangBackend(context)


plugin: Plugin[InferenceBackend] = Plugin(
    name="sglang",
    settings=SglangSettings,
    build=_build,
    extra="sglang",
    needs=("torch", "transformers", "sglang"),
    refuses=_refuses,
)
