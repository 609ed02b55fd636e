"""tle_ops on many devices: meshes, shardings, DTensor rules, and moving data between processes.

    import tle_ops.distributed as td

    mesh = td.device_mesh({"node": 2, "device": 4})            # the process axes become a torch DeviceMesh
    x = td.distribute(x, td.sharding(mesh, ["device", None]))  # a DTensor, rows over the devices of each node
    y = tle_ops.rms_norm(x, weight, 1e-6)                      # every operator takes DTensors

Importing this makes DTensor know all operators. It stands on torch.distributed alone: init_process_group comes first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from tle_ops import _meta
from tle_ops.distributed import _dtensor
from tle_ops.distributed.mesh import (
    _require_member,
    device_mesh,
    distribute,
    forget_meshes,
    local_shape,
    local_slices,
    make_sharded_tensor,
    placements,
    reshard,
    torch_mesh,
)
from tle_ops.kernels._group import PeerError, forget, get_timeout, member, members, set_check, set_timeout
from tle_ops.language.mesh import device_mesh as language_mesh
from tle_ops.language.sharding import B, P, S, ShardingSpec, sharding
from tle_ops.ops.distributed import _name, all_gather_fp8, reduce_scatter_fp8, remote, remote_put, ring_exchange

__all__ = [
    "B",
    "P",
    "PeerError",
    "S",
    "ShardingSpec",
    "all_gather_fp8",
    "device_mesh",
    "distribute",
    "distributed_barrier",
    "empty_symmetric",
    "get_timeout",
    "local_shape",
    "local_slices",
    "make_sharded_tensor",
    "placements",
    "reduce_scatter_fp8",
    "release",
    "remote",
    "remote_put",
    "reshard",
    "ring_exchange",
    "set_check",
    "set_timeout",
    "sharding",
    "torch_mesh",
]


def distributed_barrier(mesh: Any = None, timeout: float = 0.0, name: str = "") -> None:
    """Wait until every process of a mesh or sub-mesh has come here; the others do not take part.

    Args:
        mesh: a device_mesh or a slice of one, a process group, its name, or None for all processes.
        timeout: seconds to wait, 0 for `get_timeout()`.
        name: what an error calls this barrier; else it is numbered.

    On CUDA, work that was queued before is done when this returns, on every process of the mesh.
    Raises PeerError: a process does not come in time; the message names it and the barrier.
    """
    _meta.require_seconds("distributed_barrier", "timeout", timeout)
    if isinstance(mesh, language_mesh):
        here = members("distributed_barrier", _require_member("distributed_barrier", mesh))
    else:
        here = member("distributed_barrier", _name(mesh))
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    here.barrier(name, timeout)
    symmetric = sys.modules.get("tle_ops.kernels._symmetric")
    if symmetric is not None:
        symmetric.raise_if_missing(here)


def empty_symmetric(shape: Sequence[int], dtype: torch.dtype = torch.float32, group: Any = "") -> torch.Tensor:
    """Uninitialized memory on the current CUDA device that the GPUs of a group can read: `remote` and `ring_exchange`
    of it need no copy. All processes of the group must call this, with the same arguments; on the CPU, and where the
    GPUs do not reach each other, it is ordinary memory."""
    if any(n < 0 for n in shape):
        raise ValueError(f"empty_symmetric: shape must not be negative, got {list(shape)}")
    if not torch.cuda.is_available():
        return torch.empty(tuple(shape), dtype=dtype)
    from tle_ops.kernels import _symmetric

    device = torch.device("cuda", torch.cuda.current_device())
    me = member("empty_symmetric", _name(group))
    me.agree("empty_symmetric", {"shape": list(shape), "dtype": str(dtype)})
    if _symmetric.workspace("empty_symmetric", me, device, 1) is None:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return _symmetric.empty(tuple(shape), dtype, device, me)


def release() -> None:
    """Give back what this package holds for torch.distributed: symmetric memory, meshes, groups. Call it on every
    process, before destroy_process_group."""
    symmetric = sys.modules.get("tle_ops.kernels._symmetric")
    if symmetric is not None:
        symmetric.release()
    forget_meshes()
    forget()


_dtensor.register()
