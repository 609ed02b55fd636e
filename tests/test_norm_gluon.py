"""rms_norm through a pipe: compiled for sm_90 everywhere, its errors, and on a GPU what the samples of the spec do not
reach. (The samples: test_kernels.py. The pipe's protocol: test_language_pipe_protocol.py.)"""

import pytest
import torch
import triton
import triton.language as tl

import tle_ops
from tests import gluon_build
from tests.conftest import CUDA
from tests.table import BF16, F16, F32, assert_same_bits, randn
from tle_ops.kernels import norm_gluon

DEVICE = "cuda" if CUDA else "cpu"


def test_kernels_compile_for_sm_90():
    lines = gluon_build.built("norms")
    assert len(lines) == 10
    for name, line in lines.items():
        assert "error" not in line, f"{name}: {line['error']}"
        assert line["cubin"] > 0, name
        assert line["waits"] > 0, name
        assert line["roles"] > 0, name
        assert line["unordered"] == 0, name
        assert line["spilled"] == 0, f"{name}: {line}"
        assert (line["cp_async"] > 0) == name.endswith("True"), name


@triton.jit
def _root_kernel(x_ptr, out_ptr, eps, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, norm_gluon.root_of(tl.load(x_ptr + at), eps, N))


def test_roots():
    inf, nan = torch.inf, torch.nan
    x = torch.cat([torch.tensor([0.0, inf, nan, 1e-30, 1e30, 1.0]), torch.rand(1018) * 100])
    for eps in (0.0, 1e-6):
        out = torch.empty(1024, device=DEVICE)
        _root_kernel[(1,)](x.to(DEVICE), out, eps, 4096, 1024)
        want = (x.double() / 4096 + torch.tensor(eps, dtype=F32).double()).rsqrt()
        torch.testing.assert_close(out.cpu().double(), want, rtol=3e-7, atol=0, equal_nan=True)


class _Ampere(torch.Tensor):
    """What the launcher looks at."""

    is_cuda = True

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_subclass(cls, torch.zeros(2, 64))


def test_older_targets_are_named_before_anything_is_compiled(monkeypatch):
    message = "rms_norm: the backend 'gluon' needs a GPU of sm_90 or newer, got "
    with pytest.raises(NotImplementedError, match=message + "cpu"):
        norm_gluon.rms_norm(torch.zeros(2, 64), None, 1e-6)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(NotImplementedError, match=message + "sm_80"):
        norm_gluon.rms_norm(_Ampere(), None, 1e-6)


def test_it_is_a_backend():
    assert tle_ops.backends("rms_norm")[0] == "triton"
    assert "gluon" in tle_ops.backends("rms_norm")


# --- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (BF16, F16, F32), ids=str)
@pytest.mark.parametrize(
    "M, N",
    [(1, 4096), (133, 4096), (5000, 64), (70000, 32), (300, 7168), (300, 7169), (64, 8192), (40, 8200), (7, 100000)],
)
def test_as_good_as_the_triton_kernel(M, N, dtype):
    """Rows fewer and more than programs, rows per tile from 1 to 32, one chunk and several, aligned or not."""
    x, weight = randn(M, N, dtype=dtype).cuda(), randn(N, seed=3, dtype=dtype).cuda()
    with tle_ops.backend("gluon"):
        got = tle_ops.rms_norm(x, weight, 1e-6)
        assert_same_bits(tle_ops.rms_norm(x, weight, 1e-6), got, "second run")
    with tle_ops.backend("triton"):
        other = tle_ops.rms_norm(x, weight, 1e-6)
    truth = torch.nn.functional.rms_norm(x.double(), (N,), weight.double(), 1e-6)
    error, allowed = ((y.double() - truth).abs() for y in (got, other))
    assert (error <= 2 * allowed.max() + 2 * torch.finfo(dtype).eps * truth.abs()).all()


@pytest.mark.gpu
def test_strided_rows_and_unaligned_starts():
    base = randn(65, 3 * 1024, dtype=BF16).cuda()
    weight = randn(1024, seed=3, dtype=BF16).cuda()
    for x in (base[:, 1024:2048], base[:, 1:1025], base[::2, :1024], base.view(-1)[3 : 3 + 60 * 1024].view(60, 1024)):
        with tle_ops.backend("gluon"):
            got = tle_ops.rms_norm(x, weight, 1e-6)
        torch.testing.assert_close(got, tle_ops.rms_norm(x.contiguous(), weight, 1e-6))


@pytest.mark.gpu
@pytest.mark.parametrize("capacity", range(1, 9))
def test_every_capacity(capacity):
    x, weight = randn(1000, 2048, dtype=BF16).cuda(), randn(2048, seed=3, dtype=BF16).cuda()
    y = torch.full_like(x, torch.nan)
    tile = norm_gluon.tile_of(2048, 2, True)._replace(capacity=capacity, rows=1, programs=2)
    norm_gluon.launch(x, weight, y, 1e-6, 0.0, tile)
    torch.testing.assert_close(y, tle_ops.rms_norm(x, weight, 1e-6))


@pytest.mark.gpu
def test_no_build_for_a_new_row_count_and_graphs():
    weight = randn(512, seed=3, dtype=BF16).cuda()
    with tle_ops.backend("gluon"):
        tle_ops.rms_norm(randn(100, 512, dtype=BF16).cuda(), weight, 1e-6)
        caches = norm_gluon._norm_kernel.device_caches[torch.cuda.current_device()][0]
        before = len(caches)
        for M in (1, 2, 16, 17, 1000):
            tle_ops.rms_norm(randn(M, 512, dtype=BF16).cuda(), weight, 1e-5)
        assert len(caches) == before
        x = randn(33, 512, dtype=BF16).cuda()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tle_ops.rms_norm(x, weight, 1e-6)
        x.copy_(randn(33, 512, dtype=BF16, seed=9))
        graph.replay()
    torch.testing.assert_close(got, tle_ops.rms_norm(x, weight, 1e-6))
