"""Contracts: extract_tile, insert_tile: a tensor as a grid of equal tiles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tle_ops._meta._contract import contract, dtype_name, require, require_same_device, shape_text


def _require_tile(
    op: str, x: Tensor, index: Sequence[int | torch.SymInt], shape: Sequence[int | torch.SymInt], name: str
) -> None:
    """`name` is how the op's user gave the tile's shape."""
    if len(shape) != x.dim():
        raise ValueError(f"{op}: {name} must have the {x.dim()} dimensions of x, got {shape_text(shape)}")
    if len(index) != x.dim():
        raise ValueError(f"{op}: index must have the {x.dim()} dimensions of x, got {list(index)}")
    for d in range(x.dim()):
        _require_tile_at(op, x, index, shape, name, d)


def _require_tile_at(
    op: str, x: Tensor, index: Sequence[int | torch.SymInt], shape: Sequence[int | torch.SymInt], name: str, d: int
) -> None:
    def outside() -> str:
        return f"{op}: index must be in [0, {N // T}) in dimension {d}, got {list(index)}"

    N, T, i = x.shape[d], shape[d], index[d]
    require(T >= 1, lambda: f"{op}: {name} must be positive in every dimension, got {shape_text(shape)}")
    require(
        N % T == 0, lambda: f"{op}: {name} must divide the shape of x, {shape_text(x.shape)}, got {shape_text(shape)}"
    )
    require(i >= 0, outside)
    require(i < N // T, outside)


@contract("extract_tile(Tensor x, SymInt[] index, SymInt[] shape) -> Tensor")
def extract_tile(x: Tensor, index: Sequence[int | torch.SymInt], shape: Sequence[int | torch.SymInt]) -> Tensor:
    _require_tile("extract_tile", x, index, shape, "shape")
    return torch.empty(tuple(shape), dtype=x.dtype, device=x.device)


@contract("insert_tile(Tensor x, Tensor tile, SymInt[] index) -> Tensor")
def insert_tile(x: Tensor, tile: Tensor, index: Sequence[int | torch.SymInt]) -> Tensor:
    if tile.dtype != x.dtype:
        raise TypeError(f"insert_tile: tile must be {dtype_name(x.dtype)}, as x, got {dtype_name(tile.dtype)}")
    require_same_device("insert_tile", "x", x, "tile", tile)
    _require_tile("insert_tile", x, index, tile.shape, "tile")
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def tile_slices(index: Sequence[int | torch.SymInt], shape: Sequence[int | torch.SymInt]) -> tuple[slice, ...]:
    """The elements of x that the tile at grid coordinate `index` covers."""
    return tuple(slice(i * T, (i + 1) * T) for i, T in zip(index, shape, strict=True))
