"""Selection by a cluster of blocks: the generated CUDA on the CPU, in three orders of the threads, with sizes so small
that small rows take every way; on a GPU host the kernel."""

import time
import types

import pytest
import tilelang.language as T
import torch

from tests import cubin, emulator
from tests.table import BF16, F16, F32, assert_same_bits
from tests.test_topk import KINDS, misleading_rows, raw_bits, sampled_columns, scores, sorted_columns, stable_order
from tle_ops import _dispatch
from tle_ops.kernels import _cluster_plan, _tilelang, _tilelang_quant, topk_tilelang
from tle_ops.kernels._select_prelude import PRELUDE
from tle_ops.kernels._tilelang_select import peer

kernels = emulator.kernels  # the fixture
SMALL = {"THREADS": 64, "STEP": 2, "ROOM": 512, "SAMPLE": 256, "FEWEST": 800}


@pytest.fixture
def small(kernels, monkeypatch):
    monkeypatch.setattr(_cluster_plan, "CLUSTERS", tuple((c, 1000) for c, _ in _cluster_plan.CLUSTERS))
    for name, value in SMALL.items():
        monkeypatch.setattr(_cluster_plan, name, value)
    _cluster_plan.plan.cache_clear()
    yield kernels
    _cluster_plan.plan.cache_clear()


def plan_of_sample():
    """As tests/test_topk.py describes where a sample looks."""
    return types.SimpleNamespace(sample=_cluster_plan.SAMPLE, members=1, most=_cluster_plan.ROOM)


def misleading(N: int, k: int) -> torch.Tensor:
    return misleading_rows(N, k, plan_of_sample(), _cluster_plan.RUN)


def every_kind(N: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    rows = torch.cat([scores(kind, (1, N), dtype, seed) for seed, kind in enumerate(KINDS)])
    if N < 2 * _cluster_plan.ROOM + 2 * _cluster_plan.SAMPLE:  # the sample sees too much to be misled
        return rows
    return torch.cat([rows, misleading(N, k).to(dtype)])


def check_topk(x: torch.Tensor, k: int, largest: bool, device: str) -> None:
    values, indices = topk_tilelang.topk(x.to(device), k, -1, largest, False)
    want = stable_order(x, largest)[:, :k].sort(-1).values
    assert_same_bits(indices, want)
    assert raw_bits(values).equal(raw_bits(x).gather(-1, want))


@pytest.mark.parametrize(
    "N, k, dtype, largest, cluster",
    [
        (3001, 40, F32, True, 4),
        (3001, 40, F32, False, 4),
        (1599, 33, BF16, True, 2),
        (1599, 33, F16, False, 2),
        (799, 60, F32, True, 1),
    ],
    ids=str,
)
def test_topk_on_every_way(small, N, k, dtype, largest, cluster):
    assert _cluster_plan.plan(len(KINDS) + 9, N, k)[0] == cluster
    check_topk(every_kind(N, k, dtype), k, largest, small)


def test_rows_that_the_lists_hold_whole(small):
    x = every_kind(1040, 40, F32)
    for n in (1, 77, 512):
        check_topk(x[:, :n], min(n, 40), True, small)  # also views with a pitch of their own


@pytest.mark.parametrize("largest", [True, False])
def test_bounds_that_are_no_number(small, largest):
    """The sample's search may stop at a key between infinity and NaN, which no comparison of floats tells apart."""
    N, k = 3001, 40
    expected = _cluster_plan.SAMPLE * k / N
    rank = int(expected + 5 * expected**0.5) + 4  # of the sample: so many numbers are in it, the rest of it is NaN
    seen = torch.from_numpy(sampled_columns(N, plan_of_sample(), _cluster_plan.RUN))
    x = torch.full((6, N), torch.nan)
    x[:, seen[:rank]] = torch.inf
    x[1, seen[: rank // 2]] = torch.arange(rank // 2).float()
    x[2, seen[: rank // 2]] = -torch.inf
    sign = 1 if largest else -1
    # The bound is the answer, and the lists would have had room for all that equal it; an outlier in the sample.
    x[3] = sign * (torch.arange(N) % 10 == 7)
    x[4] = torch.randn(N, generator=torch.Generator().manual_seed(1)).index_fill(0, seen[:1], sign * 1e30)
    # A bound that is the edge of a bin, and the key of -0.0; too few are above the next one. In the last row, behind
    # which nothing may be written.
    x[5] = sign * -(2.0**-125)
    x[5, seen[0]] = sign * 3.0
    x[5, seen[1:17]] = 0.0
    check_topk(x, k, largest, small)


def check_selector(x, k, starts, ends, device):
    at = torch.arange(x.shape[1])
    inside = (at >= starts[:, None]) & (at < ends[:, None])
    order = sorted_columns(x, True, inside)[:, :k]
    want = torch.where(inside.gather(-1, order), order, x.shape[1]).sort(-1).values
    want = torch.nn.functional.pad(want, (0, k - want.shape[1]), value=x.shape[1])
    got = topk_tilelang.topk_selector(x.to(device), k, starts.to(device), ends.to(device))
    assert_same_bits(got, want.masked_fill(want == x.shape[1], -1).int())


def test_selector_within_windows(small):
    """Windows that are empty, reversed, beyond the row, one column, within one block, and across the border of two."""
    N, k = 3001, 40
    x = every_kind(N, k, F32)
    g = torch.Generator().manual_seed(2)
    starts = torch.randint(-N, N, (len(x),), generator=g, dtype=torch.int32)
    ends = starts + torch.randint(-N // 4, 2 * N, (len(x),), generator=g, dtype=torch.int32)
    check_selector(x, k, starts, ends, small)
    starts = torch.tensor([0, 5, 7, 3000, 767, 768, -(2**31), 100, 760, 31, 32], dtype=torch.int32)
    ends = torch.tensor([0, 4, 8, 9999, 769, 800, 2**31 - 1, 700, 1600, 2900, 2944], dtype=torch.int32)
    check_selector(x[: len(starts)], k, starts, ends, small)


def test_who_serves_which_call():
    """What this way takes and is not better at is the default's, also if the backend is forced."""

    def choice(*args, **options):
        return _dispatch.explain(*args, device="cuda", **options).module

    x = torch.empty(2, 40000)
    for forced in ("tilelang", None):
        with _dispatch.backend(forced):
            assert choice("topk", x, 50, -1, True, False) == "topk_tilelang"
            assert choice("topk", x, k=50, sorted=False) == "topk_tilelang"
            assert choice("topk_selector", x, 50) == "topk_tilelang"
            other = "topk_tilelang" if forced else "topk_triton"
            assert choice("topk_selector", x.half(), 50, None, torch.ones(2, dtype=torch.int32)) == other
            assert choice("topk_selector", x[:, :10000], 50) == other
            assert choice("topk", x, 50) == "topk_triton"
            assert choice("topk", x, 1, 0, True, False) == "topk_triton"
            assert choice("topk", x.int(), 50, -1, True, False) == "topk_triton"
            assert choice("topk_selector", x, 4097) == "topk_triton"
            assert choice("topk_selector", x[:0], 5) == "topk_triton"
    for op in ("topk", "topk_selector"):
        assert not _cluster_plan.takes(op, (x, -1))  # the operator says what is wrong with it
    with _dispatch.backend("triton"):
        assert choice("topk_selector", x, 50) == "topk_triton"


def test_older_gpus_have_no_clusters(monkeypatch):
    x = torch.empty(2, 40000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpus = (
        (8, 166912, "topk_triton"),
        (9, 232448, "topk_tilelang"),
        (10, 232448, "topk_tilelang"),
        (12, 101376, "topk_triton"),
    )
    for major, shared, module in gpus:
        found = types.SimpleNamespace(major=major, shared_memory_per_block_optin=shared)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=found: found)
        _cluster_plan._has_clusters.cache_clear()
        assert _dispatch._choose("topk_selector", (x, 50), None).module == module
    _cluster_plan._has_clusters.cache_clear()


def test_geometry_is_within_bounds():
    for M in (1, 3, 16, 33, 64, 66, 67, 5000, 10**6):
        for N in (1, 31, 8193, 16385, 70001, 131072, 262144, 10**6, 2**22, 2**24):
            for k in (1, 50, 1000, 4096):
                found = _cluster_plan.plan(M, N, k)
                if found is None:
                    assert k > 50 or N > 2**19
                    continue
                cluster, part, words = found
                assert cluster * part >= N
                assert part % 32 == 0
                assert words >= part // 32
                assert words % (_cluster_plan.STEP * _cluster_plan.THREADS // 32) == 0
                assert cluster == 1 or cluster * M <= 132


# --- clusters, in the emulator and as cubins -------------------------------------------------------------------------
def neighbours(synchronized: bool):
    """Each thread reads what its neighbour in the next block of the cluster wrote."""
    rows = T.dynamic("rows", "int64")

    @T.prim_func
    def read(out: T.Tensor((rows, 32), "uint32")):
        with T.Kernel(rows, threads=32, cluster_dims=4, prelude=PRELUDE) as bx:
            t = T.get_thread_binding()
            here = T.alloc_shared((32,), "uint32")
            here[t] = T.cast(bx * 100 + t, "uint32")
            if synchronized:
                T.cluster_sync()
            out[bx, t] = peer(here[t], T.cast((bx + 1) % 4, "int32"))
            T.cluster_sync()

    return read


def test_emulated_clusters():
    out = torch.empty(8, 32, dtype=torch.uint32)
    block = torch.arange(8)[:, None]
    want = (block // 4 * 4 + (block + 1) % 4) * 100 + torch.arange(32)
    for order in emulator.ORDERS:
        emulator.EmulatedKernel(neighbours(True), _tilelang.PASS_CONFIGS)(out, order=order)
        assert out.long().equal(want)
    with pytest.raises(RuntimeError, match="depends on the order"):
        emulator.launcher(neighbours(False), None)(out)


@pytest.mark.parametrize("cluster", [1, 8])
def test_select_ptx(cluster):
    t = _cluster_plan
    sizes = (t.THREADS, t.STEP, t.ROOM, t.SAMPLE)
    prim_func = topk_tilelang.select_kernel.factory(F32, cluster, 512, True, None, None, False, False, *sizes)
    built = cubin.build(prim_func, topk_tilelang.select_kernel.pass_configs)
    assert built.spill_bytes == built.stack_bytes == 0
    assert built.registers * t.THREADS <= 65536
    assert built.count("red.shared") or built.count("atom.shared"), "atomics that do not know the space are slow"
    assert built.count("ld.shared::cluster")
    assert bool(built.count("barrier.cluster")) == (cluster > 1)


SIZES = (_cluster_plan.THREADS, _cluster_plan.STEP, _cluster_plan.ROOM, _cluster_plan.SAMPLE)


def test_the_largest_kind_fits_into_shared_memory():
    factory = topk_tilelang.select_kernel.factory.__wrapped__
    prim_func = factory(F32, 8, _cluster_plan.WORDS[-1], True, None, None, False, False, *SIZES)
    assert cubin.lower(prim_func, topk_tilelang.select_kernel.pass_configs).shared_bytes == _cluster_plan.SHARED


def test_lowering_takes_less_than_twice_that_of_a_short_kernel():
    """Built at the first call, while a user waits. It was six times as long before the search was CUDA."""

    def lowering(kernel, *key):
        def once():
            begin = time.process_time()
            cubin.lower(kernel.factory.__wrapped__(*key), kernel.pass_configs)
            return time.process_time() - begin

        return min(once() for _ in range(2))

    key = (F32, 8, _cluster_plan.WORDS[0], False, None, None, True, True, *SIZES)
    select = lowering(topk_tilelang.select_kernel, *key)
    assert select < 2 * lowering(_tilelang_quant.block_kernel, BF16, torch.float8_e4m3fn, 128, 8, False, False)


# --- at full size ----------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("N, k", [(131072, 50), (131072, 2048), (32768, 2048)])
@pytest.mark.parametrize("largest", [True, False])
def test_every_kind_on_gpu(N, k, largest):
    x = torch.cat([scores(kind, (1, N), F32, seed) for seed, kind in enumerate(KINDS)])
    if N > 4 * _cluster_plan.ROOM:
        x = torch.cat([x, misleading(N, k)])
    for rows in (x, *x.split(1)):
        check_topk(rows, k, largest, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_windows_on_gpu(dtype):
    shapes = ((70001, 2048, 16), (131072, 50, 64), (9000, 300, 200))
    for N, k, M in shapes if dtype == F32 else shapes[:1]:  # a kernel takes seconds to build
        x = torch.cat([scores(kind, (-(-M // len(KINDS)), N), dtype, seed) for seed, kind in enumerate(KINDS)])[:M]
        g = torch.Generator().manual_seed(N)
        starts = torch.randint(-N, N, (M,), generator=g)
        ends = starts + torch.randint(-N // 4, 2 * N, (M,), generator=g)
        check_selector(x, k, starts, ends, "cuda")
