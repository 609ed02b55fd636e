"""Ops that work across a dimension that is sharded: they exchange what is small (statistics, totals, candidates) in
place of the tensor. Each gets the local parts and returns the local outputs; `across.run` is the op itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tle_ops._meta import compute_dtype, cumsum_dtype

if TYPE_CHECKING:
    from tle_ops.distributed._dtensor import Across


# --- norms: the sums of each row are all-reduced, one or two numbers a row -------------------------------------------
def _sums(across: Across, *terms: Tensor) -> list[Tensor]:
    """The sums of terms [.., n] over the whole rows, each [.., 1], by one all-reduce; in float64, as the reference."""
    local = torch.stack([t.double().sum(-1) for t in terms])
    return [s.unsqueeze(-1) for s in across.all_reduce(local)]


def _scaled(x: Tensor, weight: Tensor | None, offset: float) -> Tensor:
    return x if weight is None else x * (weight.to(x.dtype) + offset)


def _columns(across: Across, x: Tensor) -> int:
    return x.shape[-1] * across.parts


def _over_rows(t: Tensor, dtype: torch.dtype | None, like: Tensor) -> Tensor:
    """Column sums [n], as a norm's backward gives them; empty if nobody asked."""
    if dtype is None:
        return like.new_empty(0)
    return (t.flatten(0, -2).sum(0) if t.dim() > 1 else t).to(dtype)


def _rstd(squares: Tensor, N: int, eps: float, wide: torch.dtype) -> Tensor:
    return torch.rsqrt(squares / N + eps).to(wide)


def rms_norm(across: Across, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Tensor:
    wide = compute_dtype(x, weight)
    x32 = x.to(wide)
    (squares,) = _sums(across, x32.square())
    return _scaled(x32 * _rstd(squares, _columns(across, x), eps, wide), weight, weight_offset).to(x.dtype)


def add_rms_norm(
    across: Across, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor]:
    new_residual = x + residual
    return rms_norm(across, new_residual, weight, eps, weight_offset), new_residual


def add_rms_norm_bwd(
    across: Across,
    dy: Tensor,
    dnew_residual: Tensor | None,
    new_residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    dweight_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    wide, N = compute_dtype(dy, dnew_residual, new_residual, weight), _columns(across, new_residual)
    dy, x = dy.to(wide), new_residual.to(wide)
    p = _scaled(dy, weight, weight_offset)
    squares, products = _sums(across, x.square(), p * x)
    rstd = _rstd(squares, N, eps, wide)
    normed = x * rstd
    dx = rstd * (p - normed * (products.to(wide) * rstd / N))
    if dnew_residual is not None:
        dx = dx + dnew_residual
    return dx.to(new_residual.dtype), _over_rows(dy * normed, dweight_dtype, new_residual)


def rms_norm_bwd(across: Across, dy: Tensor, x: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return add_rms_norm_bwd(across, dy, None, x, **rest)


def _centered(across: Across, x: Tensor) -> Tensor:
    (total,) = _sums(across, x)
    return x - (total / _columns(across, x)).to(x.dtype)


def layer_norm(across: Across, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    wide = compute_dtype(x, weight, bias)
    centered = _centered(across, x.to(wide))
    (squares,) = _sums(across, centered.square())
    y = _scaled(centered * _rstd(squares, _columns(across, x), eps, wide), weight, 0.0)
    return (y if bias is None else y + bias.to(wide)).to(x.dtype)


def layer_norm_bwd(
    across: Across,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    dweight_dtype: torch.dtype | None,
    dbias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, N = compute_dtype(dy, x, weight), _columns(across, x)
    dy, centered = dy.to(wide), _centered(across, x.to(wide))
    p = _scaled(dy, weight, 0.0)
    squares, products, total = _sums(across, centered.square(), p * centered, p)
    rstd = _rstd(squares, N, eps, wide)
    normed = centered * rstd
    dx = rstd * (p - (total / N).to(wide) - normed * (products.to(wide) * rstd / N))
    return dx.to(x.dtype), _over_rows(dy * normed, dweight_dtype, x), _over_rows(dy, dbias_dtype, x)


# --- scans: the totals of the parts are gathered ---------------------------------------------------------------------
def cumsum(across: Across, x: Tensor, dim: int, reverse: bool, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    dtype = cumsum_dtype(x.dtype, dtype)
    # What the op accumulates in: totals of 16-bit floats are rounded once, at the end.
    narrow = dtype.is_floating_point and dtype.itemsize < 4
    exclusive, total = across.run(x, dim, reverse, torch.float32 if narrow else dtype)
    totals = across.all_gather(total.unsqueeze(0), 0)  # [parts, ..]
    before = totals[across.index + 1 :] if reverse else totals[: across.index]
    offset = before.sum(0, dtype=totals.dtype).unsqueeze(dim)
    return (exclusive + offset).to(dtype), totals.sum(0, dtype=totals.dtype).to(dtype)


# --- selection: the best of each part are gathered, and the best of these are the answer -----------------------------
def topk(across: Across, x: Tensor, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    """The candidates of equal value come in the order of their columns, part after part and within each, so the lower
    one wins as in one piece."""
    n = x.shape[dim]
    values, indices = across.run(x, min(k, n), dim, largest, True)
    values = across.all_gather(values, dim)
    indices = across.all_gather(indices + across.index * n, dim)
    values, at = across.run(values, k, dim, largest, sorted)
    return values, indices.gather(dim, at)


def topk_selector(across: Across, scores: Tensor, k: int, starts: Tensor | None, ends: Tensor | None) -> Tensor:
    n = scores.shape[-1]
    first = across.index * n
    # Not below 0 before first is taken away: the least int32 would come round to the greatest.
    local = [None if bound is None else bound.clamp_min(0) - first for bound in (starts, ends)]
    columns = across.run(scores, min(k, n), *local)  # [.., min(k, n)], -1 behind
    found = columns >= 0
    values = scores.gather(-1, columns.clamp_min(0).long())
    columns = torch.where(found, columns + first, -1)
    # Kept to the front, part after part: ascending columns, so that ties go to the lower one here too.
    values, columns, found = (across.all_gather(t, -1) for t in (values, columns, found))
    packed, _, count = torch.ops.tle.compact(values, found)
    columns, _, _ = torch.ops.tle.compact(columns, found)
    at = across.run(packed, k, None, count)  # [.., k]
    return torch.where(at >= 0, columns.gather(-1, at.clamp_min(0).long()), -1)
