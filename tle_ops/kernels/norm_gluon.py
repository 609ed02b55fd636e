"""rms_norm in Gluon, through `tle.pipe`: one warp fetches rows, the others normalize those that have arrived.

A persistent program of each multiprocessor walks over tiles of rows. Its producer keeps the pipe full, so the memory is
busy while the consumers wait for one another in a reduction. Rows of more than `WIDEST` columns go through the pipe
twice, in chunks: for their sum of squares, then for the result.

sm_90 and newer. It does not pay enough to be the default: on an H200 it takes 0.98 to 0.99 of the time of the same
arithmetic without a pipe for 4096 rows of 4096 or 7168 (bfloat16), and 1.02 to 1.07 of it for 128 rows and for 8192 and
more. One program per row keeps as many loads in flight, goes where a multiprocessor is free, and waits for nobody.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import tle_ops.language as tle
from tle_ops import _meta

CAPABILITY = (9, 0)
WIDEST = 8192  # columns of a row that the consumers hold in registers


# --- kernel -----------------------------------------------------------------------------------------------------------
@gluon.jit
def _fetch(
    writer, x_ptr, M, pitch, N: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr, VECTOR: gl.constexpr,
    ASYNC: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The producer: every chunk of every row of this program; of several chunks all of them, twice."""
    CHUNKS: gl.constexpr = (N + BLOCK - 1) // BLOCK
    PASSES: gl.constexpr = 1 if CHUNKS == 1 else 2
    L: gl.constexpr = tle.gpu.row_layout(ROWS, BLOCK, VECTOR, WARPS)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, L))[:, None]
    cols = gl.arange(0, BLOCK, gl.SliceLayout(0, L))[None, :]
    at = writer.cursor()
    for tile in range(gl.program_id(0), gl.cdiv(M, ROWS), gl.num_programs(0)):
        m = tile * ROWS + rows
        start = x_ptr + m.to(gl.int64) * pitch
        for chunk in range(PASSES * CHUNKS):
            n = chunk % CHUNKS * BLOCK + cols
            mask = (m < M) & (n < N)
            slot = writer.acquire(at)
            if ASYNC:
                tle.gpu.cp_async(slot.x, start + n, mask=mask)
                writer.commit(at, cp_async=("x",))
            else:
                slot.x.store(gl.load(start + n, mask=mask, other=0.0))
                writer.commit(at)
            at = at.advance()


@gluon.jit
def _take(reader, at, L: gl.constexpr):
    """A chunk in float32, its stage given back, and where the reader stands then."""
    x = reader.wait(at).slot.x.load(L).to(gl.float32)
    reader.release(at)
    return x, at.advance()


@triton.jit  # so that the interpreter runs it, too
def root_of(squares, eps, N: tl.constexpr):
    """1 / sqrt(squares / N + eps): the instruction's 2 ulp and a Newton step. Where that would be inf * 0, none."""
    mean = squares * (1.0 / N) + eps
    guess = tl.rsqrt(mean)
    root = guess * (1.5 - 0.5 * mean * guess * guess)
    return tl.where((mean > 0) & (mean < float("inf")), root, guess)


@gluon.jit
def _factors(weight_ptr, n, offset, N: gl.constexpr, WEIGHT: gl.constexpr):
    if WEIGHT:
        return gl.load(weight_ptr + n, mask=n < N, other=0.0).to(gl.float32) + offset
    else:
        return gl.to_tensor(1.0)


@gluon.jit
def _normalize(
    reader, weight_ptr, y_ptr, M, eps, offset, N: gl.constexpr, WEIGHT: gl.constexpr, ROWS: gl.constexpr,
    BLOCK: gl.constexpr, VECTOR: gl.constexpr, WARPS: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    """The consumers. KEEP: the weights stay in registers."""
    CHUNKS: gl.constexpr = (N + BLOCK - 1) // BLOCK
    L: gl.constexpr = tle.gpu.row_layout(ROWS, BLOCK, VECTOR, WARPS)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, L))[:, None]
    cols = gl.arange(0, BLOCK, gl.SliceLayout(0, L))[None, :]
    at = reader.cursor()
    if KEEP:
        factors = _factors(weight_ptr, cols, offset, N, WEIGHT)
    for tile in range(gl.program_id(0), gl.cdiv(M, ROWS), gl.num_programs(0)):
        m = tile * ROWS + rows
        out = y_ptr + m.to(gl.int64) * N
        if CHUNKS == 1:
            x, at = _take(reader, at, L)
            root = root_of(gl.sum(x * x, axis=1), eps, N)
            if not KEEP:
                factors = _factors(weight_ptr, cols, offset, N, WEIGHT)
            y = x * root[:, None] * factors
            gl.store(out + cols, y.to(y_ptr.dtype.element_ty), mask=(m < M) & (cols < N))
        else:
            squares = gl.full([ROWS, BLOCK], 0.0, gl.float32, L)
            for _ in range(CHUNKS):
                x, at = _take(reader, at, L)
                squares += x * x
            root = root_of(gl.sum(squares, axis=1), eps, N)
            for chunk in range(CHUNKS):
                x, at = _take(reader, at, L)
                n = chunk * BLOCK + cols
                y = x * root[:, None] * _factors(weight_ptr, n, offset, N, WEIGHT)
                gl.store(out + n, y.to(y_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def _jit(function):
    """Run-time scalars are never specialised: no value of theirs builds a new kernel."""
    return gluon.jit(function, do_not_specialize=["M", "pitch", "eps", "offset"])


@_jit
def _norm_kernel(
    x_ptr,  # [M, N], row pitch `pitch`
    weight_ptr,  # with WEIGHT: [N]
    y_ptr,  # [M, N], contiguous
    M: gl.int64,
    pitch: gl.int64,
    eps: gl.float32,
    offset: gl.float32,
    N: gl.constexpr,
    WEIGHT: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,
    VECTOR: gl.constexpr,
    ASYNC: gl.constexpr,
    CAPACITY: gl.constexpr,
    WARPS: gl.constexpr,
    FETCHERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    KEEP: gl.constexpr,
):
    L: gl.constexpr = gl.SwizzledSharedLayout(VECTOR, 1, 1, [1, 0])
    x = tle.gpu.alloc([CAPACITY, ROWS, BLOCK], x_ptr.dtype.element_ty, layout=L)
    pipe = tle.pipe(capacity=CAPACITY, name="rows", x=x)
    pitch = pitch // VECTOR * VECTOR if ASYNC else pitch  # a fact for the compiler
    gl.warp_specialize(
        [
            (
                _normalize,
                (pipe.reader(), weight_ptr, y_ptr, M, eps, offset, N, WEIGHT, ROWS, BLOCK, VECTOR, WARPS, KEEP),
            ),
            (_fetch, (pipe.writer(), x_ptr, M, pitch, N, ROWS, BLOCK, VECTOR, ASYNC, FETCHERS)),
        ],
        [FETCHERS],
        [FETCH_REGISTERS],
    )


# --- launcher ---------------------------------------------------------------------------------------------------------
class Tile(NamedTuple):
    rows: int
    block: int
    capacity: int
    warps: int  # of the consumers
    fetchers: int  # warps of the producer
    fetch_registers: int  # of each of its threads
    registers: int  # of each thread at the start, before the roles share them out anew: bounds the programs, too
    programs: int  # on a multiprocessor
    keep: bool  # the weights in registers


@functools.lru_cache(4096)
def tile_of(N: int, itemsize: int, aligned: bool) -> Tile:
    """The best of a sweep on the H200. One warp can issue a tile's cp.async; loads and stores go through registers, and
    take four."""
    block = min(triton.next_power_of_2(N), WIDEST)
    rows = max(1, min(2048 // block, 32))
    fetchers = 1 if aligned else 4
    if block <= 4096:
        return Tile(rows, block, 4, 4, fetchers, 56, 80, 3, True)
    capacity = min(6, 112_000 // (block * itemsize))  # of two programs in 227 KiB
    return Tile(rows, block, capacity, 4, fetchers, 96, 128, 2, N <= WIDEST)


@functools.cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _require_target(op: str, x: Tensor) -> None:
    """A pipe below sm_90 would abort the process in a compiler."""
    capability = torch.cuda.get_device_capability(x.device) if x.is_cuda else None
    if capability is None or capability < CAPABILITY:
        got = x.device.type if capability is None else "sm_{}{}".format(*capability)
        raise NotImplementedError(f"{op}: the backend 'gluon' needs a GPU of sm_90 or newer, got {got}")


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    y = _meta.rms_norm(x, weight, eps, weight_offset)
    _require_target("rms_norm", x)
    if y.numel() == 0:
        return y
    launch(x, weight, y, eps, weight_offset)
    return y


def flags_of(N: int, itemsize: int, aligned: bool, weight: bool, tile: Tile) -> tuple:
    """The kernel's constants. aligned: every row starts at a multiple of 16 bytes, and ends at one."""
    vector = min(16 // itemsize, tile.block)
    shape = (tile.rows, tile.block, vector, aligned, tile.capacity)  # aligned: by cp.async, which moves 16 bytes
    return N, weight, *shape, tile.warps, tile.fetchers, tile.fetch_registers, tile.keep


def launch(x: Tensor, weight: Tensor | None, y: Tensor, eps: float, offset: float, tile: Tile | None = None) -> None:
    N = x.shape[-1]
    x = x.reshape(-1, N)  # a copy where the leading dimensions do not merge
    if N > 1 and x.stride(1) != 1:
        x = x.contiguous()
    M, pitch = x.shape[0], x.stride(0)
    aligned = all(n * x.itemsize % 16 == 0 for n in (N, pitch)) and x.data_ptr() % 16 == 0
    tile = tile or tile_of(N, x.itemsize, aligned)
    flags = flags_of(N, x.itemsize, aligned, weight is not None, tile)
    vector = x if weight is None else weight.contiguous()
    programs = min(triton.cdiv(M, tile.rows), tile.programs * _num_multiprocessors(x.device))
    with torch.cuda.device(x.device):
        _norm_kernel[(programs,)](
            x, vector, y, M, pitch, eps, offset, *flags, num_warps=tile.warps, maxnreg=tile.registers
        )
