"""The TileLang histogram: the generated CUDA on the CPU, in three orders of the threads; on a GPU host the kernel."""

import pytest
import torch

import tle_ops
from tests import cubin, emulator
from tests.specs.scan import ints
from tests.table import assert_same_bits
from tle_ops.kernels import _tilelang, scan_tilelang

kernels = emulator.kernels  # the fixture


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64], ids=str)
def test_histogram_of_every_integer(kernels, dtype):
    x = ints(5, 320, low=0 if dtype in (torch.bool, torch.uint8) else -3, high=2 if dtype is torch.bool else 80)
    x = x.to(dtype)
    assert_same_bits(scan_tilelang.histogram(x.to(kernels), 64), tle_ops.histogram(x, 64))


def test_histogram_on_every_route(monkeypatch, kernels):
    """Short rows, longer ones, several blocks a row, ranges of bins, vectors and single elements, views."""
    monkeypatch.setattr(scan_tilelang, "ENOUGH", 8)
    monkeypatch.setattr(scan_tilelang, "ROOMS", (128, 256))
    for shape in ((9, 640), (9, 1400), (2, 9001), (1, 20000), (9301,), (2, 3, 40), (3, 1)):
        x = ints(*shape, low=-2, high=620)
        for bins in (1, 256, 600):
            got = scan_tilelang.histogram(x.to(kernels), bins)
            assert_same_bits(got, tle_ops.histogram(x, bins), f"{shape}, {bins} bins")
    for x in (ints(40, 6).t(), ints(6, 81)[:, 1:], ints(6, 80)[:, ::2], ints(40).expand(3, 40), ints(0, 4)):
        moved = x.to(kernels) if kernels == "cuda" else x
        assert_same_bits(scan_tilelang.histogram(moved, 200), tle_ops.histogram(x, 200), str(x.stride()))


def test_histogram_beyond_32_bits(kernels):
    x = ints(3, 40, dtype=torch.int64) + 2**32 * ints(3, 40, high=2, dtype=torch.int64, seed=1)
    assert_same_bits(scan_tilelang.histogram(x.to(kernels), 64), tle_ops.histogram(x, 64))


def test_histogram_ptx():
    built = cubin.build(scan_tilelang.histogram_kernel.factory(torch.int32, 4, 256, 256), _tilelang.PASS_CONFIGS)
    assert built.spill_bytes == built.stack_bytes == 0
    assert built.count("ld.global.nc.v4")["ld.global.nc.v4.u32"] == scan_tilelang.STEPS
    assert built.count("atom.shared") or built.count("red.shared"), "atomics that do not know the space are slow"
