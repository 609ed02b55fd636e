"""tle.remote and tle.distributed_barrier among processes that run at once: on the CPU, kernels in the interpreter."""

import os
import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist

from tests import processes

ROOT = pathlib.Path(__file__).parents[1]


def test_the_ring_of_the_document():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(ROOT / "examples/tle/ring_exchange.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} of DeviceMesh(shape=(1, 2), names=('node', 'device')) read the shard" in done.stdout


def rows_columns_and_all(rank: int, world: int) -> None:
    """Each process meets its row, its column and everyone, in turns, and reads what its neighbour there has written."""
    os.environ["TRITON_INTERPRET"] = "1"  # where there is a GPU too
    import tle_ops.language as tle
    from tests.remote_kernels import meeting
    from tle.symmetric import allocate

    mesh = tle.device_mesh({"node": 2, "device": world // 2})
    node, device = mesh.coordinate_of(rank)
    x, context = allocate(4, torch.int32, torch.device("cpu"), channels=1)
    out = torch.zeros(1, dtype=torch.int32)
    turn = 0
    for _ in range(5):
        for part, place in ((mesh[node], device), (mesh[:, device], node), (mesh.flatten(), rank)):
            turn += 1
            meeting[(1,)](x, context, out, place, 100 * turn + rank, part)
            assert out.item() == 100 * turn + part.ranks[(place + 1) % part.size], (turn, part)
    dist.barrier()


def one_process_stays_away(rank: int, world: int) -> None:
    """The others give up, and can say how many they miss."""
    os.environ["TRITON_INTERPRET"] = "1"
    import tle_ops.language as tle
    from tests.remote_kernels import impatient
    from tle.symmetric import allocate

    x, context = allocate(4, torch.int32, torch.device("cpu"), channels=1)
    out = torch.full((1,), -1, dtype=torch.int32)
    if rank != 1:
        impatient[(1,)](context, out, tle.device_mesh({"device": world}), 20)
        assert out.item() >= 1
    dist.barrier()
    assert x.sum() == 0


def test_processes_meet_in_the_interpreter():
    failed = processes.run(4, [rows_columns_and_all, one_process_stays_away], limit=150)
    assert not failed, processes.report(failed)
