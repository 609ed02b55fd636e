"""What the Triton kernels over rows share: how a tensor's rows lie in memory, and device functions."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops.kernels._triton import INTERPRETED

FEW = 264  # programs: two for each multiprocessor of an H200
LONGEST = 16384  # columns of a row that is held in registers
_INTERPRETED = tl.constexpr(INTERPRETED)


class Rows(NamedTuple):
    """x [.., N] as M rows whose elements are neighbours: row m starts at (m // heads) * outer + (m % heads) * pitch."""

    M: int
    N: int
    heads: int
    outer: int
    pitch: int
    split: bool  # heads and outer are needed: the leading dimensions do not merge into one, as in heads of a packed qkv
    aligned: bool  # every row starts at a multiple of 8 elements from the first one


@functools.lru_cache(4096)
def _rows(shape: tuple[int, ...], strides: tuple[int, ...], may_split: bool) -> Rows | None:
    N = shape[-1]
    if N > 1 and strides[-1] != 1:
        return None
    lead = list(zip(shape[:-1], strides[:-1], strict=True))
    merged = _merge(lead)
    if len(merged) > 1 + may_split:  # dimensions of size 1 count only if they may: one row should look like many
        merged = _merge([(size, stride) for size, stride in lead if size != 1])
    if len(merged) > 1 + may_split:
        return None
    split = len(merged) == 2
    heads, pitch = merged.pop() if merged else (1, N)
    outer = merged.pop()[1] if merged else 0
    return Rows(math.prod(shape[:-1]), N, heads, outer, pitch, split, outer % 8 == 0 and pitch % 8 == 0)


def _merge(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sizes and strides, with neighbours joined that one stride runs through."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def is_dense(t: Tensor) -> bool:
    """Contiguous by all its strides, also those of dimensions of size 1: so one row of a wide tensor is not dense, and
    takes the kernel that many rows take."""
    extent = 1
    for size, stride in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if stride != extent:
            return False
        extent *= size
    return True


def rows_of(x: Tensor, may_split: bool = False) -> tuple[Tensor, Rows]:
    """x and how its rows lie; a copy of x if they lie otherwise than a kernel can follow."""
    rows = _rows(x.shape, x.stride(), may_split)
    if rows is None:
        x = x.contiguous()
        rows = _rows(x.shape, x.stride(), may_split)
    return x, rows


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    return 3 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


# --- device functions -------------------------------------------------------------------------------------------------
@triton.jit
def aligned(n):
    """n, known to the compiler as a multiple of 8 (`tl.multiple_of` does not reach the arguments of a kernel)"""
    return n // 8 * 8


@triton.jit
def row_start(m, heads, outer, pitch, SPLIT: tl.constexpr, ALIGNED: tl.constexpr):
    """Offset of row m, see `Rows`."""
    if ALIGNED:
        outer, pitch = aligned(outer), aligned(pitch)
    if SPLIT:
        return m // heads * outer + m % heads * pitch
    else:
        return m * pitch


@triton.jit
def _exp2(x):
    """2^x by one instruction; what would be denormal is 0"""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _reciprocal(x):
    """1 / x to an ulp, by one instruction: Triton's division takes eight"""
    if _INTERPRETED:
        return 1 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def sigmoid(x):
    return _reciprocal(1 + _exp2(x * -1.4426950408889634))


@triton.jit
def silu_product(gate, up):
    """silu(gate) * up to about an ulp: the remainder of the division gate / (1 + exp(-gate)) goes along to the end. It
    is not finite where the quotient or `up` is infinite or the divisor is, and then there is nothing to correct."""
    denominator = 1 + _exp2(gate * -1.4426950408889634)
    reciprocal = _reciprocal(denominator)
    value = gate * reciprocal
    rest = tl.fma(value * -1.0, denominator, gate) * reciprocal * up
    return tl.fma(value, up, tl.where(tl.abs(rest) < float("inf"), rest, 0.0))


@triton.jit
def clamp_above(x, limit):
    """min(x, limit) that keeps a NaN"""
    return tl.where(x > limit, limit, x)


@triton.jit
def clamp_both(x, limit):
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def reciprocal_root(squares, eps, N: tl.constexpr):
    """1 / sqrt(squares / N + eps) as a sum of two float32, the first of them correctly rounded but for the error of
    `squares`: scales and codes of a fused quantizer depend on it. The mean is kept in two parts, too, and a Newton step
    takes its exact remainder."""
    SPLIT: tl.constexpr = 1 / N * 536870913.0  # Veltkamp's: 2^29 + 1
    HIGH: tl.constexpr = SPLIT - (SPLIT - 1 / N)  # 1 / N in 24 bits
    LOW: tl.constexpr = 1 / N - HIGH
    zeros = tl.zeros_like(squares)
    high = squares * HIGH
    mean = high + eps
    back = mean - high
    low = tl.fma(squares, zeros + HIGH, high * -1.0) + squares * LOW + ((high - (mean - back)) + (eps - back))
    guess = tl.rsqrt(mean)
    product = mean * guess
    rest = tl.fma(product * -1.0, guess, zeros + 1.0)
    rest -= (tl.fma(mean, guess, product * -1.0) + low * guess) * guess
    half = guess * 0.5
    root = tl.fma(half, rest, guess)
    regular = (mean > 0) & (mean < float("inf"))
    return tl.where(regular, root, guess), tl.where(regular, tl.fma(half, rest, guess - root), 0.0)


@triton.jit
def load_rows(
    x_ptr, residual_ptr, new_ptr, m, n, mask, heads, outer, pitch, residual_pitch, N: tl.constexpr,
    ADD: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Rows of x in float32. With ADD: of x + residual, rounded and stored at new_ptr."""
    x = tl.load(x_ptr + row_start(m, heads, outer, pitch, SPLIT, ALIGNED) + n, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        at = row_start(m, 1, 0, residual_pitch, False, ALIGNED) + n
        total = (x + tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)).to(new_ptr.dtype.element_ty)
        tl.store(new_ptr + m * N + n, total, mask=mask)
        x = total.to(tl.float32)
    return x


@triton.jit
def normed(x, inside, eps, N: tl.constexpr, CENTERED: tl.constexpr):
    """x [ROWS, BLOCK], zeros beyond the row's end, normalized; rstd [ROWS, 1]"""
    if CENTERED:
        x = tl.where(inside, x - (tl.sum(x, axis=1) * (1.0 / N))[:, None], 0.0)
    rstd, _ = reciprocal_root(tl.sum(x * x, axis=1), eps, N)
    return x * rstd[:, None], rstd[:, None]


@triton.jit
def scaled(x, weight_ptr, n, offset, N: tl.constexpr, WEIGHT: tl.constexpr, OFFSET: tl.constexpr):
    """x * (weight + offset); OFFSET: it is not 0"""
    if WEIGHT:
        weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        if OFFSET:
            weight += offset
        return x * weight
    else:
        return x
