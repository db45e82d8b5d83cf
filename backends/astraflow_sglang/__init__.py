"""The `sglang` inference adapter; importing this module imports no sglang."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow.errors import PluginError
from astraflow.interfaces import InferenceBackend, InferenceContext
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel

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


_UNAVAILABLE = "the `sglang` adapter cannot sample yet: its servers have not landed"


def _build(context: InferenceContext) -> InferenceBackend:
    raise PluginError(_UNAVAILABLE, hint="`--set rollout.backend=transformers`")


plugin: Plugin[InferenceBackend] = Plugin(
    name="sglang",
    settings=SglangSettings,
    build=_build,
    extra="sglang",
    needs=("torch", "transformers", "sglang"),
    unavailable=_UNAVAILABLE,
)
