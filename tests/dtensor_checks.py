"""Checks of operators on DTensors, run by every process of a gloo world: the result must be that of the whole tensors,
whatever the placements."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor


def place(t: Tensor, mesh: Any, placements: tuple[Placement, ...]) -> DTensor:
    """t on the mesh. A pending sum has summands that differ, so that an op which is not linear cannot get away."""
    whole = [Replicate() if p.is_partial() else p for p in placements]
    local = distribute_tensor(t, mesh, whole, src_data_rank=None).to_local()
    for d, p in enumerate(placements):
        if p.is_partial():
            i, n = mesh.get_local_rank(d), mesh.size(d)
            factor = [1 + n // 2, *([-1] * (n // 2)), *([0] * n)][i]  # exact in any float: 2 and -1; 3, -1, -1 and 0
            local = local * torch.tensor(factor, dtype=local.dtype)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=t.shape, stride=t.contiguous().stride())


def choices(t: Tensor, mesh: Any) -> list[tuple[Placement, ...]]:
    one: list[Placement] = [Replicate(), *(Shard(d) for d in range(t.dim()))]
    if t.dtype in (torch.float32, torch.float64):
        one.append(Partial())
    return list(itertools.product(one, repeat=mesh.ndim))
