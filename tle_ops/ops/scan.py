"""Scans along one dimension: prefix sums, stream compaction, counting. No shape depends on data, so nothing waits.

The same input gives the same bits on every call: float sums have a fixed order, and no counting depends on one.
"""

import torch
from torch import Tensor


def cumsum(
    x: Tensor, dim: int = -1, *, reverse: bool = False, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Exclusive prefix sums, and the total, in one pass.

    Args:
        x: any shape and strides; float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64.
        dim: the dimension to sum along. A 0-D x counts as one element.
        reverse: sum what comes after an element, in place of what comes before it.
        dtype: of the result; any of the types above except bool. Default: int32 for bool and integers below 32 bits,
            float32 for bfloat16, otherwise x's dtype.

    Returns:
        exclusive: contiguous, of x's shape. `exclusive[i] = sum(x[:i])`, or `sum(x[i + 1:])` when reversed.
        total: the sum along dim, x's shape without it. `exclusive + x` are the inclusive sums.

    Raises:
        ValueError: x has no dimension dim.
        TypeError: x or dtype is of another type.

    Floats are summed in float32 (float64 if x or the result is) and rounded once, so 16-bit sums do not stall. Integers
    wrap at the width of the result. An infinity or NaN reaches only the sums that contain it.
    Differentiable in x, forward mode and twice; vmap. Plain PyTorch:

        total = x.sum(dim)
        exclusive = torch.cat([torch.zeros_like(x[..., :1]), x[..., :-1].cumsum(-1)], -1)          # dim = -1

    It is the `tle.cumsum` of TLE-Lite on whole tensors.
    """
    return torch.ops.tle.cumsum(x, dim, reverse, dtype)


def compact(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the elements that a mask keeps to the front of their row, in order: stream compaction with a static shape.

    Args:
        x: [.., N], any strides; float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64.
        mask: [.., N] bool, any strides, on x's device.

    Returns:
        packed: [.., N] of x's dtype: the kept elements, then zeros.
        indices: [.., N] int64: the columns they come from, then -1.
        count: [..] int32: how many were kept.

    Raises:
        ValueError: the mask has another shape or device, x has no dimension, or N is above 2**31 - 1.
        TypeError: the mask is not bool, or x is of another type.

    Differentiable in x, forward mode and twice; vmap. Plain PyTorch (1-D): `x[mask]` and `mask.nonzero()`, whose sizes
    depend on the data and make the host wait.
    """
    return torch.ops.tle.compact(x, mask)


def histogram(x: Tensor, bins: int) -> Tensor:
    """Count, in each row, how often each of the integers 0 to bins - 1 occurs.

    Args:
        x: [.., N], any strides; bool, uint8, int8, int16, int32 or int64.
        bins: how many integers to count. Values outside [0, bins) are not counted.

    Returns:
        [.., bins] int32, contiguous.

    Raises:
        ValueError: bins is not positive, x has no dimension, or N is above 2**31 - 1.
        TypeError: x is of another type.

    Not differentiable; vmap. Plain PyTorch (1-D): `torch.bincount(x[(x >= 0) & (x < bins)], minlength=bins)`
    """
    return torch.ops.tle.histogram(x, bins)
