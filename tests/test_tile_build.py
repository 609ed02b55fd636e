"""The kernels of tiles built for sm_90 without a GPU: 128-bit accesses, no spills.

In a process of its own, where they are compiled and not interpreted.
"""

import os
import subprocess
import sys


def check() -> None:
    import torch

    from tests.test_triton_build import accesses, build
    from tle_ops.kernels import tile_triton as t

    F32, BF16 = torch.float32, torch.bfloat16
    for dtype in (F32, BF16):
        for name, plan in {
            "matrix": t._extraction((8192, 1), (1, 1), (4096, 4096), dtype.itemsize),
            "4-D": t._extraction((4194304, 2048, 128, 1), (3, 1, 2, 0), (2, 1024, 4, 128), dtype.itemsize),
        }.items():
            ptx, log = build(t._extract_kernel, (dtype, dtype), plan.constants, plan.warps)
            assert accesses(ptx, "ld") == accesses(ptx, "st") == {128}, (name, dtype)
            assert " 0 bytes spill stores" in log
        for name, plan in {
            "matrix": t._insertion((8192, 8192), (8192, 1), (1, 1), (4096, 4096), (4096, 1), dtype.itemsize),
            "3-D": t._insertion((8, 64, 512), (32768, 512, 1), (1, 1, 0), (2, 32, 128), (4096, 128, 1), dtype.itemsize),
        }.items():
            ptx, log = build(t._insert_kernel, (dtype, dtype, dtype), (*plan.constants, True), plan.warps)
            assert accesses(ptx, "ld") == accesses(ptx, "st") == {128}, (name, dtype)
            assert " 0 bytes spill stores" in log

    plan = t._insertion((8190, 8190), (8190, 1), (1, 1), (4095, 4095), (4095, 1), 4)  # odd rows of the tile
    ptx, log = build(t._insert_kernel, (F32,) * 3, (*plan.constants, True), plan.warps)
    assert accesses(ptx, "ld") == {64, 32}
    assert accesses(ptx, "st") == {64}
    assert " 0 bytes spill stores" in log


def test_build():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = "from tests.test_tile_build import check; check()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
