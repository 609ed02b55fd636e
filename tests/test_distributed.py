"""The distributed ops, meshes and DTensor rules on 2 and 4 gloo processes, which start once for all checks; a mesh of
256 simulated devices; processes that die."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import pytest
import torch
import torch.distributed as dist

import tle_ops.distributed as td
from bench import distributed as benchmark
from examples.distributed import parallel_block, ring
from tests import distributed_checks, dtensor_checks, processes
from tests.processes import assert_all_pass
from tle_ops.kernels._group import PeerError, member

ROOT = pathlib.Path(__file__).parent.parent
SLOW = {"check_compiled"}  # what does not depend on the number of processes


def checks_of(module) -> list:
    return [f for f in module.CHECKS if f.__name__ not in SLOW]


def check_ring_example(rank, world):
    assert ring.main().tolist() == [100 * ((rank + 1) % world) + i for i in range(4)]


def check_parallel_block_example(rank, world):
    by_dtensor, by_fp8 = parallel_block.main()
    assert by_dtensor < 1e-5
    assert by_fp8 < 0.04  # two roundings to FP8


def check_the_benchmark(rank, world):
    """All of it, over gloo and once: it must run the day it gets its GPUs."""
    bench = benchmark.Bench(1, torch.device("cpu"))
    bench.barrier()
    for measure in (bench.all_gather, bench.reduce_scatter, bench.remote):
        measure(1)
    with tempfile.TemporaryDirectory() as folder:
        benchmark.write(bench, pathlib.Path(folder))
        assert "| 1 MiB of bf16 a rank |" in (pathlib.Path(folder) / "distributed.md").read_text(encoding="utf-8")
        assert (pathlib.Path(folder) / "distributed.png").stat().st_size > 10000


def test_one_process():
    """In this one, where the world of one is that of the specs."""
    for check in (
        distributed_checks.check_ring,
        distributed_checks.check_gather_is_a_cast_after_the_gather,
        distributed_checks.check_scatter_adds_in_the_order_of_the_ranks,
        distributed_checks.check_many_calls_in_a_row,
        dtensor_checks.check_values_whatever_the_placement,
    ):
        check(0, 1)


def test_two_processes():
    more = [check_ring_example, check_parallel_block_example, check_the_benchmark, check_kernels_in_the_interpreter]
    assert_all_pass(2, [*distributed_checks.CHECKS, *dtensor_checks.CHECKS, *more], limit=150)


def test_four_processes():
    assert_all_pass(
        4, [*checks_of(distributed_checks), *checks_of(dtensor_checks), check_parallel_block_example], limit=150
    )


# --- a peer that is not there ----------------------------------------------------------------------------------------
def check_death_in_an_exchange(rank, world):
    """After all have agreed; gloo notices, and the survivors call the roll. Then nobody can meet the dead."""
    me = member("test", "")
    me.meet("here", "", "test")
    td.set_timeout(2)
    me.meet("here", "", "test")

    def exchange():
        if rank == world - 1:
            os._exit(0)
        dist.recv(torch.empty(1), world - 1)

    with pytest.raises(PeerError, match=rf"test: the exchange failed, rank {world - 1} did not answer"):
        me.exchange("test", exchange)
    with pytest.raises(td.PeerError, match=rf"ring_exchange \(call \d+\): rank {world - 1} did not arrive within 2 s"):
        torch.ops.tle.ring_exchange(torch.ones(4))
    with pytest.raises(td.PeerError, match=rf"distributed_barrier the end: rank {world - 1} did not arrive within 1 s"):
        td.distributed_barrier(timeout=1, name="the end")
    os._exit(7)


def test_three_processes_of_which_one_dies():
    checks = [
        distributed_checks.check_ring,
        distributed_checks.check_gather_is_a_cast_after_the_gather,
        distributed_checks.check_scatter_adds_in_the_order_of_the_ranks,
        dtensor_checks.check_values_whatever_the_placement,
        check_kernels_in_the_interpreter,
        check_death_in_an_exchange,
    ]
    failed = processes.run(3, checks, limit=100)
    assert failed == {0: {"exit": "exit code 7"}, 1: {"exit": "exit code 7"}, 2: {"exit": "exit code 0"}}


# --- 256 devices -----------------------------------------------------------------------------------------------------
SIMULATED = """
import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
import tle_ops, tle_ops.distributed as td

mesh = td.device_mesh({"node": 2, "device": 2})
for call in (lambda: tle_ops.remote(torch.ones(1), 0), lambda: td.torch_mesh(mesh), td.distributed_barrier):
    try:
        call()
    except ValueError as e:
        assert "torch.distributed must be initialized, call init_process_group first" in str(e), e
    else:
        raise AssertionError("no error")

dist.init_process_group("fake", rank=137, world_size=256, store=FakeStore())
mesh = td.device_mesh({"node": [("node_x", 4), ("node_y", 4)], "device": [("device_x", 4), ("device_y", 4)]})
torch_mesh = mesh.torch_mesh
assert torch_mesh.mesh.shape == mesh.shape == (4, 4, 4, 4)
assert tuple(torch_mesh.get_coordinate()) == mesh.coordinate_of(137) == (2, 0, 2, 1)
assert mesh[2, 0].torch_mesh.mesh.flatten().tolist() == list(range(128, 144))
assert mesh.rank_of((2, 0, 2, 1)) == 137
assert mesh[2, :, 2, 1].ranks == (137, 153, 169, 185)

shape = (1000, 96, 48)
spec = td.sharding(mesh, [["node_x", "device_y"], "node_y", None], partial=["device_x"])
assert td.placements(spec) == (Shard(0), Shard(1), Partial(), Shard(0))
covered = torch.zeros(shape[:2], dtype=torch.int)
for rank in range(256):
    (r0, r1), (c0, c1), (d0, d1) = td.local_slices(spec, shape, rank)
    assert (d0, d1) == (0, 48)
    covered[r0:r1, c0:c1] += 1
assert (covered == 4).all()  # the summands along device_x
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
local, offset = compute_local_shape_and_global_offset(shape, torch_mesh, td.placements(spec))
assert tuple(local) == td.local_shape(spec, shape)
assert tuple(offset) == tuple(start for start, _ in td.local_slices(spec, shape))
x = td.make_sharded_tensor(torch.randn(local), spec, shape, check=False)
assert x.shape == shape and x.placements == td.placements(spec)

rows = td.distribute(torch.randn(512, 256), td.sharding(mesh, [["node_x", "node_y"], None]))
q, scales = tle_ops.per_token_cast_fp8(rows)
assert q.to_local().shape == (32, 256) and scales.to_local().shape == (32, 2) and q.placements == rows.placements
y = tle_ops.rms_norm(rows, td.distribute(torch.ones(256), td.sharding(mesh)), 1e-6)
assert y.placements == rows.placements and y.shape == (512, 256)
both = td.distribute(torch.randn(64, 4096), td.sharding(mesh, [["node_x"], ["device_x", "device_y"]]))
q, scales = tle_ops.per_token_cast_fp8(both, 16)  # 4096 = 256 * 16: no group is cut
assert q.placements == scales.placements == both.placements and scales.to_local().shape == (16, 16)
assert td.reshard(both, td.sharding(mesh, [None, "device_x"])).to_local().shape == (64, 1024)
try:
    td.torch_mesh(td.device_mesh({"device": 8}))
except ValueError as e:
    assert "must have the 256 processes of the world, got 8" in str(e), e
else:
    raise AssertionError("no error")
print("OK")
"""


def test_no_world_then_a_simulated_mesh_of_256_devices():
    done = subprocess.run([sys.executable, "-c", SIMULATED], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout.strip() == "OK", done.stderr


# --- kernels, examples -----------------------------------------------------------------------------------------------
def test_codes_travel_16_bytes_at_a_time():
    """Byte by byte they would be slow, and Triton 3.6 loses some on the way to that layout (seen on an H200): codes are
    stored in the layout in which they are made, whatever the group and the alignment of x."""
    code = """if True:
        import triton, triton.language as tl
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from tle_ops.kernels import _distributed_triton
        for name, dtype, G, x_aligned in (
            ("all_gather", "fp32", 128, True), ("all_gather", "bf16", 128, False), ("all_gather", "bf16", 1024, True),
            ("reduce_scatter", "bf16", 128, True), ("reduce_scatter", "fp32", 16, False),
        ):
            fn = getattr(_distributed_triton, f"{name}_fp8_kernel").fn
            kinds = dict(polls="i64", half16="i64", groups="i64", context="*i64", state_ptr="*i64", missing_ptr="*i32",
                         ws_ptr="*u8", arrivals_ptr="*i64", x_ptr=f"*{dtype}", y_ptr=f"*{dtype}", q_ptr="*fp8e4nv",
                         scales_ptr="*fp32")
            constants = dict(W=2, FP8=448.0, UE8M0=False, CODE=tl.float8e4nv, G=G, ROWS=8192 // G, TILES=65536)
            signature = {n: kinds.get(n, "constexpr") for n in fn.arg_names}
            at = {n: (i,) for i, n in enumerate(fn.arg_names)}
            known = [n for n, kind in signature.items() if kind[0] == "*" and (x_aligned or n != "x_ptr")]
            aligned = {at[n]: [["tt.divisibility", 16]] for n in known}
            source = ASTSource(fn, signature, {at[n]: v for n, v in constants.items() if n in at}, aligned)
            asm = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=4)).asm
            ptx, moved = asm["ptx"], [line for line in asm["ttgir"].splitlines() if "convert_layout" in line]
            print(ptx.count("global.b8"), "st.global.v4" in ptx, "ld.global.v4" in ptx, "f8E" in str(moved))"""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=200, env=env)
    assert done.stdout.splitlines() == ["0 True True False"] * 5, done.stderr


def check_kernels_in_the_interpreter(rank, world):
    """Symmetric memory of two processes: the kernels against the collectives, bit for bit."""
    from tests import interpreter, shared_memory
    from tests.table import assert_same_bits, outputs
    from tle_ops.kernels import _symmetric, distributed_ref, distributed_triton

    interpreter.install()
    shared_memory.install()
    after = (rank + 1) % world
    distributed_triton.distributed_barrier(torch.ones(1))
    for ws in _symmetric._workspaces.values():
        ws.state[0] = 2**31 - 3  # calls whose number does not fit into 32 bits
    for copies in (1 << 25, 1):  # all by kernels; large ones, by copies
        distributed_triton._COPIES = copies
        x = torch.randn(24, 256, generator=torch.Generator().manual_seed(rank)).bfloat16()
        for name, args in (
            ("remote", (x, after)),
            ("ring_exchange", (x[:3, :7], -1)),
            ("remote_bwd", (x, 0)),
            ("remote_put", (x, x + 1, after)),
            ("all_gather_fp8", (x, 64)),
            ("all_gather_fp8", (x, 96)),
            ("reduce_scatter_fp8", (x, 128)),
            ("reduce_scatter_fp8", (x, -1)),
        ):
            got, want = (outputs(getattr(module, name)(*args)) for module in (distributed_triton, distributed_ref))
            for g, w in zip(got, want, strict=True):
                assert_same_bits(g, w, name)
    assert distributed_triton.distributed_barrier(torch.ones(1)).item() == 1
    me = member("test", "")
    for op in (distributed_triton.all_gather_fp8, distributed_triton.reduce_scatter_fp8):
        if rank:
            time.sleep(0.2)
            me.store.set(op.__name__, "")
        op(torch.empty(0, 256))  # nothing moves, but who returns knows that all have finished the call before
        assert me.store.check([op.__name__])


def test_torchrun_example():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "examples/distributed/hello.py"], capture_output=True, text=True, cwd=ROOT, timeout=120, env=env
    )
    assert done.stdout.count("(Shard(dim=0),) torch.Size([2, 2]) torch.Size([4, 2])") == 2, done.stderr
