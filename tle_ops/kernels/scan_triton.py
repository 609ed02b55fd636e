"""Scans in Triton. `tle.cumsum` does the work inside a tile; what differs is how a tile learns what came before it.

    many rows        a program per row, which carries the sum from tile to tile           `_cumsum_rows_kernel`
    few elements     sums of the tiles, and after a second launch every tile adds up
                     those before it                                `_tile_sums_kernel`, `_cumsum_tiles_kernel`
    few, long rows   a program per tile: tiles publish their sums and read each other's   `_cumsum_chain_kernel`
    another dim      a program per strip of columns, which carries a sum for each column  `_cumsum_columns_kernel`

Each adds in an order that depends on the shape alone, and all but the second read and write every element once. A
launch that follows another starts before that one has ended, loads its tile, and waits only then.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import tle_ops.language as tle
from tle_ops import _meta
from tle_ops.kernels._lines_triton import aligned, known, lines
from tle_ops.kernels._replay import replayed, scratch
from tle_ops.kernels._triton import INTERPRETED, kernel
from tle_ops.language.scan import join

_TILE = 4096  # of a row: 16 elements a thread of 8 warps
_CHAIN_TILE = 8192  # the longer the tile, the fewer to wait for; of 64 bits 4096
_CHAIN_LIMITS = (8, 64)  # warps, registers: four programs on a multiprocessor, whose loads hide each other's waits
_LANES = 256  # of a chain's wave: the sum before it, and 255 tiles
_BRIEF = 512  # tiles in all, up to which reading twice costs less than a chain: the second time comes from the cache
_COMPACT_TILE = 1024  # small ones hide each other's scattered writes
_ENOUGH = 264  # programs: two for each multiprocessor of an H200
_COLUMN_TILE = (64, 64)  # rows and columns: 32 elements a thread, 128 bytes of bfloat16 side by side
_MOST_BINS = 4096  # of a histogram on the chip
_READY = tl.constexpr(1 << 32)  # above the 32 bits of a published value
_SUMS = {tl.float32: torch.float32, tl.int32: torch.int32, tl.int64: torch.int64}


# --- device functions ------------------------------------------------------------------------------------------------
@triton.jit
def _row_at(row, stride, ALIGNED: tl.constexpr):
    return row.to(tl.int64) * known(stride, ALIGNED)


@triton.jit
def _publish(ptr, value, WIDE: tl.constexpr):
    """Make a value visible to other programs: 32 bits at a time, in one word with a flag, so that no order of two
    writes matters."""
    if WIDE:
        tl.atomic_xchg(ptr, (value & 0xFFFFFFFF) | _READY, sem="relaxed")
        tl.atomic_xchg(ptr + 1, ((value >> 32) & 0xFFFFFFFF) | _READY, sem="relaxed")
    else:
        bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        tl.atomic_xchg(ptr, bits | _READY, sem="relaxed")


@triton.jit
def _wait(ptrs, mask):
    """The published 32 bits at each of `ptrs` as soon as all are there; 0 where masked."""
    words = tl.load(ptrs, mask=mask, other=_READY, volatile=True)
    while tl.min(words, 0) < _READY:
        words = tl.load(ptrs, mask=mask, other=_READY, volatile=True)
    return words & 0xFFFFFFFF


@triton.jit
def _collect(ptrs, mask, ACC: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        return _wait(ptrs, mask) | (_wait(ptrs + 1, mask) << 32)
    else:
        return _wait(ptrs, mask).to(tl.int32).to(ACC, bitcast=True)


# --- cumsum ----------------------------------------------------------------------------------------------------------
@kernel("N", "x_row")
def _cumsum_rows_kernel(
    x_ptr,  # [M, N], rows x_row apart
    exclusive_ptr,  # [M, N]
    total_ptr,  # [M]
    N: tl.int64,
    x_row: tl.int64,
    REVERSE: tl.constexpr,
    ACC: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_TILE: tl.constexpr,
):
    row = tl.program_id(0)
    N = known(N, ALIGNED)
    x_ptr += _row_at(row, x_row, ALIGNED)
    exclusive_ptr += _row_at(row, N, ALIGNED)
    at = tl.arange(0, BLOCK)
    if ONE_TILE:
        x = tl.load(x_ptr + at, mask=at < N, other=0).to(ACC)
        exclusive, carry = tle.cumsum(x, 0, REVERSE)
        tl.store(exclusive_ptr + at, exclusive.to(exclusive_ptr.dtype.element_ty), mask=at < N)
    else:
        carry = tl.zeros((), ACC)
        tiles = tl.cdiv(N, BLOCK)
        for t in range(0, tiles):
            n = (tiles - 1 - t if REVERSE else t) * BLOCK + at
            x = tl.load(x_ptr + n, mask=n < N, other=0).to(ACC)
            exclusive, total = tle.cumsum(x, 0, REVERSE)
            tl.store(exclusive_ptr + n, (exclusive + carry).to(exclusive_ptr.dtype.element_ty), mask=n < N)
            carry += total
    tl.store(total_ptr + row, carry.to(total_ptr.dtype.element_ty))


@kernel("words")
def _zero_kernel(state_ptr, words: tl.int64, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(state_ptr + at, tl.zeros((BLOCK,), state_ptr.dtype.element_ty), mask=at < words)


@kernel("M", "N", "tiles", "waves", "x_row")
def _cumsum_chain_kernel(
    x_ptr,  # [M, N], rows x_row apart
    exclusive_ptr,  # [M, N]
    total_ptr,  # [M]
    state_ptr,  # int64, zeros, [M, waves + tiles], times 2 for wide sums: what came before each wave, each tile's sum
    M: tl.int32,
    N: tl.int64,
    tiles: tl.int32,  # of a row
    waves: tl.int32,  # of LANES - 1 tiles
    x_row: tl.int64,
    REVERSE: tl.constexpr,
    ACC: tl.constexpr,
    WIDE: tl.constexpr,  # sums of 64 bits
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    PDL: tl.constexpr,
):
    # Programs start in the order of their numbers, on which CUB's and torch.compile's single-pass scans rely as well:
    # the tiles that a program waits for run already. Rows take turns, so that their chains advance side by side.
    program = tl.program_id(0)
    row, t = program % M, program // M
    N = known(N, ALIGNED)
    start = (tiles - 1 - t if REVERSE else t).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    inside = at < tl.minimum(N - start, BLOCK).to(tl.int32)  # 32 bits: registers are what limits this kernel
    x = tl.load(x_ptr + _row_at(row, x_row, ALIGNED) + start + at, mask=inside, other=0).to(ACC)
    exclusive, total = tle.cumsum(x, 0, REVERSE)
    if PDL:
        gdc_wait()
    words = 2 if WIDE else 1
    state_ptr += row.to(tl.int64) * (waves + tiles) * words
    _publish(state_ptr + (waves + t) * words, total, WIDE)

    wave = t // (LANES - 1)
    first = wave * (LANES - 1)
    lane = tl.arange(0, LANES)  # 0: what came before the wave; the others: its tiles before this one
    slot = tl.where(lane == 0, wave, waves + first + lane - 1)
    before = tl.where(lane == 0, wave > 0, lane <= t - first)
    carry = tl.sum(_collect(state_ptr + slot * words, before, ACC, WIDE), 0)
    if (t == first + LANES - 2) & (wave + 1 < waves):
        _publish(state_ptr + (wave + 1) * words, carry + total, WIDE)
    if t == tiles - 1:
        tl.store(total_ptr + row, (carry + total).to(total_ptr.dtype.element_ty))
    exclusive_ptr += _row_at(row, N, ALIGNED) + start
    tl.store(exclusive_ptr + at, (exclusive + carry).to(exclusive_ptr.dtype.element_ty), mask=inside)


@kernel("N", "tiles", "x_row")
def _tile_sums_kernel(
    x_ptr,  # [M, N], rows x_row apart
    sums_ptr,  # ACC [M, tiles]
    N: tl.int64,
    tiles: tl.int32,
    x_row: tl.int64,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    N = known(N, ALIGNED)
    row, t = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    n = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + _row_at(row, x_row, ALIGNED) + n, mask=n < N, other=0)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(x.to(sums_ptr.dtype.element_ty), 0))


@kernel("N", "tiles", "x_row")
def _cumsum_tiles_kernel(
    x_ptr,  # [M, N], rows x_row apart
    exclusive_ptr,  # [M, N]
    total_ptr,  # [M]
    sums_ptr,  # [M, tiles]
    N: tl.int64,
    tiles: tl.int32,
    x_row: tl.int64,
    REVERSE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,  # at least `tiles`
    PDL: tl.constexpr,
):
    N = known(N, ALIGNED)
    row, t = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    n = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + _row_at(row, x_row, ALIGNED) + n, mask=n < N, other=0)
    exclusive, total = tle.cumsum(x.to(sums_ptr.dtype.element_ty), 0, REVERSE)
    if PDL:
        gdc_wait()
    lane = tl.arange(0, TILES)
    before = (lane > t if REVERSE else lane < t) & (lane < tiles)
    carry = tl.sum(tl.load(sums_ptr + row * tiles + lane, mask=before, other=0), 0)
    if t == (0 if REVERSE else tiles - 1):
        tl.store(total_ptr + row, (carry + total).to(total_ptr.dtype.element_ty))
    exclusive_ptr += _row_at(row, N, ALIGNED)
    tl.store(exclusive_ptr + n, (exclusive + carry).to(exclusive_ptr.dtype.element_ty), mask=n < N)


@kernel("N", "columns")
def _cumsum_columns_kernel(
    x_ptr,  # [outer, N, columns]
    exclusive_ptr,  # [outer, N, columns]
    total_ptr,  # [outer, columns]
    N: tl.int64,
    columns: tl.int64,
    REVERSE: tl.constexpr,
    ACC: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    columns = known(columns, ALIGNED)
    strips = tl.cdiv(columns, BLOCK_C)
    outer = tl.program_id(0) // strips
    c = (tl.program_id(0) % strips * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]  # [1, BLOCK_C]
    at = tl.arange(0, BLOCK_N)[:, None]  # [BLOCK_N, 1]
    x_ptr += _row_at(outer, N * columns, ALIGNED)
    exclusive_ptr += _row_at(outer, N * columns, ALIGNED)
    carry = tl.zeros((1, BLOCK_C), ACC)
    blocks = tl.cdiv(N, BLOCK_N)
    for t in range(0, blocks):
        n = (blocks - 1 - t if REVERSE else t) * BLOCK_N + at
        mask = (n < N) & (c < columns)
        x = tl.load(x_ptr + n * columns + c, mask=mask, other=0).to(ACC)
        if ACC.is_floating():
            exclusive, _ = tl.associative_scan((tl.zeros_like(x), x), 0, join, reverse=REVERSE)
        else:
            exclusive = tl.cumsum(x, 0, REVERSE) - x
        tl.store(exclusive_ptr + n * columns + c, (exclusive + carry).to(exclusive_ptr.dtype.element_ty), mask=mask)
        carry += tl.sum(x, 0)[None, :]
    tl.store(total_ptr + outer * columns + c, carry.to(total_ptr.dtype.element_ty), mask=c < columns)


@replayed
def cumsum(x: Tensor, dim: int = -1, reverse: bool = False, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    exclusive, total = _meta.cumsum(x, dim, reverse, dtype)
    shape = x.shape or (1,)
    dim %= len(shape)
    N = shape[dim]
    if total.numel() == 0:
        return exclusive, total
    if N == 0:
        return exclusive, total.zero_()
    x = x.view(torch.uint8) if x.dtype is torch.bool else x
    columns = exclusive.stride(dim) if x.dim() else 1
    if columns == 1:  # the last dimension, up to dimensions of size 1
        _cumsum_rows(x if dim == x.dim() - 1 else x.reshape(-1, N), exclusive, total, reverse)
        return exclusive, total
    strips = triton.cdiv(columns, _COLUMN_TILE[1])
    outer = total.numel() // columns
    if outer * strips < _ENOUGH // 2 and 4 * _COLUMN_TILE[0] < N:  # too few columns to fill the GPU: make rows of them
        rows = x.movedim(dim, -1)
        swapped = torch.empty(rows.shape, dtype=exclusive.dtype, device=x.device)
        _cumsum_rows(rows, swapped, total, reverse)
        exclusive.copy_(swapped.movedim(-1, dim))
        return exclusive, total
    constants = (reverse, _accumulator(exclusive.dtype), aligned(columns), *_COLUMN_TILE)
    _cumsum_columns_kernel(outer * strips, (x.contiguous(), exclusive, total), (N, columns), constants)
    return exclusive, total


def _cumsum_rows(x: Tensor, exclusive: Tensor, total: Tensor, reverse: bool) -> None:
    """Along the last dimension of x, of any strides; the outputs contiguous, in whatever shape."""
    _scan_lines(*lines(x), exclusive, total, reverse)


def _scan_lines(x: Tensor, M: int, N: int, pitch: int, exclusive: Tensor, total: Tensor, reverse: bool) -> None:
    """Of x, M rows of N elements, `pitch` apart. Tensors of any shape: only their memory counts."""
    acc = _accumulator(exclusive.dtype)
    wide = acc is tl.int64
    if M >= _ENOUGH or N <= _TILE:
        block = min(triton.next_power_of_2(N), _TILE)
        constants = (reverse, acc, aligned(N, pitch), block, block >= N)
        warps = min(8, max(1, block // 256))
        _cumsum_rows_kernel(M, (x, exclusive, total), (N, pitch), constants, num_warps=warps)
        return
    pdl = not INTERPRETED
    tiles = triton.cdiv(N, _TILE)
    if M * tiles <= _BRIEF:
        (sums,) = scratch(x.device, (M * tiles, _SUMS[acc]))
        scalars, constants = (N, tiles, pitch), (aligned(N, pitch), _TILE)
        _tile_sums_kernel(M * tiles, (x, sums), scalars, (*constants, pdl), num_warps=8)
        constants = (reverse, *constants, _BRIEF, pdl)
        _cumsum_tiles_kernel(M * tiles, (x, exclusive, total, sums), scalars, constants, num_warps=8, pdl=pdl)
        return
    block = _CHAIN_TILE // 2 if wide else _CHAIN_TILE
    tiles = triton.cdiv(N, block)
    waves = triton.cdiv(tiles, _LANES - 1)
    words = M * (waves + tiles) * (1 + wide)
    (state,) = scratch(x.device, (words, torch.int64))
    _zero_kernel(triton.cdiv(words, 1024), (state,), (words,), (1024, pdl))
    constants = (reverse, acc, wide, aligned(N, pitch), block, _LANES, pdl)
    scalars = (M, N, tiles, waves, pitch)
    warps, most = _CHAIN_LIMITS
    if wide or not aligned(N, pitch):  # which take more registers
        most = 80
    _cumsum_chain_kernel(
        M * tiles, (x, exclusive, total, state), scalars, constants, num_warps=warps, maxnreg=most, pdl=pdl
    )


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    """16-bit floats are summed in float32; integers below 32 bits wrap after the sum as they would before it."""
    if dtype.is_floating_point:
        return tl.float32
    return tl.int64 if dtype == torch.int64 else tl.int32


# --- compact ---------------------------------------------------------------------------------------------------------
@kernel("N", "x_row", "mask_row")
def _compact_rows_kernel(
    x_ptr,  # [M, N], rows x_row apart
    mask_ptr,  # bool [M, N], rows mask_row apart
    packed_ptr,  # [M, N]
    indices_ptr,  # int64 [M, N]
    count_ptr,  # int32 [M]
    N: tl.int64,
    x_row: tl.int64,
    mask_row: tl.int64,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    N = known(N, ALIGNED)
    x_ptr += _row_at(row, x_row, ALIGNED)
    mask_ptr += _row_at(row, mask_row, ALIGNED)
    packed_ptr += _row_at(row, N, ALIGNED)
    indices_ptr += _row_at(row, N, ALIGNED)
    at = tl.arange(0, BLOCK)
    count = 0
    for start in range(0, N, BLOCK):
        n = start + at
        x = tl.load(x_ptr + n, mask=n < N, other=0)  # whole vectors, kept or not, and at once
        keep = tl.load(mask_ptr + n, mask=n < N, other=0).to(tl.int1)
        place, kept = tle.compact(keep)
        place += count
        tl.store(packed_ptr + place, x, mask=keep)
        tl.store(indices_ptr + place, n, mask=keep)
        count += kept
    for start in range(count // BLOCK * BLOCK, N, BLOCK):
        n = start + at
        rest = (n >= count) & (n < N)
        tl.store(packed_ptr + n, tl.zeros((BLOCK,), packed_ptr.dtype.element_ty), mask=rest)
        tl.store(indices_ptr + n, tl.full((BLOCK,), -1, tl.int64), mask=rest)
    tl.store(count_ptr + row, count)


@kernel("N", "tiles", "mask_row")
def _tile_counts_kernel(
    mask_ptr,  # bool [M, N], rows mask_row apart
    counts_ptr,  # int32 [M, tiles]
    N: tl.int64,
    tiles: tl.int32,
    mask_row: tl.int64,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, t = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    n = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.load(mask_ptr + _row_at(row, mask_row, ALIGNED) + n, mask=n < known(N, ALIGNED), other=0)
    tl.store(counts_ptr + tl.program_id(0), tl.sum(keep.to(tl.int32), 0))


@kernel("N", "tiles", "x_row", "mask_row")
def _compact_tiles_kernel(
    x_ptr,  # [M, N], rows x_row apart
    mask_ptr,  # bool [M, N], rows mask_row apart
    before_ptr,  # int32 [M, tiles]: kept before each tile
    packed_ptr,  # [M, N]
    indices_ptr,  # int64 [M, N]
    count_ptr,  # int32 [M]
    N: tl.int64,
    tiles: tl.int32,
    x_row: tl.int64,
    mask_row: tl.int64,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, t = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    N = known(N, ALIGNED)
    start = t.to(tl.int64) * BLOCK
    n = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + _row_at(row, x_row, ALIGNED) + n, mask=n < N, other=0)
    keep = tl.load(mask_ptr + _row_at(row, mask_row, ALIGNED) + n, mask=n < N, other=0).to(tl.int1)
    before = tl.load(before_ptr + tl.program_id(0))
    place, kept = tle.compact(keep)
    # What is dropped fills the tail: every place of the row is written once.
    dropped = tl.load(count_ptr + row) + start - before - kept
    place += _row_at(row, N, ALIGNED) + tl.where(keep, before, dropped)
    tl.store(packed_ptr + place, tl.where(keep, x, 0), mask=n < N)
    tl.store(indices_ptr + place, tl.where(keep, n, -1), mask=n < N)


@replayed
def compact(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    packed, indices, count = _meta.compact(x, mask)
    N = x.shape[-1]
    if count.numel() == 0 or N == 0:
        return packed, indices, count.zero_()
    target = packed
    if x.dtype is torch.bool:
        x, target = x.view(torch.uint8), packed.view(torch.uint8)
    x, M, N, pitch = lines(x)
    mask, _, _, mask_pitch = lines(mask)
    wide = aligned(N, pitch, mask_pitch)
    block = min(triton.next_power_of_2(N), _COMPACT_TILE)
    warps = max(1, block // 256)
    if M >= _ENOUGH or N <= _TILE:
        tensors, scalars = (x, mask, target, indices, count), (N, pitch, mask_pitch)
        _compact_rows_kernel(M, tensors, scalars, (wide, block), num_warps=warps)
        return packed, indices, count
    tiles = triton.cdiv(N, block)
    counts, before = scratch(x.device, *[(M * tiles, torch.int32)] * 2)
    _tile_counts_kernel(M * tiles, (mask, counts), (N, tiles, mask_pitch), (wide, block), num_warps=warps)
    _scan_lines(counts, M, tiles, tiles, before, count, False)
    tensors, scalars = (x, mask, before, target, indices, count), (N, tiles, pitch, mask_pitch)
    _compact_tiles_kernel(M * tiles, tensors, scalars, (wide, block), num_warps=warps)
    return packed, indices, count


# --- histogram -------------------------------------------------------------------------------------------------------
@kernel("N", "bins", "parts", "x_row")
def _histogram_kernel(
    x_ptr,  # [M, N], rows x_row apart
    counts_ptr,  # int32 [M, bins], zeros unless ONE_PART
    N: tl.int64,
    bins: tl.int32,
    parts: tl.int32,  # programs of a row
    x_row: tl.int64,
    ALIGNED: tl.constexpr,
    ONE_PART: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0) % parts
    row = tl.program_id(0) // parts
    N = known(N, ALIGNED)
    x_ptr += _row_at(row, x_row, ALIGNED)
    at = tl.arange(0, BLOCK)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(part.to(tl.int64) * BLOCK, N, parts.to(tl.int64) * BLOCK):
        x = tl.load(x_ptr + start + at, mask=start + at < N, other=-1)
        counted = (start + at < N) & (x >= 0) & (x < bins)
        counts += tl.histogram(tl.where(counted, x, 0).to(tl.int32), BINS, mask=counted)
    b = tl.arange(0, BINS)
    counts_ptr += row.to(tl.int64) * bins
    if ONE_PART:
        tl.store(counts_ptr + b, counts, mask=b < bins)
    else:  # sums of integers: the order does not matter
        tl.atomic_add(counts_ptr + b, counts, mask=(b < bins) & (counts > 0), sem="relaxed")


@kernel("N", "bins", "parts", "x_row")
def _histogram_scatter_kernel(
    x_ptr,  # [M, N], rows x_row apart
    counts_ptr,  # int32 [M, bins], zeros
    N: tl.int64,
    bins: tl.int64,
    parts: tl.int32,  # programs of a row
    x_row: tl.int64,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0) % parts
    row = tl.program_id(0) // parts
    n = part.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + _row_at(row, x_row, ALIGNED) + n, mask=n < N, other=-1)
    counted = (n < N) & (x >= 0) & (x < bins)
    tl.atomic_add(counts_ptr + row.to(tl.int64) * bins + x, 1, mask=counted, sem="relaxed")


def histogram(x: Tensor, bins: int) -> Tensor:
    counts = _meta.histogram(x, bins)
    if counts.numel() == 0 or x.numel() == 0:
        return counts.zero_()
    x, M, N, pitch = lines(x.view(torch.uint8) if x.dtype is torch.bool else x)
    wide = aligned(N, pitch)
    block = min(max(triton.next_power_of_2(N), 128), _TILE)
    tiles = triton.cdiv(N, block)
    warps = max(1, block // 512)
    if bins > _MOST_BINS:
        counts.zero_()
        _histogram_scatter_kernel(M * tiles, (x, counts), (N, bins, tiles, pitch), (wide, block), num_warps=warps)
        return counts
    parts = min(tiles, triton.cdiv(_ENOUGH, M))
    if parts > 1:
        counts.zero_()
    constants = (wide, parts == 1, max(triton.next_power_of_2(bins), 128), block)
    _histogram_kernel(M * parts, (x, counts), (N, bins, parts, pitch), constants, num_warps=warps)
    return counts
