"""Checks of the distributed ops, run by every process of a world: gloo on the CPU, NCCL and symmetric memory on GPUs.
What another process has is made here again from its rank, so that every process knows what it should get."""

from __future__ import annotations

import datetime
import math
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import tle_ops
import tle_ops.distributed as td
from tests.processes import device
from tests.table import BF16, E4M3, E5M2, F16, F32, F64, assert_same_bits
from tle_ops.kernels._group import Member

SHAPES = ((), (1,), (7,), (2, 3), (70, 301), (64, 1024), (0, 3))


def tensor_of(rank: int, *shape: int, dtype: torch.dtype = F32) -> Tensor:
    """What `rank` has."""
    g = torch.Generator().manual_seed(100 * rank + len(shape))
    return (torch.randn(shape, generator=g, dtype=F64) * 8).to(dtype).to(device())


def check_remote_reads_any_shard(rank: int, world: int) -> None:
    for shape in SHAPES:
        for shard in ((rank + 1) % world, 0, rank):  # a permutation, all from one, its own
            assert_same_bits(tle_ops.remote(tensor_of(rank, *shape), shard), tensor_of(shard, *shape))
    for dtype in (BF16, F16, F64, torch.int8, torch.bool, torch.complex64, E4M3):
        got = tle_ops.remote(tensor_of(rank, 5, 9, dtype=dtype), (rank + 1) % world)
        want = tensor_of((rank + 1) % world, 5, 9, dtype=dtype)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    x = tensor_of(rank, 40, 30).t()
    assert_same_bits(tle_ops.remote(x, 1), tensor_of(1, 40, 30).t().contiguous())
    large = torch.arange(1 << 20, device=device()) + rank
    assert torch.equal(tle_ops.remote(large, 1), torch.arange(1 << 20, device=device()) + 1)


def check_gradients_go_back(rank: int, world: int) -> None:
    after, before = (rank + 1) % world, (rank - 1) % world
    for dtype in (F32, F64, BF16):
        x = tensor_of(rank, 33, 7, dtype=dtype).requires_grad_()
        cotangents = [tensor_of(50 + r, 33, 7, dtype=dtype) for r in range(world)]
        for op, readers in (
            (lambda t: tle_ops.remote(t, after), [before]),
            (lambda t: tle_ops.remote(t, 0), range(world) if rank == 0 else []),
            (lambda t: tle_ops.ring_exchange(t, 1), [before]),
            (lambda t: tle_ops.ring_exchange(t, -1), [after]),
        ):
            (grad,) = torch.autograd.grad(op(x), x, cotangents[rank])
            want = torch.zeros(33, 7, dtype=torch.promote_types(dtype, F32), device=device())
            for r in readers:
                want = want + cotangents[r]
            assert_same_bits(grad, want.to(dtype))
    x = tensor_of(rank, 5, dtype=F64).requires_grad_()
    (first,) = torch.autograd.grad((tle_ops.remote(x, 0) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)  # of the sum over all readers of 3 x^2, by x of rank 0
    torch.testing.assert_close(second, 6 * world * x.detach() * (rank == 0))


def check_put_writes_there_and_nowhere_else(rank: int, world: int) -> None:
    for shape in SHAPES:
        x, value = tensor_of(rank, *shape), tensor_of(rank + 50, *shape)
        y, source = tle_ops.remote_put(x, value, (rank + 1) % world)
        assert_same_bits(y, tensor_of((rank - 1) % world + 50, *shape))
        assert source.item() == (rank - 1) % world
    x, value = (tensor_of(rank + n, 9).requires_grad_() for n in (0, 50))
    y, _ = tle_ops.remote_put(x, value, (rank + 1) % world)
    dx, dvalue = torch.autograd.grad(y, (x, value), tensor_of(rank + 70, 9))
    assert not dx.any()
    assert_same_bits(dvalue, tensor_of((rank + 1) % world + 70, 9))
    with pytest.raises(ValueError, match=r"at most one rank may put to a shard, got .* for shard 0"):
        tle_ops.remote_put(x, value, 0)


def check_ring(rank: int, world: int) -> None:
    for shape in SHAPES:
        for shift in (1, -1, 0, world, 2 * world + 1):
            assert_same_bits(
                tle_ops.ring_exchange(tensor_of(rank, *shape), shift), tensor_of((rank + shift) % world, *shape)
            )
    x = total = tensor_of(rank, 4, 4)  # a sum around the ring, as in TLE's example
    for _ in range(world - 1):
        x = tle_ops.ring_exchange(x)
        total = total + x
    torch.testing.assert_close(total, sum(tensor_of(r, 4, 4) for r in range(world)))


FP8_CASES = (
    # shape of one part, dtype, options; the first ones go through the fused kernel on a GPU
    ((4, 256), F32, {}),
    ((300, 512), BF16, {"group_size": 64}),
    ((8, 4096), F16, {"dtype": E5M2, "scale_ue8m0": True}),
    ((3, 2, 128), F32, {"group_size": 16}),
    ((1, 1024), BF16, {"group_size": 1024}),
    ((3, 300), F32, {}),  # a short last group
    ((5, 96), BF16, {"group_size": 48}),
    ((4, 320), F32, {"group_size": -1}),
    ((0, 256), BF16, {}),
    ((4, 256), F64, {}),  # not rounded to float32 first
    ((2, 0), F32, {}),
)


def check_gather_is_a_cast_after_the_gather(rank: int, world: int) -> None:
    for shape, dtype, options in FP8_CASES:
        whole = torch.cat([tensor_of(r, *shape, dtype=dtype) for r in range(world)])
        want = tle_ops.per_token_cast_fp8(whole, **options)
        got = tle_ops.all_gather_fp8(tensor_of(rank, *shape, dtype=dtype), **options)
        for g, w in zip(got, want, strict=True):
            assert_same_bits(g, w, f"{shape} {options}")
    x = torch.stack([tensor_of(rank, 6, 256)] * 2, -1)[..., 0]
    assert_same_bits(tle_ops.all_gather_fp8(x)[1].cpu(), tle_ops.all_gather_fp8(x.contiguous())[1].cpu())


def check_scatter_adds_in_the_order_of_the_ranks(rank: int, world: int) -> None:
    for shape, dtype, options in FP8_CASES:
        parts = [[tensor_of(10 * r + p, *shape, dtype=dtype) for p in range(world)] for r in range(world)]
        total = None
        group_size = options.get("group_size", 128)
        for r in range(world):
            q, scales = tle_ops.per_token_cast_fp8(parts[r][rank], **options)
            value = tle_ops.per_token_cast_back(q, scales, group_size, dtype=F32)
            total = value if total is None else total + value
        got = tle_ops.reduce_scatter_fp8(torch.cat(parts[rank]), **options)
        assert_same_bits(got, total.to(dtype), f"{shape} {options}")
    x = torch.cat([tensor_of(r, 4, 256) for r in range(world)]).requires_grad_()
    dy = tensor_of(rank + 90, 4, 256)
    (dx,) = torch.autograd.grad(tle_ops.reduce_scatter_fp8(x), x, dy)
    q, scales = tle_ops.per_token_cast_fp8(torch.cat([tensor_of(r + 90, 4, 256) for r in range(world)]))
    assert_same_bits(dx, tle_ops.per_token_cast_back(q, scales, dtype=F32))


def check_many_calls_in_a_row(rank: int, world: int) -> None:
    """The halves of a workspace are used again and again, by ops of other sizes."""
    for i in range(40):
        x = tensor_of(rank, 16 * (i % 5 + 1), 128) + i
        after = tensor_of((rank + 1) % world, 16 * (i % 5 + 1), 128) + i
        assert_same_bits(tle_ops.ring_exchange(x), after)
        q, _ = tle_ops.all_gather_fp8(x)
        n = x.shape[0]
        at = (rank + 1) % world
        assert_same_bits(q[at * n : (at + 1) * n], tle_ops.per_token_cast_fp8(after)[0])


def check_compiled(rank: int, world: int) -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        y = tle_ops.ring_exchange(tle_ops.rms_norm(x, w, 1e-6))
        q, scales = tle_ops.all_gather_fp8(y)
        return tle_ops.distributed_barrier(y.sum() + tle_ops.per_token_cast_back(q, scales, dtype=F32).sum() * 0)

    mesh = td.device_mesh({"device": world})
    for group in (mesh, mesh.torch_mesh, mesh.get_group(), mesh.get_group().group_name):
        torch._dynamo.reset()
        around = torch.compile(
            lambda t, g=group: tle_ops.ring_exchange(t, group=g), fullgraph=True, backend="aot_eager"
        )
        assert_same_bits(around(tensor_of(rank, 3)), tensor_of((rank + 1) % world, 3))
    x, w = tensor_of(rank, 8, 256).requires_grad_(), torch.ones(256, device=device())
    (want,) = torch.autograd.grad(step(x, w), x)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    (got,) = torch.autograd.grad(compiled(x, w), x)
    torch.testing.assert_close(got, want)


def check_bad_arguments(rank: int, world: int) -> None:
    x, mesh = tensor_of(rank, 4, 8), td.device_mesh({"node": world // 2, "device": 2})
    rows = td.sharding(mesh, ["device", None])
    for call, text in (
        (lambda: tle_ops.remote(x, -1), rf"shard must be in \[0, {world}\).*got -1"),
        (lambda: tle_ops.ring_exchange(x, group="nobody"), "group must name a process group"),
        (lambda: td.set_timeout(math.inf), "seconds must be seconds, from 0 to 1e.08, got inf"),
        (lambda: td.set_timeout(0), "seconds must be positive, got 0"),
        (lambda: td.distributed_barrier(timeout=math.nan), "timeout must be seconds, from 0 to 1e.08, got nan"),
        (lambda: td.distributed_barrier(timeout=-1), "timeout must be seconds, from 0 to 1e.08, got -1"),
        (lambda: tle_ops.distributed_barrier(x, timeout=math.inf), "timeout must be seconds, from 0 to 1e.08, got inf"),
        (lambda: td.empty_symmetric((2, -1)), r"shape must not be negative, got \[2, -1\]"),
        (lambda: td.local_slices(rows, (8,)), r"shape must have 2 dimensions, got \[8\]"),
        (lambda: td.make_sharded_tensor(x, rows, (8,), check=False), r"shape must have 2 dimensions, got \[8\]"),
        (lambda: td.distribute(x[0], rows), "whole must have the 2 dimensions of the sharding, got 1"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    one = mesh[0, 0]
    if one.get_group() is None:
        with pytest.raises(ValueError, match="group must contain the calling process"):
            tle_ops.ring_exchange(x, group=one)
    else:
        assert_same_bits(tle_ops.ring_exchange(x, group=one), x)


def check_a_peer_that_comes_at_the_last_moment(rank: int, world: int) -> None:
    """After the store has given up waiting, and before it was asked who is missing."""
    me = Member("last moment", tuple(range(world)), dist.group.WORLD)
    me.store, store = mock.Mock(wraps=me.store), me.store

    def wait(keys: list[str], timeout: datetime.timedelta) -> None:
        store.wait(keys, timeout)
        raise dist.DistStoreError("wait timeout")

    me.store.wait = wait
    assert me.meet("here", str(rank), "test") == [str(r) for r in range(world)]


def check_mismatches_are_named_before_data_moves(rank: int, world: int) -> None:
    td.set_check("always")
    x = tensor_of(0, 4, 256)
    odd = rank == world - 1
    others = "rank 0" if world == 2 else f"ranks {', '.join(map(str, range(world - 1)))}"
    for call, text in (
        (
            lambda: tle_ops.ring_exchange(x[: 4 - odd]),
            rf"shape .* got \[4, 256\] on {others}, \[3, 256\] on rank {world - 1}",
        ),
        (lambda: tle_ops.ring_exchange(x.to(BF16) if odd else x), rf"dtype .* bfloat16 on rank {world - 1}"),
        (lambda: tle_ops.ring_exchange(x, 1 + odd), rf"shift .* got 1 on {others}, 2 on rank {world - 1}"),
        (lambda: tle_ops.all_gather_fp8(x, 128 >> odd), rf"group_size .* 64 on rank {world - 1}"),
        (
            lambda: tle_ops.all_gather_fp8(x) if odd else tle_ops.reduce_scatter_fp8(x),
            rf"op must be the same .* reduce_scatter_fp8 on {others}, all_gather_fp8 on rank {world - 1}",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()
        assert_same_bits(tle_ops.ring_exchange(tensor_of(rank, 3)), tensor_of((rank + 1) % world, 3))
    td.set_check(None)
    mesh = td.device_mesh({"device": world})
    split, shape = (["device", None], [4 * world, 4]) if odd else ([None, "device"], [4, 4 * world])
    with pytest.raises(ValueError, match="make_sharded_tensor: shape must be the same on every rank"):
        td.make_sharded_tensor(tensor_of(rank, 4, 4), td.sharding(mesh, split), shape)


def check_barrier_waits_for_members_alone(rank: int, world: int) -> None:
    mesh = td.device_mesh({"node": [("row", world // 2)], "device": 2})
    row = mesh[rank // 2]
    start = time.monotonic()
    if rank % 2:
        time.sleep(0.3)
    if rank // 2 == 0:  # the others do not come to this one
        td.distributed_barrier(row, timeout=20)
        assert time.monotonic() - start > 0.25
    if rank == 0:
        time.sleep(1.5)
    text = r"distributed_barrier step 7: (rank 0 did not arrive within 0.5 s|rank \d gave up: rank 0 did not arrive)"
    with pytest.raises(td.PeerError, match=text):
        td.distributed_barrier(mesh, timeout=0.5, name="step 7")
    td.distributed_barrier(mesh)
    token = tle_ops.distributed_barrier(torch.ones(2, device=device()), name="on the device")
    assert token.tolist() == [1, 1]


def check_meshes_are_pytorchs(rank: int, world: int) -> None:
    mesh = td.device_mesh({"node": world // 2, "device": 2, "block_cluster": [("cx", 2)], "block": 4})
    assert mesh.torch_mesh.mesh.tolist() == torch.arange(world).view(world // 2, 2).tolist()
    assert mesh.torch_mesh.mesh_dim_names == ("node", "device")
    assert mesh.torch_mesh is td.torch_mesh(mesh)
    row = mesh[rank // 2]
    assert dist.get_process_group_ranks(row.get_group()) == [rank // 2 * 2, rank // 2 * 2 + 1]
    x = tle_ops.ring_exchange(tensor_of(rank, 3), group=row)
    assert_same_bits(x, tensor_of(rank ^ 1, 3))
    assert_same_bits(tle_ops.remote(tensor_of(rank, 3), 0, row.torch_mesh), tensor_of(rank // 2 * 2, 3))
    column = mesh[:, rank % 2].torch_mesh
    assert column.mesh.tolist() == list(range(rank % 2, world, 2))
    with pytest.raises(ValueError, match=r"must name axes of processes.*got 'block'"):
        td.placements(td.sharding(mesh, ["block", None]))
    with pytest.raises(ValueError, match="order of the mesh"):
        td.placements(td.sharding(mesh, [["device", "node"], None]))
    if rank >= 2:
        with pytest.raises(ValueError, match="must be one of the mesh"):
            td.torch_mesh(mesh[0])


def check_sharded_tensors(rank: int, world: int) -> None:
    mesh = td.device_mesh({"node": world // 2, "device": 2})
    whole = tensor_of(7, 4 * world + 1, 6)
    for split in ([["node", "device"], None], ["device", "node"], [None, "device"], None):
        spec = td.sharding(mesh, split)
        x = td.distribute(whole, spec)
        (r0, r1), (c0, c1) = td.local_slices(spec, whole.shape)
        assert_same_bits(x.to_local(), whole[r0:r1, c0:c1])
        made = td.make_sharded_tensor(whole[r0:r1, c0:c1], spec, shape=whole.shape)
        assert_same_bits(td.reshard(made, td.sharding(mesh, [None, None])).to_local(), whole)
        codes = td.reshard(td.distribute(whole.to(E4M3), spec), td.sharding(mesh))
        assert torch.equal(codes.to_local().float(), whole.to(E4M3).float())
    part = td.make_sharded_tensor(
        torch.full((2, 2), float(rank), device=device()), td.sharding(mesh, partial=["node", "device"])
    )
    assert td.reshard(part, td.sharding(mesh)).to_local().unique().item() == sum(range(world))
    with pytest.raises(ValueError, match=r"local must have shape \[\d+, 6\], a part of"):
        td.make_sharded_tensor(whole, td.sharding(mesh, [["node", "device"], None]), shape=whole.shape)


CHECKS = [f for name, f in list(globals().items()) if name.startswith("check_")]
