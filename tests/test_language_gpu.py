"""tle.gpu: compiled for sm_90 everywhere; on a GPU its results, and that nothing touches a live buffer of others."""

import math

import pytest
import torch
import triton
import triton.language as tl

import tle_ops.language as tle
from tests import gluon_build, language_errors
from tests.conftest import CUDA
from tests.table import assert_same_bits
from tle_ops.language._compat import HAS_ATOMICS, HAS_SCATTER, natural_layout

if CUDA:
    from triton.experimental.gluon import language as gl

    from tests import gpu_kernels as kernels

DEVICE = "cuda" if CUDA else "cpu"
needs_scatter = pytest.mark.parametrize("scatter", [True] if HAS_SCATTER else [])


# --- compiled ---------------------------------------------------------------------------------------------------------
def test_kernels_compile_for_sm_90():
    """Or stop with an error that names the version that is needed."""
    for name, line in gluon_build.built("pointers").items():
        lacks = {
            "scatter": not HAS_SCATTER,
            "ranks": not HAS_ATOMICS,
            "atomics": not HAS_ATOMICS,
            "float": not HAS_ATOMICS,
        }
        if lacks.get(name.split()[0]):
            needed = "3.7" if name.startswith("scatter") else "3.8"
            assert f"needs Triton {needed} or newer, this is {triton.__version__}" in line["error"][0][1], name
            continue
        assert "error" not in line, f"{name}: {line['error']}"
        assert line["cubin"] > 0, name
        assert line["spilled"] == 0 or name == "sentinels", name  # that one keeps everything alive
        assert (line["atomics"] > 0) == (name.startswith(("ranks", "atomics", "float"))), f"{name}: {line}"


def test_errors():
    """Of tle.pipe, too: each at trace time, its message whole in what Triton raises."""
    got = gluon_build.built("errors")
    want = language_errors.expected()
    assert got.keys() == want.keys()
    for name, (error, message, _) in want.items():
        chain = got[name]["error"]
        assert chain, f"{name}: no error"
        assert any(message in text for _, text in chain), f"{name}: {chain}"
        assert error in [kind for kind, _ in chain], f"{name}: {chain}"


@triton.jit
def _plain_kernel(x_ptr):
    tle.gpu.alloc([64], tl.float32)


def test_plain_kernels_are_told_what_is_needed():
    message = "alloc: shared memory needs a kernel under @triton.experimental.gluon.jit"
    with pytest.raises(TypeError, match=message):
        tle.gpu.alloc([64], tl.float32)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        _plain_kernel[(1,)](torch.zeros(1, device=DEVICE))
    error = caught.value
    assert message in str(error) + str(error.__cause__)


def test_other_names_are_those_of_gluon():
    from triton.experimental.gluon import language

    assert tle.gpu.program_id is language.program_id
    assert tle.gpu.float32 is language.float32
    with pytest.raises(AttributeError):
        tle.gpu.no_such_name  # noqa: B018
    assert repr(tle.gpu.smem.value) == "tle.gpu.smem"


@pytest.mark.parametrize("num_warps", (1, 4, 8))
@pytest.mark.parametrize(
    "shape", [(1,), (8,), (128,), (1024,), (2, 2), (16, 64), (64, 16), (4, 8, 32), (512, 1)], ids=str
)
def test_natural_layouts_cover_their_shape(shape, num_warps):
    layout = natural_layout(list(shape), num_warps)
    assert math.prod(layout.threads_per_warp) == 32
    assert math.prod(layout.warps_per_cta) == num_warps
    for d, size in enumerate(shape):
        assert size % layout.size_per_thread[d] == 0
    assert layout.size_per_thread[-1] <= max(1, min(4, math.prod(shape) // (32 * num_warps)))


# --- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("n", (1, 2, 200))
def test_the_example_of_the_document(n):
    x = torch.randn(n * 512, device=DEVICE)
    out = torch.full_like(x, torch.nan)
    kernels.seed_example[(1,)](x, out, n, 512)
    assert_same_bits(out, x)


@pytest.mark.gpu
@pytest.mark.parametrize("swizzled", (False, True))
@pytest.mark.parametrize("M, N", [(16, 64), (1, 32), (128, 4), (64, 128)])
def test_whole_buffers(M, N, swizzled):
    n = M * N // 3
    x = torch.randn(M, N, device=DEVICE)
    out = torch.full((3, M, N), torch.nan, device=DEVICE)
    kernels.whole[(1,)](x, out, n, M, N, swizzled)
    inside = torch.arange(M * N, device=DEVICE).view(M, N) < n
    assert_same_bits(out[0], torch.where(inside, x, -1.0))
    assert_same_bits(out[1], torch.where(inside, x, 7.0))
    assert_same_bits(out[2], torch.arange(float(N), device=DEVICE).expand(M, N))


def places(M, N, K):
    generator = torch.Generator().manual_seed(K)
    at = torch.randperm(M * N, generator=generator)[:K] if K <= M * N else torch.arange(K) % (M * N)
    return at.to(DEVICE), (at // N).int().to(DEVICE), (at % N).int().to(DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(16, 64, 256), (16, 64, 1024), (64, 16, 32), (4, 8, 128)])
def test_gather(M, N, K):
    n = K // 3
    x = torch.randn(M, N, device=DEVICE)
    at, i, j = places(M, N, K)
    out = torch.full((2 * K + M * N + 1,), torch.nan, device=DEVICE)
    kernels.gather[(1,)](x, i, j, out, n % M, M, N, K)
    n %= M
    assert_same_bits(out[:K], x.view(-1)[at])
    assert_same_bits(out[K : 2 * K], torch.where(torch.arange(K, device=DEVICE) < n, x.view(-1)[at], -2.0))
    assert_same_bits(out[2 * K : -1].view(M, N), x.flip(0, 1))
    assert out[-1] == x[n, 3]


@pytest.mark.gpu
@needs_scatter
@pytest.mark.parametrize("M, N, K", [(16, 64, 256), (16, 64, 1024), (64, 16, 32)])
def test_scatter(M, N, K, scatter):
    n = K // 3
    x = torch.randn(K, device=DEVICE)
    at, i, j = places(M, N, K)
    out = torch.full((3, M, N), torch.nan, device=DEVICE)
    kernels.scatter[(1,)](x, i, j, out, n, M, N, K)
    want = torch.zeros(M * N, device=DEVICE)
    want[at] = x
    assert_same_bits(out[0].view(-1), want)
    want[at[:n]] = x[:n] + 1
    assert_same_bits(out[1].view(-1), want)
    want[n % M * N + 5] = 11
    assert_same_bits(out[2].view(-1), want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64] if HAS_ATOMICS else [])
def test_atomics(dtype):
    N = 128
    out = torch.zeros(14 * N + 2, dtype=dtype, device=DEVICE)
    kernels.atomics[(1,)](out, {torch.int32: gl.int32, torch.int64: gl.int64}[dtype], N)
    k = torch.arange(N, dtype=dtype, device=DEVICE)
    value = k.clone()
    for op, new in enumerate(
        (
            lambda v: v + 5,
            lambda v: v.maximum(k * 2),
            lambda v: v.minimum(k * 3),
            lambda v: v & 0x7FFF,
            lambda v: v | 16,
            lambda v: v ^ 3,
            lambda v: k + 100,
        )
    ):
        assert_same_bits(out[2 * op * N : (2 * op + 1) * N], value, f"{op}: old")
        value = new(value)
        assert_same_bits(out[(2 * op + 1) * N : (2 * op + 2) * N], value, f"{op}: new")
    assert out[14 * N :].tolist() == [103, 104]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 500, 5000] if HAS_ATOMICS else [])
def test_ranks(n):
    x = torch.randint(0, 128, (n,), dtype=torch.int32, device=DEVICE)
    rank = torch.full((n + 512,), -1, dtype=torch.int32, device=DEVICE)
    count = torch.full((128,), -1, dtype=torch.int32, device=DEVICE)
    kernels.ranks[(1,)](x, rank, count, n, 512, 128)
    assert_same_bits(count.long(), torch.bincount(x, minlength=128))
    for b in x.unique():
        assert_same_bits(rank[:n][x == b].sort().values.long(), torch.arange(int(count[b]), device=DEVICE))


# --- nobody touches a live buffer that is not its own -----------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("N", (128, 512, 1024))
@pytest.mark.parametrize("capacity", (1, 3))
def test_sentinels(N, capacity):
    n = 50
    x = torch.randint(-9, 9, (n, N), device=DEVICE).float()
    sums, out = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    bad = torch.full((n,), -1, dtype=torch.int32, device=DEVICE)
    kernels.sentinels[(1,)](x, sums, out, bad, n, N, capacity, HAS_SCATTER)
    assert not bad.any()
    exclusive, total = x.cumsum(1) - x, x.sum(1, keepdim=True)
    positive = (x > 0).float()
    assert_same_bits(sums, exclusive + (positive.cumsum(1) - positive) + total)
    k, it = torch.arange(N, device=DEVICE), torch.arange(n, device=DEVICE)[:, None]
    wanted = (k * 5 + it - (it if HAS_SCATTER else 0)) % N
    assert_same_bits(out, exclusive.gather(1, wanted))


@pytest.mark.gpu
@pytest.mark.parametrize("N", (128, 512, 2048))
@pytest.mark.parametrize("capacity", (1, 3))
def test_sentinels_of_roles(N, capacity):
    n = 100
    x = torch.randint(-9, 9, (n, N), device=DEVICE).float()
    left, right = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    bad = torch.full((2 * n,), -1, dtype=torch.int32, device=DEVICE)
    kernels.sentinels_of_roles[(1,)](x, left, right, bad, n, N, capacity)
    assert not bad.any()
    exclusive = x.cumsum(1) - x
    want = exclusive.flip(1).cumsum(1).flip(1) - exclusive + x.sum(1, keepdim=True)
    assert_same_bits(left, want)
    assert_same_bits(right, want)


@triton.jit
def _pipelined_kernel(a_ptr, b_ptr, c_ptr, sums_ptr, tiles_ptr, K, STEP: tl.constexpr, STAGES: tl.constexpr):
    """A product whose operands are on their way to shared memory, some steps ahead, while tle works beside them."""
    row = tl.arange(0, 32)[:, None]
    col = tl.arange(0, 32)[None, :]
    step = tl.arange(0, STEP)
    c = tl.zeros((32, 32), tl.float32)
    sums = tl.zeros((32 * STEP,), tl.int32)
    tiles = tl.zeros((32, STEP), tl.float16)
    for k in tl.range(0, K, STEP, num_stages=STAGES):
        a = tl.load(a_ptr + row * K + k + step[None, :])
        b = tl.load(b_ptr + (k + step[:, None]) * 32 + col)
        c = tl.dot(a, b, c)
        exclusive, total = tle.cumsum(tl.reshape(a, (32 * STEP,)).to(tl.int32))
        sums += exclusive + total
        tile = tle.extract_tile(a, [k // STEP % 2, 1], [16, STEP // 2])
        tiles = tle.insert_tile(tiles, tile, [1, k // STEP % 2])
    tl.store(c_ptr + row * 32 + col, c)
    tl.store(sums_ptr + tl.arange(0, 32 * STEP), sums)
    tl.store(tiles_ptr + row * STEP + step[None, :], tiles)


@pytest.mark.parametrize("stages", (1, 3))
def test_pipelined_operands_stay_whole(stages):
    K, step = 512, 32
    a, b = (torch.randint(-3, 4, shape, device=DEVICE).half() for shape in ((32, K), (K, 32)))
    c = torch.empty(32, 32, device=DEVICE)
    sums = torch.empty(32 * step, dtype=torch.int32, device=DEVICE)
    tiles = torch.empty(32, step, dtype=torch.float16, device=DEVICE)
    _pipelined_kernel[(1,)](a, b, c, sums, tiles, K, step, stages)
    assert_same_bits(c, a.float() @ b.float())  # small integers: exact
    blocks = a.view(32, K // step, step).transpose(0, 1).reshape(K // step, -1).int()
    assert_same_bits(sums.long(), (blocks.cumsum(1) - blocks + blocks.sum(1, keepdim=True)).sum(0))
    want = torch.zeros(32, step, dtype=torch.float16, device=DEVICE)
    even, odd = a[:16, -2 * step : -step], a[16:, -step:]
    want[16:, : step // 2], want[16:, step // 2 :] = even[:, step // 2 :], odd[:, step // 2 :]
    assert_same_bits(tiles, want)
