"""Contracts: add, scale_cast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    FLOATS,
    FP8_MAX,
    contract,
    dtype_name,
    require_same_device,
    shape_text,
)

ADDABLE = FLOATS | {
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
}
_ADDABLE = "float32, bfloat16, float16, float64, complex, uint8, int8, int16, int32, int64 or bool"
_NUMBERS = "float32, bfloat16, float16, float64, float8_e4m3fn or float8_e5m2"


@contract("add(Tensor x, Tensor y) -> Tensor")
def add(x: Tensor, y: Tensor) -> Tensor:
    require_same_device("add", "x", x, "y", y)
    for name, t in (("x", x), ("y", y)):
        if t.dtype not in ADDABLE:
            raise TypeError(f"add: {name} must be {_ADDABLE}, got {dtype_name(t.dtype)}")
    return torch.empty(broadcast_shape("add", x, y), dtype=torch.result_type(x, y), device=x.device)


def broadcast_shape(op: str, x: Tensor, y: Tensor) -> Sequence[int | torch.SymInt]:
    try:
        if all(isinstance(n, int) for n in (*x.shape, *y.shape)):
            return x.shape if x.shape == y.shape else torch.broadcast_shapes(x.shape, y.shape)
        return torch.add(x, y).shape  # symbolic sizes, perhaps unbacked: PyTorch's own inference guards on the least
    except RuntimeError as e:
        if "data-dependent" in str(e):
            raise
        raise ValueError(
            f"{op}: x and y must broadcast together, got shapes {shape_text(x.shape)} and {shape_text(y.shape)}"
        ) from None


@contract("scale_cast(Tensor x, float alpha, ScalarType dtype) -> Tensor")
def scale_cast(x: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    if x.dtype not in FLOATS and x.dtype not in FP8_MAX:
        raise TypeError(f"scale_cast: x must be {_NUMBERS}, got {dtype_name(x.dtype)}")
    if dtype not in FLOATS and dtype not in FP8_MAX:
        raise TypeError(f"scale_cast: dtype must be {_NUMBERS}, got {dtype_name(dtype)}")
    return torch.empty(x.shape, dtype=dtype, device=x.device)
