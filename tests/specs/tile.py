"""Specs of extract_tile and insert_tile."""

import torch
from torch import Tensor

from tests.table import BF16, E4M3, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def _slices(index, shape):
    return tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))


def _extract(dtype):
    for layout, x in layouts(randn(8, 12, dtype=dtype)):
        yield Sample(f"8x12-{layout}", (x, [1, 2], [4, 3]))
    yield Sample("whole", (randn(4, 6, dtype=dtype), [0, 0], [4, 6]))
    yield Sample("one-element", (randn(4, 6, dtype=dtype), [3, 5], [1, 1]))
    yield Sample("1d", (randn(30, dtype=dtype), [4], [6]))
    yield Sample("3d", (randn(4, 6, 8, dtype=dtype), [1, 0, 3], [2, 3, 2]))
    yield Sample("0-d", (randn(dtype=dtype), [], []))
    yield Sample("4d", (randn(2, 4, 3, 8, dtype=dtype), [1, 1, 2, 0], [1, 2, 1, 4]))
    yield Sample("6d", (randn(2, 2, 2, 2, 2, 4, dtype=dtype), [1, 0, 1, 0, 1, 1], [1] * 5 + [2]))
    yield Sample("folded", (randn(4, 6, 8, dtype=dtype), [1, 0, 0], [2, 6, 8]))
    if dtype != F64:  # gradcheck does not perturb elements that share memory
        yield Sample("expanded", (randn(1, 6, dtype=dtype).expand(4, 6), [1, 1], [2, 3]))


def _insert(dtype):
    tile = randn(4, 3, dtype=dtype, seed=1)
    for layout, x in layouts(randn(8, 12, dtype=dtype)):
        yield Sample(f"8x12-{layout}", (x, tile, [1, 2]))
    yield Sample("tile-transposed", (randn(8, 12, dtype=dtype), randn(3, 4, dtype=dtype, seed=1).t(), [0, 3]))
    if dtype != F64:
        yield Sample("tile-expanded", (randn(8, 12, dtype=dtype), tile[:1].expand(4, 3), [0, 3]))
    yield Sample("whole", (randn(4, 3, dtype=dtype), tile, [0, 0]))
    yield Sample("1d", (randn(30, dtype=dtype), randn(6, dtype=dtype, seed=1), [4]))
    yield Sample("3d", (randn(4, 6, 8, dtype=dtype), randn(2, 3, 2, dtype=dtype, seed=1), [1, 0, 3]))
    yield Sample("0-d", (randn(dtype=dtype), randn(dtype=dtype, seed=1), []))
    yield Sample("4d", (randn(2, 4, 3, 8, dtype=dtype), randn(1, 2, 1, 4, dtype=dtype, seed=1), [1, 1, 2, 0]))
    tile_6d = randn(1, 1, 1, 1, 1, 2, dtype=dtype, seed=1)
    yield Sample("6d", (randn(2, 2, 2, 2, 2, 4, dtype=dtype), tile_6d, [1, 0, 1, 0, 1, 1]))
    yield Sample("folded", (randn(4, 6, 8, dtype=dtype), randn(2, 6, 8, dtype=dtype, seed=1), [1, 0, 0]))
    if dtype != F64:  # blocks outside the tile, inside it, and across its edge; gradcheck would take too long
        for N in (3000, 2050):
            yield Sample(f"12x{N}", (randn(12, N, dtype=dtype), randn(6, N // 2, dtype=dtype, seed=1), [1, 0]))


def _inserted(x: Tensor, tile: Tensor, index) -> Tensor:
    y = x.clone()
    y[_slices(index, tile.shape)] = tile
    return y


_X = randn(8, 12)
SPECS = [
    OpSpec(
        "extract_tile",
        _extract,
        FLOATS,
        plain=lambda x, index, shape: x[_slices(index, shape)],
        diff=(0,),
        exact=True,
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=(
            ("index-rank", (_X, [1], [4, 3])),
            ("shape-rank", (_X, [1, 1], [4])),
            ("no-multiple", (_X, [0, 0], [3, 3])),
            ("empty-tile", (_X, [0, 0], [0, 3])),
            ("outside", (_X, [2, 0], [4, 3])),
            ("negative", (_X, [0, -1], [4, 3])),
        ),
    ),
    OpSpec(
        "insert_tile",
        _insert,
        FLOATS,
        plain=_inserted,
        diff=(0, 1),
        exact=True,
        vmap=((0, 0), (1, 1), (0, None), (None, 0)),
        jvp=True,
        double_backward=True,
        errors=(
            ("dtype", (_X, randn(4, 3).half(), [0, 0])),
            ("float8-into-float", (_X, randn(4, 3).to(E4M3), [0, 0])),
            ("index-rank", (_X, randn(4, 3), [1])),
            ("tile-rank", (_X, randn(4), [1, 1])),
            ("no-multiple", (_X, randn(3, 3), [0, 0])),
            ("outside", (_X, randn(4, 3), [2, 0])),
            ("empty-tile", (_X, torch.zeros(4, 0), [0, 0])),
        ),
    ),
]
