"""tle_ops on many devices: meshes, shardings, DTensor rules, and moving data between processes.

    import tle_ops.distributed as td

    mesh = td.device_mesh({"node": 2, "device": 4})            # the process axes become a torch DeviceMesh
    x = td.distribute(x, td.sharding(mesh, ["device", None]))  # a DTensor, rows over the devices of each node
    y = tle_ops.rms_norm(x, weight, 1e-6)                      # every operator takes DTensors

Importing this makes DTensor know all operators. It stands on torch.distributed alone: init_process_group comes first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tle_ops.distributed import _dtensor
from tle_ops.distributed.mesh import (
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
from tle_ops.kernels._group import PeerError, forget, get_timeout, member, set_check, set_timeout
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
    group = _name(mesh)
    cuda = torch.cuda.is_available() and dist.is_initialized() and "nccl" in str(dist.get_backend_config())
    if cuda:
        torch.cuda.current_stream().synchronize()
    member("distributed_barrier", group)
    token = torch.empty(0)
    torch.ops.tle.distributed_barrier(token, group, timeout, name)


def release() -> None:
    """Give back what this package holds for torch.distributed: symmetric memory, meshes, groups. Call it on every
    process, before destroy_process_group."""
    forget_meshes()
    forget()


_dtensor.register()
