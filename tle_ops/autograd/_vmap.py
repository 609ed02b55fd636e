"""The two vmap rules that fit most ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def leading(op: str, outputs: int = 1, whole: tuple[int, ...] = ()) -> Callable:
    """For ops that treat leading dimensions as a batch already: the new one becomes the first.

    whole: positions of tensors without leading dimensions (a norm's weight). While they have no batch they pass as they
    are; if one has a batch, every sample is a call of its own, which keeps its bits.
    """
    by_sample = loop(op, outputs)

    def rule(info, in_dims, *args):
        if any(in_dims[i] is not None for i in whole if i < len(in_dims)):
            return by_sample(info, in_dims, *args)
        batched = [
            a if i in whole or not isinstance(a, Tensor) else front(info, d, a)
            for i, (a, d) in enumerate(zip(args, in_dims, strict=True))
        ]
        return getattr(torch.ops.tle, op)(*batched), (0,) * outputs if outputs > 1 else 0

    return rule


def loop(op: str, outputs: int = 1) -> Callable:
    """One call per sample: for ops that reduce over the leading dimensions."""

    def rule(info, in_dims, *args):
        call = getattr(torch.ops.tle, op)
        samples = [
            call(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if outputs == 1:
            return torch.stack(samples), 0
        return tuple(map(torch.stack, zip(*samples, strict=True))), (0,) * outputs

    return rule


def front(info: Any, dim: int | None, t: Tensor) -> Tensor:
    """t with the batch as its first dimension."""
    return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
