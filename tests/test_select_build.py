"""The scans and selections built for sm_90 without a GPU: 128-bit accesses, no spills, no barrier for a lone warp.

As in test_triton_build.py, in a process of their own.
"""

import os
import re
import subprocess
import sys

import pytest
import torch

from tests import test_triton_build
from tests.test_triton_build import accesses

F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64


def build(kernel, pointers, constants, num_warps, maxnreg=None):
    test_triton_build.TYPES.update({I64: "*i64", torch.bool: "*i1", torch.uint8: "*u8"})
    return test_triton_build.build(kernel, pointers, constants, num_warps, maxnreg)


def check_scans() -> None:
    import triton.language as tl

    from tle_ops.kernels import scan_triton as s

    for dtype, acc in ((F32, tl.float32), (I32, tl.int32)):
        for reverse in (False, True):
            for block, one_tile in ((4096, True), (4096, False), (1024, True)):
                constants = (reverse, acc, True, block, one_tile)
                ptx, log = build(s._cumsum_rows_kernel, (dtype, dtype, dtype), constants, block // 512)
                assert 128 in accesses(ptx, "ld") & accesses(ptx, "st"), constants
                assert " 0 bytes spill stores" in log, constants
        constants = (False, acc, False, True, s._CHAIN_TILE, s._LANES, True)
        ptx, log = build(s._cumsum_chain_kernel, (dtype, dtype, dtype, I64), constants, 8, 64)
        assert 128 in accesses(ptx, "ld") & accesses(ptx, "st")
        assert int(re.search(r"(\d+) bytes spill stores", log).group(1)) <= 64
        assert "ld.volatile.global" in ptx  # or a program would wait for what it cannot see
        assert "griddepcontrol.wait" in ptx
        constants = (False, True, s._TILE, s._BRIEF, True)
        ptx, log = build(s._cumsum_tiles_kernel, (dtype, dtype, dtype, dtype), constants, 8)
        assert 128 in accesses(ptx, "ld") & accesses(ptx, "st")
        assert "griddepcontrol.wait" in ptx
        assert " 0 bytes spill stores" in log


def check_selections() -> None:
    from tle_ops.kernels import topk_triton as t

    for dtype in (F32, BF16):
        constants = (8, True, True, True, 2, 256, 8)
        ptx, log = build(t._rounds_kernel, (dtype, dtype, I64), constants, 1)
        assert "redux.sync" in ptx
        assert " 0 bytes spill stores" in log
        constants = (8, True, False, 1, 1, True, 2, 1, 256, 8)
        ptx, log = build(t._gate_kernel, (dtype, F32, F32, I32), constants, 1)
        assert "bar.sync" not in ptx
        assert " 0 bytes spill stores" in log
        constants = (8, True, True, 2, 256, 8)
        ptx, log = build(t._gate_bwd_kernel, (F32, dtype, I32, dtype), constants, 1)
        assert "bar.sync" not in ptx
        assert " 0 bytes spill stores" in log
        constants = (True, False, False, False, True, True, 4096, 64)
        ptx, log = build(t._select_kernel, (dtype, I32, I64, I64, I32, I32), constants, 8)
        assert 128 in accesses(ptx, "ld")
        assert " 0 bytes spill stores" in log


@pytest.mark.parametrize("check", [check_scans, check_selections], ids=lambda f: f.__name__)
def test_build(check):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"from tests.test_select_build import {check.__name__} as check; check()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
