"""Tiles: a tensor seen as a grid of equal tiles, one of them read or replaced. TLE-Lite's tile ops on whole tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor


def extract_tile(x: Tensor, index: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The tile of x at a grid coordinate.

    Args:
        x: any dtype and strides; its sizes are multiples of the tile's.
        index: the tile's coordinate in the grid, one entry per dimension, counted in tiles.
        shape: of a tile, one entry per dimension.

    Returns:
        Contiguous tensor of that shape; it never aliases x.

    Raises:
        ValueError: index or shape has another length than x has dimensions, a size is no multiple of the tile's, or the
            index is outside the grid.

    Differentiable in x, forward mode and twice; vmap. Plain PyTorch (2-D):
    `x[i * T0 : (i + 1) * T0, j * T1 : (j + 1) * T1].clone()`
    """
    return torch.ops.tle.extract_tile(x, index, shape)


def insert_tile(x: Tensor, tile: Tensor, index: Sequence[int]) -> Tensor:
    """x with the tile at a grid coordinate replaced.

    Args:
        x: any dtype and strides; its sizes are multiples of the tile's.
        tile: of x's dtype, device and number of dimensions.
        index: the tile's coordinate in the grid, one entry per dimension, counted in tiles.

    Returns:
        Contiguous tensor of x's shape; x itself stays as it is.

    Raises:
        ValueError: as `extract_tile`, or the devices differ.
        TypeError: tile has another dtype than x.

    Differentiable in x and tile, forward mode and twice; vmap. Plain PyTorch (2-D):
    `y = x.clone(); y[i * T0 : (i + 1) * T0, j * T1 : (j + 1) * T1] = tile`
    """
    return torch.ops.tle.insert_tile(x, tile, index)
