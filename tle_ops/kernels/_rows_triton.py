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
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape[:-1], strides[:-1], strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    M = math.prod(shape[:-1])
    if len(merged) > (2 if may_split else 1):
        return None
    heads, pitch = merged.pop() if merged else (1, N)
    outer = merged.pop()[1] if merged else 0
    return Rows(M, N, heads, outer, pitch, heads != M, outer % 8 == 0 and pitch % 8 == 0)


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
def silu(x):
    """x * sigmoid(x); -inf gives NaN, as in PyTorch"""
    return x * (1 / (1 + tl.exp(-x)))


@triton.jit
def clamp_above(x, limit):
    """min(x, limit) that keeps a NaN"""
    return tl.where(x > limit, limit, x)


@triton.jit
def clamp_both(x, limit):
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def reciprocal_root(mean_square, eps):
    """1 / sqrt(mean_square + eps) by correctly rounded steps: codes of a fused quantizer depend on it"""
    root = tl.sqrt_rn(mean_square + eps)
    return tl.div_rn(tl.full(root.shape, 1.0, tl.float32), root)


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
    rstd = reciprocal_root(tl.sum(x * x, axis=1) * (1.0 / N), eps)[:, None]
    return x * rstd, rstd


@triton.jit
def scaled(x, weight_ptr, n, offset, N: tl.constexpr, WEIGHT: tl.constexpr):
    if WEIGHT:
        return x * (tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32) + offset)
    else:
        return x
