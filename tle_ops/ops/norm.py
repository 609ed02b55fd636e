"""Norms over the last dimension: rms_norm, add_rms_norm, layer_norm."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, weight_offset: float = 0.0) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`, all in float32, rounded once.

    Args:
        x: [.., N], any strides; float32, bfloat16, float16 or float64.
        weight: [N] of any of these types, whatever x is: a float32 weight beside 16-bit activations is as it should be.
            None: no scaling (and no offset).
        eps: under the root.
        weight_offset: added to the weight in float32; 1.0 for models that store weight - 1, as Gemma does.

    Returns:
        [.., N] contiguous, of x's dtype, also under autocast.

    Raises:
        ValueError: the weight does not have shape [N], x has no dimension, eps is negative or NaN, or the devices
            differ.
        TypeError: an input of another type.

    Differentiable in x and weight, forward mode and twice; vmap. The sums of the weight's gradient are in float32 and
    run in a fixed order: the same bits every time.
    Plain PyTorch: `(F.rms_norm(x.float(), x.shape[-1:], weight.float() + weight_offset, eps)).to(x.dtype)`.

    Zhang and Sennrich, arXiv 1910.07467.
    """
    return torch.ops.tle.rms_norm(x, weight, eps, weight_offset)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Add to the residual stream and normalize the sum, in one pass.

    Args:
        x: [.., N], any strides; float32, bfloat16, float16 or float64.
        residual: of x's shape and dtype, any strides.
        weight, eps, weight_offset: as in `rms_norm`.

    Returns:
        y: [.., N] contiguous: rms_norm of the rounded new_residual.
        new_residual: [.., N] contiguous: x + residual, rounded to x's dtype.

    Raises:
        ValueError: the residual is not of x's shape, or as `rms_norm`.
        TypeError: the residual is not of x's dtype, or an input of another type.

    Inputs are not modified. Differentiable in x, residual and weight, forward mode and twice; vmap.
    Plain PyTorch: `new_residual = x + residual; y = rms_norm(new_residual, weight, eps)`.
    """
    return torch.ops.tle.add_rms_norm(x, residual, weight, eps, weight_offset)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """`(x - mean) / sqrt(var + eps) * weight + bias`, all in float32, rounded once. The variance takes a second pass
    over the differences from the mean, so a large mean costs no digits.

    Args:
        x: [.., N], any strides; float32, bfloat16, float16 or float64.
        weight, bias: [N] of any of these types, or None.
        eps: under the root.

    Returns:
        [.., N] contiguous, of x's dtype, also under autocast.

    Raises:
        ValueError: weight or bias does not have shape [N], x has no dimension, eps is negative or NaN, or the devices
            differ.
        TypeError: an input of another type.

    Differentiable in x, weight and bias, forward mode and twice; vmap.
    Plain PyTorch: `F.layer_norm(x.float(), x.shape[-1:], weight, bias, eps).to(x.dtype)`. Ba et al., arXiv 1607.06450.
    """
    return torch.ops.tle.layer_norm(x, weight, bias, eps)
