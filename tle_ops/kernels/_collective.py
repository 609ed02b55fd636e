"""The distributed ops by the collectives of torch.distributed: gloo on the CPU, NCCL where symmetric memory does not
reach. Data travels as bytes, so any dtype does."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._group import Member, facts, member

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name until torch 2.12


def bytes_of(t: Tensor) -> Tensor:
    """Flat, and not complex or float8 to the library below"""
    return t.contiguous().view(-1).view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)


def _reachable(me: Member, t: Tensor) -> Tensor:
    """The bytes of t where the library below can get at them: gloo sends no GPU's memory."""
    return bytes_of(t).cpu() if me.by_gloo else bytes_of(t)


def _arrived(into: Tensor, received: Tensor) -> None:
    if received.device != into.device:
        bytes_of(into).copy_(received)


def send_and_receive(me: Member, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> None:
    """Tensors and the ranks to or from which they go; the received ones must be contiguous."""
    buffers = [_reachable(me, t) for t, _ in receives]
    ops = [dist.P2POp(dist.isend, _reachable(me, t), me.ranks[peer], me.group) for t, peer in sends]
    ops += [
        dist.P2POp(dist.irecv, buffer, me.ranks[peer], me.group)
        for buffer, (_, peer) in zip(buffers, receives, strict=True)
    ]
    for work in dist.batch_isend_irecv(ops) if ops else ():
        work.wait()
    for (t, _), buffer in zip(receives, buffers, strict=True):
        _arrived(t, buffer)


def _shards(me: Member, op: str, x: Tensor, shard: int) -> list[int]:
    """The shard that each process names, after all have agreed on the rest."""
    return me.agree(op, facts(x), shard)


def remote(x: Tensor, shard: int, group: str = "") -> Tensor:
    me = member("remote", group)
    shards = _shards(me, "remote", x, shard)
    if shard == me.rank:
        y = x.clone(memory_format=torch.contiguous_format)
    else:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sends = [(x, r) for r, wanted in enumerate(shards) if wanted == me.rank and r != me.rank]
    receives = [(y, shard)] if shard != me.rank else []
    me.exchange("remote", lambda: send_and_receive(me, sends, receives))
    return y


def remote_bwd(dy: Tensor, shard: int, group: str = "") -> Tensor:
    """Back to where it was read; there the gradients add up, in the order of the ranks."""
    me = member("remote_bwd", group)
    shards = _shards(me, "remote_bwd", dy, shard)
    readers = [r for r, read in enumerate(shards) if read == me.rank]
    parts = {r: dy if r == me.rank else torch.empty(dy.shape, dtype=dy.dtype, device=dy.device) for r in readers}
    sends = [(dy, shard)] if shard != me.rank else []
    receives = [(part, r) for r, part in parts.items() if r != me.rank]
    me.exchange("remote_bwd", lambda: send_and_receive(me, sends, receives))
    wide = torch.zeros(dy.shape, dtype=_meta.compute_dtype(dy), device=dy.device)
    for r in readers:
        wide = wide + parts[r]
    return wide.to(dy.dtype)


def source_of(me: Member, shards: list[int]) -> int:
    """The rank that puts something here, or -1. ValueError, on every process, if two put to one place."""
    for target in range(me.size):
        writers = [r for r, shard in enumerate(shards) if shard == target]
        if len(writers) > 1:
            raise ValueError(f"remote_put: at most one rank may put to a shard, got {writers} for shard {target}")
    return shards.index(me.rank) if me.rank in shards else -1


def remote_put(x: Tensor, value: Tensor, shard: int, group: str = "") -> tuple[Tensor, Tensor]:
    me = member("remote_put", group)
    source = source_of(me, _shards(me, "remote_put", x, shard))
    y = (value if source == me.rank else x).clone(memory_format=torch.contiguous_format)
    sends = [(value, shard)] if shard != me.rank else []
    receives = [(y, source)] if source not in (-1, me.rank) else []
    me.exchange("remote_put", lambda: send_and_receive(me, sends, receives))
    return y, torch.full((), source, dtype=torch.int32, device=x.device)


def ring_exchange(x: Tensor, shift: int = 1, group: str = "") -> Tensor:
    me = member("ring_exchange", group)
    me.check("ring_exchange", x, shift=shift)
    shift %= me.size
    if shift == 0:
        return x.clone(memory_format=torch.contiguous_format)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    after, before = (me.rank + shift) % me.size, (me.rank - shift) % me.size
    me.exchange("ring_exchange", lambda: send_and_receive(me, [(x, before)], [(y, after)]))
    return y


def distributed_barrier(token: Tensor, group: str = "", timeout: float = 0.0, name: str = "") -> Tensor:
    member("distributed_barrier", group).barrier(name, timeout)
    return token.clone(memory_format=torch.contiguous_format)


def all_gather_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> tuple[Tensor, Tensor]:
    op = "all_gather_fp8"
    me = member(op, group)
    me.check(op, x, group_size=group_size, code=dtype, scale_ue8m0=scale_ue8m0)
    local = torch.ops.tle.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0)
    fresh = _meta.all_gather_fp8(x, group_size, dtype, scale_ue8m0, group)

    def gather() -> None:
        for whole, part in zip(fresh, local, strict=True):
            if whole.numel():
                everything = _reachable(me, whole)
                _all_gather(everything, _reachable(me, part), me.group)
                _arrived(whole, everything)

    me.exchange(op, gather)
    return fresh


def reduce_scatter_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> Tensor:
    op = "reduce_scatter_fp8"
    me = member(op, group)
    me.check(op, x, group_size=group_size, code=dtype, scale_ue8m0=scale_ue8m0)
    sent = torch.ops.tle.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0)
    received = tuple(torch.empty_like(t) for t in sent)

    def scatter() -> None:
        for there, here in zip(received, sent, strict=True):
            if here.numel():
                buffer = _reachable(me, there)
                dist.all_to_all_single(buffer, _reachable(me, here), group=me.group)
                _arrived(there, buffer)

    me.exchange(op, scatter)
    return sum_of_codes(*received, group_size, me.size, x.dtype)


def sum_of_codes(q: Tensor, scales: Tensor, group_size: int, parts: int, dtype: torch.dtype) -> Tensor:
    """The codes of all processes, one part after the other, as one sum in that order: float32, rounded once."""
    total = None
    for codes, s in zip(q.chunk(parts), scales.chunk(parts), strict=True) if q.shape[0] else ():
        values = torch.ops.tle.per_token_cast_back(codes, s, group_size, torch.float32)
        total = values if total is None else total + values
    return q.new_empty(q.shape, dtype=dtype) if total is None else total.to(dtype)
