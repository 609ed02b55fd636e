"""Norms in Triton: rms_norm, add_rms_norm and layer_norm by the same kernels.

Rows of up to LONGEST columns stay in registers; their gradients are in _norm_bwd_triton.py. Longer rows are cut into
chunks, and a statistic is merged from those of the chunks (_norm_wide_triton.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels import _norm_bwd_triton as bwd
from tle_ops.kernels import _norm_wide_triton as wide
from tle_ops.kernels._replay import replayed, scratch
from tle_ops.kernels._rows_triton import (
    LONGEST,
    has_dependent_launch,
    load_rows,
    normed,
    num_multiprocessors,
    rows_of,
    widened,
)
from tle_ops.kernels._triton import kernel


# --- kernels ----------------------------------------------------------------------------------------------------------
@kernel("M", "heads", "outer", "pitch", "residual_pitch", "eps", "offset")
def _norm_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    residual_ptr,  # with ADD: [M, N], row pitch residual_pitch
    weight_ptr,  # with WEIGHT: [N]
    bias_ptr,  # with BIAS: [N]
    y_ptr,  # [M, N], contiguous
    new_ptr,  # with ADD: [M, N], contiguous
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    eps: tl.float32,
    offset: tl.float32,
    N: tl.constexpr,
    CENTERED: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    n = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    mask = (m < M) & (n < N) if ROWS > 1 else (m >= 0) & (n < N)
    x = load_rows(  # past the first cache, where the weight is to stay
        *(x_ptr, residual_ptr, new_ptr, m, n, mask, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED, ".cg")
    )
    if WEIGHT:  # now, so that their way here is not added to the row's: a microsecond of seven where rows are few
        weight = tl.load(weight_ptr + n, mask=n < N, other=0.0, eviction_policy="evict_last")  # all programs read it
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=n < N, other=0.0, eviction_policy="evict_last")
    y, _ = normed(x, n < N, eps, N, CENTERED)
    if WEIGHT:
        y *= widened(weight) + offset
    if BIAS:
        y += widened(bias)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask=mask)


# --- launchers --------------------------------------------------------------------------------------------------------
def tile_of(N: int, add: bool | None = None) -> tuple[int, int, int]:
    """ROWS, BLOCK and warps of a forward: 16 to 32 elements per thread, rows of less than 2048 columns together. Longer
    rows were measured: with a residual 16 elements are best, without one 64."""
    block = triton.next_power_of_2(N)
    rows = max(1, 2048 // block)
    num_warps = max(4, min(rows * block // 1024, 16))
    if block == 8192 and add is not None:
        num_warps = 16 if add else 4
    return rows, block, num_warps


def norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    new: Tensor | None,
    eps: float,
    offset: float,
    centered: bool,
) -> None:
    """y = norm(x), or new = x + residual and y = norm(new). y may be wider than x."""
    if y.numel() == 0:
        return
    x, r = rows_of(x, may_split=True)
    residual, residual_rows = (x, r) if residual is None else rows_of(residual)
    tensors = (x, residual, _vector(weight, x), _vector(bias, x), y, y if new is None else new)
    scalars = (r.M, r.heads, r.outer, r.pitch, residual_rows.pitch, eps, offset)
    flags = (
        r.N,
        centered,
        new is not None,
        weight is not None,
        bias is not None,
        r.split,
        r.aligned and residual_rows.aligned,
    )
    if r.N > LONGEST:
        wide.norm(tensors, scalars, flags)
        return
    rows, block, num_warps = tile_of(r.N, new is not None)
    _norm_kernel(triton.cdiv(r.M, rows), tensors, scalars, (*flags, rows, block), num_warps)


def _norm_bwd(
    dy: Tensor,
    dnew: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    outputs: tuple[Tensor, ...],
    want: tuple[bool, bool],
    eps: float,
    offset: float,
    centered: bool,
) -> None:
    """Into outputs: dx, dweight, dbias; of the last two, those that are wanted."""
    dx = outputs[0]
    sums = [(i, out) for i, out in enumerate(outputs[1:]) if want[i]]
    if dx.numel() == 0:
        for _, out in sums:
            out.zero_()
        return
    x, r = rows_of(x, may_split=True)
    dy, dy_rows = rows_of(dy)
    add = dnew is not None
    dnew, dnew_rows = rows_of(dnew) if add else (dy, dy_rows)
    aligned = r.aligned and dy_rows.aligned and dnew_rows.aligned
    scalars = (r.M, r.heads, r.outer, r.pitch, dy_rows.pitch, dnew_rows.pitch, eps, offset)
    flags = (r.N, centered, add, weight is not None, *want, r.split, aligned)
    ahead = x.itemsize + dy.itemsize
    held = ahead + (0 if weight is None else weight.itemsize) + 4 * len(sums)
    plan = bwd.plan(r.N, ahead + dnew.itemsize * add, held) if r.N <= LONGEST else None
    if plan is None:
        programs = wide.backward_programs(r.M, r.N, x.device)
    else:
        tiles = triton.cdiv(r.M, plan.rows)
        most = plan.resident * num_multiprocessors(x.device)
        programs = triton.cdiv(tiles, triton.cdiv(tiles, most))  # that all have as much to do
    parts = scratch(x.device, *[(programs * r.N, torch.float32)] * len(sums)) if sums else []  # each [programs, N]
    places = [dx, dx]  # pointers that are not used
    for (i, _), part in zip(sums, parts, strict=True):
        places[i] = part
    tensors = (dy, dnew, x, _vector(weight, x), dx, *places)
    pdl = has_dependent_launch(x.device) and plan is not None
    if plan is None:
        wide.norm_bwd(programs, tensors, scalars, flags)
    else:
        plan.kernel(programs, tensors, scalars, (*flags, *plan.tile, pdl and len(sums) > 0), plan.num_warps)
    for k, (_, out) in enumerate(sums):
        early = pdl and k == 0
        columns = triton.cdiv(r.N, bwd.COLUMNS)
        bwd.column_sum_kernel(columns, (parts[k], out), (programs,), (r.N, 256, bwd.COLUMNS, early), 8, pdl=early)


def _vector(t: Tensor | None, unused: Tensor) -> Tensor:
    return unused if t is None else t.contiguous()


@replayed
def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    y = _meta.rms_norm(x, weight, eps, weight_offset)
    norm(x, None, weight, None, y, None, eps, weight_offset, False)
    return y


@replayed
def rms_norm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    dweight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    outputs = _meta.rms_norm_bwd(dy, x, weight, eps, weight_offset, dweight_dtype)
    _norm_bwd(dy, None, x, weight, outputs, (dweight_dtype is not None, False), eps, weight_offset, False)
    return outputs


@replayed
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    y, new_residual = _meta.add_rms_norm(x, residual, weight, eps, weight_offset)
    norm(x, residual, weight, None, y, new_residual, eps, weight_offset, False)
    return y, new_residual


@replayed
def add_rms_norm_bwd(
    dy: Tensor,
    dnew_residual: Tensor | None,
    new_residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    dweight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    outputs = _meta.add_rms_norm_bwd(dy, dnew_residual, new_residual, weight, eps, weight_offset, dweight_dtype)
    want = (dweight_dtype is not None, False)
    _norm_bwd(dy, dnew_residual, new_residual, weight, outputs, want, eps, weight_offset, False)
    return outputs


@replayed
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    y = _meta.layer_norm(x, weight, bias, eps)
    norm(x, None, weight, bias, y, None, eps, 0.0, True)
    return y


@replayed
def layer_norm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    dweight_dtype: torch.dtype | None = None,
    dbias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = _meta.layer_norm_bwd(dy, x, weight, eps, dweight_dtype, dbias_dtype)
    want = (dweight_dtype is not None, dbias_dtype is not None)
    _norm_bwd(dy, None, x, weight, outputs, want, eps, 0.0, True)
    return outputs
