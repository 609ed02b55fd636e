"""The fused quantizers: their contract on many elements, special values, and the calls that take the long way."""

import importlib

import pytest
import torch

import tle_ops
from tests.conftest import CUDA
from tests.specs.fused import assert_close_codes, rms_true, swiglu_true
from tests.table import BF16, E4M3, E5M2, F16, F32, assert_same_bits, randn, to_device
from tests.test_kernels import KERNEL_DTYPES, family
from tests.test_ops import SPECS, outputs

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
        got = run(spec.name, *sample.args)
        if dtype == F32:  # two more roundings than the short way has
            for a, b in zip(got, outputs(spec.op(*sample.args)), strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                torch.testing.assert_close(a.float(), b.float(), rtol=0.13, atol=1e-6, msg=sample.id)
        else:
            assert [t.dtype for t in got] == [t.dtype for t in outputs(spec.op(*sample.args))]


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
