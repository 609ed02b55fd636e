"""The distributed ops over symmetric memory: the checks of the gloo worlds, and those of a peer that does not come, on
one GPU for all processes and, `python -m pytest tests/multigpu` on a host with two GPUs or more, on a GPU for each."""

import os

import pytest
import torch

import tle_ops
import tle_ops.distributed as td
from tests import distributed_checks, processes
from tests.distributed_checks import tensor_of
from tests.processes import assert_all_pass
from tests.table import BF16, assert_same_bits
from tle_ops.kernels import _symmetric
from tle_ops.kernels._group import member

pytestmark = pytest.mark.gpu


def check_over_symmetric_memory(rank: int, world: int) -> None:
    """Not by the collectives that serve where GPUs do not reach each other."""
    tle_ops.ring_exchange(tensor_of(rank, 8))
    me = member("", "")
    assert _symmetric._workspaces[me.name, processes.device()] is not None


def check_symmetric_tensor(rank: int, world: int) -> None:
    x = td.empty_symmetric((3, 1000), torch.float32)
    for i in range(5):
        x.copy_(tensor_of(rank, 3, 1000) + i)
        assert_same_bits(tle_ops.remote(x, (rank + 1) % world), tensor_of((rank + 1) % world, 3, 1000) + i)


def check_large(rank: int, world: int) -> None:
    x = tensor_of(rank, 4096, 4096, dtype=BF16)
    whole = torch.cat([tensor_of(r, 4096, 4096, dtype=BF16) for r in range(world)])
    from tle_ops.kernels import distributed_triton

    default = distributed_triton._COPIES
    for copies in (default, 1, 1 << 40):  # as it comes, by the copy engines, by kernels
        distributed_triton._COPIES = copies
        for g, w in zip(tle_ops.all_gather_fp8(x), tle_ops.per_token_cast_fp8(whole), strict=True):
            assert_same_bits(g, w)
        assert_same_bits(tle_ops.remote(x, world - 1), whole[-4096:])
    distributed_triton._COPIES = default


def check_graph_and_streams(rank: int, world: int) -> None:
    x = tensor_of(rank, 64, 256)
    tle_ops.all_gather_fp8(x), tle_ops.ring_exchange(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scales = tle_ops.all_gather_fp8(x)
        y = tle_ops.ring_exchange(x)
    for i in range(5):
        x.copy_(tensor_of(rank, 64, 256) + i)
        graph.replay()
        whole = torch.cat([tensor_of(r, 64, 256) + i for r in range(world)])
        for g, w in zip((q, scales), tle_ops.per_token_cast_fp8(whole), strict=True):
            assert_same_bits(g, w)
        assert_same_bits(y, tensor_of((rank + 1) % world, 64, 256) + i)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = tle_ops.ring_exchange(x, -1)
    z = tle_ops.ring_exchange(x)
    side.synchronize()
    for got, at in ((y, rank - 1), (z, rank + 1)):
        assert_same_bits(got, tensor_of(at % world, 64, 256) + 4)


def check_a_late_peer_is_named(rank: int, world: int) -> None:
    """A kernel gives up after the timeout; the next op of the group says who was missing."""
    x = tensor_of(rank, 8, 128)
    tle_ops.ring_exchange(x)
    torch.cuda.synchronize()
    td.distributed_barrier()
    if rank == 0:
        td.set_timeout(0.5)
        td.set_check("never")
        tle_ops.ring_exchange(x)
        torch.cuda.synchronize()
        with pytest.raises(td.PeerError, match=r"rank 1.* did not arrive at an earlier call within 0.5 s"):
            tle_ops.ring_exchange(x)
        td.set_check(None)
        td.set_timeout(60)
    td.distributed_barrier()
    td.release()
    assert_same_bits(tle_ops.ring_exchange(x), tensor_of((rank + 1) % world, 8, 128))  # in a new workspace


def check_a_dead_peer_is_named(rank: int, world: int) -> None:
    x = tensor_of(rank, 8, 128)
    tle_ops.all_gather_fp8(x)
    torch.cuda.synchronize()
    td.distributed_barrier()
    if rank == world - 1:
        os._exit(0)
    td.set_timeout(0.5)
    td.set_check("never")  # that would name it before a kernel starts
    tle_ops.all_gather_fp8(x)
    torch.cuda.synchronize()
    with pytest.raises(td.PeerError, match=rf"rank {world - 1}.* did not arrive at an earlier call within 0.5 s"):
        tle_ops.all_gather_fp8(x)
    os._exit(7)


# In the collectives that DTensors are made of, gloo takes no CUDA tensors; they have no kernels of this package.
OPERATORS = [f for f in distributed_checks.CHECKS if f is not distributed_checks.check_sharded_tensors]
OWN = [check_over_symmetric_memory, check_symmetric_tensor, check_large, check_graph_and_streams]


EVERYWHERE = pytest.mark.parametrize("on", ["one gpu", "gpus"])


@EVERYWHERE
def test_operators(on):
    assert_all_pass(2, [*OWN, *OPERATORS, check_a_late_peer_is_named], on=on)


@EVERYWHERE
def test_operators_of_more_processes(on):
    world = 4 if on == "one gpu" else min(torch.cuda.device_count(), 8) // 2 * 2
    assert_all_pass(world, [*OWN, *OPERATORS], on=on)


@pytest.mark.parametrize("on", ["gpus"])
def test_sharded_tensors(on):
    assert_all_pass(2, [distributed_checks.check_sharded_tensors], on=on)


@EVERYWHERE
def test_a_dead_peer(on):
    failed = processes.run(2, [check_a_dead_peer_is_named], limit=100, on=on)
    assert failed == {0: {"exit": "exit code 7"}, 1: {"exit": "exit code 0"}}, processes.report(failed)
