"""The distributed ops over symmetric memory, by the kernels of `_distributed_triton.py`. Where the GPUs of a group do
not reach each other's memory, and for what a kernel does not take, NCCL serves (`_collective.py`).
"""

from __future__ import annotations

import functools
import math

import torch
import triton.language as tl
from torch import Tensor

import tle_ops.language as tle
from tle_ops import _meta
from tle_ops._meta import FP8_MAX
from tle_ops.kernels import _collective, _symmetric
from tle_ops.kernels._collective import bytes_of, source_of, sum_of_codes
from tle_ops.kernels._distributed_triton import (
    all_gather_fp8_kernel,
    barrier_kernel,
    cast_kernel,
    gather_kernel,
    put_kernel,
    reduce_scatter_fp8_kernel,
    remote_bwd_kernel,
    remote_kernel,
)
from tle_ops.kernels._group import Member, facts, get_timeout, member
from tle_ops.kernels._symmetric import TILES, Workspace, allocation_of, workspace

_BLOCK = 16384  # bytes that a program copies at a time
_PROGRAMS = 264  # two for each multiprocessor of an H200: all are resident, as programs that wait for peers should be
# Bytes to read from which the copy engines are faster, and twice that for a gather of codes. Two H200s: 16 MiB 66 us by
# the kernel, 77 by copies, at 4 MiB 21 and 40; codes of 64 MiB of bf16 140 and 145, of 256 MiB 519 and 463.
_COPIES = 1 << 25
_CHUNKS = (0.125, 0.5, 1.0)  # where those end in which a large gather is quantized while the one before travels
_LONGEST = 1024  # elements of a group that is quantized and sent by one kernel
_TILE = 8192  # elements of a tile of groups
_WARPS = 4  # for one tile
_CODE = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}


# --- launchers -------------------------------------------------------------------------------------------------------
@functools.cache
def _mesh(size: int) -> tle.device_mesh:
    return tle.device_mesh({"device": size})


def _polls(timeout: float = 0.0) -> int:
    """How often to look at a signal before giving up: a look takes about a microsecond."""
    return max(int((timeout or get_timeout()) * 1e6), 1)


def _grid(blocks: int, programs: int = _PROGRAMS) -> int:
    return max(1, min(programs, blocks))


def _halves(nbytes: int) -> int:
    """Room for notes behind the data: one int32 per program."""
    return (nbytes + 15) // 16 * 16


def _open(op: str, group: str, x: Tensor, nbytes: int, **options: object) -> tuple[Member, Workspace | None]:
    """The group and its workspace; the processes have compared what they are about to do."""
    me = member(op, group)
    me.check(op, x, **options)
    return me, workspace(op, me, x.device, nbytes + 4 * _PROGRAMS + 16)


def _read(x: Tensor, y: Tensor, me: Member, ws: Workspace, shard: int) -> Tensor:
    source = x.contiguous()
    n = x.numel() * x.element_size()
    symmetric = allocation_of(source)
    if n >= _COPIES and me.size > 1:
        _read_by_copy(bytes_of(y), source, me, ws, shard, symmetric)
        return y
    x_context = None if symmetric is None else symmetric[0]
    remote_kernel(
        _grid(math.ceil(n / _BLOCK)),
        (
            bytes_of(source), bytes_of(y), ws.buffer, ws.context,
            ws.context if x_context is None else x_context, ws.state, ws.missing,
        ),
        (_polls(), ws.half // 16, n // 16, n % 16, shard),
        (_mesh(me.size), me.size, x_context is not None, _BLOCK),
        num_warps=8,
    )  # fmt: skip
    return y


def _read_by_copy(y: Tensor, x: Tensor, me: Member, ws: Workspace, shard: int, symmetric: tuple | None) -> None:
    """y, in bytes, is x of `shard`, by the copy engines between two barriers."""
    first = 0
    if symmetric is None:
        stage, everyone = ws.stage_of(me, y.numel())
        stage[: y.numel()].copy_(bytes_of(x))
    else:
        first, everyone = x.storage_offset() * x.element_size(), symmetric[1]
    _barrier(me, ws)
    source = bytes_of(x) if shard == me.rank else everyone[shard][first : first + y.numel()]
    y.copy_(source)
    _barrier(me, ws)


def _barrier(me: Member, ws: Workspace, timeout: float = 0.0) -> None:
    barrier_kernel(1, (ws.context, ws.state, ws.missing), (_polls(timeout),), (_mesh(me.size), me.size), num_warps=1)


def _where(x: Tensor) -> object:
    """Where x lies in symmetric memory: the same place for all, else a peer would read something else."""
    return x.storage_offset() if allocation_of(x) is not None and x.is_contiguous() else None


def remote(x: Tensor, shard: int, group: str = "") -> Tensor:
    y = _meta.remote(x, shard, group)
    me, ws = _open("remote", group, x, x.numel() * x.element_size(), symmetric=_where(x))
    if ws is None:
        del y  # another one is made there
        return _collective.remote(x, shard, group)
    return _read(x, y, me, ws, shard)


def ring_exchange(x: Tensor, shift: int = 1, group: str = "") -> Tensor:
    y = _meta.ring_exchange(x, shift, group)
    nbytes = x.numel() * x.element_size()
    me, ws = _open("ring_exchange", group, x, nbytes, shift=shift, symmetric=_where(x))
    if ws is None:
        del y
        return _collective.ring_exchange(x, shift, group)
    return _read(x, y, me, ws, (me.rank + shift) % me.size)


def remote_bwd(dy: Tensor, shard: int, group: str = "") -> Tensor:
    dx = _meta.remote_bwd(dy, shard, group)
    n, nbytes = dy.numel(), _halves(dy.numel() * dy.element_size())
    me, ws = _open("remote_bwd", group, dy, nbytes)
    if ws is None or dy.dtype is torch.float64:
        return _collective.remote_bwd(dy, shard, group)
    block = _BLOCK // 8
    remote_bwd_kernel(
        _grid(math.ceil(n / block)),
        (dy.contiguous(), dx, ws.buffer, ws.context, ws.state, ws.missing),
        (_polls(), ws.half // 16, n, shard, nbytes),
        (_mesh(me.size), me.size, n % 8 == 0, block),
    )
    return dx


def remote_put(x: Tensor, value: Tensor, shard: int, group: str = "") -> tuple[Tensor, Tensor]:
    y, source = _meta.remote_put(x, value, shard, group)
    me = member("remote_put", group)
    # At every call, on the host: two writers to one shard are an error, not a race.
    writer = source_of(me, me.agree("remote_put", facts(x), shard))
    n = x.numel() * x.element_size()
    ws = workspace("remote_put", me, x.device, n + 4 * _PROGRAMS + 16)
    if ws is None:
        return _collective.remote_put(x, value, shard, group)
    put_kernel(
        _grid(math.ceil(n / _BLOCK)),
        (bytes_of(x), bytes_of(value), bytes_of(y), ws.buffer, ws.context, ws.state, ws.missing),
        (_polls(), ws.half // 16, n // 16, n % 16, shard, writer),
        (_mesh(me.size), me.size, _BLOCK),
        num_warps=8,
    )
    return y, source.fill_(writer)


def distributed_barrier(token: Tensor, group: str = "", timeout: float = 0.0, name: str = "") -> Tensor:
    y = _meta.distributed_barrier(token, group, timeout, name)
    me = member("distributed_barrier", group)
    ws = workspace("distributed_barrier", me, token.device, 16)
    if ws is None:
        return _collective.distributed_barrier(token, group, timeout, name)
    _barrier(me, ws, timeout)
    return y.copy_(token)


def _fuses(x: Tensor, group_size: int) -> bool:
    """Groups that follow each other without gaps, of a size that a tile holds."""
    N = x.shape[-1]
    return 16 <= group_size <= _LONGEST and group_size & (group_size - 1) == 0 and N % group_size == 0 and N > 0


def _geometry(groups: int, group_size: int) -> tuple[int, int]:
    """Groups of a tile, and tiles."""
    rows = max(_TILE // group_size, 1)
    while math.ceil(groups / rows) > TILES:
        rows *= 2
    return rows, math.ceil(groups / rows)


def all_gather_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> tuple[Tensor, Tensor]:
    op = "all_gather_fp8"
    q, scales = _meta.all_gather_fp8(x, group_size, dtype, scale_ue8m0, group)
    nbytes = q.numel() + 4 * scales.numel()
    me, ws = _open(op, group, x, nbytes + 32, group_size=group_size, code=dtype, scale_ue8m0=scale_ue8m0)
    if ws is None:
        return _collective.all_gather_fp8(x, group_size, dtype, scale_ue8m0, group)
    if not _fuses(x, group_size):
        local = torch.ops.tle.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0)
        for whole, part in zip((q, scales), local, strict=True):
            _gather(whole, part, me, ws, scatter=False)
        return q, scales
    groups = x.numel() // group_size
    if not groups:
        _barrier(me, ws)  # a call all the same: the halves of the workspace change hands
        return q, scales
    if x.numel() >= 2 * _COPIES and me.size > 1:
        _gather_by_copies(x.contiguous(), q, scales, me, ws, (group_size, dtype, scale_ue8m0))
        return q, scales
    rows, tiles = _geometry(groups, group_size)
    all_gather_fp8_kernel(
        _grid(tiles, 2 * _PROGRAMS),
        (x.contiguous(), q, scales, ws.buffer, ws.arrivals, ws.context, ws.state, ws.missing),
        (_polls(), ws.half // 16, groups),
        (me.size, FP8_MAX[dtype], scale_ue8m0, _CODE[dtype], group_size, rows, TILES),
        num_warps=_WARPS,
    )
    return q, scales


def _gather_by_copies(x: Tensor, q: Tensor, scales: Tensor, me: Member, ws: Workspace, options: tuple) -> None:
    """A chunk is quantized, into the result and for the peers, while the copy engines fetch theirs of the chunk before
    on a stream beside. The first one is small, since nothing travels before it is there; the scales, a thirty-second of
    the bytes, come with the last one."""
    group_size, dtype, scale_ue8m0 = options
    groups = x.numel() // group_size
    nbytes = _halves(x.numel())  # of codes; the scales come behind them
    stage, everyone = ws.stage_of(me, nbytes + 4 * groups)
    q, scales = q.view(torch.uint8).view(me.size, -1), scales.view(me.size, -1)
    rows = max(_TILE // group_size, 1)
    ends = sorted({min(math.ceil(groups * part / rows) * rows, groups) for part in _CHUNKS})
    peers = [(me.rank + d) % me.size for d in range(1, me.size)]
    for first, last in zip([0, *ends], ends, strict=False):
        cast_kernel(
            math.ceil((last - first) / rows),
            (x, q[me.rank].view(dtype), scales[me.rank], stage.view(dtype), stage[nbytes:].view(torch.float32)),
            (first, last),
            (FP8_MAX[dtype], scale_ue8m0, _CODE[dtype], group_size, rows),
        )
        _barrier(me, ws)
        with ws.beside():
            for r in peers:
                a, b = first * group_size, last * group_size
                q[r][a:b].copy_(everyone[r][a:b])
                if last == groups:
                    scales[r].view(torch.uint8).copy_(everyone[r][nbytes : nbytes + 4 * groups])
    ws.join()
    _barrier(me, ws)


def _gather(whole: Tensor, part: Tensor, me: Member, ws: Workspace, scatter: bool) -> None:
    n = part.numel() * part.element_size() // (me.size if scatter else 1)
    gather_kernel(
        _grid(math.ceil(n / _BLOCK)),
        (bytes_of(part), bytes_of(whole), ws.buffer, ws.context, ws.state, ws.missing),
        (_polls(), ws.half // 16, n // 16, n % 16, n),
        (_mesh(me.size), me.size, scatter, n % 16 == 0, _BLOCK),
        num_warps=8,
    )


def reduce_scatter_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    group: str = "",
) -> Tensor:
    op = "reduce_scatter_fp8"
    y = _meta.reduce_scatter_fp8(x, group_size, dtype, scale_ue8m0, group)
    N = x.shape[-1]
    groups_of_a_row = _meta.num_groups(N, group_size)
    nbytes = x.numel() + 4 * (x.numel() // max(N, 1)) * groups_of_a_row
    me, ws = _open(op, group, x, nbytes + 32, group_size=group_size, code=dtype, scale_ue8m0=scale_ue8m0)
    if ws is None:
        return _collective.reduce_scatter_fp8(x, group_size, dtype, scale_ue8m0, group)
    if not _fuses(x, group_size):
        sent = torch.ops.tle.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0)
        received = tuple(torch.empty_like(t) for t in sent)
        for there, here in zip(received, sent, strict=True):
            _gather(there, here, me, ws, scatter=True)
        return sum_of_codes(*received, group_size, me.size, x.dtype)
    groups = x.numel() // group_size // me.size
    if not groups:
        _barrier(me, ws)
        return y
    rows, tiles = _geometry(groups, group_size)
    reduce_scatter_fp8_kernel(
        _grid(tiles, 2 * _PROGRAMS),  # 64 MiB of bf16: 81 us, with half as many 99
        (x.contiguous(), y, ws.buffer, ws.arrivals, ws.context, ws.state, ws.missing),
        (_polls(), ws.half // 16, groups),
        (me.size, FP8_MAX[dtype], scale_ue8m0, _CODE[dtype], group_size, rows, TILES),
        num_warps=_WARPS,
    )
    return y


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: str = "") -> Tensor:
    """Memory of the user that all processes of a group can read, so that `remote` need not copy it."""
    return _symmetric.empty(shape, dtype, device, member("empty", group))
