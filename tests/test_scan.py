"""cumsum, compact and histogram where test_ops.py cannot look: integers, infinities, and independent definitions."""

import collections
import itertools

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import tle_ops
from tests.conftest import CUDA
from tests.graphs import assert_replays
from tests.specs.scan import ints
from tests.table import BF16, F16, F32, F64, assert_same_bits, randn

KERNEL_DEVICE = "cuda" if CUDA else "cpu"  # where there is no GPU, Triton interprets
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# An example holds its seed, and a failure prints the example.
FUZZ = hypothesis.settings(max_examples=100, deadline=None, print_blob=True)


def exclusive_sums(x: torch.Tensor, dim: int, reverse: bool, wrap: np.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """By adding one Python integer after another, wrapped to the type `wrap`."""
    half = 2 ** (8 * wrap.itemsize - 1)
    rows = np.moveaxis(x.numpy(), dim, -1)
    sums, totals = np.zeros(rows.shape, wrap), np.zeros(rows.shape[:-1], wrap)
    for at in np.ndindex(rows.shape[:-1]):
        total = 0
        columns = range(rows.shape[-1])
        for i in reversed(columns) if reverse else columns:
            sums[(*at, i)] = total
            total = (total + int(rows[(*at, i)]) + half) % (2 * half) - half
        totals[at] = total
    return torch.from_numpy(np.moveaxis(sums, -1, dim).copy()), torch.from_numpy(totals)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_cumsum_of_integers(dtype, reverse, device):
    want_dtype = dtype if dtype in (torch.int32, torch.int64) else torch.int32
    info = None if dtype == torch.bool else torch.iinfo(dtype)
    low, high = (0, 2) if info is None else (max(info.min, -(2**60)), min(info.max, 2**60))
    for shape, dim in (((3, 70), -1), ((7, 4, 5), 1), ((1500,), 0), ((2, 0), 1), ((0, 3), 1)):
        x = ints(*shape, low=low, high=high, dtype=dtype)
        got = tle_ops.cumsum(x.to(device), dim, reverse=reverse)
        for g, w in zip(got, exclusive_sums(x, dim, reverse, np.dtype(str(want_dtype)[6:])), strict=True):
            assert g.dtype == want_dtype
            assert_same_bits(g, w)
        with FakeTensorMode() as mode:
            fake = tle_ops.cumsum(mode.from_tensor(x), dim, reverse=reverse)
        assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in got]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64, F32, F16, BF16, F64], ids=str)
def test_an_explicit_dtype_wins(dtype, device):
    x = ints(3, 300, low=-100, high=100)
    exclusive, total = tle_ops.cumsum(x.to(device), dtype=dtype)
    assert exclusive.dtype == total.dtype == dtype
    want, want_total = exclusive_sums(x, -1, False, np.dtype(np.int64))
    assert_same_bits(exclusive, want.to(dtype))  # whole numbers below 2**24: exact until the one rounding
    assert_same_bits(total, want_total.to(dtype))


def test_float_to_integer_truncates_each_element(device):
    exclusive, total = tle_ops.cumsum(torch.tensor([1.9, -1.9, 2.5], device=device), dtype=torch.int32)
    assert exclusive.tolist() == [0, 1, 0]
    assert total.item() == 2


def test_an_integer_result_has_no_gradient():
    exclusive, total = tle_ops.cumsum(torch.ones(4, requires_grad=True), dtype=torch.int64)
    assert not exclusive.requires_grad
    assert not total.requires_grad


def test_sixteen_bit_sums_do_not_stall(device):
    for dtype, n in ((BF16, 4096), (F16, 4096)):
        exclusive, total = tle_ops.cumsum(torch.ones(2, n, dtype=dtype, device=device))
        assert_same_bits(exclusive, torch.arange(n).expand(2, n).to(exclusive.dtype))
        assert total.tolist() == [n, n]
    exclusive, _ = tle_ops.cumsum(torch.ones(100000, dtype=F16, device=device), dtype=F32)
    assert_same_bits(exclusive, torch.arange(100000.0))


def test_infinity_and_nan_reach_only_the_sums_that_contain_them(device):
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[1, inf, 2, 3], [nan, 1, 2, 3], [1, inf, -inf, 3], [1, 2, 3, -inf]], device=device)
    exclusive, total = tle_ops.cumsum(x)
    assert_same_bits(exclusive, torch.tensor([[0, 1, inf, inf], [0, nan, nan, nan], [0, 1, inf, nan], [0, 1, 3, 6.0]]))
    assert_same_bits(total, torch.tensor([inf, nan, nan, -inf]))
    exclusive, _ = tle_ops.cumsum(x, reverse=True)
    assert_same_bits(
        exclusive, torch.tensor([[inf, 5, 3, 0], [6, 5, 3, 0], [nan, -inf, 3, 0], [-inf, -inf, -inf, 0.0]])
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.int64, F32], ids=str)
def test_kernels_on_every_route(monkeypatch, dtype):
    """Small tiles, so that small inputs take every way: one tile, several in a row, tiles in two launches, chains of
    one and of many waves, columns, columns made rows. Whole numbers, whose sums are exact in any order."""
    from tle_ops.kernels import scan_triton as kernels

    sizes = {"_TILE": 32, "_CHAIN_TILE": 64, "_LANES": 4, "_BRIEF": 8, "_COMPACT_TILE": 16}
    for name, value in (sizes | {"_COLUMN_TILE": (8, 16), "_ENOUGH": 6}).items():
        monkeypatch.setattr(kernels, name, value)
    for shape, dim in (
        ((7, 30), 1),  # a tile for each row
        ((7, 70), 1),  # tile after tile
        ((2, 90), 1),  # two launches
        ((5, 70), 1),  # a chain of one wave
        ((2, 330), 1),  # and of many
        ((1, 40, 3), 1),  # columns made rows
        ((1, 20, 40), 1),  # columns
        ((4, 3, 1), 2),
    ):
        x = ints(*shape, low=0, high=2 if dtype == torch.bool else 9, dtype=dtype)
        for reverse in (False, True):
            got = kernels.cumsum(x.to(KERNEL_DEVICE), dim, reverse)
            for g, w in zip(got, tle_ops.cumsum(x, dim, reverse=reverse), strict=True):
                assert_same_bits(g, w, f"{shape}")
        x = x.movedim(dim, -1).contiguous()
        mask = ints(*x.shape, high=2, seed=1).bool()
        got = kernels.compact(x.to(KERNEL_DEVICE), mask.to(KERNEL_DEVICE))
        for g, w in zip(got, tle_ops.compact(x, mask), strict=True):
            assert_same_bits(g, w, f"{shape}")
        for bins in (5, 5000) if dtype != F32 else ():
            assert_same_bits(kernels.histogram(x.to(KERNEL_DEVICE), bins), tle_ops.histogram(x, bins))


@pytest.mark.gpu
def test_cuda_graphs():
    for shape in ((300, 700), (3, 100000), (3, 1000003)):  # a program for each row, two launches, a chain
        floats = [(randn(*shape, seed=i),) for i in range(3)]
        assert_replays(tle_ops.cumsum, *floats)
        assert_replays(tle_ops.compact, *((x, x > i * 0.3) for i, (x,) in enumerate(floats)))
        assert_replays(tle_ops.cumsum, *((ints(*shape, seed=i),) for i in range(3)))
        assert_replays(tle_ops.histogram, *((ints(*shape, high=300, seed=i), 256) for i in range(3)))


@pytest.mark.gpu
def test_long_chains_give_the_same_bits_every_time():
    """Tiles finish in another order on every run; the sums must not notice."""
    x = randn(1, 2**23 + 5).cuda()
    first = tle_ops.cumsum(x)
    for _ in range(20):
        for a, b in zip(tle_ops.cumsum(x), first, strict=True):
            assert_same_bits(a, b)


def test_gradient_through_the_total():
    x = randn(3, 20, 2, dtype=F64).requires_grad_()
    for dim, reverse in itertools.product((0, 1, 2), (False, True)):
        assert torch.autograd.gradcheck(lambda t, d=dim, r=reverse: tle_ops.cumsum(t, d, reverse=r), x)
        assert torch.autograd.gradcheck(lambda t, d=dim, r=reverse: tle_ops.cumsum(t, d, reverse=r)[1], x)


@FUZZ
@hypothesis.given(
    st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 300), st.floats(0, 1), st.integers(1, 40)
)
def test_compact_and_histogram_by_their_definition(seed, M, N, share, bins):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-5, 50, (M, N), generator=g)
    mask = torch.rand(M, N, generator=g) < share
    packed, indices, count = tle_ops.compact(x, mask)
    counts = tle_ops.histogram(x, bins)
    for m in range(M):
        kept = [i for i in range(N) if mask[m, i]]
        assert count[m] == len(kept)
        assert indices[m].tolist() == kept + [-1] * (N - len(kept))
        assert packed[m].tolist() == [int(x[m, i]) for i in kept] + [0] * (N - len(kept))
        seen = collections.Counter(x[m].tolist())
        assert counts[m].tolist() == [seen[b] for b in range(bins)]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_compact_of_integers(dtype, device):
    x = ints(3, 70, high=2 if dtype == torch.bool else 100, dtype=dtype)
    mask = ints(3, 70, high=2, seed=1).bool()
    packed, _, count = tle_ops.compact(x.to(device), mask.to(device))
    for m in range(3):
        n = count[m]
        assert_same_bits(packed[m, :n], x[m][mask[m]])
        assert not packed[m, n:].any()


def test_compact_keeps_every_bit(device):
    x = torch.tensor([-0.0, float("nan"), float("inf"), 1e-45, 5.0], device=device)
    mask = torch.tensor([True, True, True, True, False], device=device)
    packed, _, _ = tle_ops.compact(x, mask)
    assert torch.equal(packed[:4].view(torch.int32), x[:4].view(torch.int32))
