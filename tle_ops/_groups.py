"""Cutting a tensor into quantization groups and putting it together again, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tle_ops._meta import FP8_MAX, num_groups


def split(x: Tensor, dim: int, group_size: int) -> Tensor:
    """[.., n, ..] -> [.., groups, group_size, ..], the last group filled up with zeros, which change no amax and no
    sum."""
    n = x.shape[dim]
    size = max(n if group_size == -1 else min(group_size, n), 1)  # a group longer than x is x
    groups = num_groups(n, group_size)
    short = groups * size - n
    if short:
        fill = [0, 0] * (x.dim() - 1 - dim % x.dim()) + [0, short]
        x = F.pad(x.view(torch.uint8), fill).view(x.dtype) if x.dtype in FP8_MAX else F.pad(x, fill)
    dim %= x.dim()
    return x.reshape(*x.shape[:dim], groups, size, *x.shape[dim + 1 :])


def join(groups: Tensor, dim: int, n: int) -> Tensor:
    """The inverse of `split`: `dim` counts in the result, n is its size there."""
    start = dim % (groups.dim() - 1)
    return groups.flatten(start, start + 1).narrow(start, 0, n).contiguous()


def split_blocks(x: Tensor, block_size: int) -> Tensor:
    """[.., M, N] -> [.., block rows, b, block columns, b]"""
    return split(split(x, -2, block_size), -1, block_size)


def join_blocks(blocks: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `split_blocks`, for x of `shape`."""
    return join(join(blocks, -1, shape[-1]), -2, shape[-2])


def rows(x: Tensor) -> Tensor:
    """[.., N] -> [M, N], also where a size is 0 and -1 would be ambiguous"""
    M = 1
    for size in x.shape[:-1]:
        M = M * size
    return x.reshape(M, x.shape[-1])
