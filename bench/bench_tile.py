"""Cases: a tile out of a tensor, and into one."""

from __future__ import annotations

import torch

from bench.harness import Case, tensor_bytes

BF16 = torch.bfloat16


def out_of(dtype, index, grid):
    """A tile of a tensor that is cut into grid[d] tiles along dimension d."""

    def inputs(shape, device):
        return (
            torch.randn(shape, dtype=dtype, device=device),
            list(index),
            [n // g for n, g in zip(shape, grid, strict=True)],
        )

    return inputs


def into(dtype, index, grid):
    def inputs(shape, device):
        tile = [n // g for n, g in zip(shape, grid, strict=True)]
        x, y = (torch.randn(s, dtype=dtype, device=device) for s in (shape, tile))
        return x, y, list(index)

    return inputs


def eager_extract(x, index, shape):
    return x[tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))].contiguous()


def eager_insert(x, tile, index):
    y = x.clone()
    y[tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, tile.shape, strict=True))] = tile
    return y


QUARTER = ((1, 1), (2, 2))
HEADS = ((3, 1, 2, 0), (4, 2, 4, 1))  # batch, sequence, heads, features
SHAPES = [
    ("a quarter of 8192x8192 float32", (8192, 8192), torch.float32, *QUARTER),
    ("a quarter of 8192x8192 bfloat16", (8192, 8192), BF16, *QUARTER),
    ("a quarter of 2048x2048 bfloat16", (2048, 2048), BF16, *QUARTER),
    ("a quarter of 8190x8190 float32", (8190, 8190), torch.float32, *QUARTER),  # rows not aligned
    ("4 of 16 heads, 8x2048x16x128 bfloat16", (8, 2048, 16, 128), BF16, *HEADS),
]
CASES = [
    case
    for name, shape, dtype, index, grid in SHAPES
    for case in (
        Case(
            "extract_tile",
            name,
            shape,
            out_of(dtype, index, grid),
            eager_extract,
            quick=shape == (8192, 8192),
            rowwise=False,
            nbytes=lambda args, tile: 2 * tensor_bytes(tile),
        ),
        Case(
            "insert_tile",
            name,
            shape,
            into(dtype, index, grid),
            eager_insert,
            quick=shape == (8192, 8192),
            rowwise=False,
            nbytes=lambda args, y: 2 * tensor_bytes(y),  # of x, the tile's part is not read
        ),
    )
]
