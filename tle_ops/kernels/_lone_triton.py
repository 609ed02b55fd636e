"""Selection from a row that one warp reads once: no barrier, and few instructions for each element.

Four columns that lie together are a group. The k-th greatest of coarser maxima bounds the k-th element from below, so
only groups whose maximum reaches it matter, little more than k of them. Their elements are bisected alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tle_ops.kernels._keys_triton import bisect, greatest, keys_of, least
from tle_ops.kernels._lines_triton import known
from tle_ops.kernels._select_triton import bisect_row, emit, walk
from tle_ops.kernels._triton import kernel


@triton.jit
def _better(x, LARGEST: tl.constexpr):
    """[..., 2] -> [...]: the one with the greater key, NaN being the greatest value."""
    a, b = tl.split(x)
    if LARGEST:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.minimum(a, b)


@triton.jit
def _slots(flags):
    """Of flags [32 R], how many are set before each one, and in all. The lanes' counts go four to a word."""
    R: tl.constexpr = flags.shape[0] // 128
    flags = tl.reshape(flags.to(tl.int32), (R, 4, 32))
    shift = tl.arange(0, 4)[None, :, None] * 8
    words = tl.sum(flags << shift, 1)  # [R, 32]
    totals = tl.sum(words, 1)  # [R]: at most 32 in a byte
    sums = (totals * 0x01010101 >> 24) & 0xFF
    before = tl.cumsum(sums, 0) - sums
    earlier = ((totals * 0x01010100)[:, None, None] >> shift) & 0xFF
    within = (tl.cumsum(words, 1)[:, None, :] >> shift) & 0xFF
    slots = before[:, None, None] + earlier + within - flags
    return tl.reshape(slots, (R * 128,)), tl.sum(sums, 0)


@triton.jit
def _among_groups(
    x_ptr, passed_ptr, values_ptr, columns_ptr, first, total, low, k,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, ROOM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the first k of the groups that were noted: all elements from `low` on are in them."""
    slot = tl.arange(0, ROOM)
    group = tl.load(passed_ptr + slot, mask=slot < total, other=0).to(tl.int32)
    n = group[:, None] * 4 + tl.arange(0, 4)[None, :]  # [ROOM, 4]
    inside = slot[:, None] + tl.zeros_like(n) < total
    x = tl.reshape(tl.load(x_ptr + n, mask=inside, other=0), (ROOM * 4,))
    n = tl.reshape(n, (ROOM * 4,))
    inside = tl.reshape(inside, (ROOM * 4,))
    keys = tl.where(inside, keys_of(x, LARGEST), least(low.dtype))
    low, high = bisect(keys, low, tl.max(keys, 0), k, k)
    emit(x, keys, n, inside, low, high, k, values_ptr, columns_ptr, first, VALUES, WIDTH)


@triton.jit
def put_in_order(
    x_ptr, columns_ptr, values_ptr, indices_ptr, first, k, LARGEST: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of a row at x_ptr, k ascending columns from place `first` on, in order of value."""
    place = tl.arange(0, BLOCK)
    mask = place < k
    columns = tl.load(columns_ptr + first + place, mask=mask, other=0)
    keys = keys_of(tl.load(x_ptr + columns, mask=mask, other=0), LARGEST).to(tl.int64)
    # The columns ascend, so the place breaks ties. Lanes without an element are the least of all.
    packed = tl.where(mask, (keys << 32) | (BLOCK - 1 - place).to(tl.int64), -0x8000000000000000)
    packed = tl.sort(packed, descending=True)
    order = BLOCK - 1 - (packed & (BLOCK - 1)).to(tl.int32)
    columns = tl.load(columns_ptr + first + order, mask=mask, other=0)
    tl.store(values_ptr + first + place, tl.load(x_ptr + columns, mask=mask), mask=mask)
    tl.store(indices_ptr + first + place, columns.to(tl.int64), mask=mask)


@kernel("N", "k", "x_row")
def lone_kernel(
    x_ptr,  # [M, N], rows x_row apart, a multiple of 16 both
    passed_ptr,  # int16 [M, ROOM]
    values_ptr,  # with VALUES or ORDER [M, k]
    columns_ptr,  # [M, k]: ascending
    indices_ptr,  # with ORDER int64 [M, k]
    N: tl.int32,
    k: tl.int32,
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    VALUES: tl.constexpr,
    ORDER: tl.constexpr,  # as of `_row_kernel`
    WHOLE: tl.constexpr,  # N is BLOCK
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    ROOM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * known(x_row, True)
    N = known(N, True)
    first = row * k
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n, mask=None if WHOLE else n < N)
    if x.dtype.is_floating():
        x = x.to(tl.float32)
    x = _better(_better(tl.reshape(x, (BLOCK // 4, 2, 2)), LARGEST), LARGEST)  # one instruction; a key takes three
    keys = keys_of(x, LARGEST)  # [BLOCK // 4]
    KEY: tl.constexpr = keys.dtype
    group = tl.arange(0, BLOCK // 4)
    if not WHOLE:
        keys = tl.where(group * 4 < N, keys, least(KEY))
    maxima = tl.max(tl.reshape(keys, (BLOCK // 4 // GROUPS, GROUPS)), 0)
    low, _ = bisect(maxima, tl.min(maxima, 0), tl.max(maxima, 0), k, k + k // 8)
    passed = keys >= low
    slots, total = _slots(passed)
    if total <= ROOM:
        passed_ptr += row * ROOM
        tl.store(passed_ptr + slots, group.to(tl.int16), mask=passed)
        tl.debug_barrier()
        _among_groups(
            x_ptr, passed_ptr, values_ptr, columns_ptr, first, total, low, k, LARGEST, VALUES, ROOM, WIDTH
        )  # fmt: skip
    else:  # more that are equal than there is room for
        start = tl.full((), 0, tl.int32)
        high = tl.full((), greatest(KEY), KEY)
        low, high, above = bisect_row(x_ptr, start, N, low, high, start, k, LARGEST, 256)
        walk(
            x_ptr, values_ptr, columns_ptr, first, start, N, low, high, k, k - above, LARGEST, VALUES, 256
        )  # fmt: skip
    if ORDER:
        tl.debug_barrier()
        put_in_order(x_ptr, columns_ptr, values_ptr, indices_ptr, first, k, LARGEST, ORDER)
