"""What Inductor makes of the operators that stay whole: one call each, and no copies around it."""

import pytest
import torch

import tle_ops
from tests.table import BF16, F32, assert_same_bits, outputs, randn
from tests.test_ops import SPECS
from tle_ops import _inductor, _meta
from tle_ops.kernels import INLINED


def test_operators_ask_for_an_order_of_strides_only():
    """By default Inductor keeps a custom operator's inputs to the very strides of the traced program: it copies what it
    has padded itself, such as a product of matrices before a gated activation."""
    for op in _meta.CONTRACTS:
        assert torch.Tag.needs_fixed_stride_order in getattr(torch.ops.tle, op).default.tags, op


@pytest.fixture(autouse=True)
def compile_anew():
    """Caches would answer with code that was written under other settings."""
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


def sites(code: list[str]) -> list[str]:
    """The lines that call an operator at a site of its own."""
    return [line.strip() for text in code for line in text.splitlines() if ".sites[" in line]


def normed(x, residual, w):
    y, residual = tle_ops.add_rms_norm(x.sin(), residual, w)
    return *tle_ops.per_token_cast_fp8(y, 64), tle_ops.rms_norm(residual, None), residual


def assert_compiled_calls_are_right(device):
    """Two operators of several outputs, one without a weight: three calls, the same bits as without Inductor."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()  # of an earlier call
    args = [randn(8, 128, seed=1).to(device), randn(8, 128, seed=2).to(device), randn(128).to(device)]
    compiled = torch.compile(normed, fullgraph=True, dynamic=False)
    got, code = run_and_get_code(compiled, *args)
    for _ in range(3):
        for g, w in zip(got, normed(*args), strict=True):  # sin may differ in the last bit
            torch.testing.assert_close(g.float(), w.float(), rtol=0.13, atol=1e-4)
        again = compiled(*args)
        for a, b in zip(again, got, strict=True):
            assert_same_bits(a, b, "another call")
        got = again
    return code


def test_calls_in_compiled_code(monkeypatch):
    """As on a GPU, with CPU tensors: each call has a site, which hands it on to the operator."""
    assert sites(assert_compiled_calls_are_right("cpu")) == []
    monkeypatch.setattr(_inductor, "_DEVICES", ("cpu",))
    lines = sites(assert_compiled_calls_are_right("cpu"))
    assert len(lines) == 3
    assert "sites['float32[8, 128][128, 1]cpu None 1e-06'](buf" in "".join(lines)


def test_symbolic_sizes_have_no_site(monkeypatch):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(_inductor, "_DEVICES", ("cpu",))
    compiled = torch.compile(lambda x: tle_ops.rms_norm(x.sin()), fullgraph=True, dynamic=True)
    _, code = run_and_get_code(compiled, randn(8, 64))
    assert "torch.ops.tle.rms_norm.default(buf" in "".join(code)
    assert sites(code) == []


def test_every_whole_operator_has_sites():
    for op in _meta.CONTRACTS:
        assert hasattr(getattr(torch.ops.tle, op).default, "sites") == (op not in INLINED), op


@pytest.mark.parametrize("op", sorted(INLINED))
def test_inlined_operators_stay_whole_for_other_backends(op):
    """To these a definition in place of the op would bring other bits on a GPU, and nothing is fused in exchange."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.utils import run_and_get_code

    spec = next(s for s in SPECS if s.name == op)
    args = next(spec.samples(F32)).args
    packet = getattr(torch.ops.tle, op)
    calls = []

    def record(graph, _):
        calls.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    torch.compile(lambda *a: packet(*a), fullgraph=True, backend=aot_autograd(fw_compiler=record))(*args)
    assert packet.default in calls
    torch._dynamo.reset()
    _, code = run_and_get_code(torch.compile(lambda *a: packet(*a), fullgraph=True), *args)
    assert f"torch.ops.tle.{op}" not in "".join(code)


@pytest.mark.gpu
def test_a_site_replays_and_gives_way(monkeypatch):
    """The second call launches at once. Addresses, a forced backend and a dispatch mode send it to the operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    lines = sites(assert_compiled_calls_are_right("cuda"))
    assert len(lines) == 3
    found = torch.ops.tle.add_rms_norm.default.sites
    (site,) = [s for d, s in found.items() if "[8, 128][128, 1]cuda:0" in d]
    assert site.known is not None

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, r, w = randn(8, 128, seed=1).cuda(), randn(8, 128, seed=2).cuda(), randn(128).cuda()
    shifted = torch.empty(8 * 128 + 1, device="cuda")[1:].view(8, 128).copy_(x)
    want = torch.ops.tle.add_rms_norm(x, r, w, 1e-6)
    with Mode():
        results = [site(x, r, w, 1e-6)]
    assert torch.ops.tle.add_rms_norm.default in seen
    with tle_ops.backend("ref"):
        torch.testing.assert_close(site(x, r, w, 1e-6), want)
    monkeypatch.setattr(site, "op", None)  # from here on only the launches
    results += [site(x, r, w, 1e-6), site(x, x, w, 1e-6)]
    monkeypatch.undo()
    results.append(site(shifted, r, w, 1e-6))
    for i, got in enumerate(results):
        for g, t in zip(got, torch.ops.tle.add_rms_norm(x, x, w, 1e-6) if i == 2 else want, strict=True):
            assert_same_bits(g, t, str(i))


def copies(code: list[str]) -> list[str]:
    """The kernels of Inductor's own that compiled code launches."""
    return [line.strip() for text in code for line in text.splitlines() if ".run(" in line]


@pytest.mark.gpu
def test_no_copy_of_what_inductor_pads():
    """10 912 columns of 16 bits are no multiple of 128 bytes, so Inductor gives the product wider rows."""
    from torch._inductor.utils import run_and_get_code

    x, w = randn(64, 256, dtype=BF16).cuda(), randn(256, 10912, dtype=BF16).cuda()
    x.requires_grad_()
    want = tle_ops.swiglu_packed(x @ w)
    (dx,) = torch.autograd.grad(want.sum(), x)
    compiled = torch.compile(lambda x: tle_ops.swiglu_packed(x @ w), fullgraph=True)

    def step():
        y = compiled(x)
        return y, torch.autograd.grad(y, x, torch.ones_like(y))[0]

    (y, got), code = run_and_get_code(step)
    assert len(code) == 2
    assert copies(code) == []
    assert (y - want).norm() <= 0.01 * want.norm()  # a product with padded rows may be summed in another order
    assert (got - dx).norm() <= 0.01 * dx.norm()


@pytest.mark.gpu
def test_backwards_of_norms_are_replayed():
    from tle_ops.kernels import norm_triton

    x, dy, dnew = (randn(64, 512, dtype=BF16, seed=i).cuda() for i in range(3))
    w = randn(512, dtype=BF16).cuda()
    for op, args in (
        ("rms_norm_bwd", (dy, x, w, 1e-6, 0.0, BF16)),
        ("add_rms_norm_bwd", (dy, dnew, x, w, 1e-6, 0.0, BF16)),
        ("layer_norm_bwd", (dy, x, w, 1e-6, BF16, BF16)),
    ):
        call = getattr(torch.ops.tle, op)
        known = getattr(norm_triton, op).replays
        known.clear()
        first = outputs(call(*args))
        assert len(known) == 1, op
        for got, want in zip(outputs(call(*args)), first, strict=True):
            assert_same_bits(got, want, op)
