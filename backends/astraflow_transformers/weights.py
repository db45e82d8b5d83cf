"""Live weights: updates written onto the parameters that sample, and proved there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from astraflow.errors import ProofError, StaleBaseError, WireError
from astraflow.interfaces import TensorPatch, WeightUpdate
from astraflow.learning.policy import Policy, safetensors_name
from astraflow.records import PolicyVersion

__all__ = ["LiveWeights"]


class LiveWeights:
    """
    The parameters by their checkpoint names; a tied head is its embedding and has one entry.

    Args:
        policy: The model that samples.
    """

    def __init__(self, policy: Policy) -> None:
        self._parameters: Mapping[str, Tensor] = {
            policy.names[name]: parameter.data
            for name, parameter in policy.model.named_parameters()
        }
        self.version = PolicyVersion(0)
        self._hashes: dict[tuple[str, int], int] = {}
        self.unproved: frozenset[str] = frozenset()
        """Tensors whose bits are not those that any sender proved."""

    def install(self, update: WeightUpdate) -> None:
        """
        Patch in place and prove every segment; ``version`` changes last.

        Raises:
            StaleBaseError: the update is a delta against another version; nothing was written.
            WireError: a tensor is unknown, or of another type or size; nothing was written.
            ProofError: a segment does not hash to its proof.
        """
        if update.base is not None and update.base != self.version:
            raise StaleBaseError(
                f"version {update.version} is a delta against version {update.base}, and this "
                f"engine holds {self.version}"
            )
        targets = [self._target(patch) for patch in update.patches]
        self._require_base(update)
        self._write_and_prove(update, targets)
        self.version = update.version

    @torch.no_grad()
    def _write_and_prove(self, update: WeightUpdate, targets: list[Tensor]) -> None:
        from astraflow.weights.apply import apply_patches

        # Until it is proved, a tensor that is being written counts as wrong.
        written = {patch.spec.name for patch in update.patches}
        self.unproved |= written
        try:
            failed = apply_patches(targets, update.patches)
        except WireError as error:
            raise ProofError(
                f"version {update.version} could not be written: {error.what}",
                tensors=sorted(self.unproved),
            ) from error
        wrong = {update.patches[index].spec.name for index in failed}
        self.unproved -= written - wrong
        for patch in update.patches:
            self._hashes[patch.spec.name, patch.first] = patch.target_hash
        if wrong:
            raise ProofError(
                f"{len(wrong)} of {len(written)} tensors of version {update.version} do not "
                f"hash to their proof after patching: {', '.join(sorted(wrong)[:3])}",
                tensors=sorted(wrong),
            )
        if self.unproved:
            raise ProofError(
                f"version {update.version} leaves {len(self.unproved)} unproved tensors alone",
                tensors=sorted(self.unproved),
            )

    def _require_base(self, update: WeightUpdate) -> None:
        """Compare what a delta builds on with what was proved here last."""
        for patch in update.patches:
            held = self._hashes.get((patch.spec.name, patch.first))
            if update.base is not None and held not in (None, patch.base_hash):
                raise StaleBaseError(
                    f"version {update.version} builds on other bits of `{patch.spec.name}` than "
                    f"were proved here as version {self.version}"
                )

    def _target(self, patch: TensorPatch) -> Tensor:
        """Return the ``[count]`` live elements that a patch is for."""
        spec = patch.spec
        parameter = self._parameters.get(spec.name)
        if parameter is None:
            raise WireError(
                f"an update names the tensor `{spec.name}`, which this model has not",
                hint="trainer and engine must start from the same `model.path`",
            )
        held = (safetensors_name(parameter.dtype), tuple(parameter.shape))
        if held != (spec.dtype, tuple(spec.shape)):
            raise WireError(
                f"`{spec.name}` arrives as {spec.dtype} {list(spec.shape)} and is held as "
                f"{held[0]} {list(held[1])}; it is not converted",
            )
        if patch.first < 0 or patch.first + patch.count > parameter.numel():
            raise WireError(
                f"a patch of `{spec.name}` covers elements {patch.first} to "
                f"{patch.first + patch.count} of {parameter.numel()}"
            )
        return parameter.view(-1)[patch.first : patch.first + patch.count]
