"""Elementwise ops in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._triton import flat, kernel, last

_BLOCK = 2048  # elements per program of a strided sum, 4 warps
_ADD, _ADD_WARPS = {1: 4096, 2: 2048, 4: 4096, 8: 2048}, 8  # elements per program, by their bytes
_SCALE_CAST = (1024, 2)  # elements per program, warps
_DIMS = 4  # of a strided sum, after neighbouring dimensions have been merged


@triton.jit
def _sum(x, y, dtype: tl.constexpr, BOOL: tl.constexpr):
    if BOOL:
        return ((x != 0) | (y != 0)).to(dtype)
    elif dtype.is_floating():  # each input is rounded to the common type first, as in PyTorch
        x, y = x.to(tl.float32).to(dtype), y.to(tl.float32).to(dtype)
        return (x.to(tl.float32) + y.to(tl.float32)).to(dtype)
    else:
        return x.to(dtype) + y.to(dtype)


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, at, mask, BOOL: tl.constexpr):
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, _sum(x, y, out_ptr.dtype.element_ty, BOOL), mask=mask)


@kernel("n")
def _add_kernel(x_ptr, y_ptr, out_ptr, n: tl.int64, BOOL: tl.constexpr, BLOCK: tl.constexpr):
    at, mask = flat(n, BLOCK)
    _add(x_ptr, y_ptr, out_ptr, at, mask, BOOL)
    if tl.program_id(0) == 0:
        i, left = last(n)
        _add(x_ptr, y_ptr, out_ptr, i, left, BOOL)


@kernel("n", "size1", "size2", "size3", "x0", "x1", "x2", "x3", "y0", "y1", "y2", "y3")
def _add_strided_kernel(
    x_ptr,
    y_ptr,
    out_ptr,  # contiguous, n elements
    n: tl.int64,
    size1: tl.int64,  # sizes of the inner three of the four dimensions
    size2: tl.int64,
    size3: tl.int64,
    x0: tl.int64,  # strides of x
    x1: tl.int64,
    x2: tl.int64,
    x3: tl.int64,
    y0: tl.int64,  # strides of y
    y1: tl.int64,
    y2: tl.int64,
    y3: tl.int64,
    BOOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    i3 = offsets % size3
    rest = offsets // size3
    i2 = rest % size2
    rest = rest // size2
    i1 = rest % size1
    i0 = rest // size1
    x = tl.load(x_ptr + i0 * x0 + i1 * x1 + i2 * x2 + i3 * x3, mask=mask)
    y = tl.load(y_ptr + i0 * y0 + i1 * y1 + i2 * y2 + i3 * y3, mask=mask)
    tl.store(out_ptr + offsets, _sum(x, y, out_ptr.dtype.element_ty, BOOL), mask=mask)


@triton.jit
def _scale_cast(x_ptr, out_ptr, at, mask, alpha):
    x = tl.load(x_ptr + at, mask=mask).to(tl.float32)
    tl.store(out_ptr + at, (x * alpha).to(out_ptr.dtype.element_ty), mask=mask)


@kernel("n", "alpha")
def _scale_cast_kernel(x_ptr, out_ptr, n: tl.int64, alpha: tl.float32, BLOCK: tl.constexpr):
    at, mask = flat(n, BLOCK)
    _scale_cast(x_ptr, out_ptr, at, mask, alpha)
    if tl.program_id(0) == 0:
        i, left = last(n)
        _scale_cast(x_ptr, out_ptr, i, left, alpha)


@replayed
def add(x: Tensor, y: Tensor) -> Tensor:
    out = _meta.add(x, y)
    n = out.numel()
    if n == 0:
        return out
    is_bool = out.dtype is torch.bool
    x, y, target = (t.view(torch.uint8) if t.dtype is torch.bool else t for t in (x, y, out))
    if x.shape == y.shape and x.is_contiguous() and y.is_contiguous():
        _add_flat(x, y, target, is_bool)
        return out
    x, y = x.expand(out.shape), y.expand(out.shape)
    sizes, x_strides, y_strides = _merge_dims(out.shape, x.stride(), y.stride())
    if len(sizes) > _DIMS:
        _add_flat(x.contiguous(), y.contiguous(), target, is_bool)
        return out
    pad = _DIMS - len(sizes)
    scalars = (n, *([1] * pad + sizes)[1:], *[0] * pad, *x_strides, *[0] * pad, *y_strides)
    _add_strided_kernel(triton.cdiv(n, _BLOCK), (x, y, target), scalars, (is_bool, _BLOCK))
    return out


def _add_flat(x: Tensor, y: Tensor, target: Tensor, is_bool: bool) -> None:
    n, block = target.numel(), _ADD[target.itemsize]
    _add_kernel(triton.cdiv(n, block), (x, y, target), (n,), (is_bool, block), _ADD_WARPS)


def _merge_dims(shape, x_strides, y_strides) -> tuple[list[int], list[int], list[int]]:
    """Shape and strides with size-1 dimensions dropped and neighbours merged that both inputs run through in one
    step."""
    merged: list[list[int]] = []
    for size, x, y in zip(shape, x_strides, y_strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * x and merged[-1][2] == size * y:
            merged[-1] = [merged[-1][0] * size, x, y]
        else:
            merged.append([size, x, y])
    sizes, xs, ys = zip(*merged, strict=True) if merged else ((1,), (0,), (0,))
    return list(sizes), list(xs), list(ys)


@replayed
def scale_cast(x: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    out = _meta.scale_cast(x, alpha, dtype)
    n = out.numel()
    if n:
        block, warps = _SCALE_CAST
        _scale_cast_kernel(triton.cdiv(n, block), (x.contiguous(), out), (n, alpha), (block,), warps)
    return out
