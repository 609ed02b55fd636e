"""Every kernel against the reference, for each spec of tests/specs: in Triton's interpreter on the CPU, for real on a
GPU. (TileLang's kernels on the CPU: test_tilelang.py.)"""

import importlib

import pytest
import torch
from torch import Tensor

import tle_ops
from tests.conftest import CUDA
from tests.table import BF16, F16, F32, F64, OpSpec, assert_same_bits, bits, outputs, to_device
from tests.test_ops import SPECS, double, each
from tle_ops import _dispatch
from tle_ops.kernels import CPU
from tle_ops.kernels import CUDA as CUDA_TABLE

KERNEL_DTYPES = (F32, BF16, F16)


def with_backend(name: str) -> list[OpSpec]:
    return [s for s in SPECS if name in _dispatch.backends(s.name)]


def assert_as_good(spec: OpSpec, got: tuple, want: tuple, args: tuple) -> None:
    """Bit for bit, or no more than twice as far from the float64 truth as the reference is."""
    if spec.compare:
        spec.compare(got, want, args)
        return
    if not spec.exact:
        exact = double(args)  # the reference computes in float64 when given float64
        truths = [t.detach() for t in outputs(spec.op(*exact))]
        if spec.plain:
            truths[spec.output] = spec.plain(*exact).detach()
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if spec.exact or not w.dtype.is_floating_point:
            assert_same_bits(g, w, f"output {i}")
            continue
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
        truth = truths[i].double().expand(w.shape)
        error, allowed = ((t.cpu().double() - truth).abs().nan_to_num(0) for t in (g, w))
        assert torch.equal(g.cpu().isnan(), w.isnan())
        eps = torch.finfo(w.dtype).eps
        if w.dtype == F64:  # the truth is no better than the result: another processor, other last bits
            allowed = allowed + 64 * eps * (1 + truth.abs())
        bad = error > 2 * (allowed.max() if allowed.numel() else 0) + 2 * eps * truth.abs() + torch.finfo(w.dtype).tiny
        assert not bad.any(), f"output {i}: {int(bad.sum())} of {bad.numel()} off, error {float(error.max())}"


@each(with_backend("triton"), KERNEL_DTYPES)
def test_triton_interpreted(spec, sample):
    if CUDA:  # the twin below runs it for real
        assert not _interpreted()
        return
    kernel = getattr(importlib.import_module(f"tle_ops.kernels.{family(spec)}_triton"), spec.name)
    before = [bits(a).clone() if isinstance(a, Tensor) else a for a in sample.args]
    got = outputs(kernel(*sample.args))
    assert_as_good(spec, got, outputs(spec.op(*sample.args)), sample.args)
    assert all(torch.equal(bits(a), b) for a, b in zip(sample.args, before, strict=True) if isinstance(a, Tensor))


def family(spec: OpSpec) -> str:
    return CPU[spec.name].rsplit("_", 1)[0]


def _interpreted() -> bool:
    from tle_ops.kernels._triton import INTERPRETED

    return INTERPRETED


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "tilelang", "gluon", "ref"])
@each(SPECS, (*KERNEL_DTYPES, F64))
def test_on_gpu(spec, sample, backend):
    want = outputs(spec.op(*sample.args))
    args = to_device(sample.args, "cuda")
    before = [bits(a).clone() if isinstance(a, Tensor) else a for a in args]
    if backend not in (*_dispatch.backends(spec.name), "ref"):
        with tle_ops.backend(backend):
            if any(_dispatch._dtype(a) == F64 for a in args):  # goes to the reference whatever is forced
                assert _dispatch.explain(spec.name, *args).backend == "ref"
            else:
                with pytest.raises(NotImplementedError, match=spec.name):
                    spec.op(*args)
        return
    with tle_ops.backend(backend):
        first, second = outputs(spec.op(*args)), outputs(spec.op(*args))
    assert all(t.is_cuda for t in first)
    assert_as_good(spec, first, want, sample.args)
    for a, b in zip(first, second, strict=True):
        assert_same_bits(a, b, "second run")
    assert all(torch.equal(bits(a), b) for a, b in zip(args, before, strict=True) if isinstance(a, Tensor))


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [s for s in SPECS if s.diff], ids=str)
def test_gradients_on_gpu(spec):
    from tests.test_ops import described, leaves, with_grad

    for sample in spec.samples(F32):
        args = with_grad(spec, sample)
        moved = to_device(args, "cuda")
        out, gpu_out = described(spec, spec.op(*args)), described(spec, spec.op(*moved))
        assert out.requires_grad == gpu_out.requires_grad
        if not out.requires_grad:
            continue
        cotangent = torch.randn_like(out)
        want = torch.autograd.grad(out, leaves(spec, args), cotangent)
        got = torch.autograd.grad(gpu_out, leaves(spec, moved), cotangent.cuda())
        for g, w in zip(got, want, strict=True):
            assert (g.cpu() - w).norm() <= 1e-5 * w.norm() + 1e-6 * cotangent.norm(), sample.id


def test_tables_name_existing_kernels():
    """Each row's module defines the op, and each op of one table stands in the other."""
    assert CPU.keys() == CUDA_TABLE.keys()
    for table in (CPU, CUDA_TABLE):
        for op, module in table.items():
            assert op in _dispatch._exports(module), f"{module} does not define {op}"
