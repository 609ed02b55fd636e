"""An activation or a norm fused with FP8 quantization by token groups, in Triton: a row is read once and stays on chip.

The kernels take groups of a power of two of columns, or the whole row, and rows of norms that fit into registers. Any
other call goes the long way: the float32 intermediate is written to memory, and quantized. Norms have their kernels in
_norm_cast_triton.py.

Scales are within 2 ulp of their float64 definition on every way, whatever the input. The definition is rounded, too, so
what is left of an error before the last rounding must stay below 2 ulp. u = 2^-24; an error of u is at most 1 ulp:

    swiglu      1.42 u of the sigmoid's divisor (`one_plus_exp`), 0.58 ulp for the rounding of y: amax / 448 is 8 / 7 or
                4 / 7 of amax but for a power of two, so half an ulp of amax is at most 4 / 7 ulp of the scale
    norm        1.5 u of the root (`_squares`), nothing else if x * weight is exact, as it is for 16-bit types; else
                1 u of each
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
from tle_ops.kernels import _norm_cast_triton as norm_cast
from tle_ops.kernels import norm_triton, quant_triton
from tle_ops.kernels._norm_cast_triton import group_max, inverse_of
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._rows_triton import (
    LONGEST,
    clamp_above,
    clamp_both,
    reciprocal,
    row_start,
    rows_of,
    silu_product,
    silu_product_of_finite,
    widened,
)
from tle_ops.kernels._triton import kernel, magnitude, scale_of

# Elements per program: of two warps while x fits into the L2 cache (15.6 us for 16.2), else of one (142 for 155).
_TILE = 1024
_FITS = 48 * 2**20  # elements of x that may leave the L2 cache (60 MB) first
_CHUNK = 4096  # elements per program of 4 warps, on the long way
_CODE = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


# --- kernels ----------------------------------------------------------------------------------------------------------
@triton.jit
def _halves(x_ptr, n, mask, limit, H, LIMIT: tl.constexpr, EVICT: tl.constexpr):
    if mask is None:
        gate = widened(tl.load(x_ptr + n, eviction_policy=EVICT))
        up = widened(tl.load(x_ptr + H + n, eviction_policy=EVICT))
    else:
        gate = widened(tl.load(x_ptr + n, mask, 0.0, eviction_policy=EVICT))
        up = widened(tl.load(x_ptr + H + n, mask, 0.0, eviction_policy=EVICT))
    if LIMIT:
        gate, up = clamp_above(gate, limit), clamp_both(up, limit)
    return gate, up


@kernel("M", "pitch", "s_m", "s_n", "limit", "fits")
def _swiglu_cast_kernel(
    x_ptr,  # [M, 2 N], row pitch `pitch`
    q_ptr,  # [M, N], contiguous
    scales_ptr,  # strides s_m, s_n
    M: tl.int64,
    pitch: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    limit: tl.float32,
    fits: tl.int32,  # x may leave the L2 cache first: it is small, and what was written before it stays there
    N: tl.constexpr,
    LIMIT: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    G: tl.constexpr,
    GROUP: tl.constexpr,
):
    """G groups of each of ROWS rows: a tile [ROWS * G, GROUP]."""
    across: tl.constexpr = (N + G * GROUP - 1) // (G * GROUP)
    pid = tl.program_id(0)
    m = (pid // across).to(tl.int64) * ROWS
    first = (pid % across).to(tl.int64) * (G * GROUP)
    row = tl.arange(0, ROWS * G) // G  # [ROWS * G]
    column = tl.arange(0, ROWS * G) % G * GROUP
    rest = tl.minimum(N - first, G * GROUP).to(tl.int32)
    inside = column < rest
    if ROWS > 1:
        inside = inside & (row < M - m)
        at = row_start(row[:, None].to(tl.int64), 1, 0, pitch, False, ALIGNED)
    else:
        at = tl.zeros((1, 1), tl.int32)
    n = column[:, None] + tl.arange(0, GROUP)[None, :]
    mask = None if N % (G * GROUP) == 0 and ROWS == 1 else inside[:, None] & (n < rest)
    x_ptr += row_start(m, 1, 0, pitch, False, ALIGNED) + first
    WIDE: tl.constexpr = x_ptr.dtype.element_ty != tl.bfloat16
    if fits != 0:
        gate, up = _halves(x_ptr, at + n, mask, limit, N, LIMIT, "evict_first")
    else:
        gate, up = _halves(x_ptr, at + n, mask, limit, N, LIMIT, "")
    y = silu_product_of_finite(gate, up, WIDE)
    amax = group_max(y, 1)
    q_ptr += m * N + first
    out = (row * N + column)[:, None] + tl.arange(0, GROUP)[None, :]
    scales_ptr += m * s_m + first // GROUP * s_n
    g = row * s_m + column // GROUP * s_n
    if tl.max(magnitude(amax)) < 0x7F800000:
        scale = scale_of(magnitude(amax), FP8_MAX, UE8M0)
        guess = reciprocal(scale)
        factor = tl.fma(tl.fma(scale * -1.0, guess, 1.0), guess, guess)
        tl.store(q_ptr + out, (y * factor[:, None]).to(CODE), mask)
        tl.store(scales_ptr + g, scale, mask=inside)
    else:  # not finite, or an intermediate was not: once more, with care
        gate, up = _halves(x_ptr, at + n, mask, limit, N, LIMIT, "")
        y = silu_product(gate, up, WIDE)
        scale = scale_of(tl.max(magnitude(y), axis=1), FP8_MAX, UE8M0)
        factor, low = inverse_of(scale)
        tl.store(q_ptr + out, (y * (factor + low)[:, None]).to(CODE), mask)
        tl.store(scales_ptr + g, scale, mask=inside)


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
    groups = max(1, min(triton.next_power_of_2(N), _TILE) // group)
    rows = max(1, _TILE // (groups * group))
    fits = x.numel() <= _FITS
    _swiglu_cast_kernel(
        triton.cdiv(r.M, rows) * triton.cdiv(N, groups * group),
        (x, q, scales),
        (r.M, r.pitch, *_scale_strides(scales), 0.0 if limit is None else limit, int(fits)),
        (N, limit is not None, _CODE[dtype], FP8_MAX[dtype], scale_ue8m0, r.aligned, rows, groups, group),
        min(max(rows * groups * group // (512 if fits else 1024), 1), 16),
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
    kind = 0 if offset == 0 else 1 if abs(math.frexp(offset)[0]) == 0.5 else 2
    tensors = (x, residual, x if weight is None else weight.contiguous(), q, scales, new if add else q)
    scalars = (r.M, r.heads, r.outer, r.pitch, residual_rows.pitch, *_scale_strides(scales))
    scalars = (*scalars, *_two_floats(eps), *_two_floats(offset))
    flags = (N, add, weight is not None, kind, _CODE[dtype], FP8_MAX[dtype], ue8m0, r.split)
    flags = (*flags, r.aligned and residual_rows.aligned)
    whole = group >= N
    width = 128 if whole else group
    if N >= 1024 and 16 <= width <= 1024:
        piece, num_warps, early = _piece(N, whole, add)
        fits = int(x.numel() * (1 + add) <= _FITS)
        constants = (*flags, whole, early, piece // width, width)
        norm_cast._long_row_cast_kernel(r.M, tensors, (*scalars, fits), constants, num_warps)
    else:
        rows, block, num_warps = norm_triton.tile_of(N)
        norm_cast._short_rows_cast_kernel(
            triton.cdiv(r.M, rows), tensors, scalars, (*flags, rows, block, group), num_warps
        )
    return q, scales


def _piece(N: int, whole: bool, add: bool) -> tuple[int, int, bool]:
    """Columns of a tile of a long row, 8 of them at most, warps, and whether the weight is fetched together with the
    row: 32 or 64 elements of the row per thread, and no lanes beyond its end if a multiple of 1024 is long enough."""
    if N > 8192:
        return 2048, 8, True
    if N > 4096:
        return (1024, 4, True) if N % 2048 else (2048, 4, whole or add)
    if whole:
        return 1024, 4, True
    return (1024, 2, True) if N > 2048 else (1024, 1, False)


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
    norm_cast._squares_kernel(
        r.M * chunks,
        (x, residual, new if add else x, squares),
        (r.M, r.heads, r.outer, r.pitch, residual_rows.pitch),
        (r.N, add, r.split, r.aligned and residual_rows.aligned, block),
    )
    if add:
        x, r = rows_of(new)
    norm_cast._rms_norm_kernel(
        r.M * chunks,
        (x, x if weight is None else weight.contiguous(), squares, y),
        (r.M, r.heads, r.outer, r.pitch, *_two_floats(eps), *_two_floats(offset)),
        (r.N, weight is not None, r.split, r.aligned, block, triton.next_power_of_2(chunks)),
    )
    return y


def _two_floats(x: float) -> tuple[float, float]:
    """x as a sum of two float32"""
    high = ctypes.c_float(x).value
    return high, x - high if math.isfinite(high) else 0.0
