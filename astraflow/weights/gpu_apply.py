"""
Patches onto weights on a GPU: everything that does not touch them first, then one scatter.

    Staged(...)  payload ──▶ device, positions of all entries      (while sampling goes on)
    .write()     low planes and top bytes ──▶ live weights          (while it is held)

A position outside its segment is never written; the proof afterwards finds what is amiss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding
from astraflow.weights.delta import TILE

__all__ = ["Piece", "Staged"]

_BLOCK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One patch of two-byte elements: where its bytes are, and where they go."""

    name: str
    encoding: Encoding
    offset: int
    """First byte in the payload."""
    size: int
    """Bytes in the payload."""
    target: Tensor
    """``[count]`` live elements, contiguous."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Consecutive entries for one program each; every field ``[runs]``."""

    piece: NDArray[np.int64]
    entry: NDArray[np.int64]
    """First entry, counted in its piece."""
    length: NDArray[np.int64]
    tile: NDArray[np.int64]
    """First position of a T16 tile; 0 for L8."""


class Staged:
    """
    An update whose bytes are on the device.

    Args:
        payload: ``[bytes]`` uint8 in host memory, best pinned.
        pieces: What it holds.
        device: Where the weights are.

    Raises:
        WireError: a payload is shorter or longer than its encoding says.
    """

    def __init__(self, payload: Tensor, pieces: Sequence[Piece], device: torch.device) -> None:
        self._device = device
        self._payload = payload
        self._dense = [p for p in pieces if p.encoding is Encoding.DENSE]
        sparse = [p for p in pieces if p.encoding in (Encoding.L8, Encoding.T16)]
        for piece in self._dense:
            if piece.size != 2 * piece.target.numel():
                raise WireError(f"the DENSE payload of `{piece.name}` has {piece.size} bytes")
        self._entries = 0
        if sparse:
            self._stage(sparse)

    def write(self) -> None:
        """Write onto the live weights; the caller synchronizes."""
        for piece in self._dense:
            source = self._payload[piece.offset : piece.offset + piece.size]
            piece.target.view(torch.uint8).copy_(source, non_blocking=True)
        if self._entries:
            _write_low[(len(self._run_piece),)](
                self._bytes, self._positions, *self._run_tables, *self._piece_tables, _BLOCK
            )
        if self._exceptions:
            _write_tops[(triton.cdiv(self._exceptions, _BLOCK),)](
                self._positions,
                self._exception_entry,
                self._exception_top,
                self._exception_piece,
                *self._piece_tables[1:],
                self._exceptions,
                _BLOCK,
            )

    # --- before the hold

    def _stage(self, sparse: Sequence[Piece]) -> None:
        begin = min(piece.offset for piece in sparse)
        end = max(piece.offset + piece.size for piece in sparse)
        host = self._payload[begin:end]
        self._bytes = host.to(self._device, non_blocking=True)
        layouts = [_Layout.read(host.numpy(), piece, begin) for piece in sparse]
        entries = np.array([layout.entries for layout in layouts])
        firsts = np.concatenate([[0], np.cumsum(entries)])
        self._entries = int(firsts[-1])
        self._positions = torch.empty(self._entries, dtype=torch.int32, device=self._device)
        self._piece_tables = [
            self._table([layout.low for layout in layouts]),
            self._table([piece.target.data_ptr() for piece in sparse]),
            self._table([piece.target.numel() for piece in sparse]),
        ]
        runs = _join([layout.runs(number) for number, layout in enumerate(layouts)])
        self._run_piece = self._table(runs.piece)
        self._run_tables = [
            self._run_piece,
            self._table(runs.entry),
            self._table(runs.length),
            self._table(firsts[runs.piece]),
        ]
        self._find_positions(layouts, runs)
        self._stage_exceptions(host.numpy(), layouts, firsts)

    def _find_positions(self, layouts: Sequence[_Layout], runs: _Runs) -> None:
        streams = self._table([layout.stream for layout in layouts])
        tiled = self._table([int(layout.tiled) for layout in layouts])
        sums = torch.zeros(len(runs.piece), dtype=torch.int64, device=self._device)
        grid = (len(runs.piece),)
        _sum_gaps[grid](self._bytes, sums, *self._run_tables, streams, tiled, _BLOCK)
        ends = sums.cumsum(0)
        # What the runs of earlier pieces add up to does not count.
        first_run = np.searchsorted(runs.piece, runs.piece)
        begins = (ends - sums) - (ends - sums)[torch.from_numpy(first_run).to(self._device)]
        _find_positions[grid](
            self._bytes,
            self._positions,
            begins + self._table(runs.tile),
            *self._run_tables,
            streams,
            tiled,
            _BLOCK,
        )

    def _stage_exceptions(
        self, host: NDArray[np.uint8], layouts: Sequence[_Layout], firsts: NDArray[Any]
    ) -> None:
        entry, top, piece = [], [], []
        for number, layout in enumerate(layouts):
            ordinals = layout.ordinals(host)
            if len(ordinals) and int(ordinals.max()) >= layout.entries:
                raise WireError(f"an exception names an entry beyond {layout.entries}")
            entry.append(ordinals + firsts[number])
            top.append(layout.tops(host))
            piece.append(np.full(len(ordinals), number))
        self._exception_entry = self._table(np.concatenate(entry))
        self._exception_top = torch.from_numpy(np.concatenate(top)).to(self._device)
        self._exception_piece = self._table(np.concatenate(piece))
        self._exceptions = len(self._exception_entry)

    _exceptions = 0

    def _table(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.int64)).to(self._device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where the parts of one sparse payload are, counted from the first byte on the device."""

    tiled: bool
    entries: int
    exceptions: int
    stream: int
    low: int
    rest: int
    tile_counts: NDArray[np.int64]

    @classmethod
    def read(cls, host: NDArray[np.uint8], piece: Piece, begin: int) -> _Layout:
        at = piece.offset - begin
        tiled = piece.encoding is Encoding.T16
        words = 3 if tiled else 2
        if piece.size < 4 * words:
            raise WireError(f"the payload of `{piece.name}` ends at byte {piece.size}")
        head = [int(value) for value in host[at : at + 4 * words].copy().view("<u4")]
        tiles, entries, exceptions = head if tiled else [0, *head]
        stream = at + 4 * words + 4 * tiles
        low = stream + entries * (2 if tiled else 1)
        rest = low + entries
        if rest + 5 * exceptions != at + piece.size:
            raise WireError(f"the {piece.encoding.name} payload of `{piece.name}` is broken")
        counts = host[stream - 4 * tiles : stream].copy().view("<u4").astype(np.int64)
        if tiled and int(counts.sum()) != entries:
            raise WireError(f"the tiles of `{piece.name}` do not count {entries} entries")
        return cls(
            tiled=tiled,
            entries=entries,
            exceptions=exceptions,
            stream=stream,
            low=low,
            rest=rest,
            tile_counts=counts,
        )

    def runs(self, number: int) -> _Runs:
        if not self.tiled:
            entry = np.arange(0, self.entries, _BLOCK)
            length = np.minimum(self.entries - entry, _BLOCK)
            return _Runs(np.full(len(entry), number), entry, length, np.zeros(len(entry), int))
        blocks = -(-self.tile_counts // _BLOCK)
        tile = np.repeat(np.arange(len(blocks)), blocks)
        inside = (np.arange(len(tile)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * _BLOCK
        starts = np.cumsum(self.tile_counts) - self.tile_counts
        length = np.minimum(self.tile_counts[tile] - inside, _BLOCK)
        return _Runs(np.full(len(tile), number), starts[tile] + inside, length, tile * TILE)

    def ordinals(self, host: NDArray[np.uint8]) -> NDArray[np.int64]:
        part = host[self.rest : self.rest + 4 * self.exceptions].copy()
        return part.view("<u4").astype(np.int64)

    def tops(self, host: NDArray[np.uint8]) -> NDArray[np.uint8]:
        begin = self.rest + 4 * self.exceptions
        return host[begin : begin + self.exceptions]


def _join(runs: Sequence[_Runs]) -> _Runs:
    return _Runs(
        np.concatenate([r.piece for r in runs]),
        np.concatenate([r.entry for r in runs]),
        np.concatenate([r.length for r in runs]),
        np.concatenate([r.tile for r in runs]),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _sum_gaps(  # type: ignore[no-untyped-def]
    payload,
    sums,
    pieces,
    entries,
    lengths,
    firsts,
    streams,
    tiled,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Add up the gaps of each run of L8 entries; 0 for T16."""
    run = tl.program_id(0)
    piece = tl.load(pieces + run)
    index = tl.arange(0, BLOCK)
    held = (index < tl.load(lengths + run)) & (tl.load(tiled + piece) == 0)
    at = tl.load(streams + piece) + tl.load(entries + run) + index
    gaps = tl.load(payload + at, mask=held, other=0).to(tl.int32)
    tl.store(sums + run, tl.sum(gaps, axis=0).to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def _find_positions(  # type: ignore[no-untyped-def]
    payload,
    positions,
    begins,
    pieces,
    entries,
    lengths,
    firsts,
    streams,
    tiled,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Turn gaps or offsets into positions in the segment."""
    run = tl.program_id(0)
    piece = tl.load(pieces + run)
    entry = tl.load(entries + run)
    index = tl.arange(0, BLOCK)
    held = index < tl.load(lengths + run)
    begin = tl.load(begins + run).to(tl.int32)
    stream = tl.load(streams + piece)
    if tl.load(tiled + piece) == 0:
        gaps = tl.load(payload + stream + entry + index, mask=held, other=0).to(tl.int32)
        at = begin + tl.cumsum(gaps, axis=0) - 1
    else:
        source = payload + stream + 2 * (entry + index)
        low = tl.load(source, mask=held, other=0).to(tl.int32)
        at = begin + low + 256 * tl.load(source + 1, mask=held, other=0).to(tl.int32)
    tl.store(positions + tl.load(firsts + run) + entry + index, at, mask=held)


@triton.jit  # type: ignore[untyped-decorator]
def _write_low(  # type: ignore[no-untyped-def]
    payload,
    positions,
    pieces,
    entries,
    lengths,
    firsts,
    lows,
    addresses,
    counts,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write the low byte of each entry of a run."""
    run = tl.program_id(0)
    piece = tl.load(pieces + run)
    index = tl.load(entries + run) + tl.arange(0, BLOCK)
    held = tl.arange(0, BLOCK) < tl.load(lengths + run)
    at = tl.load(positions + tl.load(firsts + run) + index, mask=held, other=0).to(tl.int64)
    low = tl.load(payload + tl.load(lows + piece) + index, mask=held, other=0)
    base = tl.load(addresses + piece).to(tl.pointer_type(tl.uint8))
    tl.store(base + 2 * at, low, mask=held & (at >= 0) & (at < tl.load(counts + piece)))


@triton.jit  # type: ignore[untyped-decorator]
def _write_tops(  # type: ignore[no-untyped-def]
    positions,
    exception_entries,
    exception_tops,
    exception_pieces,
    addresses,
    counts,
    number,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write the top byte of each exception."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = index < number
    piece = tl.load(exception_pieces + index, mask=held, other=0)
    entry = tl.load(exception_entries + index, mask=held, other=0)
    at = tl.load(positions + entry, mask=held, other=0).to(tl.int64)
    top = tl.load(exception_tops + index, mask=held, other=0)
    inside = held & (at >= 0) & (at < tl.load(counts + piece, mask=held, other=0))
    base = tl.load(addresses + piece, mask=held, other=0).to(tl.pointer_type(tl.uint8))
    tl.store(base + 2 * at + 1, top, mask=inside)
