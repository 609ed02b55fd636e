"""tle.load is tl.load, whatever the hint."""

import pytest
import torch
import triton
import triton.language as tl

import tle_ops.language as tle
from tests.conftest import CUDA
from tests.test_language_tiles import error_of

DEVICE = "cuda" if CUDA else "cpu"
BLOCK_POINTERS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)


@triton.jit
def _load_kernel(x_ptr, out_ptr, n, FORM: tl.constexpr, ASYNC: tl.constexpr):
    at = tl.arange(0, 16)
    if FORM == 0:
        x = tle.load(x_ptr + at, is_async=ASYNC)
    elif FORM == 1:
        x = tle.load(x_ptr + at, at < n, 7.0, is_async=ASYNC)
    elif FORM == 2:
        x = tle.load(x_ptr + at, mask=at < n, other=-1, volatile=True, is_async=ASYNC)
    elif FORM == 3:
        x = tle.load(x_ptr + at, eviction_policy="evict_first", is_async=ASYNC)
    else:
        x = tl.zeros((16,), tl.float32) + tle.load(x_ptr + n, cache_modifier=".cg", is_async=ASYNC)
    tl.store(out_ptr + at, x)


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("form", range(5))
def test_load(form, hint):
    x, out = torch.randn(16), torch.empty(16, device=DEVICE)
    _load_kernel[(1,)](x.to(DEVICE), out, 5, form, hint)
    inside = torch.arange(16) < 5
    want = [x, x.where(inside, 7.0), x.where(inside, -1.0), x, x[5].expand(16)][form]
    assert torch.equal(out.cpu(), want)


@triton.jit
def _block_pointer_kernel(x_ptr, out_ptr, n):
    block = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (16,), (0,))
    x = tle.load(block, boundary_check=(0,), padding_option="zero", is_async=True)
    tl.store(out_ptr + tl.arange(0, 16), x)


def test_block_pointers():
    """Triton 3.9 has none, and its message is the answer to a kernel that uses them."""
    x, out = torch.randn(16), torch.empty(16, device=DEVICE)
    if BLOCK_POINTERS:
        _block_pointer_kernel[(1,)](x.to(DEVICE), out, 11)
        assert torch.equal(out.cpu(), x.where(torch.arange(16) < 11, 0.0))
    else:
        text = error_of(lambda: _block_pointer_kernel[(1,)](x.to(DEVICE), out, 11))
        assert "Block pointers have been removed" in text
