"""tle.device_mesh: the processes and blocks that run a kernel, as a grid with named axes. Plain Python.

A mesh is a constant to Triton, which tells constants apart by their text: `repr` names all that `==` compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

PROCESS, CLUSTER, BLOCK = "process", "cluster", "block"
MEMBERS = 1 << 24  # a mesh names each of them


def kind_of(name: str) -> str:
    """What the members along a level (or an axis) are: "block_cluster" -> cluster, "block" -> block, else processes."""
    return CLUSTER if "cluster" in name else BLOCK if "block" in name else PROCESS


def plain(value: Any) -> Any:
    """Inside a kernel, constants, tuples and slices arrive in wrappers of Triton's."""
    wrapper = type(value).__name__ if type(value).__module__.startswith("triton.language") else None
    if wrapper == "constexpr":
        return plain(value.value)
    if wrapper == "tuple":
        return tuple(plain(v) for v in value)
    if wrapper == "slice" or isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    return tuple(plain(v) for v in value) if isinstance(value, list | tuple) else value


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """In a message: what is known at compile time as it is, what is not by its type."""
    value = plain(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    if type(value).__module__.partition(".")[0] == "torch" and isinstance(getattr(value, "shape", None), tuple):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    kind = getattr(value, "type", None) if type(value).__module__.startswith(("triton.", "tle_ops.")) else None
    if kind is None or type(kind).__name__ == "constexpr_type":
        return repr(value)
    if not hasattr(kind, "scalar") and not hasattr(value, "slice"):
        return f"a run-time value ({kind})"
    shape = [int(n) for n in value.shape]
    what = "a shared-memory buffer" if hasattr(value, "slice") else "a run-time value"
    return f"{what} ({value.dtype}{f' {shape}' if shape else ''})"


class device_mesh:
    """The grid of everything that takes part in a launch.

    topology: level -> size, or level -> [(axis, size), ...], from the outermost level to the innermost. A level whose
        name contains "cluster" or "block" counts program blocks of one device; any other counts processes, one per
        device.

    >>> mesh = device_mesh({"node": [("node_x", 2), ("node_y", 2)], "device": 4})
    >>> mesh
    DeviceMesh(shape=(2, 2, 4), names=('node_x', 'node_y', 'device'))
    >>> mesh[1, :, 2].physical_ids
    (10, 14)

    Slices and reshapes are meshes too: views that remember the whole, the `launch_*` properties.
    Raises TypeError or ValueError for a topology, IndexError for an index, that makes no sense.
    """

    __slots__ = ("_ids", "_kinds", "_launch", "_names", "_shape")

    def __init__(self, topology: Mapping[str, int | Sequence[tuple[str, int]]]) -> None:
        axes = list(_axes(topology))
        names = tuple(name for name, _, _ in axes)
        if len(set(names)) != len(names):
            raise ValueError(f"device_mesh: axis names must be unique, got {names}")
        shape, kinds = tuple(size for _, size, _ in axes), tuple(kind for _, _, kind in axes)
        if prod(shape) > MEMBERS:
            raise ValueError(f"device_mesh: a mesh must have at most {MEMBERS} members, got {prod(shape)}")
        self._set(shape, names, kinds, tuple(range(prod(shape))), (shape, names, kinds))

    def _set(self, shape: tuple, names: tuple, kinds: tuple, ids: tuple, launch: tuple) -> None:
        self._shape, self._names, self._kinds, self._ids, self._launch = shape, names, kinds, ids, launch

    def _view(self, shape: tuple, names: tuple, kinds: tuple, ids: tuple) -> device_mesh:
        mesh = object.__new__(device_mesh)
        mesh._set(shape, names, kinds, ids, self._launch)
        return mesh

    # --- what it is --------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return len(self._ids)

    @property
    def dim_names(self) -> tuple[str, ...]:
        return self._names

    @property
    def dim_kinds(self) -> tuple[str | None, ...]:
        """Per axis "process", "cluster" or "block"; None for an axis that a reshape made of processes and blocks."""
        return self._kinds

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """Of the members, row-major; in the whole mesh 0 .. N-1."""
        return self._ids

    @property
    def launch_shape(self) -> tuple[int, ...]:
        return self._launch[0]

    @property
    def launch_dim_names(self) -> tuple[str, ...]:
        return self._launch[1]

    @property
    def launch_dim_kinds(self) -> tuple[str, ...]:
        return self._launch[2]

    def launch_size(self, *kinds: str) -> int:
        """Members of the whole mesh along the axes of these kinds: its processes, or its blocks per process."""
        return prod(n for n, kind in zip(self.launch_shape, self.launch_dim_kinds, strict=True) if kind in kinds)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The processes with a member here, numbered row-major over the process axes of the whole mesh."""
        return self._distinct(PROCESS)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks with a member here, numbered row-major over the cluster and block axes of the whole mesh."""
        return self._distinct(CLUSTER, BLOCK)

    def _distinct(self, *kinds: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._part(i, *kinds) for i in self._ids))

    def _part(self, physical_id: int, *kinds: str) -> int:
        """The number of a member among the axes of these kinds."""
        linear, stride = 0, 1
        for n, kind in zip(reversed(self.launch_shape), reversed(self.launch_dim_kinds), strict=True):
            physical_id, coordinate = divmod(physical_id, n)
            if kind in kinds:
                linear, stride = linear + coordinate * stride, stride * n
        return linear

    def coordinate_of(self, rank: int) -> tuple[int, ...]:
        """The process `rank` along the process axes of the whole mesh."""
        sizes = [n for n, kind in zip(self.launch_shape, self.launch_dim_kinds, strict=True) if kind == PROCESS]
        if not is_int(rank):
            raise TypeError(f"device_mesh: rank must be an int, got {shown(rank)}")
        if not 0 <= rank < prod(sizes):
            raise ValueError(f"device_mesh: rank must be in [0, {prod(sizes)}), got {rank}")
        coordinate = []
        for n in reversed(sizes):
            rank, c = divmod(rank, n)
            coordinate.append(c)
        return tuple(reversed(coordinate))

    @property
    def process_shape(self) -> tuple[int, ...]:
        """Sizes of this mesh's process axes: the grid in which a shard has its coordinates."""
        if None in self._kinds:
            raise ValueError(f"device_mesh: an axis of {self!r} mixes processes and blocks")
        return tuple(n for n, kind in zip(self._shape, self._kinds, strict=True) if kind == PROCESS)

    def launch_place(self, axis: str | int, *, has_context: bool) -> tuple[str, int, int]:
        """Kind, size and stride of an axis of the whole mesh among the axes of processes, or among those of blocks."""
        names, shape, kinds = self.launch_dim_names, self.launch_shape, self.launch_dim_kinds
        if isinstance(axis, str):
            if axis not in names:
                raise ValueError(f"shard_id: axis must be one of {names}, got {axis!r}")
            axis = names.index(axis)
        if not is_int(axis):
            raise TypeError(f"shard_id: axis must be a name or an int, got {shown(axis)}")
        if not -len(names) <= axis < len(names):
            raise IndexError(f"shard_id: axis must be in [{-len(names)}, {len(names)}), got {axis}")
        axis %= len(names)
        if names[axis] in self._names and not self._keeps(axis):
            raise ValueError(
                f"shard_id: axis {names[axis]!r} must be that of the whole mesh, got a reshape's, {self!r}"
            )
        kind = kinds[axis]
        if kind == PROCESS and not has_context:
            raise ValueError(f"shard_id: context must be given for {names[axis]!r}, an axis of processes, got None")
        alike = (PROCESS,) if kind == PROCESS else (CLUSTER, BLOCK)
        return (
            kind,
            shape[axis],
            prod(n for n, k in zip(shape[axis + 1 :], kinds[axis + 1 :], strict=True) if k in alike),
        )

    def _keeps(self, axis: int) -> bool:
        """Whether the axis here that has the name of an axis of the whole mesh has (some of) its members, as after
        slices. A reshape leaves names, and what they name is another matter."""
        sizes = self.launch_shape
        inner, d = prod(sizes[axis + 1 :]), self._names.index(self.launch_dim_names[axis])
        line = [self._ids[i * prod(self._shape[d + 1 :])] for i in range(self._shape[d])]
        beside = {(i // (inner * sizes[axis]), i % inner) for i in line}
        return len(beside) == 1 and len({i // inner % sizes[axis] for i in self._ids}) == self._shape[d]

    def rank_of(self, shard_id: int | Sequence[int], op: str = "device_mesh") -> int:
        """The process of a shard: coordinates along the process axes of this mesh, or their row-major number."""
        shape = self.process_shape
        coordinates = (shard_id,) if is_int(shard_id) else plain(shard_id)
        bounds = (prod(shape),) if is_int(shard_id) else shape
        if not isinstance(coordinates, tuple) or not all(is_int(c) for c in coordinates):
            raise TypeError(f"{op}: shard_id must be an int or a tuple of ints, got {shard_id!r}")
        if len(coordinates) != len(bounds):
            raise ValueError(f"{op}: shard_id must have the {len(bounds)} process axes of {self!r}, got {shard_id}")
        linear = 0
        for c, n in zip(coordinates, bounds, strict=True):
            if not 0 <= c < n:
                raise ValueError(f"{op}: shard_id must be within {bounds}, got {shard_id}")
            linear = linear * n + c
        return self._ranks_in_order()[linear]

    def _ranks_in_order(self) -> tuple[int, ...]:
        """The process of every coordinate along the process axes."""
        first = [range(n) if kind == PROCESS else (0,) for n, kind in zip(self._shape, self._kinds, strict=True)]
        return tuple(self._part(self._ids[self._linear(c)], PROCESS) for c in product(*first))

    def affine_ranks(self) -> tuple[int, tuple[int, ...]]:
        """(offset, strides) with rank = offset + sum(coordinate * stride) over the process axes: what a kernel needs to
        find a shard whose coordinates it learns at run time. ValueError if a reshape of a slice broke that form."""
        shape, ranks = self.process_shape, self._ranks_in_order()
        steps = [prod(shape[d + 1 :]) for d in range(len(shape))]
        strides = tuple(ranks[s] - ranks[0] if n > 1 else 0 for n, s in zip(shape, steps, strict=True))
        for c, rank in zip(product(*map(range, shape)), ranks, strict=True):
            if rank != ranks[0] + sum(i * s for i, s in zip(c, strides, strict=True)):
                raise ValueError(f"device_mesh: the ranks of {self!r} are not evenly spaced along its axes")
        return ranks[0], strides

    def __repr__(self) -> str:
        text = _text(*self._launch)
        if (self._shape, self._names, self._kinds, self.size) != (*self._launch, prod(self.launch_shape)):
            text = f"{_text(self._shape, self._names, self._kinds)[:-1]}, ids={self._ids}, launch={text})"
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device_mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return self._shape, self._names, self._kinds, self._ids, self._launch

    # --- views -------------------------------------------------------------------------------------------------------
    def reshape(self, *shape: int | Sequence[int]) -> device_mesh:
        """The same members in another shape; no size is worked out (-1). Axes keep their names if their number stays,
        else they are called "flat" (a single one) or "dim0", "dim1", ..."""
        sizes = plain(shape[0] if len(shape) == 1 and isinstance(plain(shape[0]), tuple) else shape)
        if not all(map(is_int, sizes)):
            raise TypeError(f"device_mesh: reshape must be to ints, got {shown(sizes)}")
        if not sizes or any(n <= 0 for n in sizes) or prod(sizes) != self.size:
            raise ValueError(f"device_mesh: reshape of {self.size} members must have as many, got {sizes}")
        if len(sizes) == self.ndim:
            names = self._names
        else:
            names = ("flat",) if len(sizes) == 1 else tuple(f"dim{i}" for i in range(len(sizes)))
        kinds = _kinds_after(self._shape, self._kinds or self.launch_dim_kinds, sizes)
        return self._view(sizes, names, kinds, self._ids)

    def flatten(self) -> device_mesh:
        """One axis, "flat": the order of a ring."""
        return self.reshape(self.size)

    def __getitem__(self, key: Any) -> device_mesh:
        """The sub-mesh at ints, which drop their axis, and slices, which keep it; one ellipsis; the rest is whole."""
        key = plain(key)
        key = key if isinstance(key, tuple) else (key,)
        if sum(k is Ellipsis for k in key) > 1:
            raise IndexError("device_mesh: at most one ellipsis is allowed")
        missing = self.ndim - sum(k is not Ellipsis for k in key)
        if missing < 0:
            raise IndexError(f"device_mesh: at most {self.ndim} indices are allowed, got {self.ndim - missing}")
        at = next((i for i, k in enumerate(key) if k is Ellipsis), len(key))
        key = (*key[:at], *[slice(None)] * missing, *key[at + 1 :])
        picked = [_picked(k, n) for k, n in zip(key, self._shape, strict=True)]
        kept = [isinstance(k, slice) for k in key]

        def keep(values: Sequence) -> tuple:
            return tuple(v for v, k in zip(values, kept, strict=True) if k)

        ids = tuple(self._ids[self._linear(c)] for c in product(*picked))
        return self._view(keep([len(p) for p in picked]), keep(self._names), keep(self._kinds), ids)

    def _linear(self, coordinate: Sequence[int]) -> int:
        linear = 0
        for i, n in zip(coordinate, self._shape, strict=True):
            linear = linear * n + i
        return linear


class Shard:
    """Where `tle.remote` looks, as far as it is known at compile time.

    rank: of the process, or None if that is known at run time only; then it is `offset` plus the sum of coordinate *
        stride, where a coordinate is below its bound. linear: the shard is given as one number, not by coordinates.
    """

    def __init__(self, shard_id: Any, scope: device_mesh | None) -> None:
        shard_id, scope = plain(shard_id), plain(scope)
        if scope is not None and not isinstance(scope, device_mesh):
            raise TypeError(f"remote: scope must be a device_mesh, got {shown(scope)}")
        self.linear = not isinstance(shard_id, tuple)
        if scope is None and not self.linear:
            raise ValueError("remote: scope must be given for a shard_id of coordinates, got None")
        self.bounds = () if scope is None else scope.process_shape
        if not self.linear and len(shard_id) != len(self.bounds):
            raise ValueError(
                f"remote: shard_id must have the {len(self.bounds)} process axes of {scope!r}, got {len(shard_id)}"
            )
        known = is_int(shard_id) if self.linear else all(is_int(c) for c in shard_id)
        self.rank = self.offset = self.strides = None
        if known and scope is None:
            self.rank = shard_id
            if shard_id < 0:
                raise ValueError(f"remote: shard_id must be >= 0, got {shard_id}")
        elif known:
            self.rank = scope.rank_of(shard_id, "remote")
        elif scope is not None:
            for c, n in () if self.linear else zip(shard_id, self.bounds, strict=True):
                if is_int(c) and not 0 <= c < n:
                    raise ValueError(f"remote: shard_id must be within {self.bounds}, got {c}")
            self.offset, self.strides = scope.affine_ranks()

    def __repr__(self) -> str:  # a constant to Triton: see above
        return f"Shard{self._key()}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return self.rank, self.linear, self.bounds, self.offset, self.strides


def _axes(topology: Any) -> Iterator[tuple[str, int, str]]:
    """(name, size, kind) of every axis, checked."""
    topology = plain(topology)
    if not isinstance(topology, Mapping):
        raise TypeError(f"device_mesh: topology must be a mapping of levels, got {shown(topology)}")
    if not topology:
        raise ValueError("device_mesh: topology must have a level, got none")
    for level, axes in topology.items():
        if not isinstance(level, str) or not level:
            raise ValueError(f"device_mesh: a level must have a name, got {level!r}")
        if is_int(axes):
            axes = [(level, axes)]
        if not isinstance(axes, list | tuple):
            raise TypeError(f"device_mesh: level {level!r} must be an int or a list of (axis, size), got {axes!r}")
        if not axes:
            raise ValueError(f"device_mesh: level {level!r} must have an axis, got none")
        for axis in axes:
            if not isinstance(axis, list | tuple) or len(axis) != 2 or not isinstance(axis[0], str) or not axis[0]:
                raise ValueError(f"device_mesh: an axis of level {level!r} must be (name, size), got {axis!r}")
            name, size = axis
            if not is_int(size):
                raise TypeError(f"device_mesh: the size of axis {name!r} must be an int, got {size!r}")
            if size <= 0:
                raise ValueError(f"device_mesh: the size of axis {name!r} must be positive, got {size}")
            yield name, size, kind_of(level)


def _text(shape: tuple, names: tuple, kinds: tuple) -> str:
    known = tuple(kind_of(name) for name in names)
    return f"DeviceMesh(shape={shape}, names={names}{'' if kinds == known else f', kinds={kinds}'})"


def _picked(key: Any, size: int) -> Sequence[int]:
    if isinstance(key, slice):
        if any(k is not None and not is_int(k) for k in (key.start, key.stop, key.step)):
            raise TypeError(f"device_mesh: a slice must be of ints, got {key}")
        if key.step == 0:
            raise ValueError(f"device_mesh: the step of a slice must not be 0, got {key}")
        picked = range(*key.indices(size))
        if not picked:
            raise ValueError(f"device_mesh: a sub-mesh must have members, got none of {size} by {key}")
        return picked
    if not is_int(key):
        raise TypeError(f"device_mesh: an index must be an int, a slice or an ellipsis, got {key!r}")
    if not -size <= key < size:
        raise IndexError(f"device_mesh: index must be in [{-size}, {size}), got {key}")
    return (key % size,)


def _kinds_after(old: tuple, kinds: tuple, new: tuple) -> tuple:
    """The kind of each axis after a reshape: that of the old axes whose members it takes; clusters and blocks together
    are blocks, processes and blocks have no kind."""
    if old == new:
        return kinds
    found = []
    for d in range(len(new)):
        inner, outer = prod(new[d + 1 :]), prod(new[d:])  # the axis tells members apart at strides [inner, outer)
        met = {kinds[e] for e, n in enumerate(old) if n > 1 and prod(old[e + 1 :]) < outer and prod(old[e:]) > inner}
        met = met if new[d] > 1 else {kinds[0]}
        found.append(met.pop() if len(met) == 1 else None if PROCESS in met else BLOCK)
    return tuple(found)
