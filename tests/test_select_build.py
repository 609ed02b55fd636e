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

F32, BF16, I16, I32, I64 = torch.float32, torch.bfloat16, torch.int16, torch.int32, torch.int64


def build(kernel, pointers, constants, num_warps, maxnreg=None):
    test_triton_build.TYPES.update({I16: "*i16", I64: "*i64", torch.bool: "*i1", torch.uint8: "*u8"})
    return test_triton_build.build(kernel, pointers, constants, num_warps, maxnreg)


def bounds(ptx: str) -> list[str]:
    """Of each 16-bit store, the predicate by which its guard is narrowed: whether there is room for this element."""
    guards = re.findall(r"@(%p\d+) st\.global\.b16", ptx)
    return [re.search(rf"and\.pred\s+{guard}, %p\d+, (%p\d+);", ptx).group(1) for guard in guards]


def check_room() -> None:
    """Every element that is noted is compared with the room there is. What the compiler is told of the places, to keep
    them in their lanes, must not let one comparison stand for several: a crowded row would write into the next."""
    from tle_ops.kernels import _select_triton as s
    from tle_ops.kernels import topk_triton as t

    for dtype in (F32, I32):
        constants = (True, True, True, True, False, 0, False, True, 512, 128, 64, 4, False)
        ptx, _ = build(t._row_kernel, (dtype, I32, I32, I16, dtype, I32, I64), constants, 1)
        assert len(set(bounds(ptx))) == len(bounds(ptx)) == 16
        for chunks, warps in ((1, 1), (8, 8)):
            ptx, _ = build(s._filter_kernel, filter_pointers(dtype), filter_constants(4, chunks, warps, 128), warps)
            assert len(set(bounds(ptx))) == len(bounds(ptx)) == 16


def filter_pointers(dtype):
    return (dtype, I32, I32, I32, I16, dtype, I32, I32, dtype, I32)


def filter_constants(width, chunks, warps, room, windows=(True, True), sample=0):
    from tle_ops.kernels import _select_triton as s

    bound = (sample, 4, 4096, True, s.RUN)
    joined = chunks > 1
    part = 32768 if joined else s.TILE * warps
    sizes = (part, chunks, room, 64 if joined else 0, 512, joined, warps, s.TILE, width)
    return (True, *windows, True, True, False, *bound, *sizes)


def check_scans() -> None:
    import triton.language as tl

    from tle_ops.kernels import scan_triton as s

    for dtype, acc in ((F32, tl.float32), (I32, tl.int32)):
        for reverse in (False, True):
            for block, one_tile in ((4096, True), (4096, False), (1024, True)):
                constants = (reverse, acc, True, block, one_tile)
                ptx, log = build(s._cumsum_rows_kernel, (dtype, dtype, dtype), constants, block // 512)
                assert 128 in accesses(ptx, "ld") & accesses(ptx, "st"), constants
                # The one value that does not fit in the registers that 4096 columns leave, of reversed float sums.
                most = 4 if reverse and dtype == F32 and not one_tile else 0
                assert int(re.search(r"(\d+) bytes spill stores", log).group(1)) <= most, constants
        for reverse in (False, True):
            constants = (reverse, acc, False, True, s._CHAIN_TILE, s._LANES, True)
            ptx, log = build(s._cumsum_chain_kernel, (dtype, dtype, dtype, I64), constants, 8, 64)
            assert 128 in accesses(ptx, "ld") & accesses(ptx, "st")
            spilled = int(re.search(r"(\d+) bytes spill stores", log).group(1))
            assert spilled <= 8  # at 64 registers, measured the fastest
            assert "ld.volatile.global" in ptx  # or a program would wait for what it cannot see
            assert "griddepcontrol.wait" in ptx
        constants = (False, True, s._TILE, s._BRIEF, True)
        ptx, log = build(s._cumsum_tiles_kernel, (dtype, dtype, dtype, dtype), constants, 8)
        assert 128 in accesses(ptx, "ld") & accesses(ptx, "st")
        assert "griddepcontrol.wait" in ptx
        assert " 0 bytes spill stores" in log


def check_short_rows() -> None:
    from tle_ops.kernels import _gate_triton as g
    from tle_ops.kernels import topk_triton as t
    from tle_ops.kernels._lone_triton import lone_kernel

    for dtype in (F32, BF16):
        wide = 16 // dtype.itemsize
        for sorted in (True, False):
            for block, side_by_side in ((128, 2), (256, 2 if sorted else 4)):  # columns that a thread loads at once
                constants = (8, True, sorted, True, True, t._few_rows(block, sorted)[0], block, 8)
                ptx, log = build(t._few_kernel, (dtype, dtype, I64), constants, 1)
                assert max(accesses(ptx, "ld")) == 8 * dtype.itemsize * side_by_side
                assert " 0 bytes spill stores" in log
        for order in (0, 64):
            constants = (True, not order, order, True, 4096, 256, 128, wide)
            ptx, log = build(lone_kernel, (dtype, I16, dtype, I32 if order else I64, I64), constants, 1, 128)
            assert 128 in accesses(ptx, "ld")
            assert int(re.search(r"(\d+) bytes spill stores", log).group(1)) <= 8
        ptx, log = build(g._gate_few_kernel, (dtype, F32, F32, I32), (8, True, False, True, True, 2, 256, 8), 1)
        assert "bar.sync" not in ptx
        assert " 0 bytes spill stores" in log
        constants = (8, True, False, 1, 1, True, 2, 1, 256, 8)
        ptx, log = build(g._gate_kernel, (dtype, F32, F32, I32), constants, 1)
        assert "bar.sync" not in ptx
        assert " 0 bytes spill stores" in log
        constants = (8, True, True, 2, 256, 8)
        ptx, log = build(g._gate_bwd_kernel, (F32, dtype, I32, dtype), constants, 1)
        assert "bar.sync" not in ptx
        assert " 0 bytes spill stores" in log
        for filtered, sizes in ((True, (512, 256, 128)), (False, (512, 128, 512))):
            constants = (True, False, False, True, True, 0, True, filtered, *sizes, wide, False)
            ptx, log = build(t._row_kernel, (dtype, I32, I32, I16, dtype, I64, I64), constants, 1)
            assert 128 in accesses(ptx, "ld"), constants
            assert " 0 bytes spill stores" in log, constants


def check_long_rows() -> None:
    from tle_ops.kernels import _select_triton as s

    for dtype in (F32, BF16):
        for windows in ((False, False), (True, True)):
            first = (True, *windows, True)
            wide = 16 // dtype.itemsize
            ptx, log = build(s._maxima_kernel, (dtype, I32, I32, I32), (*first, 4096, 32, 32, s.RUN), 4)
            assert " 0 bytes spill stores" in log
            ptx, log = build(s._bound_kernel, (I32, I32, I32, I32), (*first, 64, 4096, 1024, True), 4)
            assert 128 in accesses(ptx, "ld")
            assert " 0 bytes spill stores" in log
            for chunks, warps, sample in ((1, 1, 0), (1, 8, 1024), (8, 8, 1024)):
                constants = filter_constants(wide, chunks, warps, 4096, windows, sample)
                ptx, log = build(s._filter_kernel, filter_pointers(dtype), constants, warps)
                assert 128 in accesses(ptx, "ld")
                assert " 0 bytes spill stores" in log
                # A warp by itself needs no shared memory: no value changes its lane between the load and the stores.
                assert warps > 1 or ".shared" not in ptx
                # And where each warp has its own chunk, it waits for no other.
                assert chunks == 1 or any("bar.sync" not in loop and "ld.global" in loop for loop in loops(ptx))
            constants = (*first, False, 4096, 4096, 512, 4096, 8, 8, 1024, wide)
            pointers = (dtype, I32, I32, I32, I16, I32, I32, dtype, I32, I32, I32)
            ptx, log = build(s._final_kernel, pointers, constants, 8)
            assert 128 in accesses(ptx, "ld")  # the values that were kept
            assert "griddepcontrol.wait" in ptx


def loops(ptx: str) -> list[str]:
    """What lies between a label and a branch back to it."""
    found = []
    for label in re.findall(r"^(\$L\w+):", ptx, re.M):
        after = ptx.split(f"\n{label}:", 1)[1]
        back = [m.start() for m in re.finditer(rf"bra(?:\.uni)?\s+{re.escape(label)};", after)]
        if back:
            found.append(after[: back[-1]])
    return found


@pytest.mark.parametrize(
    "check", [check_room, check_scans, check_short_rows, check_long_rows], ids=lambda f: f.__name__
)
def test_build(check):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"from tests.test_select_build import {check.__name__} as check; check()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
