"""Contracts: add, scale_cast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    FLOAT_NAMES,
    FLOATS,
    FP8_MAX,
    FP8_NAMES,
    contract,
    dtype_name,
    require_same_device,
    shape_text,
)


@contract("add(Tensor x, Tensor y) -> Tensor")
def add(x: Tensor, y: Tensor) -> Tensor:
    require_same_device("add", "x", x, "y", y)
    for name, t in (("x", x), ("y", y)):
        if t.dtype.itemsize == 1 and t.dtype.is_floating_point:
            raise TypeError(f"add: {name} must not be a float8 type, got {dtype_name(t.dtype)}")
    return torch.empty(broadcast_shape("add", x, y), dtype=torch.result_type(x, y), device=x.device)


def broadcast_shape(op: str, x: Tensor, y: Tensor) -> Sequence[int | torch.SymInt]:
    try:
        return x.shape if x.shape == y.shape else torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        raise ValueError(
            f"{op}: x and y must broadcast together, got shapes {shape_text(x.shape)} and {shape_text(y.shape)}"
        ) from None


@contract("scale_cast(Tensor x, float alpha, ScalarType dtype) -> Tensor")
def scale_cast(x: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    if x.dtype not in FLOATS and x.dtype not in FP8_MAX:
        raise TypeError(f"scale_cast: x must be {FLOAT_NAMES}, {FP8_NAMES}, got {dtype_name(x.dtype)}")
    if dtype not in FLOATS and dtype not in FP8_MAX:
        raise TypeError(f"scale_cast: dtype must be {FLOAT_NAMES}, {FP8_NAMES}, got {dtype_name(dtype)}")
    return torch.empty(x.shape, dtype=dtype, device=x.device)
