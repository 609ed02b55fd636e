"""The mesh of TLE on torch.distributed: its process axes are a DeviceMesh, its shardings DTensor placements."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from tle_ops.distributed import _dtensor
from tle_ops.kernels._group import facts, members
from tle_ops.language.mesh import PROCESS
from tle_ops.language.mesh import device_mesh as language_mesh
from tle_ops.language.sharding import ShardingSpec

_lock = threading.Lock()
_world: dist.ProcessGroup | None = None  # whose meshes and groups these are
_meshes: dict[tuple, DeviceMesh] = {}
_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}


class device_mesh(language_mesh):
    """`tle.device_mesh`, with the means to reach its processes: slices and reshapes are meshes of this kind too.

    topology: level -> size, or level -> [(axis, size), ...]. Levels whose names contain "cluster" or "block" count
        blocks of one device and have no part in torch.distributed; the others count processes, numbered as its ranks.

    If torch.distributed is initialized with as many processes as the mesh has, all of them must make the mesh together:
    that creates the groups of its axes.

    >>> mesh = device_mesh({"node": 2, "device": 4})
    >>> mesh.torch_mesh  # a torch.distributed.DeviceMesh of shape (2, 4)
    >>> mesh[0].torch_mesh  # on the processes of node 0: one of shape (4,)
    """

    __slots__ = ("known_as",)  # the name of its group, once that has been asked for: what a compiled graph reads

    def __init__(self, topology: Mapping[str, int | Sequence[tuple[str, int]]]) -> None:
        super().__init__(topology)
        self.known_as = ""
        if dist.is_available() and dist.is_initialized() and self.launch_size(PROCESS) == dist.get_world_size():
            torch_mesh(self)
            self.get_group()

    def _view(self, *parts: Any) -> device_mesh:
        mesh = object.__new__(device_mesh)
        mesh._set(*parts, self._launch)
        mesh.known_as = ""
        return mesh

    @property
    def torch_mesh(self) -> DeviceMesh:
        """The process axes as a DeviceMesh, see `torch_mesh`."""
        return torch_mesh(self)

    def get_group(self) -> dist.ProcessGroup | None:
        """The process group of the members; None for the others. That of a whole axis, or of all processes, is there;
        any other must be asked for by all processes of the world the first time, as `new_group` demands. Ask before
        the mesh is used under torch.compile."""
        group = _group(_ranks("get_group", self))
        self.known_as = "" if group is None else group.group_name
        return group


def _ranks(op: str, mesh: language_mesh) -> tuple[int, ...]:
    """The processes of a mesh that is as large as the world."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(f"{op}: torch.distributed must be initialized, call init_process_group first")
    if not isinstance(mesh, language_mesh):
        raise TypeError(f"{op}: mesh must be a device_mesh, got {type(mesh).__name__}")
    _of_this_world()
    size, world = mesh.launch_size(PROCESS), dist.get_world_size()
    if size != world:
        raise ValueError(f"{op}: the whole mesh must have the {world} processes of the world, got {size}")
    return tuple(sorted(mesh.ranks))


def _of_this_world() -> None:
    """Drop the meshes and groups of a world that has been destroyed."""
    global _world
    if _world is not dist.group.WORLD:
        forget_meshes()
        _world = dist.group.WORLD


def _require_member(op: str, mesh: language_mesh) -> tuple[int, ...]:
    ranks = _ranks(op, mesh)
    if dist.get_rank() not in ranks:
        raise ValueError(f"{op}: the calling process must be one of the mesh, {ranks}, got rank {dist.get_rank()}")
    return ranks


def _group(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    with _lock:
        if ranks not in _groups:
            # Not with use_local_synchronization: its names depend on how many groups a process has.
            _groups[ranks] = dist.new_group(list(ranks))
        found = _groups[ranks]
    return found if isinstance(found, dist.ProcessGroup) else None


def _device_type() -> str:
    return "cuda" if "nccl" in str(dist.get_backend_config()) else "cpu"


def torch_mesh(mesh: language_mesh, device_type: str | None = None) -> DeviceMesh:
    """The process axes of a mesh as a torch.distributed.DeviceMesh, with their names. One per mesh: asking again gives
    the same. For a whole mesh all its processes must call this together (a `device_mesh` has done so already); for a
    sub-mesh of whole axes its members need not.

    device_type: "cuda" or "cpu"; default: "cuda" if the default group has NCCL.

    ValueError: the mesh has not the processes of the world, the caller is no member, an axis mixes processes and
    blocks, or the sub-mesh cuts an axis.
    """
    ranks = _require_member("torch_mesh", mesh)
    device_type = device_type or _device_type()
    key = (mesh, device_type)
    if key in _meshes:
        return _meshes[key]
    shape = mesh.process_shape or (1,)
    names = tuple(n for n, kind in zip(mesh.dim_names, mesh.dim_kinds, strict=True) if kind == PROCESS) or ("flat",)
    grid = torch.tensor(_in_order(mesh), dtype=torch.int).view(shape)
    if len(ranks) == dist.get_world_size():
        found = DeviceMesh(device_type, grid, mesh_dim_names=names)
        for d in range(found.ndim):
            group = found.get_group(d)
            _groups.setdefault(tuple(sorted(dist.get_process_group_ranks(group))), group)
    else:
        groups = [_group_of_line(mesh, grid, d) for d in range(grid.dim())]
        found = DeviceMesh.from_group(
            groups if len(groups) > 1 else groups[0], device_type, mesh=grid, mesh_dim_names=names
        )
    return _meshes.setdefault(key, found)


def _group_of_line(mesh: language_mesh, grid: Tensor, d: int) -> dist.ProcessGroup:
    """The group of this process along axis d of a sub-mesh: known, since it is a whole axis of the mesh."""
    at = (grid == dist.get_rank()).nonzero()[0].tolist()
    line = tuple(sorted(grid[(*at[:d], slice(None), *at[d + 1 :])].tolist()))
    found = _groups.get(line)
    if found is None:
        raise ValueError(
            f"torch_mesh: the axes of a sub-mesh must be whole axes of the mesh, got ranks {line} of {mesh!r}; "
            "call get_group() of that axis on every process first"
        )
    return found


def placements(sharding: ShardingSpec) -> tuple[Placement, ...]:
    """What a sharding is to DTensor: a placement for each process axis of its mesh, in the order of the mesh.

    S -> Shard, P -> Partial, B -> Replicate. ValueError: an axis of blocks is split or partial, which means nothing to
    processes, or the axes of one dimension do not follow the order of the mesh, in which DTensor divides.
    """
    if not isinstance(sharding, ShardingSpec):
        raise TypeError(f"placements: sharding must be a sharding of a device_mesh, got {type(sharding).__name__}")
    mesh = sharding.mesh
    axes = [n for n, kind in zip(mesh.dim_names, mesh.dim_kinds, strict=True) if kind == PROCESS]
    found: dict[str, Placement] = dict.fromkeys(axes, Replicate())
    for dim, split in enumerate(sharding.split or ()):
        _require_processes("split", split, axes)
        order = [axes.index(a) for a in split]
        if order != sorted(order):
            raise ValueError(
                f"sharding: the axes of dimension {dim} must be in the order of the mesh, {tuple(axes)}, got {split}"
            )
        found.update(dict.fromkeys(split, Shard(dim)))
    _require_processes("partial", sharding.partial, axes)
    found.update(dict.fromkeys(sharding.partial, Partial()))
    return tuple(found.values()) or (Replicate(),)


def _require_processes(what: str, names: Sequence[str], axes: list[str]) -> None:
    for name in names:
        if name not in axes:
            raise ValueError(
                f"sharding: {what} must name axes of processes, {tuple(axes)}, to become a DTensor, got {name!r}, "
                "which counts blocks of one device and exists inside a kernel only"
            )


def _require_rank(op: str, argument: str, t: Tensor, sharding: ShardingSpec) -> None:
    if sharding.split is not None and len(sharding.split) != t.dim():
        raise ValueError(
            f"{op}: {argument} must have the {len(sharding.split)} dimensions of the sharding, got {t.dim()}"
        )


def make_sharded_tensor(
    local: Tensor, sharding: ShardingSpec, shape: Sequence[int] | None = None, check: bool = True
) -> DTensor:
    """A DTensor of this process's part of a tensor.

    shape: of the whole tensor; needed where the parts are not equal. check: compare shapes, dtypes and shardings across
    the processes first.

    ValueError: the part does not have the shape that the sharding gives it, or the processes differ.
    """
    op = "make_sharded_tensor"
    mesh, where = torch_mesh(sharding.mesh), placements(sharding)
    _require_rank(op, "local", local, sharding)
    equal = shape is None
    if equal:
        shape = list(local.shape)
        for d, p in enumerate(where):
            if isinstance(p, Shard):
                shape[p.dim] *= mesh.size(d)
    want = local_shape(sharding, shape)
    if tuple(local.shape) != want:
        raise ValueError(f"{op}: local must have shape {list(want)}, a part of {list(shape)}, got {list(local.shape)}")
    if check:
        here = members(op, _require_member(op, sharding.mesh))
        here.agree(op, {**facts(local), "shape": list(shape), "sharding": repr(sharding)})
    strides, n = [], 1
    for size in reversed(shape):
        strides.insert(0, n)
        n *= max(size, 1)
    return DTensor.from_local(local, mesh, where, run_check=False, shape=torch.Size(shape), stride=tuple(strides))


def local_shape(sharding: ShardingSpec, shape: Sequence[int], rank: int | None = None) -> tuple[int, ...]:
    """The shape of the part that rank (default: this process) has of a tensor of `shape`."""
    return tuple(stop - start for start, stop in local_slices(sharding, shape, rank))


def local_slices(sharding: ShardingSpec, shape: Sequence[int], rank: int | None = None) -> tuple[tuple[int, int], ...]:
    """Per dimension the first index and the one after the last that rank (default: this process) has of a tensor of
    `shape`: divided by one axis after another, in pieces of ceil(size / processes) as torch.chunk does."""
    where, mesh = placements(sharding), sharding.mesh
    if sharding.split is not None and len(sharding.split) != len(shape):
        raise ValueError(f"sharding: shape must have {len(sharding.split)} dimensions, got {list(shape)}")
    ranks = _in_order(mesh)
    rank = dist.get_rank() if rank is None else rank
    if rank not in ranks:
        raise ValueError(f"local_slices: rank must be a member, {ranks}, got {rank}")
    number, sizes = ranks.index(rank), mesh.process_shape or (1,)
    found = [(0, n) for n in shape]
    coordinates = []
    for n in reversed(sizes):
        number, c = divmod(number, n)
        coordinates.insert(0, c)
    for p, n, c in zip(where, sizes, coordinates, strict=True):
        if isinstance(p, Shard):
            start, stop = found[p.dim]
            piece = -(-(stop - start) // n)
            found[p.dim] = (min(start + c * piece, stop), min(start + (c + 1) * piece, stop))
    return tuple(found)


@functools.lru_cache(256)
def _in_order(mesh: language_mesh) -> tuple[int, ...]:
    """The ranks of a mesh by their coordinates along its process axes."""
    return mesh._ranks_in_order()


def distribute(whole: Tensor, sharding: ShardingSpec) -> DTensor:
    """A DTensor of a tensor that every process has whole. ValueError for a sharding with partial axes, or of another
    number of dimensions."""
    if sharding.partial:
        raise ValueError(f"distribute: the sharding must have no partial axes, got {sharding.partial}")
    _require_rank("distribute", "whole", whole, sharding)
    return distribute_tensor(whole, torch_mesh(sharding.mesh), placements(sharding), src_data_rank=None)


def reshard(x: DTensor, sharding: ShardingSpec) -> DTensor:
    """x in another sharding of its mesh: gathered, scattered or summed, whatever it takes. Differentiable; FP8 codes
    travel as bytes."""
    if not isinstance(x, DTensor):
        raise TypeError(f"reshard: x must be a DTensor, got {type(x).__name__}")
    mesh, where = torch_mesh(sharding.mesh), placements(sharding)
    if mesh != x.device_mesh:
        raise ValueError(f"reshard: the sharding must be of the mesh of x, {x.device_mesh}, got {mesh}")
    for now, then in zip(x.placements, where, strict=True):
        if then.is_partial() and not now.is_partial():
            raise ValueError(f"reshard: an axis can become partial of itself alone, got {now} to {then}")
    _require_rank("reshard", "x", x, sharding)
    return _dtensor.redistribute(x, where)


def forget_meshes() -> None:
    """Drop the DeviceMeshes and groups that meshes made; the groups live on while somebody uses them."""
    global _world
    with _lock:
        _world = None
        _meshes.clear()
        _groups.clear()
        _dtensor.forget_plans()
