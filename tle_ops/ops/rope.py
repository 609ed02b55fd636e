"""Rotary position embedding."""

import torch
from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Turn each pair of features by the angle of its position, in float32, rounded once.

    Args:
        x: [.., S, H, D], any strides: heads of a packed qkv tensor and [B, H, S, D].transpose(1, 2) are read where they
            are. float32, bfloat16, float16 or float64. Queries and keys that lie side by side take one call.
        cos, sin: [S, R/2], or [.., S, R/2] with the leading dimensions of x; any strides, any of these types (float32
            is best). The first R <= D features turn, the rest passes as it is.
        interleaved: pair features 2i and 2i + 1 (RoFormer's paper); otherwise i and i + R/2 (GPT-NeoX, Llama).

    Returns:
        [.., S, H, D] contiguous, of x's dtype.

    Raises:
        ValueError: the tables do not fit x or each other, x has fewer than three dimensions, or the devices differ.
        TypeError: an input of another type.

    Differentiable in x, cos and sin, forward mode and twice; vmap. The gradient of x is the rotation back.
    Plain PyTorch (R = D, not interleaved):

        a, b = x.float().chunk(2, -1)
        c, s = cos[..., None, :], sin[..., None, :]
        y = torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

    Su et al., arXiv 2104.09864.
    """
    return torch.ops.tle.rope(x, cos, sin, interleaved)
