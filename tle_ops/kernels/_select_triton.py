"""Selection from long rows: a bound from a sample, a filter of the row, the first k of what passed.

    `_maxima_kernel`   of rows so long that one program cannot draw the sample: the maxima of groups of it
    `_bound_kernel`    a key that almost certainly at least k elements of the row reach, and not many more
    `_filter_kernel`   one read of the row: every part notes the columns of its elements above the bound
    `_final_kernel`    the first k of those, in order of column

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
from tle_ops.kernels._keys_triton import bisect, count, greatest, keys_of, least, middle_of, value_of
from tle_ops.kernels._lines_triton import aligned, known
from tle_ops.kernels._replay import scratch
from tle_ops.kernels._triton import INTERPRETED, kernel

SAMPLE = 4096  # elements, or maxima of groups, from which one program takes the bound; up to four times as many
RUN = 8  # of which so many lie together: a sector of float32
DRAWN = 1024  # elements of which a program takes maxima
PROGRAMS = 4224  # warps that an H200 holds at once, 32 on each multiprocessor
TILE = 512  # columns that a warp filters at once: 16 a thread
SHORTEST, LONGEST = 512, 65536  # parts: columns within one are stored in 16 bits
SLOTS = 4096  # for what passes, that the final kernel handles well; it may be twice as many


# --- device functions ------------------------------------------------------------------------------------------------
@triton.jit
def window(starts_ptr, ends_ptr, row, N, STARTS: tl.constexpr, ENDS: tl.constexpr):
    """[start, end) within the row."""
    start = tl.full((), 0, tl.int32)
    end = N
    if STARTS:
        start = tl.minimum(tl.maximum(tl.load(starts_ptr + row), 0), N).to(tl.int32)
    if ENDS:
        end = tl.minimum(tl.maximum(tl.load(ends_ptr + row), 0), N).to(tl.int32)
    return start, tl.maximum(end, start)


@triton.jit
def _drawn(i, samples, length):
    """Where in [0, length) sample i of `samples`, a power of two, lies: somewhere in the i-th of equal strata."""
    i = i.to(tl.uint32)
    last = tl.full((), 0xFFFFFFFF, tl.uint32) // samples.to(tl.uint32)  # of a stratum, if the row were 2^32 long
    jitter = (i ^ (i >> 7)) * 2654435769
    jitter = (jitter ^ (jitter >> 15)) * 2246822519
    at = i * (last + 1) + ((jitter ^ (jitter >> 13)) & last)
    return tl.umulhi(at, tl.zeros_like(at) + length.to(tl.uint32)).to(tl.int32)


@triton.jit
def _against(x, bound, LARGEST: tl.constexpr):
    """Which elements have a key above the bound, and which have the bound's. Floats are compared by value, since it
    takes one instruction where a key takes seven. No bound is the key of a NaN, except for the least: everything is
    above that if the greatest are sought, else all but the NaNs."""
    if x.dtype.is_floating():
        limit = value_of(bound if LARGEST else ~bound)
        x = x.to(tl.float32)
        if LARGEST:
            above = (x <= limit) == 0
            level = x == limit
        else:
            any_number = bound == least(bound.dtype)
            above = (x < limit) | (any_number & (x == x))
            level = (x == limit) | (any_number & (x != x))
        return above, level
    else:
        keys = keys_of(x, LARGEST)
        return keys > bound, keys == bound


@triton.constexpr_function
def log2(n):
    return n.bit_length() - 1


# --- kernels ---------------------------------------------------------------------------------------------------------
@kernel("N", "programs", "step", "x_row")
def _maxima_kernel(
    x_ptr,  # [M, N], rows x_row apart
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    maxima_ptr,  # keys [M, GROUPS]
    N: tl.int32,
    programs: tl.int32,  # of a row
    step: tl.int32,  # elements of which one is drawn
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,  # of a group, at most
    BLOCK: tl.constexpr,  # groups of a program
    RUN: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = (tl.program_id(0) // programs).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, N, STARTS, ENDS)
    group = tl.program_id(0) % programs * BLOCK + tl.arange(0, BLOCK)
    members = _members(end - start, step, GROUPS, MEMBERS)
    member = tl.arange(0, MEMBERS)[:, None]
    # Neighbours are drawn for different groups, so that what lies together does not compete.
    run = (member * GROUPS + group[None, :]) // RUN
    at = (start + _drawn(run, members * (GROUPS // RUN), end - start)) // RUN * RUN + group[None, :] % RUN
    inside = (member < members) & (at >= start) & (at < end)
    keys = keys_of(tl.load(x_ptr + row * x_row + at, mask=inside, other=0), LARGEST)
    maxima = tl.max(tl.where(inside, keys, least(keys.dtype)), 0)
    tl.store(maxima_ptr + row * GROUPS + group, maxima)


@triton.jit
def _members(length, step, GROUPS: tl.constexpr, MEMBERS: tl.constexpr):
    """Of a group: a power of two, so that at least one in `step` elements of the window is drawn."""
    members = tl.full((), 1, tl.int32)
    while (members < MEMBERS) & (length // step > members * GROUPS):
        members *= 2
    return members


@kernel("N", "k", "step", "x_row")
def _bound_kernel(
    x_ptr,  # [M, N], rows x_row apart; with MEMBERS > 1 maxima [M, BLOCK]
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    bounds_ptr,  # keys [M]
    N: tl.int32,
    k: tl.int32,
    step: tl.int32,
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    MEMBERS: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
    FLOATING: tl.constexpr,
    ALIGNED: tl.constexpr,
    RUN: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, N, STARTS, ENDS)
    length = end - start
    i = tl.arange(0, BLOCK)
    samples = tl.full((), BLOCK, tl.int32)
    if MEMBERS > 1:
        samples = _members(length, step, BLOCK, MEMBERS) * BLOCK
        if PDL:
            gdc_wait()
        keys = tl.load(x_ptr + row * BLOCK + i)
    else:
        run = tl.arange(0, BLOCK // RUN)[:, None]
        at = (start + _drawn(run, samples // RUN, length)) // RUN * RUN + tl.arange(0, RUN)[None, :]
        x = tl.load(x_ptr + row * known(x_row, ALIGNED) + at, mask=at < known(N, ALIGNED), other=0)
        keys = tl.where((at >= start) & (at < end), keys_of(x, LARGEST), least(keys_of(x, LARGEST).dtype))
        keys = tl.reshape(keys, (BLOCK,))
    # Five standard deviations more than the k-th of the row is expected to have before it in the sample.
    expected = samples * (k / tl.maximum(length, 1).to(tl.float32))
    rank = tl.minimum((expected + 5.0 * tl.sqrt(expected)).to(tl.int32) + 4, BLOCK)
    low, _ = bisect(keys, tl.min(keys, 0), tl.max(keys, 0), rank, rank + rank // 32)
    if FLOATING and LARGEST:
        low = tl.minimum(low, 0x7F800000)  # a NaN compares with nothing
    low = tl.where(length <= MOST, least(low.dtype), low)  # everything may pass
    tl.store(bounds_ptr + row, low)


@kernel("N", "parts", "x_row")
def _filter_kernel(
    x_ptr,  # [M, N], rows x_row apart
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    bounds_ptr,  # keys [M]
    passed_ptr,  # int16 [M, parts, ROOM]: columns within the part of what is above the bound
    kept_ptr,  # [M, parts, KEPT]: the values of the first of them
    counts_ptr,  # int32 [2, M, parts]: how many are above, how many at the bound
    N: tl.int32,
    parts: tl.int32,  # of a row
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    ALIGNED: tl.constexpr,
    PART: tl.constexpr,
    ROOM: tl.constexpr,
    KEPT: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    part = tl.program_id(0) % parts
    row = (tl.program_id(0) // parts).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, known(N, ALIGNED), STARTS, ENDS)
    x_ptr += row * known(x_row, ALIGNED)
    passed_ptr += tl.program_id(0).to(tl.int64) * ROOM
    kept_ptr += tl.program_id(0).to(tl.int64) * KEPT
    lane = tl.arange(0, TILE)
    x = tile_of(x_ptr, part * PART, start, end, known(N, ALIGNED), TILE, WHOLE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    bound = tl.load(bounds_ptr + row)
    found = tl.full((), 0, tl.int32)
    level = tl.full((), 0, tl.int32)
    for offset in range(0, PART, TILE):
        n = part * PART + offset + lane
        if offset > 0:
            x = tile_of(x_ptr, part * PART + offset, start, end, known(N, ALIGNED), TILE, WHOLE)
        above, equal = _against(x, bound, LARGEST)
        above = within(above, n, start, end, WHOLE)
        both = count_both(above, within(equal, n, start, end, WHOLE))
        level += both >> 16
        here = both & 0xFFFF
        if here > 0:
            rank, place = append(passed_ptr, found, above, offset + lane, ROOM, WIDTH)
            if KEPT > 0:
                tl.store(kept_ptr + place, x, mask=above & (rank < KEPT - found))
        found += here
    counts_ptr += tl.program_id(0)
    programs = tl.num_programs(0)
    tl.store(counts_ptr, found)
    tl.store(counts_ptr + programs, level)


@triton.jit
def append(passed_ptr, found, flags, n, ROOM: tl.constexpr, WIDTH: tl.constexpr):
    """Note the columns n where flags are set, behind the `found` that are there, as far as there is ROOM. The
    rank of each, and where it goes."""
    rank, _ = tle.cumsum(flags.to(tl.int32))
    # What is said of `place` is not so. It keeps the lanes of the store where the load put them, or everything would be
    # scanned or moved in another layout; and since the mask differs from lane to lane, every element is stored by
    # itself. For the same reason no mask may be made of `place`: one comparison would stand for WIDTH of them.
    place = tl.max_contiguous(tl.multiple_of(found + rank, WIDTH), WIDTH)
    tl.store(passed_ptr + place, n.to(tl.int16), mask=flags & (rank < ROOM - found))
    return rank, place


@triton.jit
def tile_of(x_ptr, begin, start, end, N, TILE: tl.constexpr, WHOLE: tl.constexpr):
    """A tile of the row; nothing is read if it lies outside the window. A mask that knew the window's ends exactly
    would make narrow loads of wide ones. WHOLE: there is no window, and the row is made of whole tiles."""
    n = begin + tl.arange(0, TILE)
    if WHOLE:
        return tl.load(x_ptr + n)
    else:
        return tl.load(x_ptr + n, mask=(n < N) & (begin < end) & (begin + TILE > start), other=0)


@triton.jit
def within(flags, n, start, end, WHOLE: tl.constexpr):
    if WHOLE:
        return flags
    else:
        return flags & (n >= start) & (n < end)


@triton.jit
def count_both(a, b):
    """How many of at most 65535 are set, of b in the upper half."""
    return tl.sum(a.to(tl.int32) + b.to(tl.int32) * 65536, 0)


@kernel("N", "k", "parts", "x_row")
def _final_kernel(
    x_ptr,  # [M, N], rows x_row apart
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    bounds_ptr,  # keys [M]
    passed_ptr,  # int16 [M, parts, ROOM]
    kept_ptr,  # [M, parts, KEPT]
    counts_ptr,  # int32 [2, M, parts]
    values_ptr,  # with VALUES [M, k]
    columns_ptr,  # [M, k]: receives the columns of the first k, ascending, then -1
    N: tl.int32,
    k: tl.int32,
    parts: tl.int32,
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    VALUES: tl.constexpr,
    PART: tl.constexpr,
    ROOM: tl.constexpr,
    KEPT: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK_P: tl.constexpr,
    WALK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    M = tl.num_programs(0)
    row = tl.program_id(0).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, N, STARTS, ENDS)
    x_ptr += row * x_row
    passed_ptr += row * parts * ROOM
    kept_ptr += row * parts * KEPT
    counts_ptr += row * parts
    wanted = tl.minimum(k, end - start)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    _select_passed(
        x_ptr, start, end, tl.load(bounds_ptr + row), passed_ptr, kept_ptr, counts_ptr, values_ptr, columns_ptr,
        row * k, wanted, parts, M * parts, LARGEST, VALUES, PART, ROOM, KEPT, MOST, BLOCK_P, WALK, WIDTH,
    )  # fmt: skip
    fill(columns_ptr + row * k, wanted, k)


@triton.jit
def _select_passed(
    x_ptr, start, end, bound, passed_ptr, kept_ptr, counts_ptr, values_ptr, columns_ptr, first,
    wanted, parts, levels,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, PART: tl.constexpr, ROOM: tl.constexpr, KEPT: tl.constexpr,
    MOST: tl.constexpr, BLOCK_P: tl.constexpr, WALK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the first `wanted` of a row by what its parts let pass."""
    p = tl.arange(0, BLOCK_P)
    above = tl.load(counts_ptr + p, mask=p < parts, other=0)
    level = tl.load(counts_ptr + levels + p, mask=p < parts, other=0)
    if KEPT > 0:  # read before anything is known of the counts, so that the latencies overlap
        slot = tl.arange(0, BLOCK_P * KEPT)
        p = slot // KEPT
        inside = (p < parts) & (slot % KEPT < tl.load(counts_ptr + p, mask=p < parts, other=0))
        n = tl.load(passed_ptr + p.to(tl.int64) * ROOM + slot % KEPT, mask=p < parts, other=0)
        n = p * PART + (n.to(tl.int32) & 0xFFFF)
        x = tl.load(kept_ptr + slot, mask=p < parts, other=0)
    total = tl.sum(above, 0)
    all_kept = (total >= wanted) & (tl.max(above, 0) <= KEPT)
    if KEPT > 0:  # noqa: SIM102 (decided when the kernel is built, unlike the next)
        if all_kept:
            _first_of(x, n, inside, values_ptr, columns_ptr, first, bound, wanted, total, LARGEST, VALUES, WIDTH)
    if (all_kept == 0) | (KEPT == 0):
        _select_crowded(
            x_ptr, start, end, passed_ptr, values_ptr, columns_ptr, first, wanted, bound, above, total,
            tl.sum(level, 0), LARGEST, VALUES, PART, ROOM, MOST, BLOCK_P, WALK,
        )  # fmt: skip


@triton.jit
def _select_crowded(
    x_ptr, start, end, passed_ptr, values_ptr, columns_ptr, first, wanted, bound, above, total, total_level,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, PART: tl.constexpr, ROOM: tl.constexpr, MOST: tl.constexpr,
    BLOCK_P: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """The same where not all values were kept."""
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
        n = part * PART + (n.to(tl.int32) & 0xFFFF)
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
    low, high = bisect(keys, low, high, wanted, wanted)
    emit(x, keys, n, inside, low, high, wanted, values_ptr, columns_ptr, first, VALUES, WIDTH)


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
    sample: int  # elements, or maxima, from which one program takes the bound
    members: int  # elements drawn for each of them
    most: int  # elements above the bound that the final kernel holds
    part: int  # columns that a program filters
    kept: int  # values that it stores beside their columns
    warps: int  # of that program


@functools.lru_cache(4096)
def plan(M: int, N: int, k: int) -> Plan:
    """By the size of the problem alone: if values or windows chose, no CUDA graph could be replayed."""
    drawn = SAMPLE
    while True:
        step = N / drawn
        above = 1.03 * (k + 5 * math.sqrt(k * step) + 5 * step)  # expected, where `_bound_kernel` sets its bound
        most = triton.next_power_of_2(math.ceil(above + 4 * math.sqrt(above * step)))
        if most <= 2 * max(SLOTS, triton.next_power_of_2(k)):
            break
        drawn *= 2
    sample, members = (drawn, 1) if drawn <= 4 * SAMPLE else (SAMPLE, drawn // SAMPLE)
    # Parts as small as keep all warps busy, or so much longer that what they keep takes fewer slots.
    part = base = min(max(triton.next_power_of_2(triton.cdiv(N * M, PROGRAMS)), SHORTEST), LONGEST)
    slots, kept = _slots(N, above, part)
    while slots > SLOTS and part < 8 * SHORTEST:
        part *= 2
        slots, kept = _slots(N, above, part)
    if slots > SLOTS:
        part = base
        slots, kept = _slots(N, above, part)
    kept = kept if slots <= 2 * SLOTS else 0
    parts = triton.cdiv(N, part)
    warps = min(max(triton.next_power_of_2(PROGRAMS // (M * parts)), 1), part // TILE, 16)
    return Plan(sample, members, max(most, SLOTS // 8), part, kept, max(warps, 1))


def _slots(N: int, above: float, part: int) -> tuple[int, int]:
    """For the values that the parts of a row keep, of `above` in all, and for those of one part."""
    parts = triton.cdiv(N, part)
    each = above / parts
    kept = triton.next_power_of_2(math.ceil(each + 4 * math.sqrt(each) + 2))
    return triton.next_power_of_2(parts) * kept, kept


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
    room = min(p.part, p.most)
    key = torch.int64 if x.dtype == torch.int64 else torch.int32
    pieces = [(M, key), (M * parts * room, torch.int16), (M * parts * p.kept, x.dtype), (2 * M * parts, torch.int32)]
    if p.members > 1:
        pieces.append((M * p.sample, key))
    bounds, passed, kept, counts, *maxima = scratch(x.device, *pieces)
    pdl = not INTERPRETED
    windows = (starts is not None, ends is not None)
    bases = tuple(bounds if t is None else t for t in (starts, ends))
    step = triton.cdiv(N, p.members * p.sample)
    even = aligned(N, pitch)
    whole = not any(windows) and N % p.part == 0
    if maxima:
        block = max(DRAWN // p.members, 1)
        programs = p.sample // block
        constants = (largest, *windows, pdl, p.sample, p.members, block, RUN)
        tensors = (x, *bases, maxima[0])
        _maxima_kernel(M * programs, tensors, (N, programs, step, pitch), constants, num_warps=4)
    tensors = (maxima[0] if maxima else x, *bases, bounds)
    constants = (largest, *windows, pdl, p.members, p.most, p.sample, x.dtype.is_floating_point, even, RUN)
    _bound_kernel(M, tensors, (N, k, step, pitch), constants, num_warps=16, pdl=bool(maxima) and pdl)
    constants = (largest, *windows, pdl, even, p.part, room, p.kept, TILE * p.warps, 16 // x.dtype.itemsize, whole)
    tensors = (x, *bases, bounds, passed, kept, counts)
    _filter_kernel(M * parts, tensors, (N, parts, pitch), constants, num_warps=p.warps, pdl=pdl)
    tensors = (x, *bases, bounds, passed, kept, counts, columns if values is None else values, columns)
    block_p = max(triton.next_power_of_2(parts), 32)
    warps = min(max(max(p.most, block_p * p.kept) // 256, 4), 16)
    sizes = (p.part, room, p.kept, p.most, block_p, 128 * warps, 16 // x.dtype.itemsize)
    constants = (largest, *windows, pdl, values is not None, *sizes)
    _final_kernel(M, tensors, (N, k, parts, pitch), constants, num_warps=warps, pdl=pdl)
