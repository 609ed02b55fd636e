"""An activation or a norm fused with FP8 quantization by token groups, in Triton: a row is read once and stays on chip.

The kernels take groups of a power of two of columns, or the whole row, and rows of norms that fit into registers. Any
other call goes the long way: kernels of this module write the float32 intermediate to memory, and it is quantized.

Scales are within 2 ulp of their float64 definition on every way, whatever the input. The definition is rounded, too, so
what is left of an error before the last rounding must stay below 2 ulp. u = 2^-24; an error of u is at most 1 ulp:

    swiglu      1.42 u of the sigmoid's divisor (`one_plus_exp`), 0.58 ulp for the rounding of y: amax / 448 is 8 / 7 or
                4 / 7 of amax but for a power of two, so half an ulp of amax is at most 4 / 7 ulp of the scale
    norm        1 u of x * weight, exact for 16-bit types; nothing else is rounded before the scale
    the norm's  0.58 ulp for the rounding of y
    long way

Instructions that are approximate on a GPU (rcp 1 ulp, rsqrt and division 2 ulp) only give first guesses, which a Newton
step or the exact remainder mends; ex2 is not used. tests/test_fused.py runs the kernels with such errors put in.
"""

from __future__ import annotations

import ctypes
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops._meta import FP8_MAX
from tle_ops.kernels import norm_triton, quant_triton
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._rows_triton import (
    LONGEST,
    clamp_above,
    clamp_both,
    exact_root,
    exact_squares,
    load_rows,
    row_start,
    rows_of,
    scaled,
    silu_product,
)
from tle_ops.kernels._triton import kernel, magnitude, scale_of

_TILE = 2048  # elements per program of 2 warps
_CHUNK = 4096  # elements per program of 4 warps, on the long way
_CODE = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


# --- device functions -------------------------------------------------------------------------------------------------
@triton.jit
def _amax(y, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """max |y| of each group, as the bits of a float32: [ROWS, BLOCK] -> [ROWS, BLOCK / GROUP]"""
    return tl.max(magnitude(tl.reshape(y, (ROWS, BLOCK // GROUP, GROUP))), axis=2)


@triton.jit
def _sum(a, b):
    """a + b, and what its rounding lost (Knuth 1969)"""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


@triton.jit
def _weighted(x, weight_ptr, n, offset, N: tl.constexpr, WEIGHT: tl.constexpr, OFFSET: tl.constexpr):
    """x * (weight + offset) good to half an ulp or hardly less. OFFSET: 0 if it is 0, 1 a power of two, 2 else"""
    if WEIGHT and OFFSET:
        weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32) + tl.zeros_like(x)
        if OFFSET == 1:
            return tl.fma(x, weight, x * offset)  # this product is exact
        else:
            weight, low = _sum(weight, offset)
            return tl.fma(x, weight, x * low)
    else:
        return scaled(x, weight_ptr, n, offset, N, WEIGHT, False)


@triton.jit
def _inverse(scale):
    """1 / scale as a sum of two float32; 0 of an infinite scale"""
    finite = tl.where(scale == float("inf"), 1.0, scale)
    guess = 1.0 / finite
    inverse = tl.fma(tl.fma(finite * -1.0, guess, 1.0), guess, guess)
    low = tl.fma(finite * -1.0, inverse, 1.0) * inverse
    return tl.where(scale == float("inf"), 0.0, inverse), tl.where(scale == float("inf"), 0.0, low)


@triton.jit
def _store_scales(
    scale, scales_ptr, m, first, M, s_m, s_n, N: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    g = first // GROUP + tl.arange(0, BLOCK // GROUP)[None, :]
    tl.store(scales_ptr + m * s_m + g * s_n, scale, mask=(m < M) & (g * GROUP < N))


@triton.jit
def _store_codes(
    y, factor, low, q_ptr, m, first, mask, N: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """cast(y * (factor + low)) from column `first` on; y [ROWS, BLOCK], factor and low [ROWS, BLOCK / GROUP], low may
    be None. The product is good to an ulp, so only near ties can a code fall the other way."""
    y = tl.reshape(y, (ROWS, BLOCK // GROUP, GROUP))
    if low is None:
        q = (y * factor[:, :, None]).to(CODE)
    else:
        q = tl.fma(y, factor[:, :, None] + tl.zeros_like(y), y * low[:, :, None]).to(CODE)
    n = first + tl.arange(0, BLOCK)[None, :]
    tl.store(q_ptr + m * N + n, tl.reshape(q, (ROWS, BLOCK)), mask=mask)


# --- kernels ----------------------------------------------------------------------------------------------------------
@kernel("M", "pitch", "s_m", "s_n", "limit")
def _swiglu_cast_kernel(
    x_ptr,  # [M, 2 N], row pitch `pitch`
    q_ptr,  # [M, N], contiguous
    scales_ptr,  # strides s_m, s_n
    M: tl.int64,
    pitch: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    limit: tl.float32,
    N: tl.constexpr,
    LIMIT: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    across: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // across * ROWS + tl.arange(0, ROWS)[:, None]
    first = pid % across * BLOCK
    n = first + tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N) if ROWS > 1 else (m >= 0) & (n < N)
    at = row_start(m, 1, 0, pitch, False, ALIGNED) + n
    gate = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + at + N, mask=mask, other=0.0).to(tl.float32)
    if LIMIT:
        gate, up = clamp_above(gate, limit), clamp_both(up, limit)
    y = silu_product(gate, up, x_ptr.dtype.element_ty != tl.bfloat16)
    scale = scale_of(_amax(y, ROWS, BLOCK, GROUP), FP8_MAX, UE8M0)
    _store_scales(scale, scales_ptr, m, first, M, s_m, s_n, N, BLOCK, GROUP)
    factor, _ = _inverse(scale)
    _store_codes(y, factor, None, q_ptr, m, first, mask, N, CODE, ROWS, BLOCK, GROUP)


@triton.jit
def _scale_of_product(bits, rstd, rstd_low, FP8_MAX: tl.constexpr, UE8M0: tl.constexpr):
    """`scale_of` for amax = (bits, as a float32) * (rstd + rstd_low), rounded once at the end"""
    amax = bits.to(tl.float32, bitcast=True)
    zeros = tl.zeros_like(amax)
    high = amax * rstd
    low = tl.fma(amax, zeros + rstd, high * -1.0) + amax * rstd_low
    low = tl.where(high < 1e-4, 0.0, low)
    high = tl.where(high < 1e-4, 1e-4, high)
    scale = high * (1.0 / FP8_MAX)
    rest = tl.fma(scale * -1.0, zeros + FP8_MAX, high) + low
    scale = tl.fma(rest, zeros + 1.0 / FP8_MAX, scale)
    if UE8M0:  # to the next power of two by the exponent's bits: exact powers stay
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    scale = tl.where(high == float("inf"), high, scale)
    return tl.where(high == high, scale, float("nan"))


@kernel("M", "heads", "outer", "pitch", "residual_pitch", "s_m", "s_n", "eps", "eps_low", "offset")
def _rms_norm_cast_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    residual_ptr,  # with ADD: [M, N], row pitch residual_pitch
    weight_ptr,  # with WEIGHT: [N]
    q_ptr,  # [M, N], contiguous
    scales_ptr,  # strides s_m, s_n
    new_ptr,  # with ADD: [M, N], contiguous
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    eps: tl.float32,
    eps_low: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    OFFSET: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    n = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    mask = (m < M) & (n < N) if ROWS > 1 else (m >= 0) & (n < N)
    x = load_rows(x_ptr, residual_ptr, new_ptr, m, n, mask, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED)
    rstd, rstd_low = exact_root(exact_squares(x), eps, eps_low, N)
    rstd, rstd_low = rstd[:, None], rstd_low[:, None]
    if tl.min(tl.min(rstd, axis=1), axis=0) > 0:
        # y = x * weight * rstd is not needed itself: amax and codes come from x * weight, which is exact for 16-bit
        # inputs, and rstd joins the scales.
        y = _weighted(x, weight_ptr, n, offset, N, WEIGHT, OFFSET)
        scale = _scale_of_product(_amax(y, ROWS, BLOCK, GROUP), rstd, rstd_low, FP8_MAX, UE8M0)
        inverse, inverse_low = _inverse(scale)
        factor = rstd * inverse
        zeros = tl.zeros_like(factor)
        low = tl.fma(zeros + rstd, inverse, factor * -1.0) + (rstd * inverse_low + rstd_low * inverse)
        _store_scales(scale, scales_ptr, m, 0, M, s_m, s_n, N, BLOCK, GROUP)
        _store_codes(y, factor, low, q_ptr, m, 0, mask, N, CODE, ROWS, BLOCK, GROUP)
    else:  # a NaN, or squares that overflowed: x * weight could overflow too
        y = scaled(x * rstd, weight_ptr, n, offset, N, WEIGHT, OFFSET > 0)
        scale = scale_of(_amax(y, ROWS, BLOCK, GROUP), FP8_MAX, UE8M0)
        factor, low = _inverse(scale)
        _store_scales(scale, scales_ptr, m, 0, M, s_m, s_n, N, BLOCK, GROUP)
        _store_codes(y, factor, low, q_ptr, m, 0, mask, N, CODE, ROWS, BLOCK, GROUP)


# --- kernels of the long way: y in float32 ----------------------------------------------------------------------------
@kernel("M", "pitch", "limit")
def _swiglu_kernel(
    x_ptr,  # [M, 2 N], row pitch `pitch`
    y_ptr,  # [M, N], contiguous
    M: tl.int64,
    pitch: tl.int64,
    limit: tl.float32,
    N: tl.constexpr,
    LIMIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    across: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // across * ROWS + tl.arange(0, ROWS)[:, None]
    n = pid % across * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    at = row_start(m, 1, 0, pitch, False, ALIGNED) + n
    gate = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + at + N, mask=mask, other=0.0).to(tl.float32)
    if LIMIT:
        gate, up = clamp_above(gate, limit), clamp_both(up, limit)
    tl.store(y_ptr + m * N + n, silu_product(gate, up, x_ptr.dtype.element_ty != tl.bfloat16), mask=mask)


@kernel("M", "heads", "outer", "pitch", "residual_pitch")
def _squares_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    residual_ptr,  # with ADD: [M, N], row pitch residual_pitch
    new_ptr,  # with ADD: [M, N], contiguous
    squares_ptr,  # float64 [M, chunks]: the sum of squares of each chunk
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    N: tl.constexpr,
    ADD: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks + tl.zeros((1, 1), tl.int64)
    n = pid % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = load_rows(
        x_ptr, residual_ptr, new_ptr, m, n, n < N, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED
    )
    tl.store(squares_ptr + pid + tl.arange(0, 1), exact_squares(x))


@kernel("M", "heads", "outer", "pitch", "eps", "eps_low", "offset")
def _rms_norm_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    weight_ptr,  # with WEIGHT: [N]
    squares_ptr,  # from _squares_kernel
    y_ptr,  # [M, N], contiguous
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    eps: tl.float32,
    eps_low: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    WEIGHT: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,  # chunks, rounded up to a power of two
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks + tl.zeros((1, 1), tl.int64)
    n = pid % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, K)
    squares = tl.sum(tl.load(squares_ptr + pid // chunks * chunks + k, mask=k < chunks, other=0.0), axis=0)
    rstd, rstd_low = exact_root(squares, eps, eps_low, N)  # scalars
    x = load_rows(x_ptr, x_ptr, y_ptr, m, n, n < N, heads, outer, pitch, pitch, N, False, SPLIT, ALIGNED)
    rstd = tl.zeros_like(x) + rstd
    y = x * rstd
    rest = tl.fma(x, rstd, y * -1.0) + x * rstd_low
    if WEIGHT:
        weight, low = _sum(tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32), offset)
        rest = rest * weight + y * low
        rest = tl.where(tl.abs(rest) < float("inf"), rest, 0.0)  # else y is not finite, or 0 * inf
        y = tl.fma(y, weight, rest)
    else:
        y += tl.where(tl.abs(rest) < float("inf"), rest, 0.0)
    tl.store(y_ptr + m * N + n, y, mask=n < N)


# --- launchers --------------------------------------------------------------------------------------------------------
def _group_of(N: int, group_size: int) -> int | None:
    """Columns of a group as the kernels see it; None if it is neither a power of two nor the whole row."""
    if group_size == -1 or group_size >= N:
        return triton.next_power_of_2(N)
    return group_size if group_size & (group_size - 1) == 0 else None


def _scale_strides(scales: Tensor) -> tuple[int, int]:
    """Rows of scales always merge: they are neighbours, or G apart."""
    return scales.stride(-2) if scales.dim() > 1 else 0, scales.stride(-1)


@replayed
def swiglu_per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    limit: float | None = None,
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.swiglu_per_token_cast_fp8(x, group_size, dtype, scale_ue8m0, column_major_scales, limit)
    N = q.shape[-1]
    group = _group_of(N, group_size)
    if q.numel() == 0 or group is None or group > LONGEST:
        y = _swiglu(x, q.shape, limit)
        return quant_triton.per_token_cast_fp8(y, group_size, dtype, scale_ue8m0, column_major_scales)
    x, r = rows_of(x)
    block = max(group, min(triton.next_power_of_2(N), _TILE))
    rows = max(1, _TILE // block)
    _swiglu_cast_kernel(
        triton.cdiv(r.M, rows) * triton.cdiv(N, block),
        (x, q, scales),
        (r.M, r.pitch, *_scale_strides(scales), 0.0 if limit is None else limit),
        (N, limit is not None, _CODE[dtype], FP8_MAX[dtype], scale_ue8m0, r.aligned, rows, block, group),
        max(2, min(rows * block // 1024, 16)),
    )
    return q, scales


def _swiglu(x: Tensor, shape: torch.Size, limit: float | None) -> Tensor:
    y = torch.empty(shape, dtype=torch.float32, device=x.device)
    if y.numel():
        x, r = rows_of(x)
        N = r.N // 2
        block = min(triton.next_power_of_2(N), _CHUNK)
        rows = _CHUNK // block
        _swiglu_kernel(
            triton.cdiv(r.M, rows) * triton.cdiv(N, block),
            (x, y),
            (r.M, r.pitch, 0.0 if limit is None else limit),
            (N, limit is not None, r.aligned, rows, block),
        )
    return y


@replayed
def rms_norm_per_token_cast_fp8(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.rms_norm_per_token_cast_fp8(
        x, weight, eps, group_size, dtype, scale_ue8m0, column_major_scales, weight_offset
    )
    how = (group_size, dtype, scale_ue8m0, column_major_scales)
    return _rms_norm_cast(x, None, weight, q, scales, None, eps, weight_offset, how)


@replayed
def add_rms_norm_per_token_cast_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    q, scales, new = _meta.add_rms_norm_per_token_cast_fp8(
        x, residual, weight, eps, group_size, dtype, scale_ue8m0, column_major_scales, weight_offset
    )
    how = (group_size, dtype, scale_ue8m0, column_major_scales)
    return *_rms_norm_cast(x, residual, weight, q, scales, new, eps, weight_offset, how), new


def _rms_norm_cast(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    q: Tensor,
    scales: Tensor,
    new: Tensor | None,
    eps: float,
    offset: float,
    how: tuple[int, torch.dtype, bool, bool],
) -> tuple[Tensor, Tensor]:
    group_size, dtype, ue8m0, _ = how
    N = q.shape[-1]
    group = _group_of(N, group_size)
    if q.numel() == 0 or group is None or N > LONGEST:
        return quant_triton.per_token_cast_fp8(_rms_norm(x, residual, weight, new, eps, offset), *how)
    x, r = rows_of(x, may_split=True)
    add = residual is not None
    residual, residual_rows = rows_of(residual) if add else (x, r)
    rows, block, num_warps = norm_triton.tile_of(N)
    kind = 0 if offset == 0 else 1 if abs(math.frexp(offset)[0]) == 0.5 else 2
    flags = (N, add, weight is not None, kind, _CODE[dtype], FP8_MAX[dtype], ue8m0, r.split)
    _rms_norm_cast_kernel(
        triton.cdiv(r.M, rows),
        (x, residual, x if weight is None else weight.contiguous(), q, scales, new if add else q),
        (r.M, r.heads, r.outer, r.pitch, residual_rows.pitch, *_scale_strides(scales), *_two_floats(eps), offset),
        (*flags, r.aligned and residual_rows.aligned, rows, block, group),
        num_warps,
    )
    return q, scales


def _rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, new: Tensor | None, eps: float, offset: float
) -> Tensor:
    """The norm in float32; with a residual, of new = x + residual."""
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if not y.numel():
        return y
    x, r = rows_of(x, may_split=True)
    add = residual is not None
    residual, residual_rows = rows_of(residual) if add else (x, r)
    block = min(triton.next_power_of_2(r.N), _CHUNK)
    chunks = triton.cdiv(r.N, block)
    squares = torch.empty((r.M, chunks), dtype=torch.float64, device=x.device)
    _squares_kernel(
        r.M * chunks,
        (x, residual, new if add else x, squares),
        (r.M, r.heads, r.outer, r.pitch, residual_rows.pitch),
        (r.N, add, r.split, r.aligned and residual_rows.aligned, block),
    )
    if add:
        x, r = rows_of(new)
    _rms_norm_kernel(
        r.M * chunks,
        (x, x if weight is None else weight.contiguous(), squares, y),
        (r.M, r.heads, r.outer, r.pitch, *_two_floats(eps), offset),
        (r.N, weight is not None, r.split, r.aligned, block, triton.next_power_of_2(chunks)),
    )
    return y


def _two_floats(x: float) -> tuple[float, float]:
    """x as a sum of two float32"""
    high = ctypes.c_float(x).value
    return high, x - high if math.isfinite(high) else 0.0
