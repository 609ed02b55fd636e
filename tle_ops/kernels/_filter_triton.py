"""What passes the bound: the sample of a row, its bound, and the filter (see `_select_triton`)."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import tle_ops.language as tle
from tle_ops.kernels._keys_triton import comparable, keys_of, least, search, value_of
from tle_ops.kernels._lines_triton import known
from tle_ops.kernels._triton import kernel


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
    takes one instruction where a key takes more. No bound is the key of -0.0 or of a NaN, except for the least:
    everything is above that if the greatest are sought, else all but the NaNs."""
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
def _bound_of(
    keys, length, members, k, LARGEST: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, FLOATING: tl.constexpr
):
    """The key that the elements of a row of this length have to exceed, by its sample."""
    # Five standard deviations more than the k-th of the row is expected to have before it in the sample.
    expected = members * BLOCK * (k / tl.maximum(length, 1).to(tl.float32))
    rank = tl.minimum((expected + 5.0 * tl.sqrt(expected)).to(tl.int32) + 4, BLOCK)
    high, low = tl.split(tl.max(tl.join(keys, ~keys), 0))  # both ends at once
    low, _, _ = search(keys, ~low, high, rank, rank + rank // 32)
    if FLOATING:
        low = comparable(low, LARGEST)
        if LARGEST:
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
