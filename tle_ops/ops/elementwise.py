"""Elementwise: add, scale_cast."""

import torch
from torch import Tensor


def add(x: Tensor, y: Tensor) -> Tensor:
    """Sum with broadcasting and PyTorch's type promotion.

    Args:
        x, y: any shapes that broadcast together, any strides, one device. Floats (not float8), complex, uint8, int8,
            int16, int32, int64 or bool.

    Returns:
        Contiguous tensor of the broadcast shape and of dtype `torch.result_type(x, y)`; it never aliases an input.
        16-bit floats are added in float32 and rounded once.

    Raises:
        ValueError: the shapes do not broadcast, or the devices differ.
        TypeError: an input of another type.

    Differentiable in x and y, forward mode and twice; vmap. Plain PyTorch: `x + y`.
    """
    return torch.ops.tle.add(x, y)


def scale_cast(x: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """Multiply by a number and convert: `cast(x * alpha)`, the product in float32, one rounding to nearest even.

    Args:
        x: any shape and strides; float32, bfloat16, float16, float64, float8_e4m3fn or float8_e5m2.
        alpha: the factor, a run-time value: a new alpha builds no new kernel. It is not rounded to x's dtype. To
            torch.compile a Python float is a constant, so there a new alpha means a new graph.
        dtype: of the result, any of the same types.

    Returns:
        Contiguous tensor of x's shape. Float8 saturates at +-448 (e4m3fn) or +-57344 (e5m2); a NaN becomes the code
        0x7F. float64, in or out, is computed in float64; from there it reaches 8 and 16 bits by way of float32, as in
        PyTorch.

    Raises:
        TypeError: x or dtype is of another type.

    Differentiable in x, unless the result is float8; forward mode and twice; vmap.
    Plain PyTorch: `(x.float() * alpha).clamp(-448, 448).to(dtype)` for e4m3fn, without the clamp for wider types.
    """
    return torch.ops.tle.scale_cast(x, alpha, dtype)
