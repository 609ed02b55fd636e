"""The gradients of norms whose rows fit into registers.

The kernels are persistent: a program walks over many rows, keeps its sums of dweight and dbias in registers and leaves
one row of each in a scratch matrix, whose columns a second kernel sums, in a fixed order. The next rows are on their
way to shared memory while one is worked on. x and dy stay packed as 16 bits: so registers remain for the programs of
the second kernel, which are there, waiting, when the first one ends (programmatic dependent launch).
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tle_ops.kernels._rows_triton import after, normed, reciprocal_root, row_start, scaled, widened
from tle_ops.kernels._triton import Kernel, kernel

SCALARS = ("M", "heads", "outer", "pitch", "dy_pitch", "dnew_pitch", "eps", "offset")
COLUMNS = 16  # that a program sums over the rows of a scratch matrix
_SHARED = 200_000  # bytes of shared memory for rows on their way
_REGISTERS = 112  # of the 128 that a thread of 16 warps has, for a row and sums


# --- one row at a time ------------------------------------------------------------------------------------------------
@triton.jit
def _load(ptr, n, k: tl.constexpr, PIECE: tl.constexpr, N: tl.constexpr):
    """Piece k of the row at ptr; zeros beyond its end"""
    if (k + 1) * PIECE <= N:
        return tl.load(ptr + k * PIECE + n)
    else:
        return tl.load(ptr + k * PIECE + n, n < N - k * PIECE, 0.0)


@triton.jit
def _store(ptr, n, k: tl.constexpr, PIECE: tl.constexpr, N: tl.constexpr, value):
    if (k + 1) * PIECE <= N:
        tl.store(ptr + k * PIECE + n, value)
    else:
        tl.store(ptr + k * PIECE + n, value, n < N - k * PIECE)


@triton.jit
def _difference(x, mean, zero, n, k: tl.constexpr, PIECE: tl.constexpr, N: tl.constexpr, CENTERED: tl.constexpr):
    """Piece k of x - mean; zeros beyond the row's end"""
    x = widened(after(x, zero))
    if CENTERED:
        x -= mean
        if (k + 1) * PIECE > N:
            x = tl.where(n < N - k * PIECE, x, 0.0)
    return x


@triton.jit
def _zero_after(value, M):
    """0, known when `value` is"""
    return value.to(tl.int32, bitcast=True) & (M >> 62).to(tl.int32)


@kernel(*SCALARS)
def row_bwd_kernel(
    dy_ptr,  # [M, N], row pitch dy_pitch
    dnew_ptr,  # with ADD: [M, N], row pitch dnew_pitch
    x_ptr,  # [M, N], rows as `Rows` says
    weight_ptr,  # with WEIGHT: [N]
    dx_ptr,  # [M, N], contiguous
    dweight_ptr,  # with DWEIGHT: float32 [programs, N]
    dbias_ptr,  # with DBIAS: float32 [programs, N]
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    dy_pitch: tl.int64,
    dnew_pitch: tl.int64,
    eps: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    CENTERED: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    DWEIGHT: tl.constexpr,
    DBIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    PIECE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows in pieces of PIECE columns: no lanes beyond the end of a row that is a multiple of it, and no more than one
    piece at a time in float32, but for the sums."""
    if PDL:
        gdc_launch_dependents()
    PIECES: tl.constexpr = (N + PIECE - 1) // PIECE
    pid = tl.program_id(0)
    n = tl.arange(0, PIECE)
    weights = ()
    dweights = ()
    dbiases = ()
    for k in tl.static_range(PIECES):
        weights = weights + (_load(weight_ptr, n, k, PIECE, N) if WEIGHT else 1.0,)  # noqa: RUF005
        dweights = dweights + (tl.zeros((PIECE,), tl.float32) if DWEIGHT else 0.0,)  # noqa: RUF005
        dbiases = dbiases + (tl.zeros((PIECE,), tl.float32) if DBIAS else 0.0,)  # noqa: RUF005
    for row in tl.range(pid, M.to(tl.int32), tl.num_programs(0), num_stages=STAGES):
        m = M * 0 + row  # in 64 bits
        x_row = x_ptr + row_start(m, heads, outer, pitch, SPLIT, ALIGNED)
        dy_row = dy_ptr + row_start(m, 1, 0, dy_pitch, False, ALIGNED)
        dnew_row = dnew_ptr + row_start(m, 1, 0, dnew_pitch, False, ALIGNED)
        xs = ()
        dys = ()
        for k in tl.static_range(PIECES):
            xs = xs + (_load(x_row, n, k, PIECE, N),)  # noqa: RUF005
            dys = dys + (_load(dy_row, n, k, PIECE, N),)  # noqa: RUF005
        mean = 0.0
        zero = 0
        if CENTERED:
            total = tl.zeros((PIECE,), tl.float32)
            for k in tl.static_range(PIECES):
                total += widened(xs[k])
            mean = tl.sum(total) * (1.0 / N)
            zero = _zero_after(mean, M)
        squares = tl.zeros((PIECE,), tl.float32)
        for k in tl.static_range(PIECES):
            d = _difference(xs[k], mean, zero, n, k, PIECE, N, CENTERED)
            squares += d * d
        rstd, _ = reciprocal_root(tl.sum(squares, keep_dims=True), eps, N)
        rstd = tl.sum(rstd)  # a scalar
        zero = _zero_after(rstd, M)
        along = tl.zeros((PIECE,), tl.float32)  # the part of p that lies along the normalized row
        p_sum = tl.zeros((PIECE,), tl.float32)
        for k in tl.static_range(PIECES):
            d = _difference(xs[k], mean, zero, n, k, PIECE, N, CENTERED) * rstd
            p = widened(after(dys[k], zero))
            if WEIGHT:
                p *= widened(after(weights[k], zero)) + offset
            along += p * d
            if CENTERED:
                p_sum += p
        along = tl.sum(along) * (1.0 / N)
        if CENTERED:
            p_sum = tl.sum(p_sum) * (1.0 / N)
        zero = _zero_after(along, M)
        new_dweights = ()
        new_dbiases = ()
        for k in tl.static_range(PIECES):
            d = _difference(xs[k], mean, zero, n, k, PIECE, N, CENTERED) * rstd
            dy = widened(after(dys[k], zero))
            new_dweights = new_dweights + (dweights[k] + dy * d if DWEIGHT else 0.0,)  # noqa: RUF005
            new_dbiases = new_dbiases + (dbiases[k] + dy if DBIAS else 0.0,)  # noqa: RUF005
            dx = dy
            if WEIGHT:
                dx *= widened(after(weights[k], zero)) + offset
            dx -= d * along
            if CENTERED:
                dx -= p_sum
            dx *= rstd
            if ADD:
                dx += widened(_load(dnew_row, n, k, PIECE, N))
            _store(dx_ptr + m * N, n, k, PIECE, N, dx.to(dx_ptr.dtype.element_ty))
        dweights = new_dweights
        dbiases = new_dbiases
    at = pid.to(tl.int64) * N
    for k in tl.static_range(PIECES):
        if DWEIGHT:
            _store(dweight_ptr + at, n, k, PIECE, N, dweights[k])
        if DBIAS:
            _store(dbias_ptr + at, n, k, PIECE, N, dbiases[k])


# --- several short rows at a time -------------------------------------------------------------------------------------
@kernel(*SCALARS)
def short_rows_bwd_kernel(
    dy_ptr,  # arguments as those of row_bwd_kernel
    dnew_ptr,
    x_ptr,
    weight_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    dy_pitch: tl.int64,
    dnew_pitch: tl.int64,
    eps: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    CENTERED: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    DWEIGHT: tl.constexpr,
    DBIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    n = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = n < N
    weight = scaled(tl.full((1, BLOCK), 1.0, tl.float32), weight_ptr, n, offset, N, WEIGHT, True)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    tiles = tl.cdiv(M, ROWS).to(tl.int32)
    for tile in tl.range(pid, tiles, tl.num_programs(0), num_stages=STAGES):
        m = (tl.zeros((ROWS, 1), tl.int64) + tile) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        mask = (m < M) & inside
        x = tl.load(x_ptr + row_start(m, heads, outer, pitch, SPLIT, ALIGNED) + n, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row_start(m, 1, 0, dy_pitch, False, ALIGNED) + n, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            dnew = tl.load(dnew_ptr + row_start(m, 1, 0, dnew_pitch, False, ALIGNED) + n, mask=mask, other=0.0)
        x, rstd = normed(x.to(tl.float32), inside, eps, N, CENTERED)
        p = dy * weight
        dx = p - x * (tl.sum(p * x, axis=1) * (1.0 / N))[:, None]
        if CENTERED:
            dx -= (tl.sum(p, axis=1) * (1.0 / N))[:, None]
        dx *= rstd
        if ADD:
            dx += dnew.to(tl.float32)
        tl.store(dx_ptr + m * N + n, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if DWEIGHT:
            dweight += tl.where(mask, dy * x, 0.0)
        if DBIAS:
            dbias += dy
    at = pid.to(tl.int64) * N + n
    if DWEIGHT:
        tl.store(dweight_ptr + at, tl.sum(dweight, axis=0)[None, :], mask=inside)
    if DBIAS:
        tl.store(dbias_ptr + at, tl.sum(dbias, axis=0)[None, :], mask=inside)


# --- the sums over programs -------------------------------------------------------------------------------------------
@kernel("P")
def column_sum_kernel(
    parts_ptr,  # float32 [P, N]
    out_ptr,  # [N]
    P: tl.int32,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, P, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)[:, None]
        total += tl.load(parts_ptr + p.to(tl.int64) * N + n, mask=(p < P) & (n < N), other=0.0)
    tl.store(out_ptr + n, tl.sum(total, axis=0)[None, :].to(out_ptr.dtype.element_ty), mask=n < N)


# --- how rows are taken -----------------------------------------------------------------------------------------------
class Plan(NamedTuple):
    kernel: Kernel
    rows: int  # of a tile
    tile: tuple[int, ...]  # the kernel's constants between ALIGNED and PDL
    num_warps: int
    resident: int = 1  # programs of a multiprocessor


def plan(N: int, ahead: int, held: int) -> Plan | None:
    """For rows that fit into registers. Bytes per element, `ahead`: of the inputs that are fetched row by row, `held`:
    of those that stay in registers, and the sums. None: they do not fit."""
    block = triton.next_power_of_2(N)
    if N <= 2048:  # tiles of 8192 elements, 32 per thread
        rows = min(8192 // block, 64)
        stages = 1 + min(2, _SHARED // (rows * block * ahead))
        return Plan(short_rows_bwd_kernel, rows, (rows, block, stages), max(4, rows * block // 1024))
    num_warps = 4 if N <= 4096 else 16  # 16 to 32 elements per thread
    resident = 2 if N <= 4096 else 1
    piece = num_warps * 256  # 8 elements per thread
    pieces = triton.cdiv(N, piece)
    stages = 1 + min(2, _SHARED // (pieces * piece * ahead * resident))
    if stages == 1 or (N > 4096 and pieces * 8 * held // 4 > _REGISTERS):
        return None
    return Plan(row_bwd_kernel, 1, (piece, stages), num_warps, resident)
