"""tle.extract_tile and tle.insert_tile: a block seen as a grid of equal tiles, one of them read or replaced.

A block [M, N] cut into tiles [T0, T1] is reshaped to [M / T0, T0, N / T1, T1]. One step along a tile axis is picked
with `tl.gather`, which keeps every bit (a sum over a mask would lose -0.0), and written with `tl.where`, for which the
block itself never moves.
"""

import triton
import triton.language as tl
from triton.runtime.jit import JITCallable


# --- compile-time arithmetic on shapes -------------------------------------------------------------------------------
@triton.constexpr_function
def _ints(shape):
    return (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)


@triton.constexpr_function
def _tile_shape(shape, tile_shape):
    if (shape is None) == (tile_shape is None):
        raise ValueError("extract_tile: one of shape and tile_shape must be given")
    return _ints(tile_shape if shape is None else shape)


@triton.constexpr_function
def _is_list(index):
    return isinstance(index, (tuple, list, tl.tuple))


@triton.constexpr_function
def _grid(op, shape, tile, index):
    """Tiles along each axis, once everything that is known now is checked."""
    shape = _ints(shape)
    tile = _ints(tile)
    if len(tile) != len(shape):
        raise ValueError(f"{op}: tile must have the {len(shape)} dimensions of the block, got {len(tile)}")
    grid = []
    for d in range(len(shape)):
        if tile[d] <= 0 or shape[d] % tile[d]:
            raise ValueError(f"{op}: tile must divide the block, got {list(tile)} and {list(shape)}")
        grid.append(shape[d] // tile[d])
    tiles = 1
    for n in grid:
        tiles *= n
    linear = not _is_list(index)
    if not linear and len(index) != len(shape):
        raise ValueError(f"{op}: index must have the {len(shape)} dimensions of the block, got {len(index)}")
    bounds = [tiles] if linear else grid
    entries = [index] if linear else list(index)
    for d in range(len(bounds)):
        i = entries[d]
        i = i.value if isinstance(i, tl.constexpr) else i
        if isinstance(i, int) and not 0 <= i < bounds[d]:
            raise ValueError(f"{op}: index must be in [0, {bounds[d]}), got {i}")
    return tuple(grid)


@triton.constexpr_function
def _interleaved(grid, tile):
    out = []
    for d in range(len(_ints(grid))):
        out += [_ints(grid)[d], _ints(tile)[d]]
    return tuple(out)


@triton.constexpr_function
def _ones_but(shape, axis, n):
    """All ones with `n` at `axis`; `shape` gives the rank."""
    return tuple(n if d == axis else 1 for d in range(len(_ints(shape))))


@triton.constexpr_function
def _replaced(shape, axis, n):
    return tuple(n if d == axis else _ints(shape)[d] for d in range(len(_ints(shape))))


@triton.constexpr_function
def _at(shape, d):
    return _ints(shape)[d]


@triton.constexpr_function
def _rank(shape):
    return len(_ints(shape))


@triton.constexpr_function
def _row_major_stride(grid, d):
    stride = 1
    for n in _ints(grid)[d + 1 :]:
        stride *= n
    return stride


# --- device functions ------------------------------------------------------------------------------------------------
@triton.jit
def _coordinate(index, grid: tl.constexpr, d: tl.constexpr):
    """Along axis d, from a list of coordinates or from a linear, row-major index."""
    if _is_list(index):
        return index[d]
    else:
        return (index // _row_major_stride(grid, d)) % _at(grid, d)


@triton.jit
def _pick(x, axis: tl.constexpr, coordinate):
    """x[.., coordinate, ..] along `axis`, which stays with size 1."""
    at = tl.full(_replaced(x.shape, axis, 1), 0, tl.int32) + coordinate
    return tl.gather(x, at, axis)


@triton.jit
def extract_tile(x, index, shape: tl.constexpr = None, tile_shape: tl.constexpr = None):
    """The tile of a block at a grid coordinate.

    x: a block of any rank.
    index: the coordinate, counted in tiles: a list of ints and run-time scalars, or one int or scalar, row-major.
    shape, tile_shape: of a tile, compile-time ints that divide the block; two names for one thing.

    What is known at compile time is checked then (ValueError). A run-time index is not checked.
    """
    tile: tl.constexpr = _tile_shape(shape, tile_shape)
    grid: tl.constexpr = _grid("extract_tile", x.shape, tile, index)
    y = tl.reshape(x, _interleaved(grid, tile))
    for d in tl.static_range(_rank(tile)):
        y = _pick(y, 2 * d, _coordinate(index, grid, d))
    return tl.reshape(y, tile)


@triton.jit
def insert_tile(x, tile, index):
    """The block x with the tile at a grid coordinate replaced. `index` and checks as in `extract_tile`; the tile has
    the dtype of x."""
    tl.static_assert(x.dtype == tile.dtype, "insert_tile: tile must have the dtype of the block")
    grid: tl.constexpr = _grid("insert_tile", x.shape, tile.shape, index)
    rank: tl.constexpr = _rank(tile.shape)
    once: tl.constexpr = _interleaved(_ones_but(grid, 0, 1), tile.shape)  # (1, T0, 1, T1)
    everywhere = tl.broadcast_to(tl.reshape(tile, once), _interleaved(grid, tile.shape))
    everywhere = tl.reshape(everywhere, x.shape)  # the tile, in every place of the grid
    here = tl.full(_ones_but(grid, 0, 1), 1, tl.int1)
    for d in tl.static_range(rank):
        place = tl.arange(0, _at(x.shape, d)) // _at(tile.shape, d)
        place = tl.reshape(place, _ones_but(grid, d, _at(x.shape, d)))
        here = here & (place == _coordinate(index, grid, d))
    return tl.where(tl.broadcast_to(here, x.shape), everywhere, x)


def bind_methods() -> None:
    """Allow `x.extract_tile(index=[0, 0], shape=[2, 2])` and `x.insert_tile(y, index=[0, 0])` in kernels. It sets
    attributes on Triton's own tensor class, and so is never done by an import."""
    for name, function in (("extract_tile", extract_tile), ("insert_tile", insert_tile)):
        # The compiler binds JIT functions to their object; the interpreter needs a plain function for that.
        setattr(tl.tensor, name, function if isinstance(function, JITCallable) else _as_method(function))


def _as_method(function):
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)
