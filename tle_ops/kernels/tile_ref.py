"""Tiles of a tensor in plain PyTorch: the definition, and the CPU kernel."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tle_ops._meta import tile_slices


def extract_tile(x: Tensor, index: Sequence[int], shape: Sequence[int]) -> Tensor:
    return x[tile_slices(index, shape)].clone(memory_format=torch.contiguous_format)


def insert_tile(x: Tensor, tile: Tensor, index: Sequence[int]) -> Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    y[tile_slices(index, tile.shape)] = tile
    return y
