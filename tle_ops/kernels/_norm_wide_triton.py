"""Norms of rows that are too long for registers, in chunks of BLOCK columns.

The mean and the sum of squared differences from it come from those of the chunks, each taken about the chunk's own
mean, so that no digits are lost (Chan, Golub, LeVeque 1983). Where rows are many, one program walks along a row twice
and the second time finds it in the cache; where they are few, all chunks go at once, in two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops.kernels._rows_triton import (
    FEW,
    load_rows,
    num_multiprocessors,
    reciprocal_root,
    row_start,
    scaled,
)
from tle_ops.kernels._triton import kernel

_CHUNK = 8192  # columns: 32 elements for each thread of 8 warps
_WARPS = 8


# --- device functions -------------------------------------------------------------------------------------------------
@triton.jit
def _chunk_statistics(x, inside, count, CENTERED: tl.constexpr):
    """mean and sum of squared differences from it; not CENTERED: 0 and the sum of squares"""
    if CENTERED:
        mean = tl.sum(x, axis=1) / count  # [1]
        d = tl.where(inside, x - mean[:, None], 0.0)
        return mean, tl.sum(d * d, axis=1)
    else:
        return tl.zeros((1,), tl.float32), tl.sum(x * x, axis=1)


@triton.jit
def _row_statistics(
    stats_ptr, m, N: tl.constexpr, CHUNKS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, FIELDS: tl.constexpr
):
    """Of row m from those of its chunks: mean and sum of squared differences, and with FIELDS == 4 the sums of p and of
    p * (x - mean). K: CHUNKS rounded up to a power of two."""
    k = tl.arange(0, K)
    at = stats_ptr + (m * CHUNKS + k) * FIELDS
    mask = k < CHUNKS
    count = tl.where(mask, tl.minimum(N - k * BLOCK, BLOCK), 0).to(tl.float32)
    means = tl.load(at, mask=mask, other=0.0)
    mean = tl.sum(count * means, axis=0) * (1.0 / N)
    d = tl.where(mask, means - mean, 0.0)
    squares = tl.sum(tl.load(at + 1, mask=mask, other=0.0) + count * d * d, axis=0)
    if FIELDS == 4:
        p = tl.load(at + 2, mask=mask, other=0.0)
        px = tl.sum(tl.load(at + 3, mask=mask, other=0.0) + d * p, axis=0)
        return mean, squares, tl.sum(p, axis=0), px
    else:
        return mean, squares, mean, mean


@triton.jit
def _finish(x, mean, rstd, weight_ptr, bias_ptr, n, offset, N: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr):
    y = scaled((x - mean) * rstd, weight_ptr, n, offset, N, WEIGHT, True)
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    return y


# --- forward: many rows -----------------------------------------------------------------------------------------------
_SCALARS = ("M", "heads", "outer", "pitch", "residual_pitch", "eps", "offset")


@kernel(*_SCALARS)
def _loop_kernel(
    x_ptr,  # arguments as those of _norm_kernel in norm_triton.py
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    new_ptr,
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    eps: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    CENTERED: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    mean = tl.zeros((1,), tl.float32)
    squares = tl.zeros((1,), tl.float32)
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)[None, :]
        x = load_rows(
            x_ptr, residual_ptr, new_ptr, m, n, n < N, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED, ""
        )
        count = tl.minimum(N - first, BLOCK).to(tl.float32)
        chunk_mean, chunk_squares = _chunk_statistics(x, n < N, count, CENTERED)
        share = count / (first + count)
        d = chunk_mean - mean
        mean += d * share
        squares += chunk_squares + d * d * first * share
    rstd, _ = reciprocal_root(squares, eps, N)
    mean, rstd = mean[:, None], rstd[:, None]
    if ADD:
        tl.debug_barrier()  # the sums are read back, maybe by another thread than wrote them
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)[None, :]
        if ADD:
            x = tl.load(new_ptr + m * N + n, mask=n < N, other=0.0).to(tl.float32)
        else:
            x = load_rows(
                x_ptr, x_ptr, x_ptr, m, n, n < N, heads, outer, pitch, residual_pitch, N, False, SPLIT, ALIGNED, ""
            )
        y = _finish(x, mean, rstd, weight_ptr, bias_ptr, n, offset, N, WEIGHT, BIAS)
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask=n < N)


# --- forward: few rows ------------------------------------------------------------------------------------------------
@kernel(*_SCALARS)
def _statistics_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    stats_ptr,  # float32 [M, CHUNKS, 2]: mean and sum of squared differences of each chunk
    new_ptr,
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    eps: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    CENTERED: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks + tl.zeros((1, 1), tl.int64)
    first = pid % chunks * BLOCK
    n = first + tl.arange(0, BLOCK)[None, :]
    x = load_rows(
        x_ptr, residual_ptr, new_ptr, m, n, n < N, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED, ""
    )
    mean, squares = _chunk_statistics(x, n < N, tl.minimum(N - first, BLOCK).to(tl.float32), CENTERED)
    at = stats_ptr + pid * 2 + tl.arange(0, 1)
    tl.store(at, mean)
    tl.store(at + 1, squares)


@kernel(*_SCALARS)
def _apply_kernel(
    x_ptr,
    stats_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    new_ptr,
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    eps: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    CENTERED: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks
    n = pid % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    if ADD:
        x = tl.load(new_ptr + m * N + n, mask=n < N, other=0.0).to(tl.float32)
    else:
        at = row_start(m, heads, outer, pitch, SPLIT, ALIGNED) + n
        x = tl.load(x_ptr + at, mask=n < N, other=0.0).to(tl.float32)
    mean, squares, _, _ = _row_statistics(stats_ptr, m, N, chunks, K, BLOCK, 2)
    rstd, _ = reciprocal_root(squares + tl.zeros((1, 1), tl.float32), eps, N)
    y = _finish(x, mean, rstd, weight_ptr, bias_ptr, n, offset, N, WEIGHT, BIAS)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask=n < N)


# --- backward ---------------------------------------------------------------------------------------------------------
_BWD_SCALARS = ("M", "heads", "outer", "pitch", "dy_pitch", "dnew_pitch", "eps", "offset")


@kernel(*_BWD_SCALARS)
def _statistics_bwd_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    stats_ptr,  # float32 [M, CHUNKS, 4]: mean, sum of squared differences, sums of p and of p * (x - mean)
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
    WEIGHT: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks + tl.zeros((1, 1), tl.int64)
    first = pid % chunks * BLOCK
    n = first + tl.arange(0, BLOCK)[None, :]
    x = load_rows(x_ptr, x_ptr, x_ptr, m, n, n < N, heads, outer, pitch, pitch, N, False, SPLIT, ALIGNED, "")
    dy = load_rows(dy_ptr, x_ptr, x_ptr, m, n, n < N, 1, 0, dy_pitch, pitch, N, False, False, ALIGNED, "")
    p = scaled(dy, weight_ptr, n, offset, N, WEIGHT, True)
    mean, squares = _chunk_statistics(x, n < N, tl.minimum(N - first, BLOCK).to(tl.float32), CENTERED)
    at = stats_ptr + pid * 4 + tl.arange(0, 1)
    tl.store(at, mean)
    tl.store(at + 1, squares)
    tl.store(at + 2, tl.sum(p, axis=1))
    tl.store(at + 3, tl.sum(p * (x - mean[:, None]), axis=1))


@kernel(*_BWD_SCALARS)
def _chunk_bwd_kernel(
    dy_ptr,  # arguments as those of _norm_bwd_kernel in norm_triton.py
    dnew_ptr,
    x_ptr,
    weight_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    stats_ptr,
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
    BLOCK: tl.constexpr,
    K: tl.constexpr,
):
    """One chunk of columns, of every programs-th row."""
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    n = pid % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = n < N
    weight = scaled(tl.full((1, BLOCK), 1.0, tl.float32), weight_ptr, n, offset, N, WEIGHT, True)
    dweight = tl.zeros((1, BLOCK), tl.float32)
    dbias = tl.zeros((1, BLOCK), tl.float32)
    for row in range(pid // chunks, M.to(tl.int32), tl.num_programs(0) // chunks):
        m = M * 0 + row  # in 64 bits
        x = tl.load(x_ptr + row_start(m, heads, outer, pitch, SPLIT, ALIGNED) + n, mask=inside, other=0.0)
        dy = tl.load(dy_ptr + row_start(m, 1, 0, dy_pitch, False, ALIGNED) + n, mask=inside, other=0.0).to(tl.float32)
        mean, squares, p_sum, px_sum = _row_statistics(stats_ptr, m, N, chunks, K, BLOCK, 4)
        rstd, _ = reciprocal_root(squares + tl.zeros((1, 1), tl.float32), eps, N)
        x = tl.where(inside, (x.to(tl.float32) - mean) * rstd, 0.0)
        dx = dy * weight - x * (rstd * px_sum * (1.0 / N))
        if CENTERED:
            dx -= p_sum * (1.0 / N)
        dx *= rstd
        if ADD:
            at = row_start(m, 1, 0, dnew_pitch, False, ALIGNED) + n
            dx += tl.load(dnew_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + m * N + n, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if DWEIGHT:
            dweight += dy * x
        if DBIAS:
            dbias += dy
    at = (pid // chunks).to(tl.int64) * N + n
    if DWEIGHT:
        tl.store(dweight_ptr + at, dweight, mask=inside)
    if DBIAS:
        tl.store(dbias_ptr + at, dbias, mask=inside)


# --- launchers --------------------------------------------------------------------------------------------------------
def norm(tensors: tuple[Tensor, ...], scalars: tuple, flags: tuple) -> None:
    """The arguments of norm_triton's _norm_kernel up to SPLIT and ALIGNED."""
    x, residual, weight, bias, y, new = tensors
    M, N = scalars[0], flags[0]
    if M >= FEW:
        _loop_kernel(M, tensors, scalars, (*flags, _CHUNK), _WARPS)
        return
    chunks = triton.cdiv(N, _CHUNK)
    stats = torch.empty((M, chunks, 2), dtype=torch.float32, device=x.device)
    _statistics_kernel(M * chunks, (x, residual, weight, bias, stats, new), scalars, (*flags, _CHUNK), _WARPS)
    constants = (*flags, _CHUNK, triton.next_power_of_2(chunks))
    _apply_kernel(M * chunks, (x, stats, weight, bias, y, new), scalars, constants, _WARPS)


def backward_programs(M: int, N: int, device: torch.device) -> int:
    """Rows of partial sums: as many as give every multiprocessor a chunk."""
    return max(1, min(M, num_multiprocessors(device) // triton.cdiv(N, _CHUNK)))


def norm_bwd(programs: int, tensors: tuple[Tensor, ...], scalars: tuple, flags: tuple) -> None:
    """The arguments of norm_triton's _norm_bwd_kernel up to SPLIT and ALIGNED."""
    dy, _, x, weight, *_ = tensors
    N, centered, _, has_weight, _, _, split, aligned = flags
    M, chunks = scalars[0], triton.cdiv(N, _CHUNK)
    stats = torch.empty((M, chunks, 4), dtype=torch.float32, device=x.device)
    constants = (N, centered, has_weight, split, aligned, _CHUNK)
    _statistics_bwd_kernel(M * chunks, (dy, x, weight, stats), scalars, constants, _WARPS)
    constants = (*flags, _CHUNK, triton.next_power_of_2(chunks))
    _chunk_bwd_kernel(programs * chunks, (*tensors, stats), scalars, constants, _WARPS)
