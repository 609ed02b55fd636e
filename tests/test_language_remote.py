"""tle.shard_id, tle.remote and tle.distributed_barrier. One process stands for all: their buffers and signals are
tensors of its own. Processes that really wait for each other: test_language_processes.py and multigpu/."""

import re

import pytest
import torch
import triton
import triton.language as tl

import tle_ops.language as tle
from tests.conftest import CUDA
from tests.test_language_tiles import error_of

DEVICE = "cuda" if CUDA else "cpu"
MESH = tle.device_mesh({"node": 2, "device": 3})
N = 64


class World:
    """Buffers [processes, N] of which the one of process p holds 1000 p, 1000 p + 1, ..., and all signals 0."""

    def __init__(self, processes: int, channels: int = 4):
        self.processes, self.channels = processes, channels
        self.x = (torch.arange(N) + 1000 * torch.arange(processes)[:, None]).float().to(DEVICE)
        self.memory = torch.zeros(processes, tle.signal_count(processes, channels), dtype=torch.int32, device=DEVICE)

    def context(self, rank: int) -> torch.Tensor:
        buffers, signals = ([row.data_ptr() for row in t] for t in (self.x, self.memory))
        return tle.device_context(rank, buffers, signals, self.channels, DEVICE)

    @property
    def signals(self) -> torch.Tensor:
        """[processes, channels, peers]."""
        count = self.channels * self.processes
        return self.memory[:, :count].view(self.processes, self.channels, self.processes)


# --- shard_id --------------------------------------------------------------------------------------------------------
@triton.jit
def _shard_id_kernel(out_ptr, context, mesh: tl.constexpr):
    at = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    tl.store(out_ptr + 5 * at, tle.shard_id(mesh, "node", context))
    tl.store(out_ptr + 5 * at + 1, tle.shard_id(mesh, "device", context=context))
    tl.store(out_ptr + 5 * at + 2, tle.shard_id(mesh, "cluster_x"))
    tl.store(out_ptr + 5 * at + 3, tle.shard_id(mesh, -1))
    tl.store(out_ptr + 5 * at + 4, tle.shard_id(mesh, 0, context))


def test_shard_id():
    mesh = tle.device_mesh({"node": 2, "device": 3, "block_cluster": [("cluster_x", 2)], "block": 4})
    world = World(6)
    for rank in range(6):
        for view in (mesh, mesh[0], mesh.flatten()):  # the axes are those of the whole
            out = torch.full((2, 4, 5), -1, dtype=torch.int32, device=DEVICE)
            _shard_id_kernel[(4, 2)](out, world.context(rank), view)
            for program in range(8):
                row = out.view(8, 5)[program].tolist()
                assert row == [rank // 3, rank % 3, program // 4, program % 4, rank // 3]


# --- remote ----------------------------------------------------------------------------------------------------------
@triton.jit
def _remote_kernel(x_ptr, context, out_ptr, node, device, mesh: tl.constexpr, FORM: tl.constexpr, N: tl.constexpr):
    x = x_ptr + tl.arange(0, N)
    if FORM == 0:
        there = tle.remote(x, shard_id=(node, device), scope=mesh, context=context)
    elif FORM == 1:
        there = tle.remote(x, (1, 2), mesh, context)
    elif FORM == 2:
        there = tle.remote(x, (node, 1), mesh, context)
    elif FORM == 3:
        there = tle.remote(x, [1, device], mesh, context)
    elif FORM == 4:
        there = tle.remote(x, node * 3 + device, mesh, context)
    elif FORM == 5:
        there = tle.remote(x, 4, mesh, context)
    elif FORM == 6:
        there = tle.remote(x, 4, context=context)
    elif FORM == 7:
        there = tle.remote(x, node * 3 + device, context=context, space="device")
    elif FORM == 8:
        flat: tl.constexpr = mesh.flatten()
        there = tle.remote(x, (node * 3 + device,), flat, context)
    elif FORM == 9:
        part: tl.constexpr = mesh[1, ::-1]
        there = tle.remote(x, (device,), part, context)
    else:
        last: tl.constexpr = mesh[:, 2]
        there = tle.remote(x, node, last, context)
    tl.store(out_ptr + tl.arange(0, N), tl.load(there))


def _expected(node, device):
    """The rank of each form."""
    r = 3 * node + device
    return [r, 5, 3 * node + 1, 3 + device, r, 4, 4, r, r, 5 - device, 3 * node + 2]


@pytest.mark.parametrize("form", range(11))
def test_remote_finds_the_shard(form):
    world = World(6)
    for me, node, device in ((0, 0, 1), (4, 1, 0), (2, 1, 2)):
        out = torch.zeros(N, device=DEVICE)
        _remote_kernel[(1,)](world.x[me], world.context(me), out, node, device, MESH, form, N)
        assert torch.equal(out, world.x[_expected(node, device)[form]])


@triton.jit
def _parts_kernel(x_ptr, context, out_ptr, mesh: tl.constexpr):
    """Views of one shape are told apart, in one kernel and from launch to launch."""
    first: tl.constexpr = mesh[0]
    second: tl.constexpr = mesh[1]
    tl.store(out_ptr, tl.load(tle.remote(x_ptr, (1,), first, context)))
    tl.store(out_ptr + 1, tl.load(tle.remote(x_ptr, (1,), second, context)))


@triton.jit
def _view_kernel(x_ptr, context, out_ptr, at, view: tl.constexpr):
    tl.store(out_ptr, tl.load(tle.remote(x_ptr, (at,), view, context)))


def test_views_of_one_shape_are_told_apart():
    world, out = World(6), torch.zeros(2, device=DEVICE)
    _parts_kernel[(1,)](world.x[0], world.context(0), out, MESH)
    assert out.tolist() == [1000, 4000]
    for row, want in ((MESH[0], 1000), (MESH[1], 4000), (MESH[:, 1], 4000), (MESH[:, 0], 3000)):
        _view_kernel[(1,)](world.x[0], world.context(0), out, 1, row)
        assert out[0] == want


@triton.jit
def _write_kernel(x_ptr, h_ptr, context, peer, N: tl.constexpr):
    """Through the result one stores and counts as through any pointer, of any dtype and from inside the buffer."""
    at = tl.arange(0, N)
    there = tle.remote(x_ptr + 2, peer, context=context)
    tl.store(there + at, at.to(tl.float32), mask=at < 3)
    tl.atomic_add(tle.remote(x_ptr.to(tl.pointer_type(tl.int32), bitcast=True) + 8, peer, context=context), 7)
    tl.store(tle.remote(h_ptr + 20, peer, context=context), 1.5)


def test_remote_writes():
    world = World(3)
    world.x.zero_()
    half = world.x[1].view(torch.float16)
    _write_kernel[(1,)](world.x[1], half, world.context(1), 2, N)
    want = torch.zeros(3, N, device=DEVICE)
    want[2, 2:5] = torch.arange(3.0)
    want[2].view(torch.int32)[8] = 7
    want[2].view(torch.float16)[20] = 1.5
    assert torch.equal(world.x, want)


@triton.jit
def _sharded_kernel(x_ptr, context, out_ptr, spec: tl.constexpr, mesh: tl.constexpr):
    """The annotation inside a kernel: checks, and nothing else."""
    x = tle.make_sharded_tensor(x_ptr, sharding=spec, shape=[4, 4])
    mine: tl.constexpr = tle.sharding(mesh, split=[["node"], tle.S("device")], partial=[])
    y = tle.make_sharded_tensor(x_ptr + 1, mine)
    state: tl.constexpr = spec.axis_state("node")
    if state == "P":
        tl.store(out_ptr, tl.load(tle.remote(x, (0, 1), mesh, context)))
        tl.store(out_ptr + 1, tl.load(tle.remote(y, (1, 0), mesh, context)))


def test_annotations_in_a_kernel():
    world, out = World(6), torch.zeros(2, device=DEVICE)
    spec = tle.sharding(MESH, split=["device", tle.B], partial=["node"])
    _sharded_kernel[(1,)](world.x[0], world.context(0), out, spec, MESH)
    assert out.tolist() == [1000, 3001]


# --- distributed_barrier ---------------------------------------------------------------------------------------------
@triton.jit
def _barrier_kernel(context, out_ptr, mesh: tl.constexpr, INDEX: tl.constexpr, POLLS: tl.constexpr):
    missing = tle.distributed_barrier(mesh, context, index=INDEX, polls=POLLS)
    tl.store(out_ptr + tl.program_id(0), missing)


def _barrier(world, rank, mesh, index=None, polls=None, programs=1):
    out = torch.full((programs,), -1, dtype=torch.int32, device=DEVICE)
    _barrier_kernel[(programs,)](world.context(rank), out, mesh, index, polls)
    return out.tolist()


def test_a_barrier_tells_the_others_and_takes_their_signals():
    world = World(6)
    world.signals[4, :2] = torch.tensor([1, 2, 1, 1, 0, 1], dtype=torch.int32)  # process 1 is a round ahead
    assert _barrier(world, 4, MESH, programs=2) == [0, 0]
    want = torch.zeros(6, 4, 6, dtype=torch.int32)
    want[:, :2, 4] = 1
    want[4, :2] = torch.tensor([0, 1, 0, 0, 0, 0], dtype=torch.int32)
    assert torch.equal(world.signals.cpu(), want)


def test_a_barrier_of_some_leaves_the_others_alone():
    world = World(6)
    world.signals[4, 3, 3] = 1
    assert _barrier(world, 4, MESH[1, :2], index=3) == [0]
    want = torch.zeros(6, 4, 6, dtype=torch.int32)
    want[3, 3, 4] = 1
    assert torch.equal(world.signals.cpu(), want)
    assert _barrier(world, 0, MESH[1, :2], index=3) == [0]  # no member
    assert _barrier(world, 5, MESH[1, 2]) == [0]  # the only member
    assert torch.equal(world.signals.cpu(), want)


def test_a_barrier_gives_up():
    world = World(6)
    world.signals[4, 0, [0, 2]] = 1
    assert _barrier(world, 4, MESH, polls=10) == [3]  # neither 1, 3 nor 5 came
    assert world.signals[4, 0].tolist() == [1, 0, 1, 0, 0, 0]  # who came can be seen
    assert world.signals[:, 0, 4].tolist() == [1, 1, 1, 1, 0, 1]


def test_a_world_of_many_processes():
    """More members than fit in one word of the set."""
    mesh = tle.device_mesh({"node": 9, "device": 8})
    world = World(72, channels=1)
    world.signals[50, 0, 2::8] = 1
    assert _barrier(world, 50, mesh[:, 2], polls=3) == [0]
    assert world.signals[50].sum() == 1  # its own, which nobody took
    assert world.signals[:, 0, 50].nonzero().flatten().tolist() == [*range(2, 50, 8), 50, *range(58, 72, 8)]


def test_a_mesh_of_the_first_processes():
    world = World(6)
    world.signals[1, 2, 0] = 1
    assert _barrier(world, 1, tle.device_mesh({"device": 2}), index=2, polls=1) == [0]
    assert not world.signals[1].any()
    assert world.signals[:, 2, 1].tolist() == [1, 0, 0, 0, 0, 0]


def test_one_block_of_each_process():
    mesh = tle.device_mesh({"device": 2, "block": 4})
    world = World(2)
    world.signals[1, 0, 0] = 1
    assert _barrier(world, 1, mesh[:, 2], programs=4) == [0, 0, 0, 0]
    assert world.signals[0, 0].tolist() == [0, 1]
    assert world.signals[1, 0].tolist() == [0, 0]


# --- errors ----------------------------------------------------------------------------------------------------------
@triton.jit
def _bad_kernel(x_ptr, context, i, mesh: tl.constexpr, CASE: tl.constexpr):
    if CASE == 0:
        tle.shard_id(mesh, "rack", context)
    elif CASE == 1:
        tle.shard_id(mesh, 2, context)
    elif CASE == 2:
        tle.shard_id(mesh, "node")
    elif CASE == 3:
        tle.shard_id(2, "node", context)
    elif CASE == 4:
        tle.shard_id(mesh, "node", x_ptr)
    elif CASE == 5:
        tle.shard_id(mesh, 1.5, context)
    elif CASE == 6:
        tle.remote(x_ptr, (0, 1), context=context)
    elif CASE == 7:
        tle.remote(x_ptr, (0, 3), mesh, context)
    elif CASE == 8:
        tle.remote(x_ptr, (i, 3), mesh, context)
    elif CASE == 9:
        tle.remote(x_ptr, (i,), mesh, context)
    elif CASE == 10:
        tle.remote(x_ptr, -1, context=context)
    elif CASE == 11:
        tle.remote(x_ptr, 6, mesh, context)
    elif CASE == 12:
        tle.remote(x_ptr, 0, 3, context)
    elif CASE == 13:
        tle.remote(x_ptr, 0)
    elif CASE == 14:
        tle.remote(i, 0, context=context)
    elif CASE == 15:
        tle.remote(x_ptr, 0, context=context, space="cluster")
    elif CASE == 16:
        tle.remote(x_ptr, 0, context=context, space="node")
    elif CASE == 17:
        tle.remote(x_ptr, 0, context=context, space="moon")
    elif CASE == 18:
        tle.remote(x_ptr, 0.5, context=context)
    elif CASE == 19:
        part: tl.constexpr = mesh[:, :2].flatten()
        tle.remote(x_ptr, i, part, context)
    elif CASE == 20:
        tle.distributed_barrier(2, context)
    elif CASE == 21:
        tle.distributed_barrier(mesh)
    elif CASE == 22:
        tle.distributed_barrier(mesh, x_ptr)
    elif CASE == 23:
        tle.make_sharded_tensor(x_ptr, mesh)
    else:
        wrong: tl.constexpr = tle.sharding(mesh, ["rack"])
        tle.make_sharded_tensor(x_ptr, wrong)


ERRORS = [
    "shard_id: axis must be one of ('node', 'device'), got 'rack'",
    "shard_id: axis must be in [-2, 2), got 2",
    "shard_id: context must be given for 'node', an axis of processes, got None",
    "shard_id: mesh must be a device_mesh, got 2",
    "shard_id: context must be an int64 tensor of device_context, got a run-time value (pointer<fp32>)",
    "shard_id: axis must be a name or an int, got 1.5",
    "remote: scope must be given for a shard_id of coordinates, got None",
    "remote: shard_id must be within (2, 3), got (0, 3)",
    "remote: shard_id must be within (2, 3), got 3",
    "remote: shard_id must have the 2 process axes of DeviceMesh(shape=(2, 3), names=('node', 'device')), got 1",
    "remote: shard_id must be >= 0, got -1",
    "remote: shard_id must be within (6,), got 6",
    "remote: scope must be a device_mesh, got 3",
    "remote: context must be given, got None",
    "remote: tensor must be a pointer or a block of pointers, got a run-time value (int32)",
    "remote: space 'cluster' is not available: stock Triton has no pointer to another block's shared memory",
    "remote: space 'node' is not available: a node that symmetric memory does not reach needs NVSHMEM",
    "remote: space must be 'device', got 'moon'",
    "remote: shard_id must be an int, a scalar or a tuple of them, got 0.5",
    "are not evenly spaced along its axes",
    "distributed_barrier: mesh must be a device_mesh, got 2",
    "distributed_barrier: context must be given, got None",
    "distributed_barrier: context must be an int64 tensor of device_context, got a run-time value (pointer<fp32>)",
    "make_sharded_tensor: sharding must be a ShardingSpec, got DeviceMesh",
    "sharding: split must name axes of ('node', 'device'), got 'rack'",
]


@pytest.mark.parametrize("case", range(len(ERRORS)))
def test_errors(case):
    world = World(6)
    text = error_of(lambda: _bad_kernel[(1,)](world.x[0], world.context(0), 2, MESH, case))
    assert ERRORS[case] in text


def test_an_uneven_party_is_refused():
    mesh = tle.device_mesh({"device": 2, "block": 4}).reshape(8)[1:6]
    assert (mesh.ranks, mesh.blocks) == ((0, 1), (1, 2, 3, 0))
    text = error_of(lambda: _barrier(World(2), 0, mesh, programs=4))
    assert "distributed_barrier: a mesh must have the same blocks on every process" in text


@pytest.mark.parametrize(
    "args, error, text",
    [
        ((2, [16, 32], [16, 32], 1), ValueError, "rank must be one of 2 processes, got 2"),
        ((-1, [16], [16], 1), ValueError, "rank must be one of 1 processes, got -1"),
        ((0, [16, 32], [16], 1), ValueError, "buffers and signals must be one of each process, got 2 and 1"),
        ((0, [], [], 1), ValueError, "buffers and signals must be one of each process, got 0 and 0"),
        ((None, [16], [16], 1), TypeError, "rank must be an int, got None"),
        ((True, [16, 32], [16, 32], 1), TypeError, "rank must be an int, got True"),
        ((0, [16], [16], 0), ValueError, "channels must be positive, and below 2**31, got 0"),
        ((0, [16], [16], 1 << 40), ValueError, "channels must be positive, and below 2**31, got 1099511627776"),
        ((0, [16], [16], 1.5), TypeError, "channels must be an int, got 1.5"),
        ((0, [16], [20], 1), ValueError, "addresses must be 16-byte aligned, got 0x14"),
        ((0, [0], [16], 1), ValueError, "buffers must be addresses in (0, 2**63), got 0"),
        ((0, [16], [1 << 64], 1), ValueError, "signals must be addresses in (0, 2**63), got 18446744073709551616"),
        ((0, 16, 16, 1), TypeError, "buffers must be a list of addresses (ints), got 16"),
        ((0, [16], ["16"], 1), TypeError, "signals must be a list of addresses (ints), got ['16']"),
        ((0, [torch.zeros(1)], [16], 1), TypeError, "buffers must be a list of addresses (ints), got [tensor([0.])]"),
    ],
)
def test_errors_of_a_context(args, error, text):
    with pytest.raises(error, match=re.escape(f"device_context: {text}")):
        tle.device_context(*args, "cpu")


def test_errors_of_a_context_without_a_device():
    with pytest.raises(TypeError, match="device_context: device must be given, got None"):
        tle.device_context(0, [16], [16], 1, None)


@pytest.mark.parametrize(
    "args, error, text",
    [
        ((0, 1), ValueError, "processes must be positive, and below 2**31, got 0"),
        ((2, -1), ValueError, "channels must be positive, and below 2**31, got -1"),
        (("a", 1), TypeError, "processes must be an int, got 'a'"),
        ((2, 1.5), TypeError, "channels must be an int, got 1.5"),
        ((2, None), TypeError, "channels must be an int, got None"),
    ],
)
def test_errors_of_signal_count(args, error, text):
    with pytest.raises(error, match=re.escape(f"signal_count: {text}")):
        tle.signal_count(*args)


# --- what only a GPU can show ----------------------------------------------------------------------------------------
BLOCKS = 64
GRID = tle.device_mesh({"block_cluster": 2, "block": BLOCKS // 2})


@triton.jit
def _grid_kernel(x_ptr, counters, out_ptr, rounds, mesh: tl.constexpr):
    """Each program reads what the next one wrote, round after round, with no launch between."""
    me = tle.shard_id(mesh, 0) * mesh.shape[1] + tle.shard_id(mesh, "block")
    n: tl.constexpr = mesh.size
    total = 0
    for r in range(rounds):
        tl.store(x_ptr + me, r * 1000 + me)
        tle.distributed_barrier(mesh, counters)
        total += tl.load(x_ptr + (me + 1) % n) - r * 1000
        tle.distributed_barrier(mesh, context=counters, index=1)
    tl.store(out_ptr + me, total)


@triton.jit
def _half_grid_kernel(x_ptr, counters, out_ptr, mesh: tl.constexpr):
    """Two sub-meshes meet side by side; one program of no mesh passes both."""
    me = tl.program_id(0)
    tl.store(x_ptr + me, me)
    first: tl.constexpr = mesh[0]
    second: tl.constexpr = mesh[1, 1:]
    tle.distributed_barrier(first, counters)
    tle.distributed_barrier(second, counters, index=1)
    other = tl.where(me < 32, 31 - me, 33 + (63 - me))
    if me == 32:
        other = 32
    tl.store(out_ptr + me, tl.load(x_ptr + other))


def test_blocks_do_not_meet_in_the_interpreter():
    if CUDA:
        return test_blocks_meet()
    x, counters = torch.zeros(BLOCKS, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    text = error_of(lambda: _grid_kernel[(BLOCKS,)](x, counters, torch.zeros_like(x), 5, GRID))
    assert "distributed_barrier: 64 blocks cannot meet in the interpreter, which runs one after another" in text
    return None


@pytest.mark.gpu
def test_blocks_meet():
    x, out = (torch.zeros(BLOCKS, dtype=torch.int32, device=DEVICE) for _ in range(2))
    counters = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    want = (torch.arange(BLOCKS) + 1) % BLOCKS
    for rounds in (1, 5, 100):  # the counters stay as they are from launch to launch
        _grid_kernel[(BLOCKS,)](x, counters, out, rounds, GRID, launch_cooperative_grid=True)
        assert torch.equal(out.cpu(), want * rounds)
    x.zero_()
    counters.zero_()
    _half_grid_kernel[(BLOCKS,)](x, counters, out, GRID, launch_cooperative_grid=True)
    assert out.tolist() == [*range(31, -1, -1), 32, *range(63, 32, -1)]


@triton.jit
def _exchange_kernel(x_ptr, context, out_ptr, rounds, mesh: tl.constexpr, N: tl.constexpr):
    """One process of a ring: writes its shard, waits, reads its neighbour's, waits."""
    device: tl.constexpr = mesh[:, 0] if mesh.ndim == 2 else mesh
    me = tle.shard_id(mesh, "device", context)
    program = tl.program_id(0)
    at = program * N + tl.arange(0, N)
    there = tle.remote(x_ptr + at, (me + 1) % mesh.shape[0], device, context)
    total = tl.zeros((N,), tl.int32)
    for r in range(rounds):
        tl.store(x_ptr + at, r * 7 + me * 1000 + at)
        tle.distributed_barrier(mesh, context)
        total += tl.load(there)
        tle.distributed_barrier(mesh, context)
    tl.store(out_ptr + at, total)


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [1, 8])
def test_two_launches_meet_on_one_gpu(blocks):
    """Two kernels at once, each as one process: in a mesh of processes programs meet in pairs, in one of both all."""
    mesh = tle.device_mesh({"device": 2} if blocks == 1 else {"device": 2, "block": blocks})
    rounds, size = 50, 256
    x = torch.zeros(2, 8 * size, dtype=torch.int32, device=DEVICE)
    out = torch.zeros_like(x)
    world = World(2, channels=8)
    world.x = x
    contexts = [world.context(rank) for rank in range(2)]
    options = {"launch_cooperative_grid": True} if blocks > 1 else {}
    # Built beforehand: a kernel that waits must not wait for a compiler.
    _exchange_kernel.warmup(x[0], contexts[0], out[0], rounds, mesh, size, grid=(8,), **options)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for rank, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            _exchange_kernel[(8,)](x[rank], contexts[rank], out[rank], rounds, mesh, size, **options)
    torch.cuda.synchronize()
    at = torch.arange(8 * size)
    for rank in range(2):
        want = sum(r * 7 + (1 - rank) * 1000 + at for r in range(rounds))
        assert torch.equal(out[rank].cpu().long(), want)
    assert not world.memory[:, : 8 * 2].any()  # every signal was taken
