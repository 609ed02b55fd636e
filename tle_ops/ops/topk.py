"""Selection of the greatest elements: exact, stable and deterministic.

One order holds everywhere: numbers as numbers, every NaN (of either sign) greater than +inf, -0.0 equal to 0.0, and of
equal elements the one with the lower index first. So each result is the first k of a stable sort: there is one right
answer, and the CPU and CUDA give it on every call.
"""

import torch
from torch import Tensor


def topk(x: Tensor, k: int, dim: int = -1, *, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The k greatest (or least) elements along a dimension, and where they are.

    Args:
        x: at least one dimension, any strides; float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or
            int64.
        k: how many, from 0 to the size of the dimension.
        dim: the dimension to select along.
        largest: the greatest; False: the least, where a NaN comes last.
        sorted: in order of value, ties by index; False: in order of index.

    Returns:
        values: x's shape with k at dim, contiguous; the very bits of x.
        indices: int64, of the same shape.

    Raises:
        ValueError: k is negative or above the size, x has no dimension dim.
        TypeError: x is of another type.

    Differentiable in x through values, forward mode and twice; vmap. Plain PyTorch:

        values, indices = x.sort(dim=dim, descending=largest, stable=True)
        values, indices = values.narrow(dim, 0, k), indices.narrow(dim, 0, k)

    up to the sign bits of NaNs, which that sort may heed on CUDA; `torch.topk` itself leaves ties in any order.
    """
    return torch.ops.tle.topk(x, k, dim, largest, sorted)


def topk_selector(scores: Tensor, k: int, starts: Tensor | None = None, ends: Tensor | None = None) -> Tensor:
    """The columns of the k greatest scores inside a window of each row: the index selection of sparse attention.

    Args:
        scores: [.., N], any strides; types as in `topk`.
        k: how many; may exceed N.
        starts, ends: [..] int32 or int64: row b selects from columns [starts[b], ends[b]), clamped to [0, N]. None:
            0 and N. A window that is empty or reversed selects nothing. They are read on the device: a CUDA graph may
            be replayed with other windows.

    Returns:
        [.., k] int32: the chosen columns (counted from the start of the row, not of the window) in ascending order,
        then -1 where a window has fewer than k columns. The same set as `topk` of the window.

    Raises:
        ValueError: k is negative; starts or ends has another shape or device; N is above 2**31 - 1.
        TypeError: scores, starts or ends is of another type.

    Not differentiable; vmap. Plain PyTorch, one row:
    `scores[start:end].sort(descending=True, stable=True).indices[:k].sort().values + start`

    The operator of DeepSeek-V3.2's lightning indexer (DeepSeek Sparse Attention).
    """
    return torch.ops.tle.topk_selector(scores, k, starts, ends)


def topk_gate(
    logits: Tensor,
    k: int,
    *,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Choose k experts for each token, and their weights: the router of a mixture of experts.

    Args:
        logits: [.., E], any strides; float32, bfloat16, float16 or float64.
        k: experts per token, from 1 to the experts of topk_groups groups.
        scoring: "softmax" or "sigmoid", computed in float32.
        bias: [E] float, added to the scores for the choice alone, not for the weights.
        num_groups: the experts form so many equal groups of neighbours; must divide E.
        topk_groups: only the experts of the best so many groups can be chosen. A group is as good as the sum of its two
            best scores (with bias).
        renormalize: divide the weights of a token by their sum (plus 1e-20).
        scale: factor on the weights.

    Returns:
        weights: [.., k] float32, best expert first.
        indices: [.., k] int32, distinct in every row, rows with NaN included.

    Raises:
        ValueError: k, scoring, num_groups or topk_groups is outside its range, or bias has another shape or device.
        TypeError: logits or bias is no float.

    Order and ties as in `topk`. Without a bias the experts of a row are compared by their logits, which have the order
    of the scores but not the ties that rounding makes in them. Differentiable in logits through weights; vmap.
    Plain PyTorch (one group):

        scores = logits.float().softmax(-1)
        indices = (scores + bias).sort(dim=-1, descending=True, stable=True).indices[..., :k]
        weights = scores.gather(-1, indices)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale

    The router of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2).
    """
    return torch.ops.tle.topk_gate(logits, k, scoring, bias, num_groups, topk_groups, renormalize, scale)
