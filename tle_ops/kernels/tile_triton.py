"""Tiles of a tensor in Triton: what is read and written moves once, in one launch.

A tensor is seen as rows: its dimensions are folded as far as they lie together and a tile does not cut them, and the
rows are numbered over all dimensions but the last.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops._meta import tile_slices
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._triton import kernel

_DIMS = 4  # of a row's number; more, which only odd layouts have, are left to PyTorch
_EXTRACTED = (8192, 8)  # elements of a program, warps
_INSERTED = (4096, 8)
_NARROW_WARPS = 4  # of an insertion without 16-byte accesses
_SIZES = tuple(f"n{d}" for d in range(1, _DIMS))
_X = tuple(f"x{d}" for d in range(_DIMS))
_TILE = tuple(f"t{d}" for d in range(_DIMS))
_FIRST = tuple(f"first{d}" for d in range(_DIMS))
_LAST = tuple(f"last{d}" for d in range(_DIMS))


# --- device functions ------------------------------------------------------------------------------------------------
@triton.jit
def _block(M, C, VECTOR: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's rows [BLOCK_R, 1] and columns [1, BLOCK_C], which of them are there, and the width of a row."""
    C = C // VECTOR * VECTOR  # what the compiler may know of it
    across = tl.cdiv(C, BLOCK_C).to(tl.int32)
    pid = tl.program_id(0)
    row = (pid // across).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    column = (pid % across).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    return row, column, (row < M) & (column < C), C


@triton.jit
def _split(row, n, SMALL: tl.constexpr):
    """The number of a row among `n` along the last of its dimensions, and its number along the others."""
    if SMALL:
        row, n = row.to(tl.int32), n.to(tl.int32)
    rest = row // n
    return (row - rest * n).to(tl.int64), rest.to(tl.int64)


@triton.jit
def _places(row, n1, n2, n3, DIMS: tl.constexpr, SMALL: tl.constexpr):
    """Coordinates of a row; those of dimensions that there are not are 0."""
    i0, i1, i2, i3 = row, row * 0, row * 0, row * 0
    if DIMS > 3:
        i3, i0 = _split(i0, n3, SMALL)
    if DIMS > 2:
        i2, i0 = _split(i0, n2, SMALL)
    if DIMS > 1:
        i1, i0 = _split(i0, n1, SMALL)
    return i0, i1, i2, i3


@triton.jit
def _offset(i0, i1, i2, i3, s0, s1, s2, s3, VECTOR: tl.constexpr, DIMS: tl.constexpr):
    at = i0 * (s0 // VECTOR * VECTOR)
    if DIMS > 1:
        at += i1 * (s1 // VECTOR * VECTOR)
    if DIMS > 2:
        at += i2 * (s2 // VECTOR * VECTOR)
    if DIMS > 3:
        at += i3 * (s3 // VECTOR * VECTOR)
    return at


@triton.jit
def _along(column, stride, CONTIGUOUS: tl.constexpr):
    return column if CONTIGUOUS else column * stride


@triton.jit
def _move(y_ptr, source, mask):
    tl.store(y_ptr, tl.load(source, mask=mask), mask=mask)


# --- kernels ---------------------------------------------------------------------------------------------------------
@kernel("M", "C", *_SIZES, *_X, "x_c", "first")
def _extract_kernel(
    x_ptr,
    y_ptr,  # [M, C], contiguous
    M: tl.int64,  # rows
    C: tl.int64,
    n1: tl.int64,  # sizes of the dimensions of a row's number
    n2: tl.int64,
    n3: tl.int64,
    x0: tl.int64,  # strides of x along them
    x1: tl.int64,
    x2: tl.int64,
    x3: tl.int64,
    x_c: tl.int64,
    first: tl.int64,  # where the tile begins in x
    DIMS: tl.constexpr,
    SMALL: tl.constexpr,  # row numbers fit into 32 bits
    CONTIGUOUS: tl.constexpr,  # x_c is 1
    VECTOR: tl.constexpr,  # divides C, first and the strides of rows
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row, column, mask, C = _block(M, C, VECTOR, BLOCK_R, BLOCK_C)
    i0, i1, i2, i3 = _places(row, n1, n2, n3, DIMS, SMALL)
    at = first // VECTOR * VECTOR + _offset(i0, i1, i2, i3, x0, x1, x2, x3, VECTOR, DIMS)
    tl.store(y_ptr + row * C + column, tl.load(x_ptr + at + _along(column, x_c, CONTIGUOUS), mask=mask), mask=mask)


@kernel("M", "C", *_SIZES, *_X, "x_c", *_TILE, "t_c", *_FIRST, *_LAST, "first_c", "last_c")
def _insert_kernel(
    x_ptr,
    tile_ptr,
    y_ptr,  # [M, C], contiguous
    M: tl.int64,  # rows
    C: tl.int64,
    n1: tl.int64,  # sizes of the dimensions of a row's number
    n2: tl.int64,
    n3: tl.int64,
    x0: tl.int64,  # strides of x along them
    x1: tl.int64,
    x2: tl.int64,
    x3: tl.int64,
    x_c: tl.int64,
    t0: tl.int64,  # and of the tile
    t1: tl.int64,
    t2: tl.int64,
    t3: tl.int64,
    t_c: tl.int64,
    first0: tl.int64,  # where the tile begins along them, and ends
    first1: tl.int64,
    first2: tl.int64,
    first3: tl.int64,
    last0: tl.int64,
    last1: tl.int64,
    last2: tl.int64,
    last3: tl.int64,
    first_c: tl.int64,
    last_c: tl.int64,
    DIMS: tl.constexpr,
    SMALL: tl.constexpr,  # row numbers fit into 32 bits
    CONTIGUOUS: tl.constexpr,  # x_c and t_c are 1
    VECTOR: tl.constexpr,  # divides C, first_c, last_c and the strides of rows
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    VECTOR_X: tl.constexpr,  # divides C and the strides of rows of x
    ALIGNED: tl.constexpr,  # x and the tile begin at multiples of 16 bytes
):
    row, column, mask, C = _block(M, C, VECTOR_X, BLOCK_R, BLOCK_C)
    i0, i1, i2, i3 = _places(row, n1, n2, n3, DIMS, SMALL)
    rows = (i0 >= first0) & (i0 < last0)  # [BLOCK_R, 1]: those that the tile has a part of
    if DIMS > 1:
        rows = rows & (i1 >= first1) & (i1 < last1)
    if DIMS > 2:
        rows = rows & (i2 >= first2) & (i2 < last2)
    if DIMS > 3:
        rows = rows & (i3 >= first3) & (i3 < last3)
    y_ptr += row * C
    x_ptr += _offset(i0, i1, i2, i3, x0, x1, x2, x3, VECTOR_X, DIMS)
    tile_ptr += _offset(i0 - first0, i1 - first1, i2 - first2, i3 - first3, t0, t1, t2, t3, VECTOR, DIMS)
    first_c = first_c // VECTOR * VECTOR
    last_c = last_c // VECTOR * VECTOR
    inside = rows & (column >= first_c) & (column < last_c)
    tile_ptr += _along(column - first_c, t_c, CONTIGUOUS)
    x_ptr += _along(column, x_c, CONTIGUOUS)
    source = tl.where(inside, tile_ptr, x_ptr)
    if ALIGNED:  # Triton 3.9 does not see it through the choice
        BYTES: tl.constexpr = VECTOR * x_ptr.dtype.element_ty.primitive_bitwidth // 8
        source = tl.multiple_of(source, (1, BYTES))
    if VECTOR == VECTOR_X:
        _move(y_ptr + column, source, mask)
    else:  # blocks without a part of the tile are read by whole vectors of x
        begin = tl.program_id(0) % tl.cdiv(C, BLOCK_C) * BLOCK_C
        if (begin >= last_c) | (begin + BLOCK_C <= first_c) | (tl.max(rows.to(tl.int32)) == 0):
            _move(y_ptr + column, x_ptr, mask)
        else:
            _move(y_ptr + column, source, mask)


# --- geometry --------------------------------------------------------------------------------------------------------
class _Plan(NamedTuple):
    grid: int
    scalars: tuple
    constants: tuple
    warps: int


class _Axis(NamedTuple):
    n: int  # elements along it, of x (insertion) or of the tile (extraction)
    first: int  # where the tile begins, 0 in an extraction
    last: int
    strides: tuple[int, ...]  # of x, of the tile


def _folded(axes: list[_Axis]) -> list[_Axis]:
    """As few axes as do: one joins the one before it if its elements lie together and are all in the tile."""
    found: list[_Axis] = []
    for axis in axes:
        if axis.n == 1:
            continue
        if found and (axis.first, axis.last) == (0, axis.n):
            before = found[-1]
            if all(b == axis.n * s for b, s in zip(before.strides, axis.strides, strict=True)):
                found[-1] = _Axis(before.n * axis.n, before.first * axis.n, before.last * axis.n, axis.strides)
                continue
        found.append(axis)
    return found


def _geometry(
    axes: list[_Axis], offset: int, itemsize: int, block: int
) -> tuple[list[_Axis], _Axis, int, int, tuple] | None:
    """The axes of a row's number, filled up to _DIMS, the axis of a row, the rows, the programs of `block` elements,
    and the constants."""
    axes = _folded(axes)
    if len(axes) > _DIMS + 1:
        return None
    nothing = _Axis(1, 0, 1, (0, 0))
    rows, columns = axes[:-1], axes[-1] if axes else nothing._replace(strides=(1, 1))
    M = 1
    for axis in rows:
        M *= axis.n
    contiguous = all(s == 1 for s in columns.strides)
    x_strides = [axis.strides[0] for axis in rows]
    tile = [columns.first, columns.last, *(axis.strides[1] for axis in rows)]
    widest = 16 // itemsize if contiguous else 1
    vector_x = _vector(widest, [columns.n, offset, *x_strides])
    vector = _vector(vector_x, tile)
    block_c = min(triton.next_power_of_2(columns.n), 1024)
    block_r = min(triton.next_power_of_2(M), block // block_c)
    grid = -(-M // block_r) * -(-columns.n // block_c)
    constants = (max(len(rows), 1), M < 2**31, contiguous, vector, block_r, block_c, vector_x)
    return [*(rows or [nothing]), *[nothing] * (_DIMS - max(len(rows), 1))], columns, M, grid, constants


def _vector(widest: int, numbers: Sequence[int]) -> int:
    """The greatest power of two, up to `widest`, that divides all the numbers."""
    while any(n % widest for n in numbers):
        widest //= 2
    return widest


@functools.lru_cache(4096)
def _extraction(strides: tuple, index: tuple, shape: tuple, itemsize: int) -> _Plan | None:
    axes = [_Axis(T, 0, T, (s, s)) for T, s in zip(shape, strides, strict=True)]
    first = sum(i * T * s for i, T, s in zip(index, shape, strides, strict=True))
    block, warps = _EXTRACTED
    found = _geometry(axes, first, itemsize, block)
    if found is None:
        return None
    rows, columns, M, grid, constants = found
    sizes, x = (axis.n for axis in rows[1:]), (axis.strides[0] for axis in rows)
    return _Plan(grid, (M, columns.n, *sizes, *x, columns.strides[0], first), constants[:-1], warps)


@functools.lru_cache(4096)
def _insertion(
    shape: tuple, strides: tuple, index: tuple, tile: tuple, tile_strides: tuple, itemsize: int
) -> _Plan | None:
    axes = [
        _Axis(n, i * T, (i + 1) * T, (s, t))
        for n, s, i, T, t in zip(shape, strides, index, tile, tile_strides, strict=True)
    ]
    block, warps = _INSERTED
    found = _geometry(axes, 0, itemsize, block)
    if found is None:
        return None
    rows, columns, M, grid, constants = found
    _, _, _, vector, *_ = constants
    scalars = (
        *(M, columns.n, *(axis.n for axis in rows[1:])),
        *(*(axis.strides[0] for axis in rows), columns.strides[0]),
        *(*(axis.strides[1] for axis in rows), columns.strides[1]),
        *(*(axis.first for axis in rows), *(axis.last for axis in rows), columns.first, columns.last),
    )
    return _Plan(grid, scalars, constants, warps if vector * itemsize == 16 else _NARROW_WARPS)


# --- launchers -------------------------------------------------------------------------------------------------------
def extract_tile(x: Tensor, index: Sequence[int], shape: Sequence[int]) -> Tensor:
    return _extract(x, tuple(index), tuple(shape))  # lists do not hash


def insert_tile(x: Tensor, tile: Tensor, index: Sequence[int]) -> Tensor:
    return _insert(x, tile, tuple(index))


@replayed
def _extract(x: Tensor, index: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    y = _meta.extract_tile(x, index, shape)
    plan = _extraction(x.stride(), index, shape, x.itemsize)
    if plan is None:
        return y.copy_(x[tile_slices(index, shape)])
    _extract_kernel(plan.grid, (x, y), plan.scalars, plan.constants, plan.warps)
    return y


@replayed
def _insert(x: Tensor, tile: Tensor, index: tuple[int, ...]) -> Tensor:
    y = _meta.insert_tile(x, tile, index)
    if y.numel() == 0:
        return y
    plan = _insertion(tuple(x.shape), x.stride(), index, tuple(tile.shape), tile.stride(), x.itemsize)
    if plan is None:
        y.copy_(x)[tile_slices(index, tile.shape)] = tile
        return y
    aligned = (x.data_ptr() | tile.data_ptr()) % 16 == 0
    _insert_kernel(plan.grid, (x, tile, y), plan.scalars, (*plan.constants, aligned), plan.warps)
    return y
