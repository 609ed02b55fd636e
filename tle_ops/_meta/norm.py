"""Contracts: rms_norm, add_rms_norm, layer_norm and their backwards.

A backward gives dweight in `dweight_dtype` and dbias in `dbias_dtype`; with None that gradient is not computed and its
output is an empty tensor of shape [0].
"""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    FLOAT_NAMES,
    FLOATS,
    contract,
    dtype_name,
    require,
    require_dim,
    require_float,
    require_same_device,
    require_shape,
)


def require_rows(op: str, argument: str, x: Tensor) -> None:
    require_float(op, argument, x)
    require_dim(op, argument, x, 1)


def require_columns(op: str, argument: str, t: Tensor | None, x_name: str, x: Tensor) -> None:
    """t, if there is one, has one number per column of x."""
    if t is not None:
        require_float(op, argument, t)
        require_same_device(op, x_name, x, argument, t)
        require_shape(op, argument, t, (x.shape[-1],))


def require_eps(op: str, eps: float) -> None:
    """It stands below a root."""
    require(eps >= 0, lambda: f"{op}: eps must be at least 0, got {eps}")


def require_like(op: str, argument: str, t: Tensor, x_name: str, x: Tensor) -> None:
    require_float(op, argument, t)
    require_same_device(op, x_name, x, argument, t)
    require_shape(op, argument, t, x.shape)


def require_residual(op: str, x: Tensor, residual: Tensor) -> None:
    require_like(op, "residual", residual, "x", x)
    if residual.dtype is not x.dtype:  # the sum is rounded to x's dtype: a wider residual would lose bits in silence
        raise TypeError(f"{op}: residual must be {dtype_name(x.dtype)} as x is, got {dtype_name(residual.dtype)}")


def _require_gradient_dtype(op: str, argument: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"{op}: {argument} must be {FLOAT_NAMES}, or None, got {dtype_name(dtype)}")


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _column_gradient(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None:
        return torch.empty((0,), dtype=x.dtype, device=x.device)
    return torch.empty((x.shape[-1],), dtype=dtype, device=x.device)


# --- rms_norm ---------------------------------------------------------------------------------------------------------
@contract("rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor")
def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    require_rows("rms_norm", "x", x)
    require_columns("rms_norm", "weight", weight, "x", x)
    require_eps("rms_norm", eps)
    return _like(x)


@contract(
    "rms_norm_bwd(Tensor dy, Tensor x, Tensor? weight, float eps, float weight_offset=0.0, "
    "ScalarType? dweight_dtype=None) -> (Tensor dx, Tensor dweight)"
)
def rms_norm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    dweight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    require_rows("rms_norm_bwd", "x", x)
    require_like("rms_norm_bwd", "dy", dy, "x", x)
    require_columns("rms_norm_bwd", "weight", weight, "x", x)
    _require_gradient_dtype("rms_norm_bwd", "dweight_dtype", dweight_dtype)
    require_eps("rms_norm_bwd", eps)
    return _like(x), _column_gradient(x, dweight_dtype)


# --- add_rms_norm -----------------------------------------------------------------------------------------------------
@contract(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset=0.0) "
    "-> (Tensor y, Tensor new_residual)"
)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    require_rows("add_rms_norm", "x", x)
    require_residual("add_rms_norm", x, residual)
    require_columns("add_rms_norm", "weight", weight, "x", x)
    require_eps("add_rms_norm", eps)
    return _like(x), _like(x)


@contract(
    "add_rms_norm_bwd(Tensor dy, Tensor? dnew_residual, Tensor new_residual, Tensor? weight, float eps, "
    "float weight_offset=0.0, ScalarType? dweight_dtype=None) -> (Tensor dx, Tensor dweight)"
)
def add_rms_norm_bwd(
    dy: Tensor,
    dnew_residual: Tensor | None,
    new_residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    dweight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    require_rows("add_rms_norm_bwd", "new_residual", new_residual)
    require_like("add_rms_norm_bwd", "dy", dy, "new_residual", new_residual)
    if dnew_residual is not None:
        require_like("add_rms_norm_bwd", "dnew_residual", dnew_residual, "new_residual", new_residual)
    require_columns("add_rms_norm_bwd", "weight", weight, "new_residual", new_residual)
    _require_gradient_dtype("add_rms_norm_bwd", "dweight_dtype", dweight_dtype)
    require_eps("add_rms_norm_bwd", eps)
    return _like(new_residual), _column_gradient(new_residual, dweight_dtype)


# --- layer_norm -------------------------------------------------------------------------------------------------------
@contract("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor")
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    require_rows("layer_norm", "x", x)
    require_columns("layer_norm", "weight", weight, "x", x)
    require_columns("layer_norm", "bias", bias, "x", x)
    require_eps("layer_norm", eps)
    return _like(x)


@contract(
    "layer_norm_bwd(Tensor dy, Tensor x, Tensor? weight, float eps, ScalarType? dweight_dtype=None, "
    "ScalarType? dbias_dtype=None) -> (Tensor dx, Tensor dweight, Tensor dbias)"
)
def layer_norm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    dweight_dtype: torch.dtype | None = None,
    dbias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    require_rows("layer_norm_bwd", "x", x)
    require_like("layer_norm_bwd", "dy", dy, "x", x)
    require_columns("layer_norm_bwd", "weight", weight, "x", x)
    _require_gradient_dtype("layer_norm_bwd", "dweight_dtype", dweight_dtype)
    _require_gradient_dtype("layer_norm_bwd", "dbias_dtype", dbias_dtype)
    require_eps("layer_norm_bwd", eps)
    return _like(x), _column_gradient(x, dweight_dtype), _column_gradient(x, dbias_dtype)
