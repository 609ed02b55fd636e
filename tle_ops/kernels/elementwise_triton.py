"""Elementwise ops in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._triton import kernel

_BLOCK = 2048  # elements per program of 4 warps: two 16-byte loads of bfloat16 per thread and input
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


@kernel("n")
def _add_kernel(x_ptr, y_ptr, out_ptr, n: tl.int64, BOOL: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:  # a mask of unknown alignment would split the 16-byte accesses
        total = _sum(tl.load(x_ptr + offsets), tl.load(y_ptr + offsets), out_ptr.dtype.element_ty, BOOL)
        tl.store(out_ptr + offsets, total)
    else:
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask)
        y = tl.load(y_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, _sum(x, y, out_ptr.dtype.element_ty, BOOL), mask=mask)


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


@kernel("n", "alpha")
def _scale_cast_kernel(x_ptr, out_ptr, n: tl.int64, alpha: tl.float32, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        tl.store(out_ptr + offsets, (tl.load(x_ptr + offsets).to(tl.float32) * alpha).to(out_ptr.dtype.element_ty))
    else:
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
        tl.store(out_ptr + offsets, (x * alpha).to(out_ptr.dtype.element_ty), mask=mask)


@replayed
def add(x: Tensor, y: Tensor) -> Tensor:
    out = _meta.add(x, y)
    n = out.numel()
    if n == 0:
        return out
    is_bool = out.dtype is torch.bool
    x, y, target = (t.view(torch.uint8) if t.dtype is torch.bool else t for t in (x, y, out))
    grid = triton.cdiv(n, _BLOCK)
    if x.shape == y.shape and x.is_contiguous() and y.is_contiguous():
        _add_kernel(grid, (x, y, target), (n,), (is_bool, _BLOCK))
        return out
    x, y = x.expand(out.shape), y.expand(out.shape)
    sizes, x_strides, y_strides = _merge_dims(out.shape, x.stride(), y.stride())
    if len(sizes) > _DIMS:
        _add_kernel(grid, (x.contiguous(), y.contiguous(), target), (n,), (is_bool, _BLOCK))
        return out
    pad = _DIMS - len(sizes)
    scalars = (n, *([1] * pad + sizes)[1:], *[0] * pad, *x_strides, *[0] * pad, *y_strides)
    _add_strided_kernel(grid, (x, y, target), scalars, (is_bool, _BLOCK))
    return out


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
        _scale_cast_kernel(triton.cdiv(n, _BLOCK), (x.contiguous(), out), (n, alpha), (_BLOCK,))
    return out
