"""topk, topk_selector and topk_gate against a stable sort, on scores that break selectors."""

import os
import random

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import tle_ops
from tests.conftest import CUDA
from tests.graphs import assert_replays
from tests.table import BF16, F16, F32, F64, assert_same_bits

FUZZ = hypothesis.settings(max_examples=150, deadline=None, print_blob=True)  # a failure prints the example
GPU_PROBLEMS = int(os.environ.get("TLE_FUZZ", 5000))  # TLE_FUZZ=100000 for a long run
DTYPES = (F32, BF16, F16, F64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
KERNEL_DEVICE = "cuda" if CUDA else "cpu"  # where there is no GPU, Triton interprets
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
KINDS = (
    "normal",
    "equal",
    "two-values",
    "shared-upper-bits",
    "relu-zeros",
    "infinite-padding",
    "nan-of-either-sign",
    "denormals",
    "signed-zeros",
    "whole-numbers",
    "random-bits",
    "ascending",
)


def scores(kind: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    g = torch.Generator(device).manual_seed(seed)

    def pick(n):
        return torch.randint(0, n, shape, generator=g, device=device)

    if not dtype.is_floating_point:
        info = torch.iinfo(torch.uint8 if dtype == torch.bool else dtype)
        narrow = kind in ("equal", "two-values", "whole-numbers") or dtype == torch.bool
        low, high = (0, {"equal": 1, "two-values": 2}.get(kind, 2)) if narrow else (info.min, info.max)
        return torch.randint(low, high, shape, generator=g, dtype=torch.int64, device=device).to(dtype)
    kind_of_bits = BITS[dtype.itemsize]
    x = torch.randn(shape, generator=g, dtype=F64, device=device)
    if kind == "equal":
        x = torch.full(shape, 0.25, device=device)
    elif kind == "two-values":
        x = pick(2) * 1.5 - 0.5
    elif kind == "shared-upper-bits":  # the order is in the last bits alone
        base = torch.tensor(1.0, dtype=dtype, device=device).view(kind_of_bits)
        return (base + pick(min(4096, 2 ** (8 * dtype.itemsize - 10))).to(kind_of_bits)).view(dtype)
    elif kind == "relu-zeros":
        x = (x - 1).relu()
    elif kind == "infinite-padding":
        x = torch.where(pick(3) == 0, x, -torch.inf)
    elif kind == "denormals":
        return (pick(60) - 30).to(kind_of_bits).abs().view(dtype) * (1 - 2 * pick(2)).to(dtype)
    elif kind == "signed-zeros":
        x = torch.where(pick(2) == 0, 0.0, -0.0) + (pick(9) == 0)
    elif kind == "whole-numbers":
        x = (x * 2).round()
    elif kind == "random-bits":
        info = torch.iinfo(kind_of_bits)
        bits = torch.randint(info.min, info.max, shape, generator=g, dtype=torch.int64, device=device)
        return bits.to(kind_of_bits).view(dtype)
    elif kind == "ascending":
        x = x.sort(-1).values
    x = x.to(dtype)
    if kind == "nan-of-either-sign":
        nan = torch.tensor([torch.nan], dtype=dtype, device=device).view(kind_of_bits)
        negative = nan | torch.iinfo(kind_of_bits).min
        x = torch.where(pick(4) == 0, nan, x.view(kind_of_bits))
        x = torch.where(pick(4) == 0, negative, x).view(dtype)
    return x


def stable_order(x: Tensor, largest: bool) -> Tensor:
    """[M, N] -> the columns in the order of a stable sort, by numpy.lexsort: NaN above all, ties by column."""
    v = x.to(F64).numpy() if x.dtype.is_floating_point else x.to(torch.int64).numpy()
    v = v[:, ::-1] if largest else v  # ties come out reversed from a reversed row, and are reversed back
    nan = np.isnan(v)
    order = np.lexsort((np.where(nan, 0, v), nan), axis=-1)
    return torch.from_numpy((v.shape[-1] - 1 - order)[:, ::-1].copy() if largest else order)


problems = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),  # seed
    st.integers(0, 5),  # rows
    st.one_of(st.integers(1, 40), st.integers(1, 1100), st.sampled_from([128, 256, 512, 1024, 4096, 4097])),
    st.floats(0, 1),  # k as a share of the columns
    st.sampled_from(DTYPES),
)


@FUZZ
@hypothesis.given(problems, st.booleans(), st.booleans())
def test_topk_is_the_first_k_of_a_stable_sort(problem, largest, sorted):
    check_topk(tle_ops.topk, "cpu", problem, largest, sorted)


def check_topk(topk, device, problem, largest, sorted):
    kind, seed, M, N, share, dtype = problem
    k = round(share * N)
    x = scores(kind, (M, N), dtype, seed)
    values, indices = topk(x.to(device), k, largest=largest, sorted=sorted)
    want = stable_order(x, largest)[:, :k]
    want = want if sorted else want.sort(-1).values
    assert_same_bits(indices, want)
    assert raw_bits(values).equal(raw_bits(x).gather(-1, want))  # a gather of bfloat16 on the CPU rewrites NaNs


def raw_bits(t: Tensor) -> Tensor:
    t = t.cpu().contiguous()
    return t.view(BITS[t.dtype.itemsize]) if t.dtype.is_floating_point else t


@FUZZ
@hypothesis.given(problems, st.floats(0, 1.5))
def test_topk_selector_by_its_definition(problem, more):
    check_selector(tle_ops.topk_selector, "cpu", problem, more)


def check_selector(selector, device, problem, more):
    kind, seed, M, N, share, dtype = problem
    k = round(share * more * N)
    x = scores(kind, (M, N), dtype, seed)
    g = torch.Generator().manual_seed(seed)
    starts = torch.randint(-N, 2 * N, (M,), generator=g, dtype=torch.int32)  # also reversed, empty, beyond the row
    ends = starts + torch.randint(-N // 2, 2 * N, (M,), generator=g, dtype=torch.int32)
    got = selector(x.to(device), k, starts.to(device), ends.to(device)).cpu()
    assert got.dtype == torch.int32
    for m in range(M):
        start, end = (min(max(int(t[m]), 0), N) for t in (starts, ends))
        order = stable_order(x[m : m + 1, start:end], True)[0] if end > start else torch.zeros(0, dtype=torch.int64)
        want = (order[:k].sort().values + start).tolist()
        assert got[m].tolist() == want + [-1] * (k - len(want)), f"row {m}, window [{start}, {end})"


def check_against_topk(x: Tensor, k: int, device: str) -> None:
    values, indices = tle_ops.topk(x.to(device), k)
    want = stable_order(x, True)[:, :k]
    assert_same_bits(indices, want)
    assert_same_bits(values, x.gather(-1, want))
    assert_same_bits(tle_ops.topk_selector(x.to(device), k), want.sort(-1).values.int())


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(kind, device):
    """Far more candidates at the threshold than a buffer on the chip could hold."""
    check_against_topk(scores(kind, (2, 131072), F32, 5), 2048, device)
    check_against_topk(scores(kind, (1, 70001), BF16, 6), 50, device)


@pytest.fixture
def small_kernels(monkeypatch):
    """The Triton kernels, with tiles so small that small rows take every way: rounds, one tile, many tiles, a sort."""
    from tle_ops.kernels import _select_triton, topk_triton

    sizes = {
        topk_triton: {"_SHORT": 64, "_FEW": 4, "_TILE": 256, "_SHORTEST": 64, "_MOST": 48},
        _select_triton: {
            "SAMPLE": 128,
            "DRAWN": 32,
            "TILE": 32,
            "WARPS": 4,
            "PROGRAMS": 4,
            "SLOTS": 128,
            "MOST_DRAWN": 512,
        },
    }
    for module, constants in sizes.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    _select_triton.plan.cache_clear()
    yield topk_triton
    _select_triton.plan.cache_clear()


@pytest.mark.parametrize(
    "kind, dtype",
    [*((kind, F32) for kind in KINDS), *(("random-bits", t) for t in DTYPES if t not in (F32, F64))],
    ids=lambda p: str(p).removeprefix("torch."),
)
def test_kernels_on_every_route(small_kernels, kind, dtype):
    for i, (N, share) in enumerate(((30, 0.1), (64, 0.3), (700, 0.06), (300, 0.5))):
        problem = (kind, i, 2, N, share, dtype)

        def topk(x, k, largest, sorted):
            return small_kernels.topk(x, k, -1, largest, sorted)

        check_topk(topk, KERNEL_DEVICE, problem, largest=i % 2 == 0, sorted=True)
        check_topk(topk, KERNEL_DEVICE, problem, largest=i % 2 == 1, sorted=False)
        check_selector(small_kernels.topk_selector, KERNEL_DEVICE, problem, 1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_short_rows_in_lists(kind):
    """Threads that sort a few columns each: whole and padded rows, of which the last program has too few, and rows
    apart; keys that differ in the bits that columns replace."""
    from tle_ops.kernels import topk_triton

    for i, (M, N, k, dtype) in enumerate(((5, 128, 8, F32), (3, 45, 3, F32), (2, 256, 16, BF16), (33, 31, 1, F32))):
        x = scores(kind, (M, N + 3), dtype, i)[:, :N]
        for largest in (True, False):
            values, indices = topk_triton.topk(x.to(KERNEL_DEVICE), k, -1, largest, i % 2 == 0)
            want = stable_order(x, largest)[:, :k]
            want = want if i % 2 == 0 else want.sort(-1).values
            assert_same_bits(indices, want)
            assert raw_bits(values).equal(raw_bits(x).gather(-1, want))


def test_least_keys_in_lists():
    """Those that are not there, and those that are taken, must not be mistaken for the least integers and for NaNs."""
    from tle_ops.kernels import topk_triton

    for N in (32, 40):
        least = torch.randint(-(2**31), -(2**31) + 100, (9, N), dtype=torch.int32)
        nan = torch.full((9, N), torch.nan)
        for x, largest in ((least, True), (~least, False), (nan, False)):
            values, indices = topk_triton.topk(x.to(KERNEL_DEVICE), 7, -1, largest, True)
            want = stable_order(x, largest)[:, :7]
            assert_same_bits(indices, want)
            assert raw_bits(values).equal(raw_bits(x).gather(-1, want))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_warp(kind, monkeypatch):
    from tle_ops.kernels import topk_triton

    monkeypatch.setattr(topk_triton, "_SHORT", 64)
    for N, k, largest, sorted, dtype in ((512, 13, True, False, F32), (480, 32, False, True, BF16)):
        x = scores(kind, (2, N), dtype, k)
        values, indices = topk_triton.topk(x.to(KERNEL_DEVICE), k, -1, largest, sorted)
        want = stable_order(x, largest)[:, :k]
        want = want if sorted else want.sort(-1).values
        assert_same_bits(indices, want)
        assert raw_bits(values).equal(raw_bits(x).gather(-1, want))


LISTS = ((2000, 128, 8), (999, 256, 8), (64, 1000, 16), (300, 60, 5))  # rows, columns, k
ONE_WARP = ((1500, 4096, 64), (1500, 1040, 20))


@pytest.mark.gpu
@pytest.mark.parametrize("sorted", [True, False])
@pytest.mark.parametrize(
    "dtype, shapes",
    [(F32, LISTS + ONE_WARP), (torch.int32, LISTS[1:] + ONE_WARP[1:]), (BF16, LISTS[:1] + ONE_WARP[:1])]
    + [(dtype, LISTS[3:]) for dtype in (F16, torch.int64, torch.uint8)],
    ids=str,
)
def test_short_rows_on_gpu(dtype, shapes, sorted):
    """Of every kind at once, many rows."""
    for i, (M, N, k) in enumerate(shapes):
        largest = i % 2 == 0
        x = torch.cat([scores(kind, (-(-M // len(KINDS)), N), dtype, i, "cuda") for kind in KINDS])
        values, indices = tle_ops.topk(x, k, largest=largest, sorted=sorted)
        want = sorted_columns(x, largest)[:, :k]
        want = want if sorted else want.sort(-1).values
        assert indices.equal(want), (M, N, k)
        assert bits_of(values).equal(bits_of(x).gather(-1, want)), (M, N, k)


def sampled_columns(N: int, plan, run: int) -> np.ndarray:
    """Where `_bound_kernel` looks, that is, where an adversary puts what misleads it."""
    samples = plan.sample * plan.members // run
    i = np.arange(samples, dtype=np.uint32)
    last = np.uint32(0xFFFFFFFF) // np.uint32(samples)
    jitter = (i ^ (i >> 7)) * np.uint32(2654435769)
    jitter = (jitter ^ (jitter >> 15)) * np.uint32(2246822519)
    at = i * (last + np.uint32(1)) + ((jitter ^ (jitter >> 13)) & last)
    at = (at.astype(np.uint64) * N >> 32).astype(np.int64) // run * run
    return np.unique((at[:, None] + np.arange(run)).clip(0, N - 1))


def misleading_rows(N: int, k: int, plan, run: int) -> Tensor:
    """[M, N]: rows on which each step of the selection from long rows goes another way."""
    g = torch.Generator().manual_seed(N)
    noise = torch.randn(N, generator=g)
    seen = torch.from_numpy(sampled_columns(N, plan, run))
    others = torch.ones(N, dtype=torch.bool)
    others[seen] = False
    assert others.sum() > 2 * plan.most, "the sample must be small, or it cannot mislead"
    few = torch.randperm(N, generator=g)[: k // 2]
    rows = {
        "bound-too-high": noise + 100 * (~others),  # fewer than k reach it
        "bound-too-low": noise + 100 * others,  # more pass than the final kernel holds
        "bound-is-the-answer": torch.zeros(N).index_fill(0, few, 1.0),  # fewer than k above it, k from it on
        "crowded-part": noise + 10 * (torch.arange(N) - N // 2 < plan.most // 2) * (torch.arange(N) >= N // 2),
        "all-nan": torch.full((N,), torch.nan),
        "few-numbers": torch.full((N,), torch.nan).index_copy(0, few, noise[few]),
        "least-but-few": torch.full((N,), -torch.inf).index_copy(0, few, noise[few]),
        "alternating": torch.arange(N) % 2.0,
        "descending": -torch.arange(N).float(),
    }
    return torch.stack(list(rows.values()))


@pytest.mark.parametrize("N, k", [(700, 6), (2000, 20)], ids=["one-sample", "maxima-of-groups"])
def test_misleading_rows_in_small_kernels(small_kernels, N, k):
    check_misleading_rows(small_kernels.topk, small_kernels.topk_selector, KERNEL_DEVICE, N, k)


@pytest.mark.gpu
@pytest.mark.parametrize("N, k", [(131072, 50), (131072, 2048), (2**22, 1000)])
def test_misleading_rows_on_gpu(N, k):
    check_misleading_rows(torch.ops.tle.topk, torch.ops.tle.topk_selector, "cuda", N, k)


def check_misleading_rows(topk, selector, device, N, k):
    from tle_ops.kernels import _select_triton

    M = 9
    x = misleading_rows(N, k, _select_triton.plan(M, N, k), _select_triton.RUN)
    assert x.shape[0] == M
    for largest in (True, False):
        want = stable_order(x, largest)[:, :k].sort(-1).values
        values, indices = topk(x.to(device), k, -1, largest, False)
        assert_same_bits(indices, want)
        assert raw_bits(values).equal(raw_bits(x).gather(-1, want))
    want = stable_order(x, True)[:, :k].sort(-1).values
    assert_same_bits(selector(x.to(device), k, None, None), want.int())


def test_plans_of_long_rows_are_within_bounds():
    from tle_ops.kernels import _select_triton

    for M in (1, 3, 64, 5000, 10**6):
        for N in (8193, 16385, 131072, 10**6, 2**24, 2**31 - 1):
            for k in (1, 50, 1000, 4096):
                p = _select_triton.plan(M, N, k)
                assert k <= p.most <= 4 * _select_triton.SLOTS
                assert p.sample * p.members <= N
                assert p.part <= 65536  # a column within it is stored in 16 bits
                assert p.warps * _select_triton.TILE <= p.part
                assert p.part % (p.warps * _select_triton.TILE) == 0


@pytest.mark.gpu
def test_calls_of_several_launches_are_replayed():
    from tle_ops.kernels import topk_tilelang, topk_triton

    def known_calls():
        return len(topk_triton.topk.replays) + len(topk_tilelang.topk.replays)

    for N, k, sorted in ((300, 20, True), (3000, 64, False), (50000, 512, False), (50000, 512, True)):
        calls = [scores("normal", (7, N), F32, seed).cuda() for seed in range(3)]
        known = known_calls()
        for x in calls:
            values, indices = tle_ops.topk(x, k, sorted=sorted)
            want = sorted_columns(x, True)[:, :k]
            want = want if sorted else want.sort(-1).values
            assert indices.equal(want)
            assert values.equal(x.gather(-1, want))
        assert known_calls() == known + 1


def sorted_columns(x: Tensor, largest: bool, inside: Tensor | None = None) -> Tensor:
    """[M, N] -> the columns in the order of a stable sort, where x is: by the value, NaNs apart, then the NaNs, then
    what lies outside. One stable sort for each, the least important first."""
    v = x.to(torch.int64) if not x.dtype.is_floating_point else x.to(F64) + 0.0
    nan = v.isnan()
    order = v.masked_fill(nan, 0).sort(dim=-1, descending=largest, stable=True).indices
    order = order.gather(-1, nan.gather(-1, order).byte().sort(dim=-1, descending=largest, stable=True).indices)
    if inside is not None:
        outside = ~inside.gather(-1, order)
        order = order.gather(-1, outside.byte().sort(dim=-1, stable=True).indices)
    return order


def check_batch(seed: int, N: int, k: int, dtype: torch.dtype, largest: bool, sorted: bool, device: str) -> int:
    """Rows of every kind at once, with a window each. How many."""
    each = max(1, min(64, 2**20 // N // len(KINDS)))
    x = torch.cat([scores(kind, (each, N), dtype, seed + i, device) for i, kind in enumerate(KINDS)])
    M = x.shape[0]
    want = sorted_columns(x, largest)[:, :k]
    want = want if sorted else want.sort(-1).values
    values, indices = tle_ops.topk(x, k, largest=largest, sorted=sorted)
    assert indices.equal(want), f"topk, seed {seed}"
    assert values.view(torch.uint8).equal(bits_of(x).gather(-1, want).view(torch.uint8)), f"values, seed {seed}"

    g = torch.Generator(device).manual_seed(seed)
    starts = torch.randint(-N, N, (M,), generator=g, dtype=torch.int32, device=device)
    ends = starts + torch.randint(-N // 4, 2 * N, (M,), generator=g, dtype=torch.int32, device=device)
    at = torch.arange(N, device=device)
    inside = (at >= starts[:, None]) & (at < ends[:, None])
    order = sorted_columns(x, True, inside)[:, :k]
    want = torch.where(inside.gather(-1, order), order, N).sort(-1).values
    got = tle_ops.topk_selector(x, k, starts, ends)
    assert got.equal(want.masked_fill(want == N, -1).int()), f"topk_selector, seed {seed}"
    return M


def bits_of(x: Tensor) -> Tensor:
    return x.view(BITS[x.dtype.itemsize]) if x.dtype.is_floating_point else x


GPU_DTYPES = tuple(t for t in DTYPES if t != F64)
SIZES = (1, 7, 40, 100, 128, 256, 500, 1024, 1500, 4096, 5000, 16384, 16385, 40000, 70001, 131072)


def draw_shapes(count: int) -> list[tuple]:
    """As many shapes as there is time to build kernels for; they differ in nothing that a value could depend on."""
    rng = random.Random(20)
    drawn = []
    for i in range(count):
        N = SIZES[i % len(SIZES)]
        k = max(1, round(min(N, 2 ** rng.uniform(0, 12))))
        dtype = F32 if i % 2 == 0 else rng.choice(GPU_DTYPES)
        drawn.append((N, k, dtype, rng.random() < 0.7, rng.random() < 0.3))
    return drawn


@pytest.mark.gpu
def test_fuzz_on_gpu():
    shapes = draw_shapes(32)
    problems = seed = 0
    while problems < GPU_PROBLEMS:
        N, k, dtype, largest, sorted = shapes[seed % len(shapes)]
        problems += check_batch(1000 * seed, N, k, dtype, largest, sorted, "cuda")
        seed += 1


def test_a_batch_of_problems():
    """The check itself, and the reference by it."""
    assert check_batch(7, 300, 20, F32, True, True, "cpu") == len(KINDS) * 64
    assert check_batch(8, 300, 20, BF16, False, False, "cpu") == len(KINDS) * 64


@pytest.mark.gpu
def test_cuda_graphs_with_changing_windows():
    for N, k in ((300, 20), (3000, 64), (50000, 512)):
        versions = []
        for seed in range(4):
            g = torch.Generator().manual_seed(seed)
            starts, ends = (torch.randint(-9, N + 9, (6,), generator=g, dtype=torch.int32) for _ in range(2))
            versions.append((scores("whole-numbers", (6, N), F32, seed), k, starts, ends))
        assert_replays(tle_ops.topk_selector, *versions)
        assert_replays(tle_ops.topk, *((x, k) for x, *_ in versions))
    logits = [(scores("normal", (64, 256), BF16, seed), 8) for seed in range(3)]
    assert_replays(tle_ops.topk_gate, *logits)


def test_sixteen_million_columns(device):
    x = scores("normal", (1, 2**24 + 3), F32, 7)
    x[0, -1] = 100.0
    values, indices = tle_ops.topk(x.to(device), 1000)
    order = x[0].argsort(descending=True, stable=True)[:1000]
    assert_same_bits(indices[0], order)
    assert_same_bits(values[0], x[0, order])


# --- topk_gate -------------------------------------------------------------------------------------------------------
def gate_by_loops(logits: Tensor, k: int, scoring: str, bias: Tensor | None, groups: int, kept: int) -> list[list[int]]:
    """The chosen experts, one Python step after another, with the op's own scores."""
    s = logits.softmax(-1) if scoring == "softmax" else logits.double().sigmoid().float()
    choice = s if bias is None else s + bias
    result = []
    for m in range(logits.shape[0]):
        size = logits.shape[1] // groups
        worth = [sum(sorted(choice[m, g * size : (g + 1) * size].tolist())[-2:]) for g in range(groups)]
        best = sorted(range(groups), key=lambda g: (-np.float32(worth[g]), g))[:kept]
        key = logits[m] if bias is None else choice[m]
        open_experts = [e for e in range(logits.shape[1]) if e // size in best]
        result.append(sorted(open_experts, key=lambda e: (-float(key[e]), e))[:k])
    return result


@hypothesis.settings(max_examples=60, deadline=None, print_blob=True)
@hypothesis.given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["softmax", "sigmoid"]),
    st.booleans(),
    st.sampled_from([1, 2, 4, 8]),
    st.data(),
)
def test_gate_by_its_definition(seed, scoring, biased, groups, data):
    g = torch.Generator().manual_seed(seed)
    kept = data.draw(st.integers(1, groups), "topk_groups")
    size = data.draw(st.integers(1, 12), "experts of a group")
    k = data.draw(st.integers(1, kept * size), "k")
    logits = torch.randn(4, groups * size, generator=g)
    bias = torch.randn(groups * size, generator=g) if biased else None
    weights, indices = tle_ops.topk_gate(
        logits, k, scoring=scoring, bias=bias, num_groups=groups, topk_groups=kept, renormalize=False
    )
    assert indices.tolist() == gate_by_loops(logits, k, scoring, bias, groups, kept)
    s = logits.softmax(-1) if scoring == "softmax" else logits.double().sigmoid().float()
    assert_same_bits(weights, s.gather(-1, indices.long()))


def test_gate_indices_are_distinct_whatever_the_row_holds(device):
    nan, inf = torch.nan, torch.inf
    rows = torch.zeros(6, 32)
    rows[0] = nan
    rows[1, 5] = nan
    rows[2] = -inf
    rows[3] = inf
    rows[4, ::2] = inf
    for scoring in ("softmax", "sigmoid"):
        for bias in (None, torch.zeros(32, device=device)):
            for groups in ((1, 1), (4, 2)):
                _, indices = tle_ops.topk_gate(
                    rows.to(device), 8, scoring=scoring, bias=bias, num_groups=groups[0], topk_groups=groups[1]
                )
                assert all(len(set(row)) == 8 and 0 <= min(row) <= max(row) < 32 for row in indices.tolist())
                assert indices[5].tolist() == list(range(8))  # all equal: in order


def test_gate_of_saturated_logits_follows_the_logits(device):
    """Sigmoids of 30, 40 and 50 are all 1 in float32."""
    logits = torch.tensor([[30.0, 40.0, 50.0, -1.0]], device=device)
    weights, indices = tle_ops.topk_gate(logits, 2, scoring="sigmoid")
    assert indices.tolist() == [[2, 1]]
    assert weights.tolist() == [[0.5, 0.5]]


def test_gate_of_scores_that_vanish_is_zero(device):
    logits = torch.full((1, 8), -200.0, device=device)
    weights, _ = tle_ops.topk_gate(logits, 2, scoring="sigmoid")
    assert weights.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("N, k", [(16, 20), (32, 40), (512, 600), (5000, 5001)])
def test_selector_of_more_than_there_is(N, k):
    from tle_ops.kernels import topk_triton

    x = torch.randn(2, N, generator=torch.Generator().manual_seed(k))
    want = torch.cat([torch.arange(N), torch.full((k - N,), -1)]).int().expand(2, k)
    assert_same_bits(topk_triton.topk_selector(x.to(KERNEL_DEVICE), k).cpu(), want)
