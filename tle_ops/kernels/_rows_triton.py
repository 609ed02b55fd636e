"""What the Triton kernels over rows share: how a tensor's rows lie in memory, and device functions."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _normal
from tle_ops.kernels._triton import INTERPRETED

FEW = 264  # programs: two for each multiprocessor of an H200
LONGEST = 16384  # columns of a row that is held in registers
_INTERPRETED = tl.constexpr(INTERPRETED)
_SLOPE = tl.constexpr(_normal.SLOPE)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = map(tl.constexpr, _normal.COEFFICIENTS)


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


@functools.cache
def has_dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may be launched before the one ahead of it has ended (programmatic dependent launch)."""
    return not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


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
def reciprocal(x):
    """1 / x to an ulp, by one instruction: Triton's division takes eight. What would be denormal is 0"""
    if _INTERPRETED:
        return tl.where(tl.abs(x) > 8.507059173023462e37, 0.0, 1 / x)
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def sigmoid(x):
    return reciprocal(1 + _exp2(x * -1.4426950408889634))


@triton.jit
def normal_cdf(x):
    """The standard normal distribution at x, and its density, by one exponential for both: see `_normal.py`. Fewer
    instructions than `tl.erf` takes for the first alone."""
    far = tl.minimum(tl.abs(x) * _SLOPE, 1e30)  # inf / inf is not 1
    u = far * reciprocal(1 + far)
    tail = _exp2(x * x * -0.7213475204444817)
    p = u * _P8 + _P7
    p = p * u + _P6
    p = p * u + _P5
    p = p * u + _P4
    p = p * u + _P3
    p = p * u + _P2
    p = p * u + _P1
    p = p * u + _P0
    below = p * tail
    return tl.where(x < 0, below, 1 - below), tail * 0.3989422804014327


@triton.jit
def one_plus_exp(gate, WIDE: tl.constexpr):
    """1 + exp(-gate) as a sum of two float32, the second 0 unless WIDE; a gate beyond [-87.5, 87] counts as the
    bound. bench/proofs/silu.py tries every gate: the relative error is below 1.34 * 2^-24 with WIDE and, for bfloat16
    and any positive gate, below 1.42 * 2^-24 without. (Between -16.98 and -16.29 2^n + 1 loses its 1: 2.3 * 2^-24.)

    `_exp2` will not do: 2 ulp off by itself, and more by the rounding of its argument, which grows with the gate. Here
    exp(-gate) is 2^n * (1 + w): the reduction of Cody and Waite, a polynomial of degree 6 that is good to 2^-28."""
    gate = tl.minimum(tl.maximum(gate, -87.5), 87.0)
    zeros = tl.zeros_like(gate)
    shifted = tl.fma(gate, zeros - 1.4426950408889634, zeros + 12582912.0)  # 1.5 * 2^23 + n: n in the last bits
    n = shifted - 12582912.0
    rest = tl.fma(n, zeros + 0.693115234375, gate)  # exact: 11 bits of log(2), 7 of n
    rest = tl.fma(n, zeros + 3.194618494528623e-05, rest)
    w = tl.fma(rest, zeros + 0.0013821175089105964, zeros - 0.008368666283786297)
    w = tl.fma(w, rest, zeros + 0.04166825860738754)
    w = tl.fma(w, rest, zeros - 0.1666652113199234)
    w = tl.fma(w, rest, zeros + 0.4999999403953552)
    w = tl.fma(rest * rest, w, rest * -1.0)
    power = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)  # 2^n
    total = tl.fma(power, w, 1.0 + power)
    if WIDE:
        return total, tl.fma(power, w, power - (total - 1.0))
    else:
        return total, zeros


@triton.jit
def silu_product(gate, up, WIDE: tl.constexpr):
    """silu(gate) * up, rounded once, with the relative error of `one_plus_exp` before that. WIDE: gates have more bits
    than bfloat16. The division's remainder goes along to the end, so the error of its reciprocal does not count; it is
    not finite where the quotient or `up` is infinite, and then there is nothing to correct. A gate below -87.3 gives 0:
    the reciprocal leaves the normal numbers there, as exp(-gate) leaves float32 in the plain composition at -88.7."""
    total, low = one_plus_exp(gate, WIDE)
    inverse = reciprocal(total)
    value = gate * inverse
    rest = tl.fma(value * -1.0, total, gate)
    if WIDE:
        rest = tl.fma(value * -1.0, low, rest)
    rest = rest * inverse * up
    usual = (tl.abs(rest) < float("inf")) & (rest != 0)
    return tl.fma(value, up, tl.where(usual, rest, -0.0))  # to add -0 changes nothing, not even a sign


@triton.jit
def silu_product_of_finite(gate, up, WIDE: tl.constexpr):
    """The same by a fifth fewer instructions, but NaN or infinite also where only an intermediate is: gate * up is
    exact for 16-bit types, and its quotient by `one_plus_exp` is rounded once."""
    total, low = one_plus_exp(gate, WIDE)
    product = gate * up
    inverse = reciprocal(total)
    value = product * inverse
    over = tl.fma(value, total, product * -1.0)  # the signs so that -0 stays -0
    if WIDE:
        over = tl.fma(value, low, over) - tl.fma(gate, up, product * -1.0)
    return tl.fma(over, inverse * -1.0, value)


@triton.jit
def widened(x, AGAIN: tl.constexpr = False):
    """x in float32. Two bfloat16 of a register take two instructions; the compiler's own way is three. AGAIN: it is not
    to know that another call gives the same, so that it does not keep the row in float32 for use after. Tensors so
    small that a thread may have one element go the compiler's way."""
    if _INTERPRETED or x.dtype != tl.bfloat16 or x.numel < 1024:
        return x.to(tl.float32)
    else:
        code: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        return tl.inline_asm_elementwise(code, "=r,=r,r", [x], tl.float32, is_pure=not AGAIN, pack=2)


@triton.jit
def after(x, zero):
    """x; but what is made of it waits for `zero`, a 0 that is known at run time only, and is not what was made of it
    before: so a row of 16-bit numbers stays packed while sums over it are on their way."""
    if _INTERPRETED or x.dtype.primitive_bitwidth != 16 or x.numel < 1024:
        return x
    else:
        return tl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r,r", [x, zero], x.dtype, is_pure=True, pack=2)


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
    `squares`. The mean is kept in two parts, too, and a Newton step takes its exact remainder."""
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
def exact_squares(x):
    """Sums of squares of the rows of x [ROWS, BLOCK], in float64: one large element among many small ones would cost a
    float32 sum 8 ulp and more, and products of float32 are exact here. Hopper adds float64 at half the rate of float32,
    which is more than memory needs."""
    x = x.to(tl.float64)
    return tl.sum(x * x, axis=1)


@triton.jit
def exact_root(squares, eps, eps_low, N: tl.constexpr):
    """1 / sqrt(squares / N + eps + eps_low) as a sum of two float32, good to 2^-43: squares is a float64, and a Newton
    step in float64 squares the error of the float32 guess (2^-22 at worst). A mean beyond float32 is inf and one below
    is 0, as in the plain composition; the root of a very small one would be flushed, hence the powers of two."""
    mean = squares * tl.full(squares.shape, 1 / N, tl.float64) + eps + eps_low
    small = mean < 1e-30
    mean = tl.where(small, mean * 1.329227995784916e36, mean)  # 2^120
    single = mean.to(tl.float32)
    guess = tl.rsqrt(single)
    wide = guess.to(tl.float64)
    root = wide * (1.5 - mean * wide * wide * 0.5)
    root = tl.where(small, root * 1.152921504606847e18, root)  # 2^60
    zero = (mean >= 0) & (mean < 1.8e-9)  # before the scaling: half of the smallest float32
    regular = (mean > 0) & (single < float("inf")) & (zero == 0)
    high = tl.where(regular, root.to(tl.float32), tl.where(zero, float("inf"), guess))
    return high, tl.where(regular, (root - high.to(tl.float64)).to(tl.float32), 0.0)


@triton.jit
def load_rows(
    x_ptr, residual_ptr, new_ptr, m, n, mask, heads, outer, pitch, residual_pitch, N: tl.constexpr,
    ADD: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Rows of x in float32. With ADD: of x + residual, rounded and stored at new_ptr. CACHE: modifier of the loads"""
    at = row_start(m, heads, outer, pitch, SPLIT, ALIGNED) + n
    x = widened(tl.load(x_ptr + at, mask=mask, other=0.0, cache_modifier=CACHE))
    if ADD:
        at = row_start(m, 1, 0, residual_pitch, False, ALIGNED) + n
        residual = widened(tl.load(residual_ptr + at, mask=mask, other=0.0, cache_modifier=CACHE))
        total = (x + residual).to(new_ptr.dtype.element_ty)
        tl.store(new_ptr + m * N + n, total, mask=mask)
        x = widened(total)
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
