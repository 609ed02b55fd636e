"""Selection in Triton: exact, stable, with no buffer that could overflow.

Values become integer keys of the same order (`_keys_triton`), and every way below takes the first k by (key, column):

    short rows, small k   threads sort a few columns each, and merge the best of them      `_few_kernel`
                          of 64 bits: a warp takes the maximum k times                     `_rounds_kernel`
    short rows            a warp holds several and finds their k-th keys by bisection      `_rows_kernel`
    longer rows           a program takes the maxima of groups, then what reaches the k-th
                          greatest of them: little more than k, and bisected alone         `_row_kernel`
    rows of many tiles    a bound from a sample, a filter, the first of what passed        `_select_triton`
    k of many thousands   a stable sort

`_order_kernel` puts what was selected in order of value.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tle_ops import _meta
from tle_ops.kernels._best_triton import first_columns
from tle_ops.kernels._gate_triton import topk_gate, topk_gate_bwd
from tle_ops.kernels._keys_triton import (
    NOWHERE,
    bisect,
    count,
    greatest,
    keys_of,
    least,
    middle_of,
    take,
    value_of,
)
from tle_ops.kernels._lines_triton import aligned, known, lines
from tle_ops.kernels._lone_triton import lone_kernel, put_in_order
from tle_ops.kernels._replay import replayed, scratch
from tle_ops.kernels._select_triton import append, bisect_row, emit, fill, select_long, tile_of, walk, window, within
from tle_ops.kernels._triton import INTERPRETED, kernel

__all__ = ["topk", "topk_gate", "topk_gate_bwd", "topk_selector"]

_SHORT = 1024  # columns that a warp holds: 32 a thread
_FEW = 16  # elements that a thread sorts
_LONE = 4096  # columns that a warp reads at once, if there are rows enough: 128 a thread
_LONE_K = 64  # elements of such a row
_LONE_REGISTERS = 128  # 16 warps on each multiprocessor
_FUSED = 256  # elements that the program that selects them also sorts
_TILE = 16384  # columns that a program holds: 32 a thread of 16 warps
_SHORTEST = 512  # columns of a program
_PROGRAMS = 4224  # warps that an H200 holds at once, 32 on each multiprocessor
_MOST = 4096  # selected elements that a program sorts


# --- short rows ------------------------------------------------------------------------------------------------------
@kernel("M", "N", "x_row")
def _few_kernel(
    x_ptr,  # [M, N], rows x_row apart
    values_ptr,  # [M, K]
    indices_ptr,  # int64 [M, K]: if not SORTED, ascending
    M: tl.int64,
    N: tl.int32,
    x_row: tl.int64,
    K: tl.constexpr,
    LARGEST: tl.constexpr,
    SORTED: tl.constexpr,
    ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,  # N is BLOCK
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    L: tl.constexpr = BLOCK // BLOCK_K
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.minimum(tl.arange(0, ROWS)[:, None], M - 1 - first).to(tl.int32)  # there is always one: loads need no mask
    x_row = known(x_row, ALIGNED)
    x_ptr += first * x_row
    keys = ()
    columns = ()
    inside = ()
    for j in tl.static_range(BLOCK_K):
        n = j * L + tl.arange(0, L)[None, :]  # [1, L]
        there = n >= 0 if WHOLE else n < known(N, ALIGNED)
        x = tl.load(x_ptr + row * x_row + n, mask=there)
        keys += (keys_of(x, LARGEST),)
        columns += (n,)
        inside += (there,)
    chosen = first_columns(keys, columns, inside, K, BLOCK, SORTED, x_ptr.dtype.element_ty)  # K times [ROWS]

    place = tl.arange(0, BLOCK_K)[None, :]
    n = tl.zeros((ROWS, BLOCK_K), tl.int32)
    for j in tl.static_range(K):
        n = tl.where(place == j, chosen[j][:, None], n)
    if SORTED:
        rank = place + tl.zeros_like(n)
    else:
        rank = tl.zeros_like(n)
        for j in tl.static_range(K):
            rank += tl.where(chosen[j][:, None] < n, 1, 0)
    # In one dimension: the lanes of two would be in another order for the stores.
    at = tl.arange(0, ROWS * BLOCK_K)
    n = tl.reshape(n, (ROWS * BLOCK_K,))
    to = at // BLOCK_K * K + tl.reshape(rank, (ROWS * BLOCK_K,))
    mask = (first + at // BLOCK_K < M) & (at % BLOCK_K < K)
    x = tl.load(x_ptr + at // BLOCK_K * x_row + n, mask=mask)
    tl.store(values_ptr + first * K + to, x, mask=mask)
    tl.store(indices_ptr + first * K + to, n.to(tl.int64), mask=mask)


@kernel("M", "N", "x_row")
def _rounds_kernel(
    x_ptr,  # int64 [M, N], rows x_row apart
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
    x = tl.load(x_ptr + row * x_row + lane, mask=inside, other=0)
    keys = tl.where(inside, keys_of(x, LARGEST), least(tl.int64))
    columns = tl.where(inside, lane, NOWHERE)
    place = tl.arange(0, BLOCK_K)[None, :]  # [1, BLOCK_K]
    chosen = tl.full((ROWS, BLOCK_K), NOWHERE, tl.int32)
    for j in range(0, K):
        column, keys, columns = take(keys, columns)
        chosen = tl.where(place == j, column[:, None], chosen)
    if not SORTED:
        chosen = tl.sort(chosen, dim=1)
    mask = (row < M) & (place < K)
    tl.store(values_ptr + row * K + place, tl.load(x_ptr + row * x_row + chosen, mask=mask), mask=mask)
    tl.store(indices_ptr + row * K + place, chosen.to(tl.int64), mask=mask)


@triton.jit
def _sum(flags):
    """[ROWS, 4, L] -> [ROWS, 1, 1]"""
    return tl.sum(tl.sum(tl.where(flags, 65536, 0), 1, keep_dims=True), 2, keep_dims=True) >> 16


@triton.jit
def _ranks(flags):
    """Of flags [ROWS, 4, L], how many are set in the row before each one."""
    flags = flags.to(tl.int32)
    quarter = tl.arange(0, 4)[None, :, None]
    totals = tl.sum(flags, 2, keep_dims=True).to(tl.int64)  # of each quarter, at most 256
    totals = tl.sum(totals << (quarter * 16), 1, keep_dims=True)  # [ROWS, 1, 1]
    earlier = (totals * 0x0001000100010000 >> (quarter * 16)).to(tl.int32) & 0xFFFF  # of the quarters before
    return tl.cumsum(flags, 2) - flags + earlier


@kernel("M", "N", "k", "x_row")
def _rows_kernel(
    x_ptr,  # [M, N], rows x_row apart
    values_ptr,  # [M, k]
    indices_ptr,  # int64 [M, k]: ascending
    M: tl.int64,
    N: tl.int32,
    k: tl.int32,
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    L: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # A row is [4, L]. A warp's lanes spread over L first and over the rows then, so that each holds much of one row,
    # and what is said of a row in every step of the search is said of several at once.
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None, None]
    n = tl.arange(0, 4)[None, :, None] * L + tl.arange(0, L)[None, None, :]
    inside = (first + row < M) & (n < known(N, ALIGNED))
    x_ptr += first * known(x_row, ALIGNED)
    x = tl.load(x_ptr + row * known(x_row, ALIGNED) + n, mask=inside, other=0)
    LEAST: tl.constexpr = least(keys_of(x, LARGEST).dtype)
    keys = tl.where(inside, keys_of(x, LARGEST), LEAST)  # [ROWS, 4, L]
    # Each of at least k groups has a key as great as the least of the groups' maxima.
    maxima = tl.max(keys, 1, keep_dims=True)  # [ROWS, 1, L]
    high = tl.max(maxima, 2, keep_dims=True)  # [ROWS, 1, 1]
    if GROUPS < L:
        maxima = tl.max(tl.reshape(maxima, (ROWS, 1, GROUPS, L // GROUPS)), 3)
    low = tl.min(maxima, 2, keep_dims=True)
    if GROUPS > L:
        low = tl.minimum(low, LEAST)
    at_least = tl.zeros_like(high).to(tl.int32) + (k + 1)  # keys from low on
    searching = low < high
    while tl.max(tl.reshape(searching.to(tl.int32), (ROWS,)), 0) > 0:
        middle = middle_of(low, high)
        reached = _sum(keys >= middle)
        at_least = tl.where(searching & (reached >= k), reached, at_least)
        low = tl.where(searching & (reached >= k), middle, low)
        high = tl.where(searching & (reached < k), middle - 1, high)
        searching = (low < high) & (at_least != k)
    taken = inside & (keys >= low)
    surplus = _sum(taken) - k
    if tl.max(tl.reshape(surplus, (ROWS,)), 0) > 0:  # ties, of which the first are taken
        level = taken & (keys <= high)
        room = _sum(level) - surplus
        taken = taken & ((level == 0) | (_ranks(level) < room))
    place = tl.multiple_of(row * k + _ranks(taken), (1, 1, WIDTH))
    place = tl.max_contiguous(place, (1, 1, WIDTH))  # see `_filter_kernel`
    tl.store(values_ptr + first * k + place, x, mask=taken)
    tl.store(indices_ptr + first * k + place, n.to(tl.int64) + tl.zeros_like(place), mask=taken)


# --- longer rows -----------------------------------------------------------------------------------------------------
@kernel("N", "k", "x_row")
def _row_kernel(
    x_ptr,  # [M, N], rows x_row apart
    starts_ptr,  # with STARTS [M]
    ends_ptr,  # with ENDS [M]
    passed_ptr,  # with FILTER int16 [M, ROOM]
    values_ptr,  # with VALUES or ORDER [M, k]
    columns_ptr,  # [M, k]: ascending, then -1
    indices_ptr,  # with ORDER int64 [M, k]
    N: tl.int32,
    k: tl.int32,
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    STARTS: tl.constexpr,
    ENDS: tl.constexpr,
    PDL: tl.constexpr,
    VALUES: tl.constexpr,  # together with the columns
    ORDER: tl.constexpr,  # 0, or at least k: the columns are a step on the way to values and indices in order of value
    ALIGNED: tl.constexpr,
    FILTER: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    ROOM: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * known(x_row, ALIGNED)
    first = row * k
    N = known(N, ALIGNED)
    start, end = window(starts_ptr, ends_ptr, row, N, STARTS, ENDS)
    wanted = tl.minimum(k, end - start)
    if FILTER:
        passed_ptr += row * ROOM
        lane = tl.arange(0, TILE)
        KEY: tl.constexpr = keys_of(tl.load(x_ptr, mask=N < 0, other=0), LARGEST).dtype
        maxima = tl.full((GROUPS,), least(KEY), KEY)
        for begin in range(0, N, TILE):
            keys = _lower_keys(tile_of(x_ptr, begin, start, end, N, TILE, WHOLE), LARGEST)
            if not WHOLE:
                keys = tl.where((begin + lane >= start) & (begin + lane < end), keys, least(KEY))
            maxima = tl.maximum(maxima, tl.max(tl.reshape(keys, (TILE // GROUPS, GROUPS)), 0))
        # Each of k groups has a key as great as the k-th greatest of the groups' maxima.
        low, _ = bisect(maxima, tl.min(maxima, 0), tl.max(maxima, 0), k, k)
        total = tl.full((), 0, tl.int32)
        for begin in range(0, N, TILE):
            passed = _reaches(tile_of(x_ptr, begin, start, end, N, TILE, WHOLE), low, LARGEST)
            passed = within(passed, begin + lane, start, end, WHOLE)
            here = count(passed)
            if here > 0:
                append(passed_ptr, total, passed, begin + lane, ROOM, WIDTH)
            total += here
        if total <= ROOM:
            tl.debug_barrier()
            slot = tl.arange(0, ROOM)
            n = tl.load(passed_ptr + slot, mask=slot < total, other=0).to(tl.int32)
            _among(x_ptr, values_ptr, columns_ptr, first, n, slot < total, low, wanted, LARGEST, VALUES, WIDTH)
        else:
            high = tl.full((), greatest(KEY), KEY)
            low, high, above = bisect_row(x_ptr, start, end, low, high, wanted * 0, wanted, LARGEST, TILE)
            walk(
                x_ptr,
                values_ptr,
                columns_ptr,
                first,
                start,
                end,
                low,
                high,
                wanted,
                wanted - above,
                LARGEST,
                VALUES,
                TILE,
            )
    else:
        n = tl.arange(0, ROOM)
        inside = (n >= start) & (n < end)
        x = tile_of(x_ptr, 0, start, end, N, ROOM, False)
        keys = tl.where(inside, keys_of(x, LARGEST), least(keys_of(x, LARGEST).dtype))
        high = tl.max(keys, 0)
        low = tl.min(tl.where(inside, keys, high), 0)
        low, high = bisect(keys, low, high, wanted, wanted)
        emit(x, keys, n, inside, low, high, wanted, values_ptr, columns_ptr, first, VALUES, WIDTH)
    if ORDER:
        tl.debug_barrier()
        put_in_order(x_ptr, columns_ptr, values_ptr, indices_ptr, first, k, LARGEST, ORDER)
    else:
        fill(columns_ptr + first, wanted, k)


@triton.jit
def _reaches(x, low, LARGEST: tl.constexpr):
    """Elements whose key is at least `low`, and NaNs: values are compared, which takes one instruction, not seven."""
    if x.dtype.is_floating():
        limit = value_of(low if LARGEST else ~low)
        x = x.to(tl.float32)
        return ((x < limit) == 0) if LARGEST else ((x > limit) == 0)
    else:
        return keys_of(x, LARGEST) >= low


@triton.jit
def _lower_keys(x, LARGEST: tl.constexpr):
    """Keys, or for the greatest floats what is never more than the key and takes two instructions, not seven: NaNs by
    their bits, -0.0 below 0.0."""
    if LARGEST and x.dtype.is_floating():
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        return bits ^ ((bits >> 31) & 0x7FFFFFFF)
    else:
        return keys_of(x, LARGEST)


@triton.jit
def _among(
    x_ptr, values_ptr, columns_ptr, first, n, inside, low, wanted,
    LARGEST: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the first `wanted` of the columns n."""
    x = tl.load(x_ptr + n, mask=inside, other=0)
    keys = tl.where(inside, keys_of(x, LARGEST), least(low.dtype))
    low, high = bisect(keys, low, tl.max(keys, 0), wanted, wanted)
    emit(x, keys, n, inside, low, high, wanted, values_ptr, columns_ptr, first, VALUES, WIDTH)


@kernel("k", "x_row")
def _order_kernel(
    x_ptr,  # [M, N], rows x_row apart
    columns_ptr,  # int32 [M, k], ascending
    values_ptr,  # [M, k]
    indices_ptr,  # int64 [M, k]
    k: tl.int32,
    x_row: tl.int64,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    put_in_order(x_ptr + row * x_row, columns_ptr, values_ptr, indices_ptr, row * k, k, LARGEST, BLOCK)


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
        wide = x.dtype == torch.int64
        rows, warps = _few_rows(block, sorted) if not wide else (max(1, 512 // block), 1)
        constants = (k, largest, sorted, aligned(N, pitch), *(() if wide else (block == N,)))
        kernel = _rounds_kernel if wide else _few_kernel
        constants += (rows, block, triton.next_power_of_2(k))
        kernel(triton.cdiv(M, rows), (x, values, indices), (M, N, pitch), constants, num_warps=warps)
    elif N <= _SHORT and not sorted:
        block = max(triton.next_power_of_2(N), 32)
        rows = max(1, 512 // block)
        width = min(16 // x.dtype.itemsize, block // 4)
        constants = (largest, aligned(N, pitch), rows, block // 4, triton.next_power_of_2(k), width)
        _rows_kernel(triton.cdiv(M, rows), (x, values, indices), (M, N, k, pitch), constants, num_warps=1)
    elif k > _MOST or N > 2**31 - 1 or (sorted and x.dtype == torch.int64):
        x = x.reshape(M, N)  # most of a row is wanted, so sorting it is no detour
        order = _sortable(x).sort(dim=-1, descending=largest, stable=True).indices[:, :k]
        order = order if sorted else order.sort(-1).values
        indices.view(M, k).copy_(order)
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
        values.view(M, k).view(kind).copy_(x.contiguous().view(kind).gather(-1, order))  # bit for bit, NaNs too
    elif sorted:
        (columns,) = scratch(x.device, (M * k, torch.int32))
        if _tile(x) >= N and k <= _FUSED:
            _select(x, M, N, pitch, k, largest, None, None, values, columns, indices)
            return
        _select(x, M, N, pitch, k, largest, None, None, None, columns)
        constants = (largest, not INTERPRETED, max(triton.next_power_of_2(k), 32))
        warps = 4 if k <= 1024 else 8
        _order_kernel(M, (x, columns, values, indices), (k, pitch), constants, num_warps=warps, pdl=not INTERPRETED)
    else:
        _select(x, M, N, pitch, k, largest, None, None, values, indices)


def _few_rows(block: int, sorted: bool) -> tuple[int, int]:
    """Rows of a program that sorts lists, and warps: 16 elements a thread, or 32 of which 4 are loaded at once. Where
    the order counts as well, more of it has to be settled, and a warp waits for its slowest row."""
    return (4, 1) if block == 256 and not sorted else (max(1, 512 // block), 1)


def _sortable(x: Tensor) -> Tensor:
    """`_keys` with torch: CUB's sort would heed the sign of a NaN."""
    if not x.dtype.is_floating_point:
        return x
    bits = x.float().view(torch.int32)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return keys.masked_fill(bits == -(2**31), 0).masked_fill(x.isnan(), 2**31 - 1)


def _tile(x: Tensor) -> int:
    """Columns that a program holds."""
    return _TILE // 2 if x.dtype == torch.int64 else _TILE


def _select(
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
    indices: Tensor | None = None,  # int64 [M, k]: receives them, with the values, in order of value
) -> None:
    if _tile(x) < N:
        select_long(x, M, N, pitch, k, largest, starts, ends, values, columns)
        return
    block = max(triton.next_power_of_2(N), _SHORTEST)
    groups = 4 * max(triton.next_power_of_2(k), 32)
    filtered = 2 * groups <= block
    warps = max(triton.next_power_of_2(_PROGRAMS // M), 2 if filtered else block // 1024)
    warps = min(warps, block // 512, 16)
    room = groups // 2 if filtered else block
    alone = warps <= 2 and 16 * groups <= 4 * block <= 4 * _LONE and groups <= 4 * _LONE_K and x.dtype != torch.int64
    order = 0 if indices is None else max(triton.next_power_of_2(k), 32)
    pair = values is not None and indices is None
    out = (columns if values is None else values, columns, columns if indices is None else indices)
    if alone and k <= N and starts is None and ends is None and aligned(N, pitch):
        (passed,) = scratch(x.device, (M * room, torch.int16))
        constants = (largest, pair, order, block == N, block, groups, room, 16 // x.dtype.itemsize)
        lone_kernel(M, (x, passed, *out), (N, k, pitch), constants, num_warps=1, maxnreg=_LONE_REGISTERS)
        return
    (passed,) = scratch(x.device, (M * room if filtered else 0, torch.int16))
    windows = (starts is not None, ends is not None)
    tile = max(512 * warps, groups)
    sizes = (tile, groups, room, 16 // x.dtype.itemsize, not any(windows) and N % tile == 0)
    constants = (largest, *windows, not INTERPRETED, pair, order, aligned(N, pitch), filtered, *sizes)
    tensors = (x, *(passed if t is None else t for t in (starts, ends)), passed, *out)
    registers = (
        64 if filtered and warps <= 2 and x.dtype.itemsize <= 4 else None
    )  # of which twice as many warps run at once
    _row_kernel(M, tensors, (N, k, pitch), constants, num_warps=warps, maxnreg=registers)


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
        _select(x, M, N, pitch, k, True, starts, ends, None, out)
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
