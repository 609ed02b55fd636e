"""The fused quantizers: their contract on many elements, special values, and the calls that take the long way."""

import importlib

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import tle_ops
from tests.conftest import CUDA
from tests.specs.fused import assert_close_codes, rms_true, swiglu_true
from tests.table import BF16, E4M3, E5M2, F16, F32, assert_same_bits, randn, to_device
from tests.test_kernels import KERNEL_DTYPES, family
from tests.test_ops import SPECS, outputs
from tle_ops.kernels._rows_triton import one_plus_exp

FUSED = [s for s in SPECS if family(s) == "fused"]


def run(op: str, *args) -> tuple:
    """The op's Triton kernel, in the interpreter where there is no GPU."""
    kernel = getattr(importlib.import_module("tle_ops.kernels.fused_triton"), op)
    return tuple(t.cpu() for t in outputs(kernel(*to_device(args, "cuda" if CUDA else "cpu"))))


def reference(op: str, *args) -> tuple:
    return outputs(getattr(torch.ops.tle, op)(*args))


@pytest.mark.parametrize("by", [run, reference], ids=["kernel", "reference"])
@pytest.mark.parametrize("how", [(128, E4M3), (32, E5M2, True), (-1, E4M3)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_few_codes_are_off_and_only_at_ties(dtype, how, by):
    """Products of short floats meet ties often: their quotient by the largest one is a ratio of small integers."""
    x, w = randn(100, 2048, dtype=dtype), randn(2048, seed=1, dtype=dtype)
    q, scales = by("rms_norm_per_token_cast_fp8", x, w, 1e-6, *how)
    assert assert_close_codes(q, scales, rms_true(x, w, 1e-6), *how) < 2e-4
    q, scales = by("swiglu_per_token_cast_fp8", x, *how)
    assert assert_close_codes(q, scales, swiglu_true(x), *how) < 1e-4


@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=str)
@pytest.mark.parametrize("spec", FUSED, ids=str)
def test_the_long_way(spec, dtype, monkeypatch):
    """Rows beyond registers go through a float32 intermediate in memory: every sample, by a limit of 16 columns."""
    from tle_ops.kernels import fused_triton

    monkeypatch.setattr(fused_triton, "LONGEST", 16)
    for sample in spec.samples(dtype):
        if sample.id == "wide":
            continue
        got, want = run(spec.name, *sample.args), outputs(spec.op(*sample.args))
        assert [(t.dtype, t.shape) for t in got] == [(t.dtype, t.shape) for t in want], sample.id
        spec.compare(got, want, sample.args)


def check_all(x, w, *how):
    """The contract of the three ops: rows and weight, and x's halves as gate and up."""
    r = x.flip(1)
    for offset in (0.0, 1.0, 0.3):
        args = (w, 1e-5, *how, E4M3, False, False, offset)
        assert_close_codes(*run("rms_norm_per_token_cast_fp8", x, *args), rms_true(x, w, 1e-5, offset), *how)
    q, scales, new = run("add_rms_norm_per_token_cast_fp8", x, r, w, 1e-5, *how)
    assert_same_bits(new, x + r)
    assert_close_codes(q, scales, rms_true(x + r, w, 1e-5), *how)
    check_swiglu(x, *how)


def check_swiglu(x, *how):
    assert_close_codes(*run("swiglu_per_token_cast_fp8", x, *how), swiglu_true(x), *how)


@pytest.mark.parametrize("rows", [1, pytest.param(64, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.gpu) for s in range(1, 5))])
@pytest.mark.parametrize("group", [48, 100, 128, -1])
@pytest.mark.parametrize("N", [200, 20000])
@pytest.mark.parametrize("dtype", [F32, BF16, pytest.param(F16, marks=pytest.mark.gpu)], ids=str)
def test_every_way_keeps_the_contract(dtype, N, group, seed, rows):
    """Groups in registers, groups of other sizes than powers of two, rows beyond registers."""
    check_all(randn(rows, N, dtype=dtype, seed=seed), randn(N, dtype=dtype, seed=seed + 50), group)


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("N", [512, 1100, 20000])
def test_an_offset_that_float32_does_not_hold(dtype, N):
    """The weight cancels most of it, so that what float32 loses of the offset would show."""
    x, w = randn(4, N, dtype=dtype), (randn(N, seed=50) * 0.01 - 0.3).to(dtype)
    for group in (100, 128):
        q, scales = run("rms_norm_per_token_cast_fp8", x, w, 1e-5, group, E4M3, False, False, 0.3)
        assert_close_codes(q, scales, rms_true(x, w, 1e-5, 0.3), group)


def test_a_limit_that_float32_does_not_hold():
    x = randn(8, 1024, dtype=BF16)
    check = assert_close_codes(
        *run("swiglu_per_token_cast_fp8", x, 64, E4M3, False, False, 0.7), swiglu_true(x, 0.7), 64
    )
    assert check < 1e-4


@pytest.mark.parametrize("by", [run, reference], ids=["kernel", "reference"])
@pytest.mark.parametrize("N", [256, 2048])
def test_zeros_keep_their_sign(N, by):
    x = randn(3, N, dtype=BF16)
    x[:, 5], x[:, 6] = 0.0, -0.0
    w = torch.ones(N, dtype=BF16)
    w[N // 2 :] = -1
    r = torch.where(torch.arange(N) % 3 == 0, -x, 0)
    q = by("add_rms_norm_per_token_cast_fp8", x, r, w, 1e-6)[0].view(torch.uint8)
    zero = (x + r) == 0
    assert torch.equal(q[zero], torch.where(torch.signbit((x + r) * w), 0x80, 0).to(torch.uint8)[zero])
    q = by("swiglu_per_token_cast_fp8", torch.cat([r + x, w.expand(3, N)], 1))[0].view(torch.uint8)
    assert torch.equal(q[zero], torch.where(torch.signbit((x + r) * w), 0x80, 0).to(torch.uint8)[zero])


@pytest.mark.parametrize("group", [100, 128])
@pytest.mark.parametrize("N", [4096, 17000])
def test_sums_of_squares_do_not_round(N, group):
    """Equal elements, whose partial sums all round the same way, and one among small ones, which swallows them."""
    even = torch.linspace(1, 2, 6)[:, None].expand(6, N).contiguous()
    outlier = torch.full((4, N), 0.17)
    outlier[range(4), range(0, 4 * (N // 4), N // 4)] = torch.logspace(2, 4, 4)
    w = randn(N)
    for x in (even, outlier, outlier.bfloat16(), even * 1e-18, even * 1e-22):
        for eps in (1e-6, 0.0):
            q, scales = run("rms_norm_per_token_cast_fp8", x, w, eps, group)
            assert_close_codes(q, scales, rms_true(x, w, eps), group)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("group", [48, 64])
def test_gates_of_every_size(dtype, group):
    """All the gates of a row are near one value, from -87 to 87, so that it decides the scales."""
    centre = torch.linspace(-86.5, 87, 400, dtype=torch.float64)[:, None]
    gate = centre + randn(400, 96) * 0.2
    up = randn(400, 96, seed=1) * torch.exp((-centre).clamp_min(0))
    check_swiglu(torch.cat([gate.clamp_min(-87), up], 1).to(dtype), group)


@pytest.mark.parametrize("ulps", [-2, 2])
@pytest.mark.parametrize("group", [48, 64])
def test_errors_of_approximate_instructions_do_not_show(group, ulps, monkeypatch):
    """A model of the GPU: rcp.approx (documented: 1 ulp), rsqrt.approx and div.full (2 ulp) as bad as they may be, and
    ex2.approx not used. A GPU brings errors of its own."""
    if not CUDA:
        from triton.runtime.interpreter import InterpreterBuilder as Builder
        from triton.runtime.interpreter import TensorHandle

        def approximate(exact):
            def create(self, *operands):
                value = exact(self, *operands)
                off = value.data.copy()
                off.view("int32")[...] += np.where(np.isfinite(off) & (off != 0), np.int32(ulps), np.int32(0))
                return TensorHandle(off, value.dtype.scalar)

            return create

        monkeypatch.setattr(Builder, "create_fdiv", approximate(Builder.create_fdiv))
        monkeypatch.setattr(Builder, "create_rsqrt", approximate(Builder.create_rsqrt))
        monkeypatch.setattr(Builder, "create_exp2", None)
    for dtype in (F32, BF16):
        check_all(randn(100, 192, dtype=dtype, scale=3), randn(192, dtype=dtype, seed=2), group)


@triton.jit
def one_plus_exp_kernel(gate_ptr, high_ptr, low_ptr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    high, low = one_plus_exp(tl.load(gate_ptr + at), WIDE)
    tl.store(high_ptr + at, high)
    tl.store(low_ptr + at, low)


@pytest.mark.parametrize(("dtype", "most"), [(BF16, 1.42), (F16, 1.34), (F32, 1.34)], ids=str)
def test_one_plus_exp_for_every_short_gate(dtype, most):
    """Every bfloat16 and float16; of float32, those of which a part in 2^15 of an octave is between."""
    bits = torch.arange(2**16, dtype=torch.int32)
    gate = (bits << 16).view(F32) + 0 if dtype == BF16 else bits.to(torch.int16).view(F16).float()
    if dtype == F32:
        gate = torch.cat(
            [s * torch.exp2(torch.linspace(-13, 6.45, 2**15, dtype=torch.float64)) for s in (1, -1)]
        ).float()
    gate = gate.to("cuda" if CUDA else "cpu")
    high, low = torch.empty_like(gate), torch.empty_like(gate)
    one_plus_exp_kernel[(16,)](gate, high, low, dtype != BF16, 4096)
    true = 1 + torch.exp(-gate.double().clamp(-87.5, 87))
    error = ((high.double() + low.double()) / true - 1).abs() * 2**24
    assert float(error[~gate.isnan()].max()) <= most


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_special_values_are_those_of_the_reference(dtype):
    x = randn(8, 256, dtype=dtype)
    x[1] = 0
    x[2, 3] = torch.inf
    x[3, 200] = torch.nan
    x[4, 5:9] = 3e38  # squares overflow, and the product with the weight would
    x[5, 130] = -torch.inf
    x[6] *= 1e-30
    w = randn(256, seed=1, dtype=dtype) + 2
    for eps in (1e-6, 0.0):
        for op, args in (
            ("rms_norm_per_token_cast_fp8", (x, w, eps)),
            ("rms_norm_per_token_cast_fp8", (x, None, eps, 32, E5M2, True)),
            ("add_rms_norm_per_token_cast_fp8", (x, x.flip(1), w, eps)),
            ("swiglu_per_token_cast_fp8", (x,)),
            ("swiglu_per_token_cast_fp8", (x, 64, E4M3, False, False, 0.5)),
        ):
            (q, scales, *new), (want_q, want_scales, *want_new) = run(op, *args), reference(op, *args)
            for a, b in zip(new, want_new, strict=True):
                assert_same_bits(a, b)
            torch.testing.assert_close(scales, want_scales, rtol=5e-7, atol=0, equal_nan=True)
            assert torch.equal(q.float().isnan(), want_q.float().isnan())
            torch.testing.assert_close(q.float(), want_q.float(), rtol=0.25, atol=0, equal_nan=True)


def test_is_the_two_ops_in_sequence_but_for_a_rounding(device):
    x, r, w = randn(4, 512).to(device), randn(4, 512, seed=1).to(device), randn(512, seed=2).to(device)
    q, scales, new = tle_ops.add_rms_norm_per_token_cast_fp8(x, r, w)
    y, new_too = tle_ops.add_rms_norm(x, r, w)
    assert_same_bits(new, new_too)
    torch.testing.assert_close(scales, tle_ops.per_token_cast_fp8(y)[1], rtol=5e-7, atol=0)
    back = tle_ops.per_token_cast_back(q, scales, dtype=F32)
    assert ((back - y).abs() <= 0.07 * y.abs() + scales.max()).all()


def test_layout_of_the_scales(device):
    x = randn(6, 1024, dtype=BF16).to(device)
    rows = tle_ops.swiglu_per_token_cast_fp8(x)[1]
    columns = tle_ops.swiglu_per_token_cast_fp8(x, column_major_scales=True)[1]
    assert rows.stride() == (4, 1)
    assert columns.stride() == (1, 8)
    assert_same_bits(rows, columns)


def test_the_new_residual_carries_gradients_and_the_codes_do_not(device):
    x, r = (randn(4, 256, seed=s).to(device).requires_grad_() for s in (0, 1))
    q, scales, new = tle_ops.add_rms_norm_per_token_cast_fp8(x, r)
    assert not q.requires_grad
    assert not scales.requires_grad
    (new * 3).sum().backward()
    assert_same_bits(x.grad, torch.full_like(x, 3.0))
    assert_same_bits(r.grad, torch.full_like(x, 3.0))
