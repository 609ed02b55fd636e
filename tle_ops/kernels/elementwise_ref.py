"""Elementwise ops in plain PyTorch: the definition of each, and its CPU kernel."""

import torch
from torch import Tensor

from tle_ops._meta import FP8_MAX


def add(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).contiguous()


def scale_cast(x: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    return saturating_cast(x.to(wide) * alpha, dtype).contiguous()


def saturating_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to nearest even. To a float8 type: values beyond its range become its largest, a NaN becomes the code
    0x7F, whatever the device, the torch version and the NaN's sign."""
    if dtype not in FP8_MAX:
        return x.to(dtype)
    top = FP8_MAX[dtype]
    return x.clamp(-top, top).masked_fill(x.isnan(), torch.nan).to(dtype)
