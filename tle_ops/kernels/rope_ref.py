"""Rotary position embedding in plain PyTorch: the definition, and the CPU kernel.

Each pair (a, b) of the first R features turns by the angle of its position: (a cos - b sin, b cos + a sin). Pairs are
features i and i + R/2, or with `interleaved` 2i and 2i + 1. Computed in float32 (float64 when given float64), rounded
once; features beyond R pass as they are. The gradient is the rotation back.
"""

import torch
from torch import Tensor

from tle_ops._meta import compute_dtype


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    wide = compute_dtype(x, cos, sin)
    return _rotated(x, cos.to(wide), sin.to(wide), interleaved)


def rope_bwd(dy: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    wide = compute_dtype(dy, cos, sin)
    return _rotated(dy, cos.to(wide), -sin.to(wide), interleaved)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [.., S, H, D], cos and sin [.., S, R/2]"""
    R = 2 * cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # [.., S, 1, R/2]
    turning, rest = x[..., :R].to(cos.dtype), x[..., R:]
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turning[..., : R // 2], turning[..., R // 2 :]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1).contiguous()
