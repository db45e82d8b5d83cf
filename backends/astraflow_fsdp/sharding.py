"""
Sharding: FSDP2 over all ranks, and this rank's flat piece of every parameter.

The optimizer, the shards that are published and the checkpoints all work on those pieces, which
share memory with FSDP's own: no DTensor arithmetic, and nothing is ever gathered for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from astraflow.learning.policy import Policy
from astraflow_fsdp.scoring import Scorer

__all__ = ["Piece", "free_gathered", "local_pieces", "shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one parameter that this rank holds."""

    name: str
    """Checkpoint name of the parameter."""

    shape: tuple[int, ...]
    """Shape of the whole parameter."""

    first: int
    """Flat index of the piece's first element in the whole."""

    parameter: nn.Parameter
    """The parameter as the model holds it: sharded, or whole on every rank."""

    values: Tensor
    """``[count]`` contiguous elements of the master type, sharing the parameter's memory."""

    replicated: bool
    """True if every rank holds the whole parameter."""

    published_dtype: torch.dtype
    """Type that the piece is sent in."""

    def gradient(self) -> Tensor | None:
        """Return the piece's ``[count]`` gradient; None when backward did not reach it."""
        grad = self.parameter.grad
        if grad is None:
            return None
        local = grad.to_local() if isinstance(grad, DTensor) else grad
        return local.reshape(-1)


def shard(
    scorer: Scorer,
    policy: Policy,
    *,
    dtype: torch.dtype,
    device: torch.device,
    reshard_after_forward: bool,
    offload: bool,
) -> None:
    """
    Apply FSDP2 to each decoder layer and to the whole, in place.

    Embedding, last norm and head stay together in the outermost group, so a tied head stays
    tied. Parameters that are kept in float32 among narrower ones are not sharded: FSDP would
    cast them to the computing type, and they are tiny.

    Args:
        scorer: Holds ``policy.model``; its weights have the master type.
        policy: The policy.
        dtype: Type that computes.
        device: This rank's device.
        reshard_after_forward: Whether a layer's gathered weights are freed after its forward.
        offload: Keep the pieces in host memory.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    kept = {name for name in policy.float32_names if dtype != torch.float32}
    ignored = {policy.model.get_parameter(name) for name in kept}
    for parameter in ignored:
        parameter.data = parameter.data.to(device)
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offloading: OffloadPolicy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for layer in policy.model.model.layers:
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=reshard_after_forward,
            mp_policy=precision,
            offload_policy=offloading,
            ignored_params=ignored,
        )
    fully_shard(
        scorer,
        mesh=mesh,
        mp_policy=precision,
        offload_policy=offloading,
        ignored_params=ignored,
    )
    scorer.to(device) if not offload else _move_buffers(scorer, device)


def local_pieces(policy: Policy, *, dtype: torch.dtype) -> list[Piece]:
    """
    List this rank's pieces in the model's order, empty ones left out.

    Args:
        policy: Already sharded.
        dtype: Type that parameters are published in, unless kept in float32.
    """
    pieces = []
    for name, parameter in policy.model.named_parameters():
        sharded = isinstance(parameter, DTensor)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
        if local.numel() == 0:
            continue
        pieces.append(
            Piece(
                name=policy.names[name],
                shape=tuple(parameter.shape),
                first=_first_element(parameter.shape) if sharded else 0,
                parameter=parameter,
                values=local.detach().view(-1),
                replicated=not sharded,
                published_dtype=policy.published_dtype(name, dtype),
            )
        )
    return pieces


def free_gathered(scorer: Scorer) -> None:
    """
    Free what forward passes gathered.

    The outermost group stays gathered until a backward pass. After a pass without one, weights
    that are then written piece by piece would be written beside what the next pass reads.
    """
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _first_element(shape: Sequence[int]) -> int:
    """Return the flat index where this rank's Shard(0) begins: torch cuts like ``chunk``."""
    rows = -(-shape[0] // dist.get_world_size())
    row_size = 1
    for size in shape[1:]:
        row_size *= size
    return min(rows * dist.get_rank(), shape[0]) * row_size


def _move_buffers(module: nn.Module, device: torch.device) -> None:
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            setattr(owner, name, buffer.to(device))
