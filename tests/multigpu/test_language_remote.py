"""tle.remote and tle.distributed_barrier between GPUs: the ring exchange of the document."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.gpu
@pytest.mark.parametrize("on", ["gpus"])
def test_the_ring_of_the_document(on):
    world = min(torch.cuda.device_count(), 8)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    done = subprocess.run(
        [*command, str(ROOT / "examples/tle/ring_exchange.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("read the shard of rank") == world
