"""Rotary position embedding in Triton: one row of the tables serves all heads of a position that a program holds."""

from __future__ import annotations

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._rows_triton import aligned
from tle_ops.kernels._triton import kernel

_TILE = 2048  # pairs per program of 4 warps: two 16-byte loads of bfloat16 per thread and half


@kernel("S", "tiles_s", "x_b", "x_s", "x_h", "t_b", "t_s")
def _rope_kernel(
    x_ptr,  # [B, S, H, D], strides x_b, x_s, x_h, 1
    cos_ptr,  # [B, S, HALF], strides t_b, t_s, 1
    sin_ptr,  # the same strides
    y_ptr,  # [B, S, H, D], contiguous
    S: tl.int64,
    tiles_s: tl.int32,
    x_b: tl.int64,
    x_s: tl.int64,
    x_h: tl.int64,
    t_b: tl.int64,
    t_s: tl.int64,
    H: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,  # turn by -angle
    ALIGNED: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK: tl.constexpr,  # HALF rounded up to a power of two
    REST: tl.constexpr,  # D - 2 * HALF rounded up likewise, 0 if there is no rest
):
    if ALIGNED:
        x_b, x_s, x_h = aligned(x_b), aligned(x_s), aligned(x_h)
    tiles_h: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    pid = tl.program_id(0)
    h = pid % tiles_h * BLOCK_H + tl.arange(0, BLOCK_H)[None, :, None]  # [1, BLOCK_H, 1]
    pid = pid // tiles_h
    b = (pid // tiles_s).to(tl.int64)
    s = (pid % tiles_s).to(tl.int64) * BLOCK_S + tl.arange(0, BLOCK_S)[:, None, None]  # [BLOCK_S, 1, 1]
    heads = (s < S) & (h < H) if H % BLOCK_H else (s < S) & (h >= 0)
    x = b * x_b + s * x_s + h * x_h
    y = ((b * S + s) * H + h) * D
    if HALF > 0:
        i = tl.arange(0, BLOCK)[None, None, :]  # [1, 1, BLOCK]
        table = b * t_b + s * t_s + i
        inside = (s < S) & (i < HALF)
        cos = tl.load(cos_ptr + table, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + table, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            sin = -sin
        if INTERLEAVED:  # neighbours are loaded together and then parted
            j = tl.arange(0, 2 * BLOCK)[None, None, :]
            mask = heads & (j < 2 * HALF)
            pairs = tl.load(x_ptr + x + j, mask=mask, other=0.0).to(tl.float32)
            first, second = tl.split(tl.reshape(pairs, (BLOCK_S, BLOCK_H, BLOCK, 2)))
            turned = tl.join(first * cos - second * sin, second * cos + first * sin)
            turned = tl.reshape(turned, (BLOCK_S, BLOCK_H, 2 * BLOCK))
            tl.store(y_ptr + y + j, turned.to(y_ptr.dtype.element_ty), mask=mask)
        else:
            mask = heads & (i < HALF)
            first = tl.load(x_ptr + x + i, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(x_ptr + x + HALF + i, mask=mask, other=0.0).to(tl.float32)
            tl.store(y_ptr + y + i, (first * cos - second * sin).to(y_ptr.dtype.element_ty), mask=mask)
            tl.store(y_ptr + y + HALF + i, (second * cos + first * sin).to(y_ptr.dtype.element_ty), mask=mask)
    if REST > 0:
        k = 2 * HALF + tl.arange(0, REST)[None, None, :]
        mask = heads & (k < D)
        tl.store(y_ptr + y + k, tl.load(x_ptr + x + k, mask=mask), mask=mask)


class _Plan(NamedTuple):
    programs: int
    scalars: tuple
    shape: tuple  # constexprs H, D, HALF
    tile: tuple  # constexprs ALIGNED .. REST


@functools.lru_cache(4096)
def _plan(shape: tuple, strides: tuple, table_shape: tuple, table_strides: tuple) -> _Plan | None:
    """None if the batch dimensions of x or of the tables do not merge into one, or neighbours are not side by side."""
    S, H, D = shape[-3:]
    half = table_shape[-1]
    B, x_b = _merge(shape[:-3], strides[:-3])
    _, t_b = _merge(table_shape[:-2], table_strides[:-2])
    if x_b is None or t_b is None or strides[-1] != 1 or (table_strides[-1] != 1 and half > 1):
        return None
    block = triton.next_power_of_2(half) if half else 0
    rest = triton.next_power_of_2(D - 2 * half) if 2 * half < D else 0
    block_h = _head_block(H, max(1, _TILE // max(block, rest // 2, 1)))
    block_s = max(1, _TILE // (block_h * max(block, rest // 2, 1)))
    tiles_s = triton.cdiv(S, block_s)
    aligned8 = all(n % 8 == 0 for n in (x_b, *strides[-3:-1]))
    return _Plan(
        B * tiles_s * triton.cdiv(H, block_h),
        (S, tiles_s, x_b, *strides[-3:-1], t_b, table_strides[-2]),
        (H, D, half),
        (aligned8, block_s, block_h, block, rest),
    )


def _head_block(H: int, most: int) -> int:
    """The largest power of two up to `most` that leaves at most an eighth of the lanes without a head."""
    block = 1
    while block <= most // 2 and 8 * (-H % (2 * block)) <= H:
        block *= 2
    return block


def _merge(sizes: tuple, strides: tuple) -> tuple[int, int | None]:
    """Dimensions as one: its size and stride, None if no stride reaches all of them."""
    size, stride = 1, 0
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n == 1:
            continue
        if size > 1 and s != size * stride:
            return size, None
        stride = s if size == 1 else stride
        size *= n
    return size, stride


def _turn(x: Tensor, cos: Tensor, sin: Tensor, y: Tensor, interleaved: bool, back: bool) -> Tensor:
    if y.numel() == 0:
        return y
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    plan = _plan(x.shape, x.stride(), cos.shape, cos.stride())
    if plan is None:
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        plan = _plan(x.shape, x.stride(), cos.shape, cos.stride())
    _rope_kernel(plan.programs, (x, cos, sin, y), plan.scalars, (*plan.shape, interleaved, back, *plan.tile))
    return y


@replayed
def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    return _turn(x, cos, sin, _meta.rope(x, cos, sin, interleaved), interleaved, False)


@replayed
def rope_bwd(dy: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    return _turn(dy, cos, sin, _meta.rope_bwd(dy, cos, sin, interleaved), interleaved, True)
