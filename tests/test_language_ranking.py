"""tle.rank, tle.compact and tle.digit_histogram against their definitions."""

import collections

import pytest
import torch
import triton
import triton.language as tl

import tle_ops.language as tle
from tests.conftest import CUDA

DEVICE = "cuda" if CUDA else "cpu"  # where there is no GPU, Triton interprets


@triton.jit
def _rank(keys_ptr, ranks_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(ranks_ptr + at, tle.rank(tl.load(keys_ptr + at)))


@triton.jit
def _compact(keep_ptr, places_ptr, count_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place, count = tle.compact(tl.load(keep_ptr + at))
    tl.store(places_ptr + at, place)
    tl.store(count_ptr, count)


@triton.jit
def _digits(keys_ptr, live_ptr, all_ptr, some_ptr, SHIFT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    keys = tl.load(keys_ptr + at)
    bins = tl.arange(0, 1 << BITS)
    tl.store(all_ptr + bins, tle.digit_histogram(keys, SHIFT, BITS))
    tl.store(some_ptr + bins, tle.digit_histogram(keys, SHIFT, BITS, tl.load(live_ptr + at) != 0))


def numbers(n, low, high, dtype=torch.int32):
    return torch.randint(low, high, (n,), generator=torch.Generator().manual_seed(n)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("n, different", [(128, 1), (128, 7), (256, 1000)])
def test_rank_counts_equal_keys_before(n, different, dtype):
    keys = numbers(n, -1, different, dtype)
    ranks = torch.empty(n, dtype=torch.int32, device=DEVICE)
    _rank[(1,)](keys.to(DEVICE), ranks, n)
    seen = collections.Counter()
    want = []
    for key in keys.tolist():
        want.append(seen[key])
        seen[key] += 1
    assert ranks.tolist() == want


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_keys_of_every_dtype(dtype):
    """-0.0 is 0; 8-bit floats are compared by their values."""
    x = numbers(128, -1, 2).to(torch.float32 if dtype.is_floating_point else torch.int32)
    x = (torch.where(x == 0, -0.0, x) if dtype.is_floating_point else x.abs()).to(dtype)
    ranks, places = (torch.empty(128, dtype=torch.int32, device=DEVICE) for _ in range(2))
    count = torch.empty(1, dtype=torch.int32, device=DEVICE)
    _rank[(1,)](x.to(DEVICE), ranks, 128)
    _compact[(1,)](x.to(DEVICE), places, count, 128)
    keys = x.tolist() if dtype == torch.bool else x.float().tolist()
    assert ranks.tolist() == [keys[:i].count(key) for i, key in enumerate(keys)]
    kept = [i for i, key in enumerate(keys) if key]
    assert [places.tolist()[i] for i in kept] == list(range(len(kept)))
    assert count.item() == len(kept)


@pytest.mark.parametrize("n", [64, 1024])
@pytest.mark.parametrize("share", [0, 3, 10])  # tenths that are kept
def test_compact_is_stable_and_fills_every_place(n, share):
    keep = numbers(n, 0, 10) < share
    places = torch.full((n,), -1, dtype=torch.int32, device=DEVICE)
    count = torch.empty(1, dtype=torch.int32, device=DEVICE)
    _compact[(1,)](keep.to(DEVICE, torch.int8) * 3, places, count, n)  # anything but 0 keeps
    kept, dropped = keep.nonzero().flatten().tolist(), (~keep).nonzero().flatten().tolist()
    order = torch.empty(n, dtype=torch.int64)
    order[places.cpu().long()] = torch.arange(n)
    assert order.tolist() == kept + dropped
    assert count.item() == len(kept)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
@pytest.mark.parametrize("shift, bits", [(0, 1), (0, 8), (4, 2), (7, 1)])
def test_digit_histogram_of_narrow_keys(shift, bits, dtype):
    keys = numbers(64, -128, 128).to(dtype)
    found = [torch.empty(1 << bits, dtype=torch.int32, device=DEVICE) for _ in range(2)]
    _digits[(1,)](keys.to(DEVICE), torch.ones(64, dtype=torch.int32, device=DEVICE), *found, shift, bits, 64)
    seen = collections.Counter((key >> shift) & ((1 << bits) - 1) for key in keys.tolist())
    for got in found:
        assert got.tolist() == [seen[digit] for digit in range(1 << bits)]


@pytest.mark.parametrize("shift, bits", [(0, 8), (11, 7), (24, 8)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_digit_histogram(shift, bits, dtype):
    keys = numbers(512, -(2**31), 2**31, torch.int64).to(dtype)
    live = numbers(512, 0, 2)
    found = [torch.empty(1 << bits, dtype=torch.int32, device=DEVICE) for _ in range(2)]
    _digits[(1,)](keys.to(DEVICE), live.to(DEVICE), *found, shift, bits, 512)
    for got, counted in zip(found, (keys, keys[live != 0]), strict=True):
        seen = collections.Counter((key >> shift) & ((1 << bits) - 1) for key in counted.tolist())
        assert got.tolist() == [seen[digit] for digit in range(1 << bits)]


def test_a_block_of_two_dimensions_is_named():
    @triton.jit
    def wrong(out_ptr):
        tl.store(out_ptr + tl.arange(0, 4)[:, None], tle.rank(tl.zeros((4, 4), tl.int32)))

    with pytest.raises(Exception) as caught:  # noqa: PT011
        wrong[(1,)](torch.zeros(16, dtype=torch.int32, device=DEVICE))
    messages, error = "", caught.value
    while error is not None:  # a compiler's error names the call, and its cause the reason
        messages, error = messages + str(error), error.__cause__
    assert "rank: keys must be a block of one dimension" in messages
