"""Norms in plain PyTorch: the definition of each op and of its gradient, and the CPU kernels.

    rms_norm:    y = x * rstd * (weight + offset)          rstd = 1 / sqrt(mean(x^2) + eps)
    layer_norm:  y = (x - mean) * rstd * weight + bias     rstd = 1 / sqrt(mean((x - mean)^2) + eps)

and with p = dy * (weight + offset), normed = x * rstd (or (x - mean) * rstd), means along the row, sums along the rows

    dx = rstd * (p - normed * mean(p * normed))            layer_norm: minus rstd * mean(p)
    dweight = sum(dy * normed)                             dbias = sum(dy)

all in float32 (float64 when given float64), rounded once.
"""

import torch
from torch import Tensor

from tle_ops._groups import rows
from tle_ops._meta import compute_dtype


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    normed, _ = _normed(_row_major(x, compute_dtype(x, weight)), eps)
    return _scaled(normed, weight, weight_offset).to(x.dtype)


def rms_norm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    dweight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    return add_rms_norm_bwd(dy, None, x, weight, eps, weight_offset, dweight_dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    new_residual = add_residual(x, residual)
    return rms_norm(new_residual, weight, eps, weight_offset), new_residual


def add_rms_norm_bwd(
    dy: Tensor,
    dnew_residual: Tensor | None,
    new_residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    dweight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    wide = compute_dtype(dy, dnew_residual, new_residual, weight)
    dy = _row_major(dy, wide)
    normed, rstd = _normed(_row_major(new_residual, wide), eps)
    p = _scaled(dy, weight, weight_offset)
    dx = rstd * (p - normed * (p * normed).mean(-1, keepdim=True))
    if dnew_residual is not None:
        dx = dx + dnew_residual
    return dx.to(new_residual.dtype).contiguous(), _sum_over_rows(dy * normed, dweight_dtype, new_residual.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    wide = compute_dtype(x, weight, bias)
    normed, _ = _normed(_centered(_row_major(x, wide)), eps)
    y = _scaled(normed, weight, 0.0)
    if bias is not None:
        y = y + bias.to(wide)
    return y.to(x.dtype)


def layer_norm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    dweight_dtype: torch.dtype | None = None,
    dbias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = compute_dtype(dy, x, weight)
    dy = _row_major(dy, wide)
    normed, rstd = _normed(_centered(_row_major(x, wide)), eps)
    p = _scaled(dy, weight, 0.0)
    dx = rstd * (_centered(p) - normed * (p * normed).mean(-1, keepdim=True))
    return (
        dx.to(x.dtype),
        _sum_over_rows(dy * normed, dweight_dtype, x.dtype),
        _sum_over_rows(dy, dbias_dtype, x.dtype),
    )


def add_residual(x: Tensor, residual: Tensor) -> Tensor:
    """Rounded to x's dtype; a sum of two 16-bit floats is exact in float32, so it is rounded once."""
    return (x + residual).contiguous()


def rms_norm_wide(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Tensor:
    """In float32 (float64 if given float64), each element rounded once: what a fused quantizer goes on with."""
    wide = compute_dtype(x, weight)
    y = x.double() * _rstd(_row_major(x, wide), eps)
    return _scaled(y, weight, weight_offset).to(wide).contiguous()


def _row_major(x: Tensor, dtype: torch.dtype) -> Tensor:
    """One memory layout, so that sums run in one order whatever the strides of the input."""
    return x.to(dtype).contiguous()


def _rstd(x: Tensor, eps: float) -> Tensor:
    """[.., N] -> float64 [.., 1]: one number per row, whose last bits should not depend on an order of summation. The
    sum is rounded to x's dtype, so it overflows as one in that dtype does."""
    squares = x.square().sum(-1, keepdim=True, dtype=torch.float64).to(x.dtype)
    return torch.rsqrt(squares.double() / x.shape[-1] + eps)


def _normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rstd = _rstd(x, eps).to(x.dtype)
    return x * rstd, rstd


def _centered(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _scaled(x: Tensor, weight: Tensor | None, offset: float) -> Tensor:
    return x if weight is None else x * (weight.to(x.dtype) + offset)


def _sum_over_rows(t: Tensor, dtype: torch.dtype | None, x_dtype: torch.dtype) -> Tensor:
    return t.new_empty(0, dtype=x_dtype) if dtype is None else rows(t).sum(0).to(dtype)
