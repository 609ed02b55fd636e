"""An activation or a norm fused with FP8 quantization by token groups, in Triton: a row is read once and stays on chip.

The kernels take groups of a power of two of columns, or the whole row, and rows of norms that fit into registers. Any
other call runs the two ops one after the other, with the float32 intermediate in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops._meta import FP8_MAX
from tle_ops.kernels import norm_triton, quant_triton, swiglu_triton
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._rows_triton import (
    LONGEST,
    clamp_above,
    clamp_both,
    load_rows,
    reciprocal_root,
    row_start,
    rows_of,
    scaled,
    silu_product,
)
from tle_ops.kernels._triton import kernel, magnitude, scale_of

_TILE = 2048  # elements per program of 2 warps
_CODE = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


# --- device functions -------------------------------------------------------------------------------------------------
@triton.jit
def _amax(y, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """max |y| of each group, as the bits of a float32: [ROWS, BLOCK] -> [ROWS, BLOCK / GROUP]"""
    return tl.max(magnitude(tl.reshape(y, (ROWS, BLOCK // GROUP, GROUP))), axis=2)


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
    y = silu_product(gate, up)
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


@kernel("M", "heads", "outer", "pitch", "residual_pitch", "s_m", "s_n", "eps", "offset")
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
    rstd, rstd_low = reciprocal_root(tl.sum(x * x, axis=1), eps, N)
    rstd, rstd_low = rstd[:, None], rstd_low[:, None]
    if tl.min(tl.min(rstd, axis=1), axis=0) > 0:
        # y = x * weight * rstd is not needed itself: amax and codes come from x * weight, which is exact for 16-bit
        # inputs, and rstd joins the scales.
        y = scaled(x, weight_ptr, n, offset, N, WEIGHT, OFFSET)
        scale = _scale_of_product(_amax(y, ROWS, BLOCK, GROUP), rstd, rstd_low, FP8_MAX, UE8M0)
        inverse, inverse_low = _inverse(scale)
        factor = rstd * inverse
        zeros = tl.zeros_like(factor)
        low = tl.fma(zeros + rstd, inverse, factor * -1.0) + (rstd * inverse_low + rstd_low * inverse)
        _store_scales(scale, scales_ptr, m, 0, M, s_m, s_n, N, BLOCK, GROUP)
        _store_codes(y, factor, low, q_ptr, m, 0, mask, N, CODE, ROWS, BLOCK, GROUP)
    else:  # a NaN, or squares that overflowed: x * weight could overflow too
        y = scaled(x * rstd, weight_ptr, n, offset, N, WEIGHT, OFFSET)
        scale = scale_of(_amax(y, ROWS, BLOCK, GROUP), FP8_MAX, UE8M0)
        factor, low = _inverse(scale)
        _store_scales(scale, scales_ptr, m, 0, M, s_m, s_n, N, BLOCK, GROUP)
        _store_codes(y, factor, low, q_ptr, m, 0, mask, N, CODE, ROWS, BLOCK, GROUP)


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
        y = torch.empty(q.shape, dtype=torch.float32, device=x.device)
        swiglu_triton.into(y, x, limit)
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
        y = torch.empty(q.shape, dtype=torch.float32, device=x.device)
        norm_triton.norm(x, residual, weight, None, y, new, eps, offset, False)
        return quant_triton.per_token_cast_fp8(y, *how)
    x, r = rows_of(x, may_split=True)
    add = residual is not None
    residual, residual_rows = rows_of(residual) if add else (x, r)
    rows, block, num_warps = norm_triton.tile_of(N)
    flags = (N, add, weight is not None, offset != 0, _CODE[dtype], FP8_MAX[dtype], ue8m0, r.split)
    _rms_norm_cast_kernel(
        triton.cdiv(r.M, rows),
        (x, residual, x if weight is None else weight.contiguous(), q, scales, new if add else q),
        (r.M, r.heads, r.outer, r.pitch, residual_rows.pitch, *_scale_strides(scales), eps, offset),
        (*flags, r.aligned and residual_rows.aligned, rows, block, group),
        num_warps,
    )
    return q, scales
