"""Contracts: remote, remote_put, ring_exchange, distributed_barrier, all_gather_fp8, reduce_scatter_fp8.

`group` is the name of a process group; "" is the default one. Every process of the group calls the op, with tensors of
one shape and dtype.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tle_ops._meta._contract import (
    contract,
    dtype_name,
    require,
    require_dim,
    require_float,
    require_fp8,
    require_same_device,
    require_shape,
    shape_text,
)
from tle_ops._meta.quant import token_codes

LONGEST_TIMEOUT = 1e8  # seconds, three years: what stores and kernels count in holds it
_QUANTIZER = 'int group_size=128, ScalarType dtype=float8_e4m3fn, bool scale_ue8m0=False, str group=""'


def process_group(op: str, group: str) -> dist.ProcessGroup:
    """The group of that name, of which this process is a member."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(f"{op}: torch.distributed must be initialized, call init_process_group first")
    if group == "":
        return dist.group.WORLD
    try:
        return dist.distributed_c10d._resolve_process_group(group)
    except (RuntimeError, ValueError):
        raise ValueError(f"{op}: group must name a process group of this process, got {group!r}") from None


def require_seconds(op: str, argument: str, seconds: float) -> None:
    if not 0 <= seconds <= LONGEST_TIMEOUT:  # false for NaN
        raise ValueError(f"{op}: {argument} must be seconds, from 0 to {LONGEST_TIMEOUT:g}, got {seconds}")


def _require_shard(op: str, argument: str, shard: int, group: str) -> None:
    size = process_group(op, group).size()
    if not 0 <= shard < size:
        raise ValueError(f"{op}: {argument} must be in [0, {size}), the ranks of the group, got {shard}")


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@contract('remote(Tensor x, int shard, str group="") -> Tensor')
def remote(x: Tensor, shard: int, group: str = "") -> Tensor:
    _require_shard("remote", "shard", shard, group)
    return _like(x)


@contract('remote_bwd(Tensor dy, int shard, str group="") -> Tensor')
def remote_bwd(dy: Tensor, shard: int, group: str = "") -> Tensor:
    require_float("remote_bwd", "dy", dy)
    _require_shard("remote_bwd", "shard", shard, group)
    return _like(dy)


@contract('remote_put(Tensor x, Tensor value, int shard, str group="") -> (Tensor y, Tensor source)')
def remote_put(x: Tensor, value: Tensor, shard: int, group: str = "") -> tuple[Tensor, Tensor]:
    if value.dtype != x.dtype:
        raise TypeError(f"remote_put: value must be {dtype_name(x.dtype)}, as x, got {dtype_name(value.dtype)}")
    require_same_device("remote_put", "x", x, "value", value)
    require_shape("remote_put", "value", value, x.shape)
    _require_shard("remote_put", "shard", shard, group)
    return _like(x), torch.empty((), dtype=torch.int32, device=x.device)


@contract('ring_exchange(Tensor x, int shift=1, str group="") -> Tensor')
def ring_exchange(x: Tensor, shift: int = 1, group: str = "") -> Tensor:
    process_group("ring_exchange", group)
    return _like(x)


@contract('distributed_barrier(Tensor token, str group="", float timeout=0.0, str name="") -> Tensor')
def distributed_barrier(token: Tensor, group: str = "", timeout: float = 0.0, name: str = "") -> Tensor:
    process_group("distributed_barrier", group)
    require_seconds("distributed_barrier", "timeout", timeout)
    return _like(token)


@contract(f"all_gather_fp8(Tensor x, {_QUANTIZER}) -> (Tensor q, Tensor scales)")
def all_gather_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> tuple[Tensor, Tensor]:
    op = "all_gather_fp8"
    require_float(op, "x", x)
    require_dim(op, "x", x, 2)
    shape = (x.shape[0] * process_group(op, group).size(), *x.shape[1:])
    return token_codes(op, shape, x.device, group_size, dtype, False)


@contract(f"reduce_scatter_fp8(Tensor x, {_QUANTIZER}) -> Tensor")
def reduce_scatter_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> Tensor:
    op = "reduce_scatter_fp8"
    require_float(op, "x", x)
    require_fp8(op, "dtype", dtype)
    require_dim(op, "x", x, 2)
    if group_size < 1 and group_size != -1:
        raise ValueError(f"{op}: group_size must be a positive int or -1, got {group_size}")
    size = process_group(op, group).size()
    require(
        x.shape[0] % size == 0,
        lambda: f"{op}: x must have a first dimension that divides by the {size} ranks, got {shape_text(x.shape)}",
    )
    return torch.empty((x.shape[0] // size, *x.shape[1:]), dtype=x.dtype, device=x.device)
