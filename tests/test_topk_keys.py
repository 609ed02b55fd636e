"""What selections in Triton are made of: keys, values compared in their place, and the search for a key."""

import pytest
import torch
import triton
import triton.language as tl

from tests.test_topk import KERNEL_DEVICE
from tle_ops.kernels._filter_triton import _against
from tle_ops.kernels._keys_triton import comparable, keys_of, search


# --- values in place of keys -----------------------------------------------------------------------------------------
@triton.jit
def against_kernel(x_ptr, bounds_ptr, keys_ptr, used_ptr, above_ptr, level_ptr, N: tl.constexpr, LARGEST: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    bound = comparable(tl.load(bounds_ptr + tl.program_id(0)), LARGEST)
    above, level = _against(x, bound, LARGEST)
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(keys_ptr + tl.arange(0, N), keys_of(x, LARGEST))
    tl.store(used_ptr + tl.program_id(0), bound)
    tl.store(above_ptr + at, above)
    tl.store(level_ptr + at, level)


@pytest.mark.parametrize("largest", [True, False])
def test_elements_are_above_a_bound_by_value_as_by_key(largest):
    """Around both zeros and the denormals beside them, and far from them: a bound may be any integer of a search."""
    tiny = torch.tensor(
        [0.0, -0.0, 1e-45, -1e-45, 3e-45, -3e-45, 2**-126, -(2**-126), 1.0, -1.0, torch.inf, -torch.inf]
    )
    x = torch.cat([tiny, torch.full((4,), 2.0)]).to(KERNEL_DEVICE)
    bounds = torch.tensor([*range(-4, 5), 0x3F800000, -0x3F800001, 0x7F7FFFFF, -0x7F800000], dtype=torch.int32)
    bounds = bounds.to(KERNEL_DEVICE)
    keys, used = (torch.empty(n, dtype=torch.int32, device=KERNEL_DEVICE) for n in (len(x), len(bounds)))
    above, level = torch.empty(2, len(bounds), len(x), dtype=torch.bool, device=KERNEL_DEVICE)
    against_kernel[(len(bounds),)](x, bounds, keys, used, above, level, N=16, LARGEST=largest)
    assert above.equal(keys > bounds[:, None])
    assert above.equal(keys > used[:, None])
    assert level.equal(keys == used[:, None])


# --- the search by counting ------------------------------------------------------------------------------------------
@triton.jit
def search_kernel(keys_ptr, out_ptr, k, enough, BLOCK: tl.constexpr):
    keys = tl.load(keys_ptr + tl.arange(0, BLOCK))
    low, high, from_low = search(keys, tl.min(keys, 0), tl.max(keys, 0), k, enough)
    tl.store(out_ptr, low)
    tl.store(out_ptr + 1, high)
    tl.store(out_ptr + 2, from_low.to(keys.dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("spread", [0, 1, 3, 1000, 2**29, 2**31 - 1, "all"])
def test_search_narrows_the_range_to_the_kth_key(dtype, spread):
    """The whole range of the integers, narrower ones, and one key alone."""
    g = torch.Generator().manual_seed(3)
    info = torch.iinfo(dtype)
    for i in range(6):
        if spread == "all":
            keys = torch.randint(info.min, info.max, (64,), generator=g).to(dtype)
            keys[:2] = torch.tensor([info.min, info.max])
        else:
            keys = (torch.randint(0, spread + 1, (64,), generator=g) + (info.min if i % 2 else -1000)).to(dtype)
        k = (1, 5, 33, 64, 20, 63)[i]
        enough = k + (i == 4)
        out = torch.empty(3, dtype=dtype, device=KERNEL_DEVICE)
        search_kernel[(1,)](keys.to(KERNEL_DEVICE), out, k, enough, BLOCK=64)
        low, high, from_low = out.tolist()
        reached = int((keys >= low).sum())
        assert reached >= k > int((keys > high).sum())
        assert low == high or reached <= enough
        assert from_low == reached or (from_low == enough + 1 and low == high)
