"""Selection from long rows: a bound from a sample, a filter of the row, the first k of what passed.

    `_filter_kernel`   one read of the row: every program draws the sample and takes from it a key that almost certainly
                       at least k elements of the row reach, and not many more; then every warp notes the columns and
                       values of its elements above that bound
    `_final_kernel`    the first k of those, in order of column
    `_maxima_kernel`   of rows so long that one program cannot draw the sample: the maxima of groups of it
    `_bound_kernel`    and the bound by these

Exact whatever the row holds: the bound is a guess that the final kernel verifies. If fewer than k elements are above
it but k reach it, it is the k-th key, and the row is walked once more. If the guess was wrong, the row is bisected by
counting: slower, but no buffer can overflow, and which way is taken is decided on the GPU. The sample is stratified
over the window and jittered, so that order and repetition in a row do it no harm.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import tle_ops.language as tle
from tle_ops.kernels._filter_triton import (
    _bound_kernel,
    _filter_kernel,
    _maxima_kernel,
    append,
    log2,
    tile_of,
    window,
    within,
)
from tle_ops.kernels._keys_triton import count, greatest, keys_of, least, middle_of, search
from tle_ops.kernels._lines_triton import aligned, known
from tle_ops.kernels._replay import scratch
from tle_ops.kernels._triton import INTERPRETED, kernel

__all__ = ["append", "bisect_row", "emit", "fill", "plan", "select_long", "tile_of", "walk", "window", "within"]

SAMPLE = 4096  # maxima of groups, at most, from which one program takes the bound; elements, at least, in them
MOST_DRAWN = 16384  # elements, if every program of the filter draws them itself
MOST_FOR_PLACES = 2**19  # elements drawn so that what passes has places set apart for it
RUN = 8  # of which so many lie together: a sector of float32
DRAWN = 1024  # elements of which a program takes maxima
PROGRAMS = 264  # that filter: two on each multiprocessor of an H200
WARPS = 8  # of each, or half as many where there is little to filter
TILE = 512  # columns that a warp filters at once: 16 a thread
LONGEST = 65536  # part: columns within one are stored in 16 bits
SLOTS = 4096  # for what passes, that the final kernel handles well; it may be twice as many
SLOTS_PER_WARP = 256


# --- the first k of what passed ---------------------------------------------------------------------------------------
@kernel("N", "k", "pieces", "chunks", "x_row")
def _final_kernel(
    x_ptr,  # [M, N], rows x_row apart
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    bounds_ptr,  # keys [M]
    passed_ptr,  # int16 [M, chunks, ROOM]
    counts_ptr,  # int32 [2, M, chunks]
    near_ptr,  # int32 [M, pieces, KEPT]
    kept_ptr,  # [M, pieces, KEPT]
    totals_ptr,  # int32 [M, pieces]
    values_ptr,  # with VALUES [M, k]
    columns_ptr,  # [M, k]: receives the columns of the first k, ascending, then -1
    N: tl.int32,
    k: tl.int32,
    pieces: tl.int32,  # of a row: parts if they are joined, else chunks
    chunks: tl.int32,  # of a row
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
    ROOM: tl.constexpr,
    KEPT: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK_P: tl.constexpr,  # pieces
    BLOCK_C: tl.constexpr,  # chunks
    WALK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    M = tl.num_programs(0)
    row = tl.program_id(0).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, N, STARTS, ENDS)
    x_ptr += row * x_row
    wanted = tl.minimum(k, end - start)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    bound = tl.load(bounds_ptr + row)
    done = False
    if KEPT > 0:
        p = tl.arange(0, BLOCK_P)
        totals = tl.load(totals_ptr + row * pieces + p, mask=p < pieces, other=0)
        slot = tl.arange(0, BLOCK_P * KEPT)
        mask = slot < known(pieces * KEPT, KEPT % 16 == 0)
        n = tl.load(near_ptr + row * pieces * KEPT + slot, mask=mask, other=-1)
        x = tl.load(kept_ptr + row * pieces * KEPT + slot, mask=mask, other=0)
        total = tl.sum(totals, 0)
        done = (total >= wanted) & (tl.max(totals, 0) <= KEPT)
        if done:
            _first_of(x, n, n >= 0, values_ptr, columns_ptr, row * k, bound, wanted, total, LARGEST, VALUES, WIDTH)
    if not done:
        _select_crowded(
            x_ptr, start, end, passed_ptr + row * chunks * ROOM, values_ptr, columns_ptr, row * k, wanted, bound,
            counts_ptr + row * chunks, chunks, M * chunks,
            LARGEST, VALUES, CHUNK, ROOM, MOST, BLOCK_C, WALK,
        )  # fmt: skip
    fill(columns_ptr + row * k, wanted, k)


@triton.jit
def _select_crowded(
    x_ptr, start, end, passed_ptr, values_ptr, columns_ptr, first, wanted, bound, counts_ptr, chunks, levels,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, MOST: tl.constexpr,
    BLOCK_P: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Store the first `wanted` of a row by what its chunks let pass, where not all values were kept."""
    p = tl.arange(0, BLOCK_P)
    above = tl.load(counts_ptr + p, mask=p < chunks, other=0)
    total = tl.sum(above, 0)
    total_level = tl.sum(tl.load(counts_ptr + levels + p, mask=p < chunks, other=0), 0)
    if (total >= wanted) & (total <= MOST):
        begins, _ = tle.cumsum(above)  # of parts beyond the row: the total
        slot = tl.arange(0, MOST)
        part = tl.zeros((MOST,), tl.int32)  # the last that begins at or before the slot
        for i in tl.static_range(log2(BLOCK_P)):
            further = part + (BLOCK_P >> (i + 1))
            part = tl.where(tl.gather(begins, further, 0) <= slot, further, part)
        inside = slot < total  # beyond, the part may be one beyond the row
        within = slot - tl.gather(begins, part, 0)
        n = tl.load(passed_ptr + part.to(tl.int64) * ROOM + within, mask=inside, other=0)
        n = part * CHUNK + (n.to(tl.int32) & 0xFFFF)
        x = tl.load(x_ptr + n, mask=inside, other=0)
        _first_of(x, n, inside, values_ptr, columns_ptr, first, bound, wanted, total, LARGEST, VALUES, 1)
    else:
        low = bound
        high = bound
        if (total > MOST) | (total + total_level < wanted):
            enough = total >= wanted
            low = tl.where(enough, bound, least(bound.dtype))
            high = tl.where(enough, greatest(bound.dtype), bound)
            total = tl.where(enough, 0, total)
            low, high, total = bisect_row(x_ptr, start, end, low, high, total, wanted, LARGEST, WALK)
        walk(
            x_ptr, values_ptr, columns_ptr, first, start, end, low, high, wanted, wanted - total, LARGEST, VALUES, WALK
        )


@triton.jit
def fill(columns_ptr, wanted, k):
    """-1 from `wanted` to k."""
    for begin in range(wanted, k, 512):
        rest = begin + tl.arange(0, 512)
        tl.store(columns_ptr + rest, tl.full((512,), -1, columns_ptr.dtype.element_ty), mask=rest < k)


@triton.jit
def _first_of(
    x, n, inside, values_ptr, columns_ptr, first, bound, wanted, total,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the first `wanted` of all `total` that are above the bound."""
    keys = tl.where(inside, keys_of(x, LARGEST), least(bound.dtype))
    low = tl.where(total == wanted, least(bound.dtype), bound)  # all are wanted
    high = tl.where(total == wanted, low, tl.max(keys, 0))
    low, high, from_low = search(keys, low, high, wanted, wanted)
    above = inside & (keys > high)
    level = inside & (keys >= low) & (keys <= high)
    room = wanted
    if from_low > wanted:  # not all that is level is wanted
        room = wanted - count(above)
    _store_first(x, n, above, level, room, values_ptr, columns_ptr, first, VALUES, WIDTH)


@triton.jit
def emit(
    x, keys, n, inside, low, high, wanted, values_ptr, columns_ptr, first, VALUES: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Store what is above `high`, and of what is from `low` to `high` the first: `wanted` in all, in order, from
    place `first` on. WIDTH: of the lanes' runs, so that none changes."""
    above = inside & (keys > high)
    level = inside & (keys >= low) & (keys <= high)
    _store_first(x, n, above, level, wanted - count(above), values_ptr, columns_ptr, first, VALUES, WIDTH)


@triton.jit
def _store_first(
    x, n, above, level, room, values_ptr, columns_ptr, first, VALUES: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Store what is above and the first `room` of what is level; how many of each."""
    # One scan for both ranks: neither exceeds the block.
    ranks, totals = tle.cumsum(above.to(tl.int32) + level.to(tl.int32) * 65536)
    rank, level_rank = ranks & 0xFFFF, ranks >> 16
    taken = above | (level & (level_rank < room))
    place = rank + tl.minimum(level_rank, room)
    place = tl.max_contiguous(tl.multiple_of(first + place, WIDTH), WIDTH)  # as in `append`
    tl.store(columns_ptr + place, n.to(columns_ptr.dtype.element_ty), mask=taken)
    if VALUES:
        tl.store(values_ptr + place, x, mask=taken)
    return totals & 0xFFFF, tl.minimum(totals >> 16, room)


@triton.jit
def bisect_row(x_ptr, start, end, low, high, above, wanted, LARGEST: tl.constexpr, WALK: tl.constexpr):
    """`bisect` by counting over the whole row, WALK columns at a time. above: how many are above high, at first and at
    last."""
    at_least = wanted + 1
    while (low < high) & (at_least != wanted):
        middle = middle_of(low, high)
        reached = tl.zeros((WALK,), tl.int32)
        for begin in range(start, end, WALK):
            n = begin + tl.arange(0, WALK)
            x = tl.load(x_ptr + n, mask=n < end, other=0)
            reached += ((keys_of(x, LARGEST) >= middle) & (n < end)).to(tl.int32)
        at_middle = tl.sum(reached, 0)
        if at_middle >= wanted:
            low = middle
            at_least = at_middle
        else:
            high = middle - 1
            above = at_middle
    return low, high, above


@triton.jit
def walk(
    x_ptr, values_ptr, columns_ptr, first, start, end, low, high, wanted, room,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Store the columns of what is above `high`, and of the first `room` from `low` to `high`."""
    found = tl.full((), 0, tl.int32)
    begin = start
    while (found < wanted) & (begin < end):
        n = begin + tl.arange(0, WALK)
        inside = n < end
        x = tl.load(x_ptr + n, mask=inside, other=0)
        keys = keys_of(x, LARGEST)
        above = inside & (keys > high)
        level = inside & (keys >= low) & (keys <= high)
        here, here_level = _store_first(x, n, above, level, room, values_ptr, columns_ptr, first + found, VALUES, 1)
        found += here + here_level
        room -= here_level
        begin += WALK


# --- the launches ----------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Plan:
    sample: int  # elements, or maxima of groups, from which one program takes the bound
    members: int  # elements drawn for each of them
    most: int  # elements above the bound that the final kernel holds
    part: int  # columns that a program filters
    warps: int  # of that program
    chunks: int  # of a part: 1, or one for each warp
    each: int  # values that a chunk keeps before they are joined; 0 if they are not
    kept: int  # values that a piece keeps: a part if there is one chunk or they are joined, else a chunk

    @property
    def joined(self) -> bool:
        return self.each > 0

    @property
    def pieces(self) -> int:
        """Of a part."""
        return 1 if self.joined else self.chunks

    @property
    def alone(self) -> bool:
        """Whether every program of the filter takes the bound itself."""
        return self.sample * self.members <= MOST_DRAWN and self.warps > 1


@functools.lru_cache(4096)
def plan(M: int, N: int, k: int) -> Plan:
    """By the size of the problem alone: if values or windows chose, no CUDA graph could be replayed."""
    # Parts as small as keep all multiprocessors busy.
    warps = WARPS if M * N > PROGRAMS // 2 * TILE * WARPS else WARPS // 2
    tile = TILE * warps
    part = min(max(triton.next_power_of_2(triton.cdiv(N * M, PROGRAMS)), tile), LONGEST)
    chunks = 1 if part == tile else warps
    drawn, found = SAMPLE, None
    while True:  # until what passes is few enough for the final kernel: first of all, then in places set apart for it
        step = N / drawn
        rank = k / step + 5 * math.sqrt(k / step) + 4
        sample = SAMPLE
        # In fewer groups much of the sample would hide behind each other.
        while drawn <= MOST_DRAWN and sample > SAMPLE // 4 and rank < 0.09 * sample:
            sample //= 2
        above = -1.03 * math.log1p(-min(rank / sample, 0.9)) * sample * step  # expected
        most = triton.next_power_of_2(math.ceil(above + 4 * math.sqrt(above * step)))
        last = 4 * drawn > N
        if most <= 2 * max(SLOTS, triton.next_power_of_2(k)) or last:
            p = Plan(
                sample, drawn // sample, max(most, SLOTS // 8), part, *_places(N, k, part, warps, chunks, above, step)
            )
            found = p if found is None or p.kept else found
            if p.kept or last or drawn >= MOST_FOR_PLACES:
                return found
        drawn *= 2


def _places(N: int, k: int, part: int, warps: int, chunks: int, above: float, step: float) -> tuple[int, int, int, int]:
    """warps, chunks, each and kept of a plan."""
    parts = triton.cdiv(N, part)
    whole, one = _room(above, step, N / part), _room(above, step, N / part * chunks)
    slots = 4 * SLOTS if 2 * k > SLOTS else 2 * SLOTS
    if one * triton.next_power_of_2(parts * chunks) <= slots:
        return warps, chunks, 0, one
    if whole * triton.next_power_of_2(parts) <= slots and chunks > 1:
        return warps, chunks, min(one, part // chunks), whole
    return (warps, chunks, 0, 0) if parts * chunks <= SLOTS else (1, 1, 0, 0)


def _room(above: float, step: float, pieces: float) -> int:
    """For what passes in one of several pieces of a row, almost certainly. The bound varies as well."""
    each = above / pieces
    return triton.next_power_of_2(math.ceil(each + 4.2 * math.sqrt(each + above * step / pieces**2) + 2))


def select_long(
    x: Tensor,
    M: int,
    N: int,
    pitch: int,
    k: int,
    largest: bool,
    starts: Tensor | None,  # [M]
    ends: Tensor | None,
    values: Tensor | None,  # [M, k]
    columns: Tensor,  # [M, k]: receives the columns of the first k, ascending, then -1
) -> None:
    p = plan(M, N, k)
    parts = triton.cdiv(N, p.part)
    programs, pieces, chunks = M * parts, parts * p.pieces, parts * p.chunks
    chunk = p.part // p.chunks
    room = min(chunk, p.most)
    key = torch.int64 if x.dtype == torch.int64 else torch.int32
    bounds, passed, counts, near, kept, totals, firsts, maxima = scratch(
        x.device,
        (M, key),
        (M * chunks * room, torch.int16),
        (2 * M * chunks, torch.int32),
        (M * pieces * p.kept, torch.int32),
        (M * pieces * p.kept, x.dtype),
        (M * pieces, torch.int32),
        (M * chunks * p.each, x.dtype),
        (0 if p.alone else M * p.sample, key),
    )
    pdl = not INTERPRETED
    windows = (starts is not None, ends is not None)
    bases = tuple(bounds if t is None else t for t in (starts, ends))
    step = triton.cdiv(N, p.members * p.sample)
    even = aligned(N, pitch)
    whole = not any(windows) and N % p.part == 0
    floating = x.dtype.is_floating_point
    width = 16 // x.dtype.itemsize
    if not p.alone:
        block = max(DRAWN // p.members, 1)
        each = p.sample // block
        constants = (largest, *windows, pdl, p.sample, p.members, block, RUN)
        _maxima_kernel(M * each, (x, *bases, maxima), (N, each, step, pitch), constants, num_warps=4)
        constants = (largest, *windows, pdl, p.members, p.most, p.sample, floating)
        tensors = (maxima, *bases, bounds)
        _bound_kernel(M, tensors, (N, k, step), constants, num_warps=min(max(p.sample // 256, 1), 16), pdl=pdl)
    constants = (largest, *windows, pdl, even, whole, p.sample if p.alone else 0, p.members, p.most, floating, RUN)
    sizes = (p.part, p.chunks, room, p.each, p.kept, p.joined, p.warps, TILE, width)
    tensors = (x, *bases, bounds, passed, firsts, counts, near, kept, totals)
    scalars = (N, k, step, parts, pitch)
    _filter_kernel(programs, tensors, scalars, constants + sizes, num_warps=p.warps, pdl=pdl and not p.alone)
    tensors = (x, *bases, bounds, passed, counts, near, kept, totals, columns if values is None else values, columns)
    block_p, block_c = triton.next_power_of_2(pieces), triton.next_power_of_2(chunks)
    warps = min(max((block_p * p.kept or p.most) // SLOTS_PER_WARP, 1), 16)
    sizes = (chunk, room, p.kept, p.most, block_p, block_c, max(128 * warps, 512), width)
    constants = (largest, *windows, pdl, values is not None, *sizes)
    _final_kernel(M, tensors, (N, k, pieces, chunks, pitch), constants, num_warps=warps, pdl=pdl)
