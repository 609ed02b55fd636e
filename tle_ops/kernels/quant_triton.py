"""FP8 quantization in Triton: the same kernels for groups of every shape.

A matrix [B, M, N] is cut into regions of rows x cols elements, and a region is walked in tiles of BLOCK_R x BLOCK_C:

    AXIS 1  token groups    a group is 1 x cols     a region is BLOCK_R groups, one below the other
    AXIS 0  channel groups  a group is rows x 1     a region is BLOCK_C groups, side by side
    AXIS 2  blocks          a group is rows x cols  a region is one group

A program takes a region. If that is one tile, x is read once; longer groups are read twice, the second time from the
cache. Where there are too few of those to fill the GPU, many programs share a region: `_amax_kernel` goes first.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

import tle_ops.language as tle
from tle_ops import _meta
from tle_ops._meta import FP8_MAX
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._triton import encode, kernel, magnitude, scale_of

_TILE = 1024  # elements of a tile of token groups: one warp, 32 per thread
_CHANNELS = 64  # columns of a tile of channel groups: 128 contiguous bytes of bfloat16
_BAND = tl.constexpr(32)  # rows of a tile of channel groups that are cast at a time
_LONGEST = 16384  # elements of a group that is still held in registers
_FITS = 48 * 2**20  # elements of x that may leave the L2 cache (60 MB) first
_FEW = 264  # programs: two for each multiprocessor of an H200
_CODE = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}
_GEOMETRY = ("M", "N", "tiles_m", "tiles_n", "tiles", "rows", "cols", "x_b", "x_m", "x_n", "s_b", "s_m", "s_n", "fits")


# --- device functions ------------------------------------------------------------------------------------------------
@triton.jit
def _strides(N, cols, x_b, x_m, x_n, FLAT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK_C: tl.constexpr):
    """The widths and strides, with what the compiler may know of them (`tl.multiple_of` does not reach arguments)."""
    if FLAT:
        width = tl.full((), BLOCK_C, tl.int64)
        return width, width, x_b, width, tl.full((), 1, tl.int64)
    elif ALIGNED:
        return N // 16 * 16, cols // 16 * 16, x_b // 16 * 16, x_m // 16 * 16, tl.full((), 1, tl.int64)
    else:
        return N, cols, x_b, x_m, x_n


@triton.jit
def _region(pid, M, N, tiles_m, tiles_n, rows, cols, FLAT: tl.constexpr):
    """Region number pid: batch b, region (i, j) of that matrix, first row and column, the extent inside the matrix."""
    if FLAT:
        i = pid.to(tl.int64)
        b, j, c0 = i * 0, i * 0, i * 0
        width = cols
    else:
        j = pid % tiles_n
        pid = pid // tiles_n
        b, i = (pid // tiles_m).to(tl.int64), (pid % tiles_m).to(tl.int64)
        j = j.to(tl.int64)
        c0 = j * cols
        width = tl.minimum(cols, N - c0)
    r0 = i * rows
    return b, i, j, r0, c0, tl.minimum(rows, M - r0), width


@triton.jit
def _tile(
    t, cols, height, width, ONE_TILE: tl.constexpr, FULL_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Rows [BLOCK_R, 1] and columns [1, BLOCK_C] of tile number t of a region, and which of them are inside."""
    r = tl.arange(0, BLOCK_R)[:, None]
    c = tl.arange(0, BLOCK_C)[None, :]
    if not ONE_TILE:
        across = tl.cdiv(cols, BLOCK_C).to(tl.int32)
        r += t // across * BLOCK_R
        c += t % across * BLOCK_C
    inside_r = r < height.to(tl.int32)
    if FULL_C:
        return r, c, inside_r, tl.full((1, BLOCK_C), True, tl.int1)
    else:
        return r, c, inside_r, c < width.to(tl.int32)


@triton.jit
def _piece(
    k, r, c, height, width, AXIS: tl.constexpr, FULL_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Rows and columns of a group's piece number k, and which of them are inside."""
    if AXIS == 1:
        c += k * BLOCK_C
    else:
        r += k * BLOCK_R
    if FULL_C:
        return r, c, r < height.to(tl.int32)
    else:
        return r, c, (r < height.to(tl.int32)) & (c < width.to(tl.int32))


@triton.jit
def _at(r, c, stride_r, stride_c, SMALL: tl.constexpr):
    """Offsets of a tile's elements from the region's first."""
    if SMALL:
        return r * stride_r.to(tl.int32) + c * stride_c.to(tl.int32)
    else:
        return r.to(tl.int64) * stride_r + c.to(tl.int64) * stride_c


@triton.jit
def _reduce(bits, AXIS: tl.constexpr):
    """Maximum over each of the tile's groups, in the shape that broadcasts: [BLOCK_R, 1], [1, BLOCK_C] or [1, 1]."""
    if AXIS == 1:
        return tl.max(bits, axis=1)[:, None]
    elif AXIS == 0:
        return tl.max(bits, axis=0)[None, :]
    else:
        return tl.max(tl.max(bits, axis=1), axis=0) + tl.zeros((1, 1), tl.int32)


@triton.jit
def _scales(b, i, j, r0, c0, r, c, inside_r, inside_c, tiles_n, s_b, s_m, s_n, AXIS: tl.constexpr, FLAT: tl.constexpr):
    """Offsets of a tile's scales, in the shape of `_reduce`, and which exist."""
    if FLAT == 2:  # the groups are in a row, their scales are not: tiles_n of them belong to a row of x
        group = (r0 + r).to(tl.int32)
        return (group // tiles_n).to(tl.int64) * s_m + (group % tiles_n).to(tl.int64) * s_n, inside_r
    elif AXIS == 1:
        return b * s_b + (r0 + r) * s_m + j * s_n, inside_r
    elif AXIS == 0:
        return b * s_b + i * s_m + (c0 + c) * s_n, inside_c
    else:
        return b * s_b + i * s_m + j * s_n + tl.zeros((1, 1), tl.int64), tl.full((1, 1), True, tl.int1)


@triton.jit
def _encode(x, scale, dtype: tl.constexpr, CODE: tl.constexpr, DEQUANTIZE: tl.constexpr):
    """Codes of x, or with DEQUANTIZE their values."""
    q = encode(x, scale, CODE)
    if DEQUANTIZE:
        return (q.to(tl.float32) * scale).to(dtype)
    else:
        return q


@triton.jit
def _cast_held(
    x_ptr,
    q_ptr,
    scales_ptr,  # in the shape of `_reduce`
    exists,
    r,
    c,
    height,
    width,
    N,
    x_m,
    x_n,
    EVICT: tl.constexpr,
    AXIS: tl.constexpr,
    FULL_C: tl.constexpr,
    SMALL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    DEQUANTIZE: tl.constexpr,
    PIECES: tl.constexpr,
):
    """Cast a region whose groups are held in registers, in pieces or in bands of rows that stay in x's type until their
    turn comes."""
    pieces = ()
    bits = tl.zeros((BLOCK_R, BLOCK_C), tl.int32)
    for k in tl.static_range(PIECES):
        rk, ck, mask = _piece(k, r, c, height, width, AXIS, FULL_C, BLOCK_R, BLOCK_C)
        x = tl.load(x_ptr + _at(rk, ck, x_m, x_n, SMALL), mask=mask, other=0.0, eviction_policy=EVICT)
        bits = tl.maximum(bits, magnitude(x.to(tl.float32)))
        pieces = pieces + (x,)  # noqa: RUF005  (Triton's tuples know no unpacking)
    scale = scale_of(_reduce(bits, AXIS), FP8_MAX, UE8M0)
    one = tl.full((), 1, tl.int64)
    if AXIS == 0 and BLOCK_R > _BAND:
        for k in tl.static_range(BLOCK_R // _BAND):
            band = tle.extract_tile(pieces[0], [k, 0], [_BAND, BLOCK_C])
            row = k * _BAND + tl.arange(0, _BAND)[:, None]
            row, ck, mask = _piece(0, row, c, height, width, AXIS, FULL_C, BLOCK_R, BLOCK_C)
            q = _encode(band.to(tl.float32), scale, q_ptr.dtype.element_ty, CODE, DEQUANTIZE)
            tl.store(q_ptr + _at(row, ck, N, one, SMALL), q, mask=mask)
    else:
        for k in tl.static_range(PIECES):
            rk, ck, mask = _piece(k, r, c, height, width, AXIS, FULL_C, BLOCK_R, BLOCK_C)
            q = _encode(pieces[k].to(tl.float32), scale, q_ptr.dtype.element_ty, CODE, DEQUANTIZE)
            tl.store(q_ptr + _at(rk, ck, N, one, SMALL), q, mask=mask)
    if not DEQUANTIZE:
        tl.store(scales_ptr, scale, mask=exists)


# --- kernels ---------------------------------------------------------------------------------------------------------
@kernel(*_GEOMETRY)
def _amax_kernel(
    x_ptr,  # [B, M, N], strides x_b, x_m, x_n
    bits_ptr,  # int32, zeros, in the layout of the scales: receives each group's amax, as bits
    M: tl.int64,
    N: tl.int64,
    tiles_m: tl.int32,  # regions, down and across
    tiles_n: tl.int32,
    tiles: tl.int32,  # of a region
    rows: tl.int64,  # of a region
    cols: tl.int64,
    x_b: tl.int64,
    x_m: tl.int64,
    x_n: tl.int64,
    s_b: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    fits: tl.int32,  # x may leave the L2 cache first: it is small enough for what was written before it to stay there
    AXIS: tl.constexpr,
    FLAT: tl.constexpr,  # 1: x is one column of groups of BLOCK_C, all contiguous. 2: but for the scales
    FULL_C: tl.constexpr,  # no tile reaches beyond a region's columns
    ALIGNED: tl.constexpr,  # rows are contiguous and start at multiples of 16 elements
    SMALL: tl.constexpr,  # offsets within a region fit into 32 bits
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    N, cols, x_b, x_m, x_n = _strides(N, cols, x_b, x_m, x_n, FLAT, ALIGNED, BLOCK_C)
    pid = tl.program_id(0)
    b, i, j, r0, c0, height, width = _region(pid // tiles, M, N, tiles_m, tiles_n, rows, cols, FLAT)
    r, c, inside_r, inside_c = _tile(pid % tiles, cols, height, width, False, FULL_C, BLOCK_R, BLOCK_C)
    x_ptr += b * x_b + r0 * x_m + c0 * x_n
    x = tl.load(x_ptr + _at(r, c, x_m, x_n, SMALL), mask=inside_r & inside_c, other=0.0).to(tl.float32)
    where, exists = _scales(b, i, j, r0, c0, r, c, inside_r, inside_c, tiles_n, s_b, s_m, s_n, AXIS, FLAT)
    # A maximum of integers: the order in which programs arrive does not matter.
    tl.atomic_max(bits_ptr + where, _reduce(magnitude(x), AXIS), mask=exists)


@kernel(*_GEOMETRY)
def _cast_kernel(
    x_ptr,  # [B, M, N], strides x_b, x_m, x_n
    q_ptr,  # [B, M, N], contiguous: codes, or with DEQUANTIZE their values
    scales_ptr,  # strides s_b, s_m, s_n
    bits_ptr,  # with SHARED: from _amax_kernel
    M: tl.int64,
    N: tl.int64,
    tiles_m: tl.int32,  # regions, down and across
    tiles_n: tl.int32,
    tiles: tl.int32,  # of a region
    rows: tl.int64,  # of a region
    cols: tl.int64,
    x_b: tl.int64,
    x_m: tl.int64,
    x_n: tl.int64,
    s_b: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    fits: tl.int32,  # x may leave the L2 cache first: it is small enough for what was written before it to stay there
    AXIS: tl.constexpr,
    FLAT: tl.constexpr,  # 1: x is one column of groups of BLOCK_C, all contiguous. 2: but for the scales
    FULL_C: tl.constexpr,  # no tile reaches beyond a region's columns
    ALIGNED: tl.constexpr,  # rows are contiguous and start at multiples of 16 elements
    SMALL: tl.constexpr,  # offsets within a region fit into 32 bits
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    DEQUANTIZE: tl.constexpr,
    PIECES: tl.constexpr,  # tiles of a group that is held in registers; 0: it is too long for that
    SHARED: tl.constexpr,
):
    N, cols, x_b, x_m, x_n = _strides(N, cols, x_b, x_m, x_n, FLAT, ALIGNED, BLOCK_C)
    pid = tl.program_id(0)
    first = 0
    if SHARED:
        first = pid % tiles
        pid = pid // tiles
    b, i, j, r0, c0, height, width = _region(pid, M, N, tiles_m, tiles_n, rows, cols, FLAT)
    x_ptr += b * x_b + r0 * x_m + c0 * x_n
    q_ptr += (b * M + r0) * N + c0
    r, c, inside_r, inside_c = _tile(first, cols, height, width, PIECES > 0, FULL_C, BLOCK_R, BLOCK_C)
    where, exists = _scales(b, i, j, r0, c0, r, c, inside_r, inside_c, tiles_n, s_b, s_m, s_n, AXIS, FLAT)
    scales_ptr += where
    if PIECES > 0:
        if AXIS == 1:  # two copies of the code, for a choice at run time
            if fits != 0:
                _cast_held(
                    *(x_ptr, q_ptr, scales_ptr, exists, r, c, height, width, N, x_m, x_n, "evict_first"),
                    *(AXIS, FULL_C, SMALL, BLOCK_R, BLOCK_C, CODE, FP8_MAX, UE8M0, DEQUANTIZE, PIECES),
                )
            else:
                _cast_held(
                    *(x_ptr, q_ptr, scales_ptr, exists, r, c, height, width, N, x_m, x_n, ""),
                    *(AXIS, FULL_C, SMALL, BLOCK_R, BLOCK_C, CODE, FP8_MAX, UE8M0, DEQUANTIZE, PIECES),
                )
        else:
            _cast_held(
                *(x_ptr, q_ptr, scales_ptr, exists, r, c, height, width, N, x_m, x_n, ""),
                *(AXIS, FULL_C, SMALL, BLOCK_R, BLOCK_C, CODE, FP8_MAX, UE8M0, DEQUANTIZE, PIECES),
            )
    else:
        mask = inside_r & inside_c
        x = tl.load(x_ptr + _at(r, c, x_m, x_n, SMALL), mask=mask, other=0.0).to(tl.float32)
        if SHARED:
            scale = scale_of(tl.load(bits_ptr + where, mask=exists, other=0), FP8_MAX, UE8M0)
            q = _encode(x, scale, q_ptr.dtype.element_ty, CODE, DEQUANTIZE)
            tl.store(q_ptr + _at(r, c, N, tl.full((), 1, tl.int64), SMALL), q, mask=mask)
            exists = exists & (first == 0)
        else:
            bits = _reduce(magnitude(x), AXIS)
            for t in range(1, tiles):
                r, c, inside_r, inside_c = _tile(t, cols, height, width, False, FULL_C, BLOCK_R, BLOCK_C)
                mask = inside_r & inside_c
                x = tl.load(x_ptr + _at(r, c, x_m, x_n, SMALL), mask=mask, other=0.0).to(tl.float32)
                bits = tl.maximum(bits, _reduce(magnitude(x), AXIS))
            scale = scale_of(bits, FP8_MAX, UE8M0)
            for t in range(0, tiles):
                r, c, inside_r, inside_c = _tile(t, cols, height, width, False, FULL_C, BLOCK_R, BLOCK_C)
                mask = inside_r & inside_c
                x = tl.load(x_ptr + _at(r, c, x_m, x_n, SMALL), mask=mask, other=0.0).to(tl.float32)
                q = _encode(x, scale, q_ptr.dtype.element_ty, CODE, DEQUANTIZE)
                tl.store(q_ptr + _at(r, c, N, tl.full((), 1, tl.int64), SMALL), q, mask=mask)
        if not DEQUANTIZE:
            tl.store(scales_ptr, scale, mask=exists)


@kernel(*_GEOMETRY)
def _cast_back_kernel(
    q_ptr,  # [B, M, N], strides x_b, x_m, x_n
    y_ptr,  # [B, M, N], contiguous
    scales_ptr,  # strides s_b, s_m, s_n
    M: tl.int64,
    N: tl.int64,
    tiles_m: tl.int32,  # regions, down and across
    tiles_n: tl.int32,
    tiles: tl.int32,  # of a region
    rows: tl.int64,  # of a region
    cols: tl.int64,
    x_b: tl.int64,
    x_m: tl.int64,
    x_n: tl.int64,
    s_b: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    fits: tl.int32,  # x may leave the L2 cache first: it is small enough for what was written before it to stay there
    AXIS: tl.constexpr,
    FLAT: tl.constexpr,  # 1: x is one column of groups of BLOCK_C, all contiguous. 2: but for the scales
    FULL_C: tl.constexpr,  # no tile reaches beyond a region's columns
    ALIGNED: tl.constexpr,  # rows are contiguous and start at multiples of 16 elements
    SMALL: tl.constexpr,  # offsets within a region fit into 32 bits
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ONE_TILE: tl.constexpr,
):
    N, cols, x_b, x_m, x_n = _strides(N, cols, x_b, x_m, x_n, FLAT, ALIGNED, BLOCK_C)
    pid = tl.program_id(0)
    t = 0
    if not ONE_TILE:
        t = pid % tiles
        pid = pid // tiles
    b, i, j, r0, c0, height, width = _region(pid, M, N, tiles_m, tiles_n, rows, cols, FLAT)
    r, c, inside_r, inside_c = _tile(t, cols, height, width, ONE_TILE, FULL_C, BLOCK_R, BLOCK_C)
    q_ptr += b * x_b + r0 * x_m + c0 * x_n
    y_ptr += (b * M + r0) * N + c0
    q = tl.load(q_ptr + _at(r, c, x_m, x_n, SMALL), mask=inside_r & inside_c).to(tl.float32)
    where, exists = _scales(b, i, j, r0, c0, r, c, inside_r, inside_c, tiles_n, s_b, s_m, s_n, AXIS, FLAT)
    scale = tl.load(scales_ptr + where, mask=exists, other=0.0)
    y = (q * scale).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + _at(r, c, N, tl.full((), 1, tl.int64), SMALL), y, mask=inside_r & inside_c)


# --- geometry --------------------------------------------------------------------------------------------------------
class _Plan(NamedTuple):
    regions: int
    tiles: int  # of a region
    pieces: int  # tiles of a group that is held in registers, or 0
    scalars: tuple
    constants: tuple
    num_warps: int
    maxnreg: int | None  # three programs of a 128 x 128 block per multiprocessor in place of two


_TOKEN, _CHANNEL, _BLOCK = 1, 0, 2  # AXIS


@functools.lru_cache(4096)  # a third of a launch otherwise
def _plan(axis: int, size: int, shape: tuple, x_strides: tuple, s_strides: tuple) -> _Plan | None:
    """How the kernels walk x of this shape and layout in groups or blocks of `size`; None if its leading dimensions
    cannot be merged into one without a copy. s_strides: of the scales, [] if there are none."""
    N, x_n = shape[-1], x_strides[-1]
    if axis == _BLOCK:
        (B, x_b), (M, x_m) = _merge(shape[:-2], x_strides[:-2]), (shape[-2], x_strides[-2])
    else:
        (B, x_b), (M, x_m) = (1, 0), _merge(shape[:-1], x_strides[:-1])
    if x_b is None or x_m is None:
        return None
    s_b, s_m, s_n = s_strides or (0, 0, 0)
    contiguous = x_n == 1 and (M == 1 or x_m == N) and (B == 1 or x_b == M * N)
    flat, pieces, groups = 0, 1, 1
    if axis == _TOKEN:
        cols = N if size == -1 else min(size, N)
        groups = -(-N // cols)
        if cols <= 1024:
            block_c = triton.next_power_of_2(cols)
            rows = block_r = max(1, _TILE // block_c)
        else:
            rows, block_r, block_c = 1, 1, 1024 if cols <= 8192 else 2048
            pieces = -(-cols // block_c) if cols <= _LONGEST else 0
        if block_c == cols and N % cols == 0 and contiguous:  # every group becomes a row of its own
            joined = not s_strides or ((s_m == groups or M == 1) and (s_n == 1 or groups == 1))
            flat = 1 if joined else 2 if M * groups < 2**31 else 0
        if flat:
            M, N, x_m = M * groups, cols, cols
            s_m, s_n = (1, 0) if flat == 1 else (s_m, s_n)
    elif axis == _CHANNEL:
        rows = M if size == -1 or size > max(M, 256) else size  # a group longer than x is x
        block_r, pieces = _pieces(rows, 256) if size != -1 and size <= 256 else (16, 0)
        if rows in (64, 128) and x_n == 1 and N % _CHANNELS == 0 and x_m % 16 == 0:
            block_r, pieces = rows, 1  # one load, cast in bands: 8 % less time than in pieces, measured at 128
        cols = block_c = _CHANNELS if block_r >= 16 else min(1024, _TILE // block_r)
    else:
        rows = cols = min(size, max(M, N, 129))  # a block larger than x is x
        block_r, pieces = _pieces(rows, 128)
        block_c = min(triton.next_power_of_2(cols), 128)
    tiles_m, tiles_n = -(-M // rows), groups if flat else -(-N // cols)
    tiles = -(-rows // block_r) * -(-cols // block_c)
    aligned = x_n == 1 and all(n % 16 == 0 for n in (N, x_b, x_m, cols))
    full = N % cols == 0 and cols % block_c == 0
    small = max(rows * x_m + cols * x_n, rows * N + cols) < 2**31
    return _Plan(
        B * tiles_m * (1 if flat else tiles_n),
        tiles,
        pieces,
        (M, N, tiles_m, tiles_n, tiles, rows, cols, x_b, x_m, x_n, s_b, s_m, s_n, int(math.prod(shape) <= _FITS)),
        (axis, flat, full, aligned, small, block_r, block_c),
        min(max(block_r * block_c // (256 if pieces > 1 else 2048 if axis == _CHANNEL else 1024), 1), 8),
        80 if axis == _BLOCK and pieces > 1 and block_c == 128 else None,
    )


def _pieces(rows: int, most: int) -> tuple[int, int]:
    """Rows of a tile, and the tiles that make a group; 0 if it has more than `most` rows and is walked instead."""
    if rows <= 16:
        return triton.next_power_of_2(rows), 1
    return 16, -(-rows // 16) if rows <= most else 0


def _merge(sizes: tuple, strides: tuple) -> tuple[int, int | None]:
    """Dimensions as one: its size and stride, None if no stride reaches all of them."""
    size, stride = 1, 0
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n == 1:
            continue
        if size == 1:
            size, stride = n, s
        elif s == size * stride:
            size *= n
        else:
            return math.prod(sizes), None
    return size, stride


def _merged_strides(t: Tensor, dims: int) -> tuple | None:
    """Strides of [batch, rows, columns] of the scales, of which the last `dims` stay and the rest are merged."""
    lead = t.dim() - dims
    _, stride = _merge(t.shape[:lead], t.stride()[:lead])
    if stride is None:
        return None
    return (stride, *t.stride()[lead:]) if dims == 2 else (0, stride, *t.stride()[lead:])


def _planned(axis: int, size: int, x: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None, _Plan]:
    """The plan, with x and scales copied where their layout has no plan."""
    s_strides = ()
    if scales is not None:
        s_strides = _merged_strides(scales, 1 if axis == _TOKEN else 2)
        if s_strides is None:
            scales = scales.contiguous()
            s_strides = _merged_strides(scales, 1 if axis == _TOKEN else 2)
    plan = _plan(axis, size, x.shape, x.stride(), s_strides)
    if plan is None:
        x = x.contiguous()
        plan = _plan(axis, size, x.shape, x.stride(), s_strides)
    return x, scales, plan


# --- launchers -------------------------------------------------------------------------------------------------------
def _cast(axis: int, size: int, x: Tensor, q: Tensor, scales: Tensor | None, dtype: torch.dtype, ue8m0: bool) -> None:
    """Quantize x into q and scales; without scales, q receives the values of the codes."""
    if q.numel() == 0:
        if scales is not None and scales.numel():  # one group per row, and no columns
            scales.fill_(_meta.scale_of_nothing(dtype, ue8m0))
        return
    x, _, plan = _planned(axis, size, x, scales)
    what = (_CODE[dtype], FP8_MAX[dtype], ue8m0, scales is None)
    target = q if scales is None else scales  # a pointer that is not used
    if plan.pieces or plan.regions >= _FEW:
        constants = (*plan.constants, *what, plan.pieces, False)
        _cast_kernel(plan.regions, (x, q, target, target), plan.scalars, constants, plan.num_warps, plan.maxnreg)
    else:
        _cast_shared(axis, size, x, q, scales, what)


def _cast_shared(axis: int, size: int, x: Tensor, q: Tensor, scales: Tensor | None, what: tuple) -> None:
    """Long groups, too few to fill the GPU with one program each."""
    if scales is None:
        groups = _meta.num_groups(x.shape[-1], size)
        bits = torch.zeros((*x.shape[:-1], groups), dtype=torch.int32, device=x.device)
    else:
        bits = torch.empty_strided(scales.shape, scales.stride(), dtype=torch.int32, device=x.device).zero_()
    target = q if scales is None else scales
    x, _, plan = _planned(axis, size, x, bits)
    grid = plan.regions * plan.tiles
    _amax_kernel(grid, (x, bits), plan.scalars, plan.constants, plan.num_warps)
    constants = (*plan.constants, *what, 0, True)
    _cast_kernel(grid, (x, q, target, bits), plan.scalars, constants, plan.num_warps, plan.maxnreg)


def _cast_back(axis: int, size: int, q: Tensor, scales: Tensor, y: Tensor) -> Tensor:
    if y.numel():
        q, scales, plan = _planned(axis, size, q, scales)
        one = plan.tiles == 1
        num_warps = max(plan.constants[-2] * plan.constants[-1] // 1024, 1)
        constants = (*plan.constants, one)
        _cast_back_kernel(plan.regions * plan.tiles, (q, y, scales), plan.scalars, constants, num_warps)
    return y


@replayed
def per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0, column_major_scales)
    _cast(_TOKEN, group_size, x, q, scales, dtype, scale_ue8m0)
    return q, scales


@replayed
def per_token_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return _cast_back(_TOKEN, group_size, q, scales, _meta.per_token_cast_back(q, scales, group_size, dtype))


@replayed
def per_block_cast_fp8(
    x: Tensor, block_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.per_block_cast_fp8(x, block_size, dtype, scale_ue8m0)
    _cast(_BLOCK, block_size, x, q, scales, dtype, scale_ue8m0)
    return q, scales


@replayed
def per_block_cast_back(
    q: Tensor, scales: Tensor, block_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return _cast_back(_BLOCK, block_size, q, scales, _meta.per_block_cast_back(q, scales, block_size, dtype))


@replayed
def per_channel_cast_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.per_channel_cast_fp8(x, group_size, dtype, scale_ue8m0)
    _cast(_CHANNEL, group_size, x, q, scales, dtype, scale_ue8m0)
    return q, scales


@replayed
def per_channel_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return _cast_back(_CHANNEL, group_size, q, scales, _meta.per_channel_cast_back(q, scales, group_size, dtype))


@replayed
def fake_quant_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> Tensor:
    y = _meta.fake_quant_fp8(x, group_size, dtype, scale_ue8m0)
    _cast(_TOKEN, group_size, x, y, None, dtype, scale_ue8m0)
    return y
