"""Selection in Triton: exact, stable, with no buffer that could overflow.

Values become integer keys of the same order (`_keys`), and every way below takes the first k by (key, column):

    short rows, small k   a warp takes the maximum k times                                        `_rounds_kernel`
    longer rows           a program holds a tile in registers, finds the k-th key by bisection,
                          and keeps what is above it in order of column                           `_select_kernel`
    rows of many tiles    every tile keeps its own k best, which hold the k best of all; what is
                          left is a shorter row                                                   the same, again
    k of many thousands   a stable sort

`_order_kernel` puts what was selected in order of value.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

import tle_ops.language as tle
from tle_ops import _meta
from tle_ops.kernels._lines_triton import aligned, known, lines
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._triton import kernel

_SHORT = 1024  # columns that a warp holds: 32 a thread
_FEW = 16  # rounds
_TILE = 16384  # columns that a program holds: 32 a thread of 16 warps
_SHORTEST = 512  # columns of a program
_ENOUGH = 264  # programs: two for each multiprocessor of an H200
_MOST = 4096  # selected elements that a program sorts; a quarter of a tile, so that rows of many tiles shrink
_NOWHERE = tl.constexpr(2**31 - 1)  # a column beyond every row


# --- keys ------------------------------------------------------------------------------------------------------------
@triton.jit
def _keys(x, LARGEST: tl.constexpr):
    """Signed integers in the order of the values, or inverted: every NaN the greatest, -0.0 equal to 0.0."""
    if x.dtype.is_floating():
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of negative numbers the greater magnitude is less
        keys = tl.where(bits == -0x80000000, 0, keys)
        keys = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, keys)
    elif x.dtype.primitive_bitwidth == 64:
        keys = x
    else:
        keys = x.to(tl.int32)
    return keys if LARGEST else ~keys


@triton.constexpr_function
def _least(dtype):
    """The least key: that of an element that must not be taken before any other."""
    return -(2 ** (dtype.primitive_bitwidth - 1))


@triton.constexpr_function
def _greatest(dtype):
    return 2 ** (dtype.primitive_bitwidth - 1) - 1


@triton.jit
def _take(keys, columns):
    """In each row, the first by (key, column): its column, and the row without it. Taken elements are at _NOWHERE."""
    best = tl.max(keys, axis=1)
    column = tl.min(tl.where(keys == best[:, None], columns, _NOWHERE), axis=1)
    taken = columns == column[:, None]
    keys = tl.where(taken, _least(keys.dtype), keys)
    columns = tl.where(taken, _NOWHERE, columns)
    return column, keys, columns


# --- short rows ------------------------------------------------------------------------------------------------------
@kernel("M", "N", "x_row")
def _rounds_kernel(
    x_ptr,  # [M, N], rows x_row apart
    values_ptr,  # [M, k]
    indices_ptr,  # int64 [M, k]
    M: tl.int64,
    N: tl.int32,
    x_row: tl.int64,
    K: tl.constexpr,
    LARGEST: tl.constexpr,
    SORTED: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    lane = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < M) & (lane < known(N, ALIGNED))
    x_row = known(x_row, ALIGNED)
    keys = _keys(tl.load(x_ptr + row * x_row + lane, mask=inside, other=0), LARGEST)
    keys = tl.where(inside, keys, _least(keys.dtype))
    columns = tl.where(inside, lane, _NOWHERE)
    place = tl.arange(0, BLOCK_K)[None, :]  # [1, BLOCK_K]
    chosen = tl.full((ROWS, BLOCK_K), _NOWHERE, tl.int32)
    for j in range(0, K):
        column, keys, columns = _take(keys, columns)
        chosen = tl.where(place == j, column[:, None], chosen)
    if not SORTED:
        chosen = tl.sort(chosen, dim=1)
    mask = (row < M) & (place < K)
    tl.store(values_ptr + row * K + place, tl.load(x_ptr + row * x_row + chosen, mask=mask), mask=mask)
    tl.store(indices_ptr + row * K + place, chosen.to(tl.int64), mask=mask)


# --- longer rows -----------------------------------------------------------------------------------------------------
@triton.jit
def _count(flags):
    return tl.sum(flags.to(tl.int32), 0)


@triton.jit
def _bisect(keys, inside, k, BLOCK: tl.constexpr, GROUPS: tl.constexpr):
    """(low, high) such that fewer than k keys are above high, and those from low to high complete the k: one value,
    which may occur more often than is needed, or exactly as many keys as are missing. Keys outside are the least."""
    LEAST: tl.constexpr = _least(keys.dtype)
    high = tl.max(keys, 0)
    # Each of at least k groups has a key as great as the least of the groups' maxima.
    if GROUPS < BLOCK:
        low = tl.min(tl.max(tl.reshape(keys, (BLOCK // GROUPS, GROUPS)), 0), 0)
    else:
        low = tl.min(tl.where(inside, keys, _greatest(keys.dtype)), 0)
    if _count(inside) <= k:  # all of them
        low = tl.full((), LEAST, keys.dtype)
        high = low
    at_least = k + 1  # keys from low on
    while (low < high) & (at_least > k):
        half = ((high - low).to(_unsigned(keys.dtype)) >> 1).to(keys.dtype)  # the difference may need all bits
        middle = low + half + 1
        above = _count(keys >= middle)
        if above >= k:
            low = middle
            at_least = above
        else:
            high = middle - 1
    return low, high


@triton.constexpr_function
def _unsigned(dtype):
    return tl.uint64 if dtype.primitive_bitwidth == 64 else tl.uint32


@kernel("N", "k", "parts", "x_row")
def _select_kernel(
    x_ptr,  # [M, N], rows x_row apart: values, or with AGAIN keys
    columns_in_ptr,  # with AGAIN int32 [M, N]: the columns of the keys, -1 for none
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    keys_ptr,  # unless FINAL [M, parts, k]
    columns_ptr,  # int32 [M, parts, k]: ascending, then -1
    N: tl.int32,
    k: tl.int32,
    parts: tl.int32,  # tiles of a row
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    AGAIN: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    FINAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
):
    part = tl.program_id(0) % parts
    row = (tl.program_id(0) // parts).to(tl.int64)
    x_ptr += row * known(x_row, ALIGNED)
    columns_in_ptr += row * N
    n = part * BLOCK + tl.arange(0, BLOCK)
    inside = n < known(N, ALIGNED)
    if AGAIN:
        keys = tl.load(x_ptr + n, mask=inside, other=0)
        inside = inside & (tl.load(columns_in_ptr + n, mask=inside, other=-1) >= 0)
    else:
        keys = _keys(tl.load(x_ptr + n, mask=inside, other=0), LARGEST)
        if STARTS:
            inside = inside & (n >= tl.minimum(tl.maximum(tl.load(starts_ptr + row), 0), N).to(tl.int32))
        if ENDS:
            inside = inside & (n < tl.minimum(tl.maximum(tl.load(ends_ptr + row), 0), N).to(tl.int32))
    keys = tl.where(inside, keys, _least(keys.dtype))
    low, high = _bisect(keys, inside, k, BLOCK, GROUPS)

    above = inside & (keys > high)
    level = inside & (keys >= low) & (keys <= high)
    wanted = k - _count(above)  # of the level ones, the first
    # One scan for both ranks: neither exceeds the tile.
    ranks, totals = tle.cumsum(above.to(tl.int32) + level.to(tl.int32) * 65536)
    rank, level_rank = ranks & 0xFFFF, ranks >> 16
    taken = above | (level & (level_rank < wanted))
    place = rank + tl.minimum(level_rank, wanted)
    columns_ptr += (row * parts + part) * k
    column = tl.load(columns_in_ptr + n, mask=taken, other=0) if AGAIN else n
    tl.store(columns_ptr + place, column, mask=taken)
    if not FINAL:
        keys_ptr += (row * parts + part) * k
        tl.store(keys_ptr + place, keys, mask=taken)
    found = (totals & 0xFFFF) + tl.minimum(totals >> 16, wanted)
    for start in range(found, k, 512):
        rest = start + tl.arange(0, 512)
        tl.store(columns_ptr + rest, tl.full((512,), -1, tl.int32), mask=rest < k)


@kernel("x_row")
def _order_kernel(
    x_ptr,  # [M, N], rows x_row apart
    columns_ptr,  # int32 [M, K], ascending
    values_ptr,  # [M, K]
    indices_ptr,  # int64 [M, K]
    x_row: tl.int64,
    K: tl.constexpr,
    LARGEST: tl.constexpr,
    SORTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    place = tl.arange(0, BLOCK)
    mask = place < K
    columns = tl.load(columns_ptr + row * K + place, mask=mask, other=0)
    if SORTED:
        keys = _keys(tl.load(x_ptr + columns, mask=mask, other=0), LARGEST).to(tl.int64)
        # The columns ascend, so the place breaks ties. Lanes without an element are the least of all.
        packed = tl.where(mask, (keys << 32) | (BLOCK - 1 - place).to(tl.int64), -0x8000000000000000)
        packed = tl.sort(packed, descending=True)
        order = BLOCK - 1 - (packed & (BLOCK - 1)).to(tl.int32)
        columns = tl.load(columns_ptr + row * K + order, mask=mask, other=0)
    tl.store(values_ptr + row * K + place, tl.load(x_ptr + columns, mask=mask), mask=mask)
    tl.store(indices_ptr + row * K + place, columns.to(tl.int64), mask=mask)


# --- the MoE router ---------------------------------------------------------------------------------------------------
@triton.jit
def _exp(x):
    """e^x to a few units in the last place: what the product with log2(e) loses is put back, for large |x| too."""
    high = x * 1.4426950408889634
    low = tl.fma(x, tl.full(x.shape, 1.4426950408889634, tl.float32), -high) + x * 1.925963033500e-08
    return tl.exp2(high) * (1.0 + tl.where(tl.abs(high) < 200, low, 0.0) * 0.6931471805599453)


@triton.jit
def _score(logits, top, total, SOFTMAX: tl.constexpr):
    if SOFTMAX:
        return tl.div_rn(_exp(logits - top), total + tl.zeros_like(logits))
    else:
        return tl.div_rn(tl.full(logits.shape, 1.0, tl.float32), 1.0 + _exp(-logits))


@triton.jit
def _normalizer(logits, inside, SOFTMAX: tl.constexpr):
    """Of each row, the greatest logit and the sum of e^(logit - greatest), [ROWS, 1]; unused by the sigmoid."""
    if SOFTMAX:
        top = tl.max(tl.where(inside, logits, float("-inf")), 1)[:, None]
        total = tl.sum(tl.where(inside, _exp(logits - top), 0.0), 1)[:, None]
        return top, total
    else:
        nothing = tl.zeros((logits.shape[0], 1), tl.float32)
        return nothing, nothing


@triton.jit
def _value(keys):
    """The float32 of a key; any NaN comes back as one NaN."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _open_groups(ranked, inside, size, GROUPS: tl.constexpr, KEPT: tl.constexpr, BLOCK_G: tl.constexpr):
    """Which lanes [ROWS, BLOCK_G * BLOCK_S] belong to the KEPT groups with the greatest sum of their two best."""
    ROWS: tl.constexpr = ranked.shape[0]
    BLOCK_S: tl.constexpr = ranked.shape[1] // BLOCK_G
    LEAST: tl.constexpr = _least(tl.int32)
    keys = tl.reshape(tl.where(inside, _keys(ranked, True), LEAST), (ROWS, BLOCK_G, BLOCK_S))
    at = tl.arange(0, BLOCK_S)[None, None, :]
    best = tl.max(keys, 2)  # [ROWS, BLOCK_G]
    first = tl.min(tl.where(keys == best[:, :, None], at, _NOWHERE), 2)
    second = tl.max(tl.where(at == first[:, :, None], LEAST, keys), 2)
    worth = _value(best) + tl.where(size > 1, _value(second), 0.0)

    group = tl.arange(0, BLOCK_G)[None, :] + tl.zeros((ROWS, BLOCK_G), tl.int32)
    left = tl.where(group < GROUPS, group, _NOWHERE)
    keys = tl.where(group < GROUPS, _keys(worth, True), LEAST)
    opened = tl.zeros((ROWS, BLOCK_G), tl.int32)
    for _ in range(0, KEPT):
        chosen, keys, left = _take(keys, left)
        opened = tl.where(group == chosen[:, None], 1, opened)
    lanes = tl.broadcast_to(opened[:, :, None], (ROWS, BLOCK_G, BLOCK_S))
    return tl.reshape(lanes, (ROWS, BLOCK_G * BLOCK_S)) != 0


@kernel("M", "size", "pitch", "bias_step", "scale")
def _gate_kernel(
    logits_ptr,  # [M, GROUPS * size], rows pitch apart
    bias_ptr,  # with BIAS [GROUPS * size], bias_step apart
    weights_ptr,  # float32 [M, K]
    indices_ptr,  # int32 [M, K]
    M: tl.int64,
    size: tl.int32,  # experts of a group
    pitch: tl.int64,
    bias_step: tl.int64,
    scale: tl.float32,
    K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    lane = tl.arange(0, BLOCK_G * BLOCK_S)[None, :]
    expert = lane // BLOCK_S * size + lane % BLOCK_S
    inside = (row < M) & (lane % BLOCK_S < size) & (lane // BLOCK_S < GROUPS)
    logits = tl.load(logits_ptr + row * pitch + expert, mask=inside, other=0).to(tl.float32)
    top, total = _normalizer(logits, inside, SOFTMAX)
    if BIAS or KEPT < GROUPS:
        ranked = _score(logits, top, total, SOFTMAX)
        if BIAS:
            bias = tl.load(bias_ptr + expert * bias_step, mask=inside, other=0).to(tl.float32)
            ranked += bias
    choice = ranked if BIAS else logits
    if KEPT < GROUPS:
        inside = inside & _open_groups(ranked, inside, size, GROUPS, KEPT, BLOCK_G)
    keys = tl.where(inside, _keys(choice, True), _least(tl.int32))
    columns = tl.where(inside, expert, _NOWHERE)
    place = tl.arange(0, BLOCK_K)[None, :]  # [1, BLOCK_K]
    chosen = tl.full((ROWS, BLOCK_K), _NOWHERE, tl.int32)
    for j in range(0, K):
        column, keys, columns = _take(keys, columns)
        chosen = tl.where(place == j, column[:, None], chosen)

    mask = (row < M) & (place < K)
    logits = tl.load(logits_ptr + row * pitch + chosen, mask=mask, other=0).to(tl.float32)
    weights = tl.where(mask, _score(logits, top, total, SOFTMAX), 0.0)
    if RENORMALIZE:
        weights = tl.div_rn(weights, tl.sum(weights, 1)[:, None] + 1e-20 + tl.zeros_like(weights))
    tl.store(weights_ptr + row * K + place, weights * scale, mask=mask)
    tl.store(indices_ptr + row * K + place, chosen, mask=mask)


@kernel("M", "E", "pitch", "scale")
def _gate_bwd_kernel(
    dweights_ptr,  # [M, K]
    logits_ptr,  # [M, E], rows pitch apart
    indices_ptr,  # int32 [M, K]
    dlogits_ptr,  # [M, E]
    M: tl.int64,
    E: tl.int32,
    pitch: tl.int64,
    scale: tl.float32,
    K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    expert = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (expert < E)
    logits = tl.load(logits_ptr + row * pitch + expert, mask=inside, other=0).to(tl.float32)
    top, total = _normalizer(logits, inside, SOFTMAX)
    scores = tl.where(inside, _score(logits, top, total, SOFTMAX), 0.0)

    place = tl.arange(0, BLOCK_K)[None, :]  # [1, BLOCK_K]
    mask = (row < M) & (place < K)
    chosen = tl.load(indices_ptr + row * K + place, mask=mask, other=0)
    picked = tl.load(logits_ptr + row * pitch + chosen, mask=mask, other=0).to(tl.float32)
    picked = tl.where(mask, _score(picked, top, total, SOFTMAX), 0.0)
    dpicked = tl.load(dweights_ptr + row * K + place, mask=mask, other=0).to(tl.float32) * scale
    if RENORMALIZE:
        whole = tl.sum(picked, 1)[:, None] + 1e-20
        dpicked = (dpicked - tl.sum(dpicked * picked, 1)[:, None] / whole) / whole
    dscores = tl.zeros((ROWS, BLOCK), tl.float32)
    for j in range(0, K):  # to its expert, each
        target = tl.sum(tl.where(place == j, chosen, 0), 1)[:, None]
        dscores += tl.where(expert == target, tl.sum(tl.where(place == j, dpicked, 0.0), 1)[:, None], 0.0)
    if SOFTMAX:
        dlogits = scores * (dscores - tl.sum(dscores * scores, 1)[:, None])
    else:
        dlogits = dscores * scores * (1.0 - scores)
    tl.store(dlogits_ptr + row * E + expert, dlogits.to(dlogits_ptr.dtype.element_ty), mask=inside)


# --- launchers -------------------------------------------------------------------------------------------------------
@replayed
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    values, indices = _meta.topk(x, k, dim, largest, sorted)
    if values.numel() == 0:
        return values, indices
    x, found = (x.view(torch.uint8), values.view(torch.uint8)) if x.dtype is torch.bool else (x, values)
    dim %= x.dim()
    if dim == x.dim() - 1:
        _topk_rows(x, k, largest, sorted, found, indices)
        return values, indices
    x = x.movedim(dim, -1)
    out = [torch.empty((*x.shape[:-1], k), dtype=t.dtype, device=x.device) for t in (found, indices)]
    _topk_rows(x, k, largest, sorted, *out)
    for t, o in zip((found, indices), out, strict=True):
        t.copy_(o.movedim(-1, dim))
    return values, indices


def _topk_rows(x: Tensor, k: int, largest: bool, sorted: bool, values: Tensor, indices: Tensor) -> None:
    """Along the last dimension of x, of any strides; the outputs contiguous."""
    x, M, N, pitch = lines(x)
    if N <= _SHORT and k <= _FEW:
        block = max(triton.next_power_of_2(N), 32)
        rows = max(1, 512 // block)
        constants = (k, largest, sorted, aligned(N, pitch), rows, block, triton.next_power_of_2(k))
        _rounds_kernel(triton.cdiv(M, rows), (x, values, indices), (M, N, pitch), constants, num_warps=1)
        return
    if k > _MOST or N > 2**31 - 1 or (sorted and x.dtype == torch.int64):
        x = x.reshape(M, N)  # most of a row is wanted, so sorting it is no detour
        order = _sortable(x).sort(dim=-1, descending=largest, stable=True).indices[:, :k]
        order = order if sorted else order.sort(-1).values
        indices.view(M, k).copy_(order)
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
        values.view(M, k).view(kind).copy_(x.contiguous().view(kind).gather(-1, order))  # bit for bit, NaNs too
        return
    columns = torch.empty((M, k), dtype=torch.int32, device=x.device)
    _select(x, M, N, pitch, k, largest, None, None, columns)
    constants = (k, largest, sorted, max(triton.next_power_of_2(k), 32))
    _order_kernel(M, (x, columns, values, indices), (pitch,), constants, num_warps=4 if k <= 1024 else 8)


def _sortable(x: Tensor) -> Tensor:
    """`_keys` with torch: CUB's sort would heed the sign of a NaN."""
    if not x.dtype.is_floating_point:
        return x
    bits = x.float().view(torch.int32)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return keys.masked_fill(bits == -(2**31), 0).masked_fill(x.isnan(), 2**31 - 1)


def _block(M: int, N: int, k: int, tile: int, again: bool) -> int:
    """Columns of a program. Few rows are cut into enough parts to fill the GPU, each at least four times as long as
    what it keeps; a row that one program gets through quickly is not cut."""
    if tile // 2 >= N or (again and tile >= N):
        return max(triton.next_power_of_2(N), _SHORTEST)
    part = triton.next_power_of_2(triton.cdiv(N, max(1, _ENOUGH // M)))
    return min(max(part, triton.next_power_of_2(4 * k), _SHORTEST), tile)


def _select(
    x: Tensor,
    M: int,
    N: int,
    pitch: int,
    k: int,
    largest: bool,
    starts: Tensor | None,  # [M]
    ends: Tensor | None,
    out: Tensor,  # int32 [M, k]: receives the columns of the first k, ascending, then -1
) -> None:
    wide = x.dtype == torch.int64
    tile = _TILE // 2 if wide else _TILE
    columns = None  # of a shortened row
    while True:
        block = _block(M, N, k, tile, columns is not None)
        parts = triton.cdiv(N, block)
        final = parts == 1
        keep = k if final else min(k, block)
        kept = keys = out
        if not final:
            kept = torch.empty((M, parts * keep), dtype=torch.int32, device=x.device)
            keys = torch.empty((M, parts * keep), dtype=torch.int64 if wide else torch.int32, device=x.device)
        groups = min(max(triton.next_power_of_2(keep), 32), block)
        again = columns is not None
        windows = (False, False) if again else (starts is not None, ends is not None)
        constants = (largest, again, *windows, final, aligned(N, pitch), block, groups)
        inputs = (x, kept if columns is None else columns, *(kept if t is None else t for t in (starts, ends)))
        warps = min(16, max(4, block // 512))
        _select_kernel(M * parts, (*inputs, keys, kept), (N, keep, parts, pitch), constants, num_warps=warps)
        if final:
            return
        x, columns, N, pitch = keys, kept, parts * keep, parts * keep


@replayed
def topk_selector(scores: Tensor, k: int, starts: Tensor | None = None, ends: Tensor | None = None) -> Tensor:
    out = _meta.topk_selector(scores, k, starts, ends)
    if out.numel() == 0:
        return out
    if scores.shape[-1] == 0:
        return out.fill_(-1)
    x, M, N, pitch = lines(scores.view(torch.uint8) if scores.dtype is torch.bool else scores)
    starts, ends = (t if t is None else t.contiguous() for t in (starts, ends))
    if k <= _MOST or N <= _TILE // 2:
        _select(x, M, N, pitch, k, True, starts, ends, out)
    else:
        out.view(M, k).copy_(_select_by_sort(x.reshape(M, N), k, starts, ends))
    return out


def _select_by_sort(x: Tensor, k: int, starts: Tensor | None, ends: Tensor | None) -> Tensor:
    """[M, N] -> [M, k]"""
    N = x.shape[1]
    at = torch.arange(N, device=x.device)
    inside = torch.ones_like(x, dtype=torch.bool)
    if starts is not None:
        inside &= at >= starts.reshape(-1, 1)
    if ends is not None:
        inside &= at < ends.reshape(-1, 1)
    order = _sortable(x).sort(dim=-1, descending=True, stable=True).indices  # [M, N]
    wanted = inside.gather(-1, order)
    wanted &= wanted.cumsum(-1) <= k
    taken = torch.zeros_like(inside).scatter_(-1, order, wanted)
    columns = torch.where(taken, at, N).sort(-1).values[:, :k]
    columns = columns.masked_fill(columns == N, -1).int()
    return torch.nn.functional.pad(columns, (0, k - columns.shape[1]), value=-1)


def _router_rows(block: int) -> tuple[int, int]:
    """Rows of a program, and warps: a warp holds up to 1024 experts, so that choosing needs no barrier."""
    return max(1, 512 // block), min(16, max(1, block // _SHORT))


@replayed
def topk_gate(
    logits: Tensor,
    k: int,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    weights, indices = _meta.topk_gate(logits, k, scoring, bias, num_groups, topk_groups, renormalize, scale)
    if weights.numel() == 0:
        return weights, indices
    x, M, E, pitch = lines(logits)
    size = E // num_groups
    block_g, block_s = triton.next_power_of_2(num_groups), triton.next_power_of_2(size)
    block_s = max(block_s, 32 // block_g)  # at least a lane for every thread
    rows, warps = _router_rows(block_g * block_s)
    constants = (k, scoring == "softmax", bias is not None, num_groups, topk_groups, renormalize)
    blocks = (rows, block_g, block_s, triton.next_power_of_2(k))
    tensors = (x, x if bias is None else bias, weights, indices)
    scalars = (M, size, pitch, 0 if bias is None else bias.stride(0), scale)
    _gate_kernel(triton.cdiv(M, rows), tensors, scalars, (*constants, *blocks), num_warps=warps)
    return weights, indices


@replayed
def topk_gate_bwd(
    dweights: Tensor, logits: Tensor, indices: Tensor, scoring: str, renormalize: bool, scale: float
) -> Tensor:
    dlogits = _meta.topk_gate_bwd(dweights, logits, indices, scoring, renormalize, scale)
    if dlogits.numel() == 0:
        return dlogits
    k = indices.shape[-1]
    if k == 0:
        return dlogits.zero_()
    x, M, E, pitch = lines(logits)
    block = max(triton.next_power_of_2(E), 32)
    rows, warps = _router_rows(block)
    constants = (k, scoring == "softmax", renormalize, rows, block, triton.next_power_of_2(k))
    tensors = (dweights.contiguous(), x, indices.contiguous(), dlogits)
    _gate_bwd_kernel(triton.cdiv(M, rows), tensors, (M, E, pitch, scale), constants, num_warps=warps)
    return dlogits
