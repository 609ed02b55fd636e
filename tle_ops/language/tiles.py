"""tle.extract_tile and tle.insert_tile: a block seen as a grid of equal tiles, one of them read or replaced.

Axis by axis, what is to be read is halved by `tl.split` until one tile is left, and what is to be replaced is chosen by
`tl.where`. Both keep every bit (a sum over a mask would lose -0.0), and both often need no more than registers, which
a gather never does.
"""

import triton
import triton.language as tl
from triton.runtime.jit import JITCallable

from tle_ops.language import _checks

_OUTSIDE = tl.constexpr("index outside the grid of tiles")
_IN_GLUON = tl.constexpr(", whose buffers have slice() and index()")


# --- compile-time arithmetic on shapes -------------------------------------------------------------------------------
@triton.constexpr_function
def _ints(shape):
    return (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)  # also of constexprs


@triton.constexpr_function
def _tile_shape(shape, tile_shape):
    given = tile_shape if shape is None else shape
    return _ints(given)


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
def _known(index, grid):
    """The coordinate along each axis, None where it is known at run time only."""
    out = []
    stride = 1
    for n in _ints(grid):
        stride *= n
    for d in range(len(_ints(grid))):
        stride //= _ints(grid)[d]
        i = index[d] if _is_list(index) else index
        i = i.value if isinstance(i, tl.constexpr) else i
        if not isinstance(i, int):
            out.append(None)
        else:
            out.append(i if _is_list(index) else i // stride % _ints(grid)[d])
    return tuple(out)


@triton.constexpr_function
def _around(shape, tile, d):
    """Of a block of which the axes before d are down to one tile: elements before the grid's axis d, tiles along it,
    elements after."""
    shape = _ints(shape)
    tile = _ints(tile)
    before = 1
    for n in tile[:d]:
        before *= n
    after = tile[d]
    for n in shape[d + 1 :]:
        after *= n
    return (before, shape[d] // tile[d], after)


@triton.constexpr_function
def _halved(shape):
    """[before, after, tiles] as [before, after, 2, 2, ..]."""
    shape = _ints(shape)
    out = [shape[0], shape[1]]
    tiles = shape[2]
    while tiles > 1:
        out.append(2)
        tiles //= 2
    return tuple(out)


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
def _at(values, d):
    return values[d]


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
        at = index[d]
        tl.device_assert((at >= 0) & (at < _at(grid, d)), _OUTSIDE)
    else:
        at = index // _row_major_stride(grid, d)
        if d == 0:  # not reduced by the grid: outside it is no tile's coordinate
            tl.device_assert((index >= 0) & (at < _at(grid, d)), _OUTSIDE)
        else:
            at = at % _at(grid, d)
    return at


@triton.jit
def _one_of(y, coordinate, known: tl.constexpr):
    """y[:, coordinate] of y [before, tiles, after]; `known` is the coordinate, or None until run time."""
    y = tl.permute(y, (0, 2, 1))
    y = tl.reshape(y, _halved(y.shape))
    for k in tl.static_range(len(y.shape) - 2):
        even, odd = tl.split(y)
        if known is None:
            y = tl.where((coordinate >> k) % 2 != 0, odd, even)
        elif known // 2**k % 2:
            y = odd
        else:
            y = even
    return y


@triton.jit
def extract_tile(x, index, shape: tl.constexpr = None, tile_shape: tl.constexpr = None):
    """The tile of a block at a grid coordinate.

    x: a block of any rank.
    index: the coordinate, counted in tiles: a list of ints and run-time scalars, or one int or scalar, row-major.
    shape, tile_shape: of a tile, compile-time ints that divide the block; two names for one thing.

    What is known at compile time is checked then (ValueError, TypeError), a run-time index in debug mode.
    """
    _checks.triton_only("extract_tile", _IN_GLUON)
    _checks.block("extract_tile", "x", x)
    _checks.tile_shape("extract_tile", shape, tile_shape)
    _checks.tile_index("extract_tile", index)
    tile: tl.constexpr = _tile_shape(shape, tile_shape)
    grid: tl.constexpr = _grid("extract_tile", x.shape, tile, index)
    known: tl.constexpr = _known(index, grid)
    y = x
    for d in tl.static_range(_rank(tile)):
        y = tl.reshape(y, _around(x.shape, tile, d))
        y = _one_of(y, _coordinate(index, grid, d), _at(known, d))
    return tl.reshape(y, tile)


@triton.jit
def insert_tile(x, tile, index):
    """The block x with the tile at a grid coordinate replaced. `index` and checks as in `extract_tile`; the tile has
    the dtype of x."""
    _checks.triton_only("insert_tile", _IN_GLUON)
    _checks.block("insert_tile", "x", x)
    _checks.block("insert_tile", "tile", tile)
    _checks.same_dtype("insert_tile", x, tile)
    _checks.tile_index("insert_tile", index)
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
