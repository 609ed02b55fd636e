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
from tle_ops.kernels._keys_triton import count, greatest, keys_of, least, middle_of, search, value_of
from tle_ops.kernels._lines_triton import aligned, known
from tle_ops.kernels._replay import scratch
from tle_ops.kernels._triton import INTERPRETED, kernel

SAMPLE = 4096  # maxima of groups, at most, from which one program takes the bound; elements, at least, in them
MOST_DRAWN = 16384  # elements, if every program of the filter draws them itself
MOST_FOR_PLACES = 2**19  # elements drawn so that what passes has places set apart for it
RUN = 8  # of which so many lie together: a sector of float32
DRAWN = 1024  # elements of which a program takes maxima
PROGRAMS = 264  # that filter: two on each multiprocessor of an H200
WARPS = 8  # of each
TILE = 512  # columns that a warp filters at once: 16 a thread
LONGEST = 65536  # part: columns within one are stored in 16 bits
FETCHED = 4096  # columns that a warp has brought into L2 ahead of its first tiles
SLOTS = 4096  # for what passes, that the final kernel handles well; it may be twice as many
SLOTS_PER_WARP = 512


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
    drawn = length // step
    for i in tl.static_range(log2(MEMBERS)):
        members = tl.where(drawn > (GROUPS << i), 2 << i, members)
    return members


@kernel("N", "k", "step")
def _bound_kernel(
    maxima_ptr,  # [M, BLOCK]
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    bounds_ptr,  # keys [M]
    N: tl.int32,
    k: tl.int32,
    step: tl.int32,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    MEMBERS: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
    FLOATING: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, N, STARTS, ENDS)
    members = _members(end - start, step, BLOCK, MEMBERS)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    keys = tl.load(maxima_ptr + row * BLOCK + tl.arange(0, BLOCK))
    tl.store(bounds_ptr + row, _bound_of(keys, end - start, members, k, LARGEST, MOST, BLOCK, FLOATING))


@triton.jit
def _sample(x_ptr, N, start, end, members, MEMBERS: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr):
    """Elements [BLOCK // RUN, MEMBERS, RUN], and which of them are in the window and among its first `members`. Runs
    of RUN lie together. A thread has all members of a group."""
    member = tl.arange(0, MEMBERS)[None, :, None]
    run = member * (BLOCK // RUN) + tl.arange(0, BLOCK // RUN)[:, None, None]
    at = start + _drawn(run, members * (BLOCK // RUN), end - start)
    at = at // RUN * RUN + tl.arange(0, RUN)[None, None, :]  # [BLOCK // RUN, MEMBERS, RUN]
    x = tl.load(x_ptr + at, mask=(at < N) & (member < members), other=0)
    return x, (at >= start) & (at < end) & (member < members)


@triton.jit
def _maxima(x, inside, LARGEST: tl.constexpr):
    """The greatest keys of the groups."""
    keys = tl.where(inside, keys_of(x, LARGEST), least(keys_of(x, LARGEST).dtype))
    return tl.reshape(tl.max(keys, 1), (x.shape[0] * x.shape[2],))


@triton.jit
def _fetch(x_ptr, begin, start, end, COLUMNS: tl.constexpr, LINE: tl.constexpr):
    """Have the first COLUMNS from each `begin` on brought into L2, as far as they are in the window."""
    n = begin + tl.arange(0, COLUMNS // LINE)[None, None, :] * LINE
    n = tl.maximum(tl.minimum(tl.maximum(n, start), end - 1), 0)
    asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,l", [(x_ptr + n).to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _bound_of(
    keys, length, members, k, LARGEST: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, FLOATING: tl.constexpr
):
    """The key that the elements of a row of this length have to exceed, by its sample."""
    # Five standard deviations more than the k-th of the row is expected to have before it in the sample.
    expected = members * BLOCK * (k / tl.maximum(length, 1).to(tl.float32))
    rank = tl.minimum((expected + 5.0 * tl.sqrt(expected)).to(tl.int32) + 4, BLOCK)
    high, low = tl.split(tl.max(tl.join(keys, ~keys), 0))  # both ends at once
    low, _, _ = search(keys, ~low, high, rank, rank + rank // 32)
    if FLOATING and LARGEST:
        low = tl.minimum(low, 0x7F800000)  # a NaN compares with nothing
    return tl.where(length <= MOST, least(low.dtype), low)  # everything may pass


@kernel("N", "k", "step", "parts", "x_row")
def _filter_kernel(
    x_ptr,  # [M, N], rows x_row apart
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    bounds_ptr,  # keys [M]: with SAMPLE written, else read
    passed_ptr,  # int16 [M, parts, CHUNKS, ROOM]: columns within the chunk of what is above the bound
    values_ptr,  # with JOINED [M, parts, CHUNKS, EACH]: the values of the first of them
    counts_ptr,  # int32 [2, M, parts, CHUNKS]: how many are above, how many at the bound
    near_ptr,  # int32 [M, pieces, KEPT]: columns within the row of what is above the bound, then -1
    kept_ptr,  # [M, pieces, KEPT]: their values
    totals_ptr,  # int32 [M, pieces]: how many these are, or more than KEPT if one is missing
    N: tl.int32,
    k: tl.int32,
    step: tl.int32,
    parts: tl.int32,  # of a row
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,
    SAMPLE: tl.constexpr,  # 0, or the program takes its row's bound itself
    MEMBERS: tl.constexpr,
    MOST: tl.constexpr,
    FLOATING: tl.constexpr,
    RUN: tl.constexpr,
    PART: tl.constexpr,
    CHUNKS: tl.constexpr,  # of a part: 1, or as many as there are warps, which walk one each
    ROOM: tl.constexpr,
    EACH: tl.constexpr,
    KEPT: tl.constexpr,
    JOINED: tl.constexpr,
    WARPS: tl.constexpr,
    FETCHED: tl.constexpr,  # columns of a chunk that are brought into L2 meanwhile
    TILE: tl.constexpr,  # columns that a warp filters at once
    WIDTH: tl.constexpr,  # of a load
):
    # A tile is [WARPS, Q, L], of which the last is what a warp loads at once. Nothing is reduced over the warps.
    Q: tl.constexpr = 16 // WIDTH
    L: tl.constexpr = TILE // Q
    CHUNK: tl.constexpr = PART // CHUNKS
    if PDL:
        gdc_launch_dependents()
    program = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0) // parts).to(tl.int64)
    start, end = window(starts_ptr, ends_ptr, row, known(N, ALIGNED), STARTS, ENDS)
    x_ptr += row * known(x_row, ALIGNED)
    warp = tl.arange(0, WARPS)[:, None, None]
    STEP: tl.constexpr = TILE if CHUNKS > 1 else TILE * WARPS  # from one tile of a warp to its next
    FIRST: tl.constexpr = CHUNK if CHUNKS > 1 else TILE  # from one warp to the next
    begin = tl.program_id(0) % parts * PART + warp * FIRST  # [WARPS, 1, 1]
    lane = tl.arange(0, Q)[None, :, None] * L + tl.arange(0, L)[None, None, :]  # [1, Q, L]
    x = _tile(x_ptr, begin, lane, start, end, known(N, ALIGNED), TILE, WHOLE)
    if SAMPLE > 0:
        members = _members(end - start, step, SAMPLE, MEMBERS)
        drawn, inside = _sample(x_ptr, known(N, ALIGNED), start, end, members, MEMBERS, SAMPLE, RUN)
        if PDL and FETCHED > 0:  # while the bound is sought, for which memory is idle
            _fetch(x_ptr, begin, start, end, FETCHED, 8 * WIDTH)
        keys = _maxima(drawn, inside, LARGEST)
        bound = _bound_of(keys, end - start, members, k, LARGEST, MOST, SAMPLE, FLOATING)
        if tl.program_id(0) % parts == 0:
            tl.store(bounds_ptr + row, bound)
    else:
        if PDL:
            gdc_wait()
        bound = tl.load(bounds_ptr + row)
    chunk = program * CHUNKS + (warp if CHUNKS > 1 else tl.zeros_like(warp))
    found = tl.zeros((WARPS, 1, 1), tl.int32)
    level = tl.zeros((WARPS, 1, L), tl.int32)
    for offset in range(0, CHUNK, STEP):
        n = begin + offset + lane
        following = x
        if CHUNK > STEP:  # the next tile is on its way while this one is worked on
            ahead = tl.minimum(offset + STEP, CHUNK - STEP)
            following = _tile(x_ptr, begin + ahead, lane, start, end, known(N, ALIGNED), TILE, WHOLE)
        above, equal = _against(x, bound, LARGEST)
        above = within(above, n, start, end, WHOLE)
        level += tl.sum(within(equal, n, start, end, WHOLE).to(tl.int32), 1, keep_dims=True)
        rank, here = _ranks(above, Q)
        if CHUNKS == 1:  # a warp's come after those of the warps before it
            all_warps = tl.reshape(here, (WARPS,))
            rank += tl.reshape(tl.cumsum(all_warps, 0) - all_warps, (WARPS, 1, 1))
            here = tl.zeros_like(here) + tl.sum(all_warps, 0)
        rank += found
        place = chunk * ROOM + rank
        # What is said of `place` is not so. It keeps the lanes of the store where the load put them, or everything
        # would be moved to another layout; and since the mask differs from lane to lane, every element is stored by
        # itself. For the same reason no mask may be made of `place`: one comparison would stand for WIDTH of them.
        place = tl.max_contiguous(tl.multiple_of(place, (1, 1, WIDTH)), (1, 1, WIDTH))
        inner = n - begin + (0 if CHUNKS > 1 else warp * TILE)
        fits = above
        if ROOM < CHUNK:
            fits = above & (rank < ROOM)
        tl.store(passed_ptr + place, inner.to(tl.int16), mask=fits)
        if JOINED:
            place = chunk * EACH + rank
            place = tl.max_contiguous(tl.multiple_of(place, (1, 1, WIDTH)), (1, 1, WIDTH))
            tl.store(values_ptr + place, x, mask=above & (rank < EACH))
        elif KEPT > 0:
            place = chunk * KEPT + rank
            place = tl.max_contiguous(tl.multiple_of(place, (1, 1, WIDTH)), (1, 1, WIDTH))
            tl.store(near_ptr + place, n, mask=above & (rank < KEPT))
            tl.store(kept_ptr + place, x, mask=above & (rank < KEPT))
        found += here
        x = following
    levels_ptr = counts_ptr + (program + tl.num_programs(0)) * CHUNKS
    counts_ptr += program * CHUNKS
    level = tl.sum(level, 2, keep_dims=True)  # [WARPS, 1, 1]
    total = tl.max(tl.reshape(found, (WARPS,)), 0)
    if CHUNKS == 1:
        tl.store(counts_ptr, total)
        tl.store(levels_ptr, tl.sum(tl.reshape(level, (WARPS,)), 0))
    else:
        tl.store(counts_ptr + warp, found)
        tl.store(levels_ptr + warp, level)
    if JOINED:
        tl.debug_barrier()
        slot = tl.arange(0, CHUNKS * EACH)
        of = slot // EACH
        inside = slot % EACH < tl.load(counts_ptr + of)
        # Narrower than it could be, like the values.
        passed_ptr += program * (CHUNKS * ROOM)
        n = tl.load(passed_ptr + tl.max_contiguous(of * ROOM + slot % EACH, WIDTH)).to(tl.int32) & 0xFFFF
        x = tl.load(values_ptr + program * (CHUNKS * EACH) + slot)
        most = total
        rank, total = tle.cumsum(inside.to(tl.int32))
        n += tl.program_id(0) % parts * PART + of * CHUNK
        place = tl.max_contiguous(tl.multiple_of(program * KEPT + rank, WIDTH), WIDTH)  # as above
        tl.store(near_ptr + place, n, mask=inside & (rank < KEPT))
        tl.store(kept_ptr + place, x, mask=inside & (rank < KEPT))
        total = tl.where(most > EACH, KEPT + 1, total)
    if KEPT > 0 and (CHUNKS == 1 or JOINED):
        tl.store(totals_ptr + program, total)
        slot = tl.arange(0, KEPT)
        tl.store(near_ptr + program * KEPT + slot, tl.full((KEPT,), -1, tl.int32), mask=slot >= total)
    elif KEPT > 0:
        tl.store(totals_ptr + chunk, found)
        slot = tl.arange(0, KEPT)[None, None, :]
        tl.store(near_ptr + chunk * KEPT + slot, tl.full((WARPS, 1, KEPT), -1, tl.int32), mask=slot >= found)


@triton.jit
def _tile(x_ptr, begin, lane, start, end, N, TILE: tl.constexpr, WHOLE: tl.constexpr):
    """A tile for each warp; nothing is read if it lies outside the window. A mask that knew the window's ends exactly
    would make narrow loads of wide ones. WHOLE: there is no window, and the row is made of whole tiles."""
    n = begin + lane
    if WHOLE:
        return tl.load(x_ptr + n)
    else:
        return tl.load(x_ptr + n, mask=(n < N) & (begin < end) & (begin + TILE > start), other=0)


@triton.jit
def _ranks(flags, Q: tl.constexpr):
    """Of flags [W, Q, L], how many are set before each one in its [Q, L], and how many in all of that, [W, 1, 1]. One
    scan for all of Q: their counts share an integer."""
    KIND: tl.constexpr = tl.int64 if Q > 4 else tl.int32
    BITS: tl.constexpr = KIND.primitive_bitwidth // Q
    MASK: tl.constexpr = (1 << min(BITS, 31)) - 1
    q = tl.arange(0, Q)[None, :, None]
    packed = tl.sum(flags.to(KIND) << (q * BITS), 1, keep_dims=True)  # [W, 1, L]
    before = tl.cumsum(packed, 2) - packed
    totals = tl.sum(packed, 2, keep_dims=True)  # [W, 1, 1]
    rank = ((before >> (q * BITS)) & MASK).to(tl.int32)
    count = tl.zeros_like(totals).to(tl.int32)
    for j in tl.static_range(Q):
        rank += tl.where(q == j, count, 0)
        count += ((totals >> (j * BITS)) & MASK).to(tl.int32)
    return rank, count


@triton.jit
def within(flags, n, start, end, WHOLE: tl.constexpr):
    if WHOLE:
        return flags
    else:
        return flags & (n >= start) & (n < end)


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
    tile = TILE * WARPS
    part = min(max(triton.next_power_of_2(triton.cdiv(N * M, PROGRAMS)), tile), LONGEST)
    chunks = 1 if part == tile else WARPS
    drawn, found = SAMPLE, None
    while True:  # until what passes is few enough for the final kernel: first of all, then in places set apart for it
        step = N / drawn
        rank = k / step + 5 * math.sqrt(k / step) + 4
        sample = SAMPLE
        while sample > SAMPLE // 4 and rank < 0.09 * sample:  # in fewer groups much would hide behind each other
            sample //= 2
        above = -1.03 * math.log1p(-min(rank / sample, 0.9)) * sample * step  # expected
        most = triton.next_power_of_2(math.ceil(above + 4 * math.sqrt(above * step)))
        last = 4 * drawn > N
        if most <= 2 * max(SLOTS, triton.next_power_of_2(k)) or last:
            p = Plan(sample, drawn // sample, max(most, SLOTS // 8), part, *_places(N, k, part, chunks, above, step))
            found = p if found is None or p.kept else found
            if p.kept or last or drawn >= MOST_FOR_PLACES:
                return found
        drawn *= 2


def _places(N: int, k: int, part: int, chunks: int, above: float, step: float) -> tuple[int, int, int, int]:
    """warps, chunks, each and kept of a plan."""
    parts = triton.cdiv(N, part)
    whole, one = _room(above, step, N / part), _room(above, step, N / part * chunks)
    slots = 4 * SLOTS if 2 * k > SLOTS else 2 * SLOTS
    if one * triton.next_power_of_2(parts * chunks) <= slots:
        return WARPS, chunks, 0, one
    if whole * triton.next_power_of_2(parts) <= slots and chunks > 1:
        return WARPS, chunks, min(one, part // chunks), whole
    return (WARPS, chunks, 0, 0) if parts * chunks <= SLOTS else (1, 1, 0, 0)


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
    fetched = min(chunk, FETCHED) if p.chunks > 1 else 0
    sizes = (p.part, p.chunks, room, p.each, p.kept, p.joined, p.warps, fetched, TILE, width)
    tensors = (x, *bases, bounds, passed, firsts, counts, near, kept, totals)
    scalars = (N, k, step, parts, pitch)
    _filter_kernel(programs, tensors, scalars, constants + sizes, num_warps=p.warps, pdl=pdl and not p.alone)
    tensors = (x, *bases, bounds, passed, counts, near, kept, totals, columns if values is None else values, columns)
    block_p, block_c = triton.next_power_of_2(pieces), triton.next_power_of_2(chunks)
    warps = min(max((block_p * p.kept or p.most) // SLOTS_PER_WARP, 1), 16)
    sizes = (chunk, room, p.kept, p.most, block_p, block_c, max(128 * warps, 512), width)
    constants = (largest, *windows, pdl, values is not None, *sizes)
    _final_kernel(M, tensors, (N, k, pieces, chunks, pitch), constants, num_warps=warps, pdl=pdl)
