"""What the table of specs cannot say of the norms."""

import importlib

import pytest
import torch
import torch.nn.functional as F

import tle_ops
from tests.conftest import CUDA
from tests.table import BF16, F32, F64, assert_same_bits, outputs, randn, to_device
from tests.test_kernels import KERNEL_DTYPES, assert_as_good, family
from tests.test_ops import SPECS

NORMS = [s for s in SPECS if family(s) == "norm"]


def run(op: str, args: tuple) -> tuple:
    """The op's Triton kernel, in the interpreter where there is no GPU."""
    kernel = getattr(importlib.import_module("tle_ops.kernels.norm_triton"), op)
    return outputs(kernel(*to_device(args, "cuda" if CUDA else "cpu")))


@pytest.mark.parametrize("few", [0, 1000], ids=["one-program-per-row", "chunks-at-once"])
@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=str)
@pytest.mark.parametrize("spec", NORMS, ids=str)
def test_rows_beyond_registers(spec, dtype, few, monkeypatch):
    """Every sample on the way of long rows, by a limit of 16 columns and chunks of 32."""
    from tle_ops.kernels import _norm_wide_triton, norm_triton

    monkeypatch.setattr(norm_triton, "LONGEST", 16)
    monkeypatch.setattr(_norm_wide_triton, "_CHUNK", 32)
    monkeypatch.setattr(_norm_wide_triton, "_WARPS", 1)
    monkeypatch.setattr(_norm_wide_triton, "FEW", few)
    for sample in spec.samples(dtype):
        if sample.id != "wide":  # 157 such chunks; test_very_long_rows has real ones
            assert_as_good(spec, run(spec.name, sample.args), outputs(spec.op(*sample.args)), sample.args)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=str)
@pytest.mark.parametrize("spec", [s for s in NORMS if s.name.endswith("_bwd")], ids=str)
def test_gradients_of_rows_in_pieces(spec, dtype, monkeypatch):
    """Every sample as if its rows were long: one at a time, in pieces of 32 columns."""
    from tle_ops.kernels import _norm_bwd_triton as bwd

    plan = bwd.Plan(bwd.row_bwd_kernel, 1, (32, 3), 1)
    monkeypatch.setattr(bwd, "plan", lambda N, ahead, held: plan)
    for sample in spec.samples(dtype):
        if sample.id not in ("wide", "many-rows"):  # 157 such pieces; 100 rows per program, whose sums are less exact
            assert_as_good(spec, run(spec.name, sample.args), outputs(spec.op(*sample.args)), sample.args)


def test_very_long_rows():
    x, w, dy = randn(3, 20_001), randn(20_001, seed=1), randn(3, 20_001, seed=2)
    x[:, -1] = 1000.0
    for op, args in (
        ("rms_norm", (x, w, 1e-6)),
        ("layer_norm", (x, w, w, 1e-6)),
        ("rms_norm_bwd", (dy, x, w, 1e-6, 0.0, F32)),
        ("layer_norm_bwd", (dy, x, w, 1e-6, F32, F32)),
    ):
        spec = next(s for s in NORMS if s.name == op)
        assert_as_good(spec, run(op, args), outputs(spec.op(*args)), args)


def test_reference_is_that_of_pytorch():
    x, w, b = randn(5, 40, dtype=F64), randn(40, dtype=F64, seed=1), randn(40, dtype=F64, seed=2)
    torch.testing.assert_close(tle_ops.rms_norm(x, w, 1e-5), F.rms_norm(x, (40,), w, 1e-5))
    torch.testing.assert_close(tle_ops.layer_norm(x, w, b, 1e-5), F.layer_norm(x, (40,), w, b, 1e-5))


def test_all_gradients_of_a_norm_together(device):
    """dx, dweight and dbias, with both outputs of add_rms_norm in the loss."""
    x, r, w, b = (
        t.to(device).requires_grad_()
        for t in (randn(6, 40), randn(6, 40, seed=1), randn(40, seed=2), randn(40, seed=3))
    )
    gy, gr = (randn(6, 40, seed=s).to(device) for s in (4, 5))
    y, new = tle_ops.add_rms_norm(x, r, w, 1e-5, weight_offset=1.0)
    got = torch.autograd.grad((y * gy + new * gr).sum(), (x, r, w))
    total = x + r
    plain = F.rms_norm(total, (40,), w + 1, 1e-5)
    want = torch.autograd.grad((plain * gy + total * gr).sum(), (x, r, w))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    got = torch.autograd.grad(tle_ops.layer_norm(x, w, b, 1e-5), (x, w, b), gy)
    want = torch.autograd.grad(F.layer_norm(x, (40,), w, b, 1e-5), (x, w, b), gy)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_only_the_gradients_that_are_asked_for(device):
    x, w = randn(6, 40).to(device), randn(40, seed=2).to(device)
    y = tle_ops.rms_norm(x.requires_grad_(), w)
    y.sum().backward()
    assert x.grad is not None
    assert w.grad is None
    _, new = tle_ops.add_rms_norm(x, x, w.requires_grad_())
    dx, dw = torch.autograd.grad(new.sum(), (x, w), allow_unused=True)  # y is not used
    torch.testing.assert_close(dx, torch.full_like(x, 2.0))
    assert dw is None


def test_y_is_the_norm_of_the_rounded_residual(device):
    x, r, w = (randn(7, 96, dtype=BF16, seed=s).to(device) for s in range(3))
    w = w[0]
    y, new = tle_ops.add_rms_norm(x, r, w)
    assert_same_bits(new, x + r)
    assert_same_bits(y, tle_ops.rms_norm(new, w))


def test_sums_over_many_rows_are_float32(device):
    """A bfloat16 sum of ones stays at 256."""
    x = torch.ones(8192, 64, dtype=BF16, device=device)
    w = torch.ones(64, dtype=BF16, device=device, requires_grad=True)
    b = torch.zeros(64, dtype=BF16, device=device, requires_grad=True)
    tle_ops.rms_norm(x, w, 0.0).sum().backward()
    tle_ops.layer_norm(x, None, b).sum().backward()
    assert w.grad.tolist() == [8192] * 64
    assert b.grad.tolist() == [8192] * 64


@pytest.mark.parametrize("weight_dtype", [F32, BF16])
def test_autocast_keeps_the_dtype_of_x(weight_dtype, device):
    x, w = randn(4, 64, dtype=BF16).to(device), randn(64, dtype=weight_dtype).to(device)
    with torch.autocast(device, dtype=BF16):
        y = tle_ops.rms_norm(x, w)
        z = tle_ops.layer_norm(x, w, w)
    assert_same_bits(y, tle_ops.rms_norm(x, w))
    assert_same_bits(z, tle_ops.layer_norm(x, w, w))
    assert y.dtype == z.dtype == BF16


def test_a_large_mean_costs_no_digits(device):
    x = (randn(4, 512, dtype=F64) + 1000).float()
    truth = F.layer_norm(x.double(), (512,))
    error = (tle_ops.layer_norm(x.to(device)).cpu().double() - truth).abs().max()
    assert error < 1e-3  # x itself is known to 6e-5; E[x^2] - E[x]^2 in float32 would be off by 0.06


def families(N: int) -> dict:
    """op -> x [M, N] -> its arguments, for every op of this and the neighbouring families."""
    w = randn(N, dtype=BF16).cuda()
    angles = torch.arange(8 * 4096, device="cuda").view(4096, 8) / 100
    return {
        "rms_norm": lambda x: (x, w, 1e-6),
        "rms_norm_bwd": lambda x: (x, x.flip(1), w, 1e-6, 1.0, F32),
        "add_rms_norm": lambda x: (x, x.flip(1), w, 1e-6),
        "add_rms_norm_bwd": lambda x: (x, x.flip(1), x.roll(1, 1), w, 1e-6, 0.0, BF16),
        "layer_norm": lambda x: (x, w, w, 1e-6),
        "layer_norm_bwd": lambda x: (x, x.flip(1), w, 1e-6, F32, F32),
        "swiglu": lambda x: x.chunk(2, -1),
        "swiglu_bwd": lambda x: (x, x.flip(1), x.roll(1, 1)),
        "swiglu_packed": lambda x: (x,),
        "swiglu_packed_bwd": lambda x: (x[:, : N // 2], x),
        "geglu": lambda x: (x, x.flip(1)),
        "rope": lambda x: (x.view(len(x), -1, 16), angles[: x.shape[0]].cos(), angles[: x.shape[0]].sin()),
        "swiglu_per_token_cast_fp8": lambda x: (x,),
        "rms_norm_per_token_cast_fp8": lambda x: (x, w, 1e-6),
        "add_rms_norm_per_token_cast_fp8": lambda x: (x, x.flip(1), w, 1e-6),
    }


def call(op: str, args: tuple) -> tuple:
    return outputs(getattr(torch.ops.tle, op)(*args))


@pytest.mark.gpu
@pytest.mark.parametrize("N", [256, 2048, 4096])  # several rows per program, one; the gradient's kernel for longer rows
def test_no_build_for_a_new_row_count(N):
    from tle_ops.kernels import (
        _norm_bwd_triton,
        _norm_cast_triton,
        _norm_wide_triton,
        fused_triton,
        norm_triton,
        rope_triton,
        swiglu_triton,
    )
    from tle_ops.kernels._triton import Kernel

    modules = (_norm_bwd_triton, _norm_cast_triton, _norm_wide_triton, fused_triton, norm_triton, rope_triton)
    modules = (*modules, swiglu_triton)
    kernels = {k.fn.__name__: k for m in modules for k in vars(m).values() if isinstance(k, Kernel)}

    def builds() -> dict:
        return {name: len(k.variants) for name, k in kernels.items()}

    for op, args in families(N).items():
        call(op, args(randn(100, N, dtype=BF16).cuda()))
        before = builds()
        assert sum(before.values())
        for M in (1, 2, 15, 16, 17, 128, 1000, 4096):
            call(op, args(randn(M, N, dtype=BF16).cuda()))
        assert builds() == before, op


@pytest.mark.gpu
def test_a_captured_graph_reads_new_data():
    for op, args in families(256).items():
        inputs = args(randn(64, 256, dtype=BF16).cuda())
        call(op, inputs)  # builds and loads
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = call(op, inputs)
        inputs[0].copy_(randn(*inputs[0].shape, dtype=BF16, seed=9))
        graph.replay()
        for a, b in zip(got, call(op, inputs), strict=True):
            assert_same_bits(a, b, op)
