"""The distributed ops by the collectives of torch.distributed: the definition, and the CPU kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops.kernels import _collective


def remote(x: Tensor, shard: int, group: str = "") -> Tensor:
    return _collective.remote(x, shard, group)


def remote_bwd(dy: Tensor, shard: int, group: str = "") -> Tensor:
    return _collective.remote_bwd(dy, shard, group)


def remote_put(x: Tensor, value: Tensor, shard: int, group: str = "") -> tuple[Tensor, Tensor]:
    return _collective.remote_put(x, value, shard, group)


def ring_exchange(x: Tensor, shift: int = 1, group: str = "") -> Tensor:
    return _collective.ring_exchange(x, shift, group)


def distributed_barrier(token: Tensor, group: str = "", timeout: float = 0.0, name: str = "") -> Tensor:
    return _collective.distributed_barrier(token, group, timeout, name)


def all_gather_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> tuple[Tensor, Tensor]:
    return _collective.all_gather_fp8(x, group_size, dtype, scale_ue8m0, group)


def reduce_scatter_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> Tensor:
    return _collective.reduce_scatter_fp8(x, group_size, dtype, scale_ue8m0, group)
