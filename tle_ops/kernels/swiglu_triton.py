"""Gated activations in Triton. gate and up are two tensors, or (UP > 0) two column ranges of one."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._rows_triton import clamp_above, clamp_both, is_dense, normal_cdf, row_start, rows_of, sigmoid
from tle_ops.kernels._triton import flat, kernel, last

_TILE = 2048  # elements per program
_WARPS, _FLAT_WARPS = 4, 8  # of the kernels over rows and over flat tensors
_SILU, _SILU_LIMIT, _GELU, _GELU_TANH = 0, 1, 2, 3  # ACT


# --- device functions -------------------------------------------------------------------------------------------------
@triton.jit
def _act(x, ACT: tl.constexpr):
    """value and slope of the activation"""
    if ACT <= 1:
        s = sigmoid(x)
        value = x * s
        slope = s + value * (1 - s)
    elif ACT == 2:
        s, density = normal_cdf(x)
        value = x * s
        slope = s + x * density
    else:  # (1 + tanh(z)) / 2 = sigmoid(2 z)
        square = x * x
        s = sigmoid(x * (square * 0.07135481282989403 + 1.5957691216057308))
        value = x * s
        slope = s + value * (1 - s) * (square * 0.2140644384896821 + 1.5957691216057308)
    return value, slope


@triton.jit
def _forward(gate_ptr, up_ptr, y_ptr, g, u, y, mask, limit, ACT: tl.constexpr):
    """The tile at offsets g, u, y of the three tensors."""
    gate = tl.load(gate_ptr + g, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + u, mask=mask).to(tl.float32)
    if ACT == 1:
        gate, up = clamp_above(gate, limit), clamp_both(up, limit)
    value, _ = _act(gate, ACT)
    tl.store(y_ptr + y, (value * up).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, d, g, u, dg, du, mask, limit, ACT: tl.constexpr):
    gate = tl.load(gate_ptr + g, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + u, mask=mask).to(tl.float32)
    dy = tl.load(dy_ptr + d, mask=mask).to(tl.float32)
    gate_passes, up_passes = gate <= limit, tl.abs(up) <= limit
    if ACT == 1:
        gate, up = clamp_above(gate, limit), clamp_both(up, limit)
    value, slope = _act(gate, ACT)
    dgate, dup = dy * up * slope, dy * value
    if ACT == 1:
        dgate, dup = tl.where(gate_passes, dgate, 0.0), tl.where(up_passes, dup, 0.0)
    tl.store(dgate_ptr + dg, dgate.to(dgate_ptr.dtype.element_ty), mask=mask)
    tl.store(dup_ptr + du, dup.to(dup_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _tile(M, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows m [ROWS, 1] and columns n [1, BLOCK] of this program, and which of them exist."""
    across: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // across * ROWS + tl.arange(0, ROWS)[:, None]
    n = pid % across * BLOCK + tl.arange(0, BLOCK)[None, :]
    if ROWS == 1:
        return m, n, (n < N) & (m >= 0)
    else:
        return m, n, (m < M) & (n < N)


# --- kernels ----------------------------------------------------------------------------------------------------------
@kernel("n", "limit")
def _flat_kernel(
    gate_ptr, up_ptr, y_ptr, n: tl.int64, limit: tl.float32, ACT: tl.constexpr, BLOCK: tl.constexpr
):  # all contiguous, n elements
    at, mask = flat(n, BLOCK)
    _forward(gate_ptr, up_ptr, y_ptr, at, at, at, mask, limit, ACT)
    if tl.program_id(0) == 0:
        i, left = last(n)
        _forward(gate_ptr, up_ptr, y_ptr, i, i, i, left, limit, ACT)


@kernel("n", "limit")
def _flat_bwd_kernel(
    dy_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    n: tl.int64,
    limit: tl.float32,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at, mask = flat(n, BLOCK)
    _backward(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, at, at, at, at, at, mask, limit, ACT)
    if tl.program_id(0) == 0:
        i, left = last(n)
        _backward(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, i, i, i, i, i, left, limit, ACT)


@kernel("M", "gate_pitch", "up_pitch", "limit")
def _rows_kernel(
    gate_ptr,  # [M, N], row pitch gate_pitch
    up_ptr,  # [M, N] from column UP on, row pitch up_pitch
    y_ptr,  # [M, N], contiguous
    M: tl.int64,
    gate_pitch: tl.int64,
    up_pitch: tl.int64,
    limit: tl.float32,
    ACT: tl.constexpr,
    N: tl.constexpr,
    UP: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m, n, mask = _tile(M, N, ROWS, BLOCK)
    g = row_start(m, 1, 0, gate_pitch, False, ALIGNED) + n
    u = row_start(m, 1, 0, up_pitch, False, ALIGNED) + n + UP
    _forward(gate_ptr, up_ptr, y_ptr, g, u, m * N + n, mask, limit, ACT)


@kernel("M", "dy_pitch", "gate_pitch", "up_pitch", "limit")
def _rows_bwd_kernel(
    dy_ptr,  # [M, N], row pitch dy_pitch
    gate_ptr,  # [M, N], row pitch gate_pitch
    up_ptr,  # [M, N] from column UP on, row pitch up_pitch
    dgate_ptr,  # [M, N], row pitch N + UP
    dup_ptr,  # [M, N] from column UP on, the same pitch
    M: tl.int64,
    dy_pitch: tl.int64,
    gate_pitch: tl.int64,
    up_pitch: tl.int64,
    limit: tl.float32,
    ACT: tl.constexpr,
    N: tl.constexpr,
    UP: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m, n, mask = _tile(M, N, ROWS, BLOCK)
    d = row_start(m, 1, 0, dy_pitch, False, ALIGNED) + n
    g = row_start(m, 1, 0, gate_pitch, False, ALIGNED) + n
    u = row_start(m, 1, 0, up_pitch, False, ALIGNED) + n + UP
    out = m * (N + UP) + n
    _backward(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, d, g, u, out, out + UP, mask, limit, ACT)


# --- launchers --------------------------------------------------------------------------------------------------------
def _row_tile(M: int, N: int) -> tuple[int, int, int]:
    """Programs, ROWS, BLOCK: several short rows or a part of a long one per program."""
    block = min(triton.next_power_of_2(N), _TILE)
    rows = _TILE // block
    return triton.cdiv(M, rows) * triton.cdiv(N, block), rows, block


def _flat_tile(act: int) -> int:
    """gelu computes longer, and pays with more to a program (docs/designs.md)."""
    return 2 * _TILE if act == _GELU else _TILE


def _launch(gate: Tensor, up: Tensor, y: Tensor, limit: float, act: int) -> Tensor:
    n = y.numel()
    if n == 0:
        return y
    if is_dense(gate) and is_dense(up):
        tile = _flat_tile(act)
        _flat_kernel(triton.cdiv(n, tile), (gate, up, y), (n, limit), (act, tile), _FLAT_WARPS)
        return y
    (gate, g), (up, u) = rows_of(_at_least_1d(gate)), rows_of(_at_least_1d(up))
    grid, rows, block = _row_tile(g.M, g.N)
    constants = (act, g.N, 0, g.aligned and u.aligned, rows, block)
    _rows_kernel(grid, (gate, up, y), (g.M, g.pitch, u.pitch, limit), constants, _WARPS)
    return y


def _launch_bwd(
    dy: Tensor, gate: Tensor, up: Tensor, outputs: tuple[Tensor, Tensor], limit: float, act: int
) -> tuple[Tensor, Tensor]:
    n = dy.numel()
    if n == 0:
        return outputs
    if is_dense(dy) and is_dense(gate) and is_dense(up):
        tile = _flat_tile(act)
        _flat_bwd_kernel(triton.cdiv(n, tile), (dy, gate, up, *outputs), (n, limit), (act, tile), _FLAT_WARPS)
        return outputs
    (dy, d), (gate, g), (up, u) = (rows_of(_at_least_1d(t)) for t in (dy, gate, up))
    grid, rows, block = _row_tile(g.M, g.N)
    constants = (act, g.N, 0, d.aligned and g.aligned and u.aligned, rows, block)
    _rows_bwd_kernel(grid, (dy, gate, up, *outputs), (g.M, d.pitch, g.pitch, u.pitch, limit), constants)
    return outputs


def _at_least_1d(t: Tensor) -> Tensor:
    return t if t.dim() else t.view(1)


def _launch_packed(x: Tensor, y: Tensor, limit: float, act: int) -> Tensor:
    if y.numel():
        x, r = rows_of(x)
        H = r.N // 2
        grid, rows, block = _row_tile(r.M, H)
        _rows_kernel(grid, (x, x, y), (r.M, r.pitch, r.pitch, limit), (act, H, H, r.aligned, rows, block))
    return y


def _launch_packed_bwd(dy: Tensor, x: Tensor, dx: Tensor, limit: float, act: int) -> Tensor:
    if dx.numel():
        (dy, d), (x, r) = rows_of(dy), rows_of(x)
        H = r.N // 2
        grid, rows, block = _row_tile(r.M, H)
        constants = (act, H, H, d.aligned and r.aligned, rows, block)
        _rows_bwd_kernel(grid, (dy, x, x, dx, dx), (r.M, d.pitch, r.pitch, r.pitch, limit), constants)
    return dx


def _limited(limit: float | None) -> tuple[float, int]:
    return (0.0, _SILU) if limit is None else (limit, _SILU_LIMIT)


def _gelu(approximate: str) -> tuple[float, int]:
    return 0.0, _GELU if approximate == "none" else _GELU_TANH


@replayed
def swiglu(gate: Tensor, up: Tensor, limit: float | None = None) -> Tensor:
    return _launch(gate, up, _meta.swiglu(gate, up, limit), *_limited(limit))


@replayed
def swiglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, limit: float | None = None) -> tuple[Tensor, Tensor]:
    return _launch_bwd(dy, gate, up, _meta.swiglu_bwd(dy, gate, up, limit), *_limited(limit))


@replayed
def swiglu_packed(x: Tensor, limit: float | None = None) -> Tensor:
    return _launch_packed(x, _meta.swiglu_packed(x, limit), *_limited(limit))


@replayed
def swiglu_packed_bwd(dy: Tensor, x: Tensor, limit: float | None = None) -> Tensor:
    return _launch_packed_bwd(dy, x, _meta.swiglu_packed_bwd(dy, x, limit), *_limited(limit))


@replayed
def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    return _launch(gate, up, _meta.geglu(gate, up, approximate), *_gelu(approximate))


@replayed
def geglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, approximate: str = "none") -> tuple[Tensor, Tensor]:
    return _launch_bwd(dy, gate, up, _meta.geglu_bwd(dy, gate, up, approximate), *_gelu(approximate))


@replayed
def geglu_packed(x: Tensor, approximate: str = "none") -> Tensor:
    return _launch_packed(x, _meta.geglu_packed(x, approximate), *_gelu(approximate))


@replayed
def geglu_packed_bwd(dy: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    return _launch_packed_bwd(dy, x, _meta.geglu_packed_bwd(dy, x, approximate), *_gelu(approximate))
