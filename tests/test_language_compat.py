"""What differs among Triton 3.6 to 3.9, as _compat.py says it."""

import pytest
import torch
import triton
import triton.language as tl

import tle_ops.language as tle
from tests.conftest import CUDA
from tests.table import assert_same_bits
from tle_ops.language import _compat

DEVICE = "cuda" if CUDA else "cpu"


def test_what_a_version_has():
    assert tuple(int(n) for n in triton.__version__.split(".")[:2]) == _compat.TRITON
    assert (_compat.TRITON >= (3, 7)) == _compat.HAS_SCATTER
    assert (_compat.TRITON >= (3, 8)) == _compat.HAS_ATOMICS
    assert (_compat.TRITON < (3, 9)) == _compat.HAS_BLOCK_POINTERS
    for function in (_compat.block_barrier, _compat.tma_load, _compat.cp_async):
        assert function.__triton_builtin__


@triton.jit
def _edge_kernel(x_ptr, out_ptr):
    at = tl.arange(0, 16)
    block = tl.make_block_ptr(x_ptr, (10,), (1,), (0,), (16,), (0,))
    tl.store(out_ptr + at, tle.load(block, boundary_check=(0,), padding_option="zero", is_async=True))


@triton.jit
def _checked_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, tle.load(x_ptr, boundary_check=(0,)))


def test_load_checks_boundaries_where_tl_load_does():
    x, out = torch.arange(16.0, device=DEVICE), torch.full((16,), -1.0, device=DEVICE)
    if _compat.HAS_BLOCK_POINTERS:
        _edge_kernel[(1,)](x, out)
        assert_same_bits(out, torch.where(x < 10, x, 0.0))
        return
    with pytest.raises(Exception) as caught:  # noqa: PT011
        _checked_kernel[(1,)](x, out)
    error, text = caught.value, ""
    while error is not None:
        error, text = error.__cause__, text + str(error)
    assert "load: boundary_check and padding_option are for block pointers, which Triton 3.9 dropped" in text


@triton.jit
def _options_kernel(x_ptr, out_ptr):
    at = tl.arange(0, 16)
    x = tle.load(x_ptr + at, mask=at < 9, other=-2.0, cache_modifier=".cg", eviction_policy="evict_first")
    tl.store(out_ptr + at, x + tle.load(x_ptr + at, volatile=True, is_async=True))


def test_load_passes_its_options():
    x, out = torch.arange(16.0, device=DEVICE), torch.empty(16, device=DEVICE)
    _options_kernel[(1,)](x, out)
    assert_same_bits(out, torch.where(x < 9, x, -2.0) + x)
