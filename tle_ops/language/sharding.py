"""tle.sharding and tle.make_sharded_tensor: how a tensor lies on a device mesh. Plain Python, and constants in kernels.

They describe; no code comes of them. `tle_ops.distributed` turns them into DTensor placements.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tle_ops.language.mesh import device_mesh, is_int, plain, shown


@dataclass(frozen=True)
class S:
    """Split: a dimension of the tensor is divided along a mesh axis."""

    axis: str


@dataclass(frozen=True)
class P:
    """Partial: along a mesh axis every member holds a summand."""

    axis: str


class _Broadcast:
    def __repr__(self) -> str:
        return "B"

    def __reduce__(self) -> str:  # copies and pickles are the same object
        return "B"


B = _Broadcast()  # a dimension that is divided along no mesh axis


class ShardingSpec:
    """How a tensor lies on a mesh.

    split: per dimension of the tensor the mesh axes that divide it: a name, a list of names (the first is the
        outermost), `S(name)`, or `B` or None for no axis.
    partial: the axes along which the tensor is a sum yet to be made: names or `P(name)`.

    Along any other axis every member holds a copy. Raises TypeError for entries of another type, ValueError for an axis
    that the mesh does not have or that is used twice.
    """

    __slots__ = ("broadcast", "mesh", "partial", "split")

    mesh: device_mesh
    split: tuple[tuple[str, ...], ...] | None  # axes per dimension
    partial: tuple[str, ...]  # in the order of the mesh
    broadcast: tuple[str, ...]

    def __init__(self, mesh: device_mesh, split: Sequence | None = None, partial: Sequence | None = None) -> None:
        mesh, split, partial = plain(mesh), plain(split), plain(partial)
        if not isinstance(mesh, device_mesh):
            raise TypeError(f"sharding: mesh must be a device_mesh, got {shown(mesh)}")
        if split is not None:
            split = tuple(_split_axes(entry) for entry in _sequence("split", split))
        partial = tuple(
            _axis("partial", P, entry) for entry in _sequence("partial", () if partial is None else partial)
        )
        used = [axis for axes in split or () for axis in axes]
        for what, axes in (("split", used), ("partial", partial)):
            for axis in axes:
                if axis not in mesh.dim_names:
                    raise ValueError(f"sharding: {what} must name axes of {mesh.dim_names}, got {axis!r}")
            if len(set(axes)) != len(axes):
                raise ValueError(f"sharding: {what} must use an axis once, got {tuple(axes)}")
        if both := sorted(set(used) & set(partial)):
            raise ValueError(f"sharding: an axis must be either split or partial, got both for {both}")
        found = (
            mesh,
            split,
            tuple(n for n in mesh.dim_names if n in partial),
            tuple(n for n in mesh.dim_names if n not in partial and n not in used),
        )
        for name, value in zip(("mesh", "split", "partial", "broadcast"), found, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"sharding: a spec does not change, got a new {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"sharding: a spec does not change, got a deleted {name}")

    def axis_state(self, axis: str) -> str:
        """ "S", "P" or "B"."""
        axis = plain(axis)
        if axis not in self.mesh.dim_names:
            raise ValueError(f"sharding: axis must be one of {self.mesh.dim_names}, got {axis!r}")
        return "P" if axis in self.partial else "B" if axis in self.broadcast else "S"

    def __repr__(self) -> str:
        return f"ShardingSpec({self.mesh!r}, split={self.split}, partial={self.partial})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardingSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return self.mesh, self.split, self.partial

    def __reduce__(self) -> tuple:
        return ShardingSpec, self._key()


class ShardedTensor(namedtuple("ShardedTensor", "handle sharding shape")):
    """A tensor with the way it lies on a mesh. Inside a kernel nothing but the checks is left of it: made of pointers,
    it is these pointers.

    handle: this member's part of it: a tensor, inside a kernel pointers.
    shape: of the whole tensor, a list of positive ints; of as many dimensions as sharding.split has.
    Raises TypeError for a handle that is neither and for a sharding that is no ShardingSpec, ValueError for a shape
    that does not fit.
    """

    __slots__ = ()

    def __new__(cls, handle: Any, sharding: ShardingSpec, shape: Sequence[int] | None = None) -> Any:
        handle, sharding, shape = plain(handle), plain(sharding), plain(shape)
        in_kernel = type(handle).__module__.startswith("triton.")
        if not (_is_pointer(handle) if in_kernel else _is_tensor(handle)):
            raise TypeError(
                f"make_sharded_tensor: handle must be a tensor, or pointers in a kernel, got {shown(handle)}"
            )
        if not isinstance(sharding, ShardingSpec):
            raise TypeError(f"make_sharded_tensor: sharding must be a ShardingSpec, got {shown(sharding)}")
        if shape is not None:
            if not isinstance(shape, tuple) or not all(is_int(n) for n in shape):
                raise TypeError(f"make_sharded_tensor: shape must be a list of ints, got {shown(shape)}")
            if any(n <= 0 for n in shape):
                raise ValueError(f"make_sharded_tensor: shape must be positive, got {list(shape)}")
            if sharding.split is not None and len(sharding.split) != len(shape):
                raise ValueError(
                    f"make_sharded_tensor: shape must have the {len(sharding.split)} dimensions of the sharding, "
                    f"got {list(shape)}"
                )
        if in_kernel:
            return handle
        return super().__new__(cls, handle, sharding, shape)


# Classes and not functions: inside a kernel Triton lets plain Python's classes be called.
sharding = ShardingSpec
make_sharded_tensor = ShardedTensor


def _is_tensor(handle: Any) -> bool:
    """Of whatever library."""
    return not isinstance(handle, type) and hasattr(handle, "shape") and hasattr(handle, "dtype")


def _is_pointer(handle: Any) -> bool:
    """A run-time value of a kernel, whose types Triton defines."""
    return hasattr(handle, "type") and getattr(handle.type, "scalar", None) is not None and handle.type.scalar.is_ptr()


def _sequence(name: str, value: Any) -> Sequence:
    if not isinstance(value, list | tuple):
        raise TypeError(f"sharding: {name} must be a list, got {shown(value)}")
    return value


def _split_axes(entry: Any) -> tuple[str, ...]:
    """The axes that divide one dimension."""
    if entry is None or entry is B:
        return ()
    if isinstance(entry, list | tuple):
        return tuple(_axis("split", S, axis) for axis in entry)
    return (_axis("split", S, entry),)


def _axis(what: str, marker: type, entry: Any) -> str:
    name = plain(entry.axis) if isinstance(entry, marker) else entry
    if not isinstance(name, str):
        raise TypeError(f"sharding: {what} must hold axis names or {marker.__name__}(name), got {shown(entry)}")
    if not name:
        raise ValueError(f"sharding: {what} must hold axis names, got an empty one")
    return name
