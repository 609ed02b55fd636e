"""Moving data between the processes of a group: reading a peer's tensor, writing into it, a ring, a barrier, and
gathers and reductions in FP8.

Every process of the group calls the op, with tensors of one shape and dtype. `group` is a ProcessGroup, its name, a
one-dimensional DeviceMesh, a mesh of `tle_ops.distributed`, or "" for all processes. On CUDA, data goes over NVLink
through symmetric memory where the GPUs of the group reach each other, else by NCCL; on the CPU by gloo.

Shapes, dtypes and options are compared before data moves: always over gloo, at the first call of each kind on CUDA
(`tle_ops.distributed.set_check`). A peer that is dead or late gives `tle_ops.distributed.PeerError`, which names it,
after `tle_ops.distributed.set_timeout` seconds (300).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _name(group: Any) -> str:
    """Of whatever stands for a process group."""
    if isinstance(group, str):
        return group
    if group is None:
        return ""
    if dist.is_available():  # by class: Dynamo lets nobody ask PyTorch's groups and meshes for what they have not
        if isinstance(group, dist.ProcessGroup):
            return group.group_name
        if isinstance(group, dist.device_mesh.DeviceMesh):
            return group.get_group().group_name
    if hasattr(group, "get_group"):
        known: str = getattr(group, "known_as", "") if torch.compiler.is_compiling() else ""
        if known:
            return known
        found = group.get_group()
        if found is None:
            raise ValueError(f"group must contain the calling process, got {group!r}")
        return found.group_name
    raise TypeError(f"group must be a process group, its name or a mesh, got {type(group).__name__}")


def remote(x: Tensor, shard: int, group: Any = "") -> Tensor:
    """The tensor x of another process: the shard of rank `shard`.

    Args:
        x: [..], any dtype and strides; of one shape and dtype on every process.
        shard: rank in the group whose x to read, from 0; each process may name another one, and itself.
        group: the processes that take part.

    Returns:
        y: [..], contiguous: the x of rank `shard`.

    Raises:
        ValueError: shard is outside the group; shapes or dtypes differ between processes; no process group.
        PeerError: a process does not come.

    Plain PyTorch: `dist.all_gather(parts, x); y = parts[shard]`, where only what is asked for moves.

    Differentiable: the gradient of a process's x is the sum of what its readers got, in the order of their ranks; every
    process must run the backward. The seed of the idea is TLE's `tle.remote` (FlagTree).
    """
    return torch.ops.tle.remote(x, shard, _name(group))


def remote_put(x: Tensor, value: Tensor, shard: int, group: Any = "") -> tuple[Tensor, Tensor]:
    """Write into the tensor of another process, without changing anything in place: the new x of every process.

    Args:
        x: [..] this process's tensor, any dtype and strides; of one shape and dtype on every process.
        value: [..] as x: what rank `shard` gets.
        shard: rank in the group to write to. At most one process may write to each.
        group: the processes that take part.

    Returns:
        y: [..], contiguous: the value that a peer put here, or x if none did.
        source: int32, 0-D: the rank that put it, or -1.

    Raises:
        ValueError: shard is outside the group; two processes put to one; shapes or dtypes differ between processes.
        TypeError: value and x differ in dtype.
        PeerError: a process does not come.

    Plain PyTorch: `dist.isend(value, shard)` here, `dist.recv(y)` there, if the receiver knows that it is one.

    Differentiable in x and value; every process must run the backward.
    """
    return torch.ops.tle.remote_put(x, value, shard, _name(group))


def ring_exchange(x: Tensor, shift: int = 1, group: Any = "") -> Tensor:
    """The tensor of the neighbour in a ring: rank r gets the x of rank (r + shift) mod size.

    Args:
        x: [..], any dtype and strides; of one shape and dtype on every process.
        shift: how far the neighbour is, the same on every process; negative: the other way.
        group: the ring, in the order of its ranks.

    Returns:
        y: [..], contiguous.

    Raises:
        ValueError: shapes, dtypes or shifts differ between processes; no process group.
        PeerError: a process does not come.

    Plain PyTorch: `dist.batch_isend_irecv` of one send and one receive.

    Differentiable: the gradient travels the other way. It is the example of TLE's `tle.remote` (FlagTree).
    """
    return torch.ops.tle.ring_exchange(x, shift, _name(group))


def distributed_barrier(token: Tensor, group: Any = "", timeout: float = 0.0, name: str = "") -> Tensor:
    """Passes `token` on when every process of the group has come here: what needs the result comes after the barrier.

    `tle_ops.distributed.distributed_barrier(mesh)` is the same without a token, for ordinary code.

    Args:
        token: any tensor; a barrier orders what made it before what uses the result, also under torch.compile.
        group: who must come; others do not take part.
        timeout: seconds to wait, 0 for `tle_ops.distributed.get_timeout()`.
        name: what an error calls this barrier; else it is numbered.

    Returns:
        token: a copy.

    Raises:
        ValueError: timeout is negative; no process group.
        PeerError: a process does not come in time; the message names it and the barrier. On CUDA the barrier is a
            kernel, and the error comes at the next op of the group, or from `tle_ops.distributed.distributed_barrier`.

    Plain PyTorch: `dist.barrier(group); token.clone()`.

    Differentiable: the gradient passes, without another barrier.
    """
    return torch.ops.tle.distributed_barrier(token, _name(group), timeout, name)


def all_gather_fp8(
    x: Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: Any = "",
) -> tuple[Tensor, Tensor]:
    """`per_token_cast_fp8`, then an all-gather of codes and scales along the first dimension: about half the bytes of
    bfloat16. Over symmetric memory both are one kernel, and the quantization hides behind the transfer.

    Args:
        x: [M, .., N], any strides; float32, bfloat16, float16 or float64; of one shape and dtype on every process.
        group_size: elements per scale; the last group of a row may be short. -1: one group, the whole row.
        dtype: of the codes, float8_e4m3fn or float8_e5m2.
        scale_ue8m0: round the scales up to powers of two.
        group: the W processes that take part.

    Returns:
        q: [W * M, .., N] codes, in the order of the ranks, contiguous.
        scales: [W * M, .., G] float32, G = ceil(N / group_size). The same bits as from a cast after the gather.

    Raises:
        ValueError: group_size is 0 or below -1; x has fewer than two dimensions; processes differ in shape or options.
        TypeError: x is not a float, dtype not a float8 type.
        PeerError: a process does not come.

    Plain PyTorch:

        q, scales = per_token_cast_fp8(x, group_size)
        dist.all_gather_into_tensor(all_q, q.view(torch.uint8))
        dist.all_gather_into_tensor(all_scales, scales)

    Not differentiable.
    """
    return torch.ops.tle.all_gather_fp8(x, group_size, dtype, scale_ue8m0, _name(group))


def reduce_scatter_fp8(
    x: Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: Any = "",
) -> Tensor:
    """The counterpart of `all_gather_fp8`: every process gets its part of the sum over all processes; the summands
    travel as FP8, and add up in float32 in the order of the ranks.

    Args:
        x: [W * M, .., N], any strides; float32, bfloat16, float16 or float64; of one shape and dtype on every process.
        group_size: elements per scale, as in `per_token_cast_fp8`; -1: the whole row.
        dtype: of the codes, float8_e4m3fn or float8_e5m2.
        scale_ue8m0: round the scales up to powers of two.
        group: the W processes that take part.

    Returns:
        y: [M, .., N] in x's dtype, contiguous. Every summand is quantized once, also this process's own, so that the
        result does not depend on who computes it.

    Raises:
        ValueError: the first dimension does not divide by W; group_size is 0 or below -1; processes differ.
        TypeError: x is not a float, dtype not a float8 type.
        PeerError: a process does not come.

    Plain PyTorch:

        q, scales = per_token_cast_fp8(x, group_size)
        dist.all_to_all_single(q_in, q.view(torch.uint8)); dist.all_to_all_single(s_in, scales)
        y = sum(per_token_cast_back(*part, dtype=torch.float32) for part in parts).to(x.dtype)

    Differentiable, straight through the rounding: the gradient is `all_gather_fp8`, cast back.
    """
    return torch.ops.tle.reduce_scatter_fp8(x, group_size, dtype, scale_ue8m0, _name(group))
