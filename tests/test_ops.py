"""What every op owes PyTorch, layer by layer, for each spec of tests/specs. Numbers first, then registration, compile,
transforms, errors. The tests of the kernels against the reference are in test_kernels.py."""

import importlib
import pkgutil

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import tests.specs
from tests.table import BF16, F16, F32, F64, OpSpec, Sample, assert_same_bits, bits, outputs, to_device
from tle_ops import _register
from tle_ops.autograd import FORMULAS
from tle_ops.kernels import INLINED

SPECS: list[OpSpec] = [
    spec
    for module in pkgutil.iter_modules(tests.specs.__path__)
    for spec in importlib.import_module(f"tests.specs.{module.name}").SPECS
]
DIFFERENTIABLE = [s for s in SPECS if s.diff]
MANTISSA = {BF16: 8, F16: 11, F32: 24, F64: 53}


def each(specs=SPECS, dtypes=None):
    """One test per spec, dtype and sample."""
    params = [
        pytest.param(spec, sample, id=f"{spec}-{str(dtype)[6:]}-{sample.id}")
        for spec in specs
        for dtype in spec.dtypes
        if dtypes is None or dtype in dtypes
        for sample in spec.samples(dtype)
    ]
    return pytest.mark.parametrize("spec, sample", params)


def per_op(specs=SPECS):
    return pytest.mark.parametrize("spec", specs, ids=str)


def with_grad(spec: OpSpec, sample: Sample) -> tuple:
    """The arguments as leaves; one tensor given twice stays one leaf."""
    made = {}
    for i in spec.diff:
        a = sample.args[i]
        if isinstance(a, Tensor) and a.is_floating_point():
            made.setdefault(id(a), a.detach().requires_grad_())
    return tuple(made.get(id(a), a) if i in spec.diff else a for i, a in enumerate(sample.args))


def leaves(spec: OpSpec, args: tuple) -> list[Tensor]:
    found = [args[i] for i in spec.diff if isinstance(args[i], Tensor) and args[i].requires_grad]
    return list({id(t): t for t in found}.values())  # one tensor may be two arguments


def double(args: tuple) -> tuple:
    """The arguments in float64, one tensor given twice still one."""
    made = {
        id(a): a.detach().double().requires_grad_(a.requires_grad)
        for a in args
        if isinstance(a, Tensor) and a.is_floating_point() and not fp8(a)
    }
    return tuple(made.get(id(a), a) for a in args)


def described(spec: OpSpec, result) -> Tensor:
    return outputs(result)[spec.output]


def assert_rounded_once(got: Tensor, truth: Tensor, scale: float = 0.0) -> None:
    """`got` is the float64 truth rounded once: half an ulp, plus float32 noise in proportion to the terms summed."""
    if got.dtype.itemsize == 1:
        top = torch.finfo(got.dtype).max
        assert_same_bits(got, truth.float().clamp(-top, top).to(got.dtype))
        return
    digits = MANTISSA[got.dtype]
    tiny = torch.finfo(got.dtype).tiny
    ulp = torch.exp2(torch.floor(torch.log2(truth.abs().clamp_min(tiny))) - (digits - 1))
    noise = 2e-6 if digits <= 24 else 1e-13
    error = (got.double() - truth).abs()
    bad = error > (0.51 if digits < 24 else 8) * ulp + noise * (truth.abs() + scale)
    bad &= got != truth.to(got.dtype)  # beyond the dtype's range both are infinite
    assert not bad.any(), f"{int(bad.sum())} of {bad.numel()} off, the worst by {float((error / ulp).max()):.2f} ulp"


# --- numbers and gradients -------------------------------------------------------------------------------------------
@each([s for s in SPECS if s.plain])
def test_values(spec, sample):
    truth = spec.plain(*double(sample.args))
    got = described(spec, spec.op(*sample.args))
    assert_rounded_once(got, truth.detach().expand(got.shape), spec.value_scale(sample.args))


@each([s for s in DIFFERENTIABLE if F64 in s.dtypes], (F64,))
def test_gradcheck(spec, sample):
    args = with_grad(spec, sample)
    inputs = leaves(spec, args)
    shared = any(n > 1 and stride == 0 for t in inputs for n, stride in zip(t.shape, t.stride(), strict=True))
    if shared or any(t.dtype != F64 for t in inputs) or described(spec, spec.op(*args)).dtype != F64:
        # Finite differences need float64 throughout, and elements of their own; else the composition is the truth.
        check_gradients(spec, args)
        return

    def fn(*xs):
        replaced = {id(old): new for old, new in zip(inputs, xs, strict=True)}
        return described(spec, spec.op(*(replaced.get(id(a), a) for a in args)))

    assert torch.autograd.gradcheck(
        fn,
        inputs,
        fast_mode=True,
        check_forward_ad=spec.jvp and not _register.PUBLIC_AUTOGRAD,
        check_batched_grad=False,
    )
    if spec.double_backward:
        assert torch.autograd.gradgradcheck(fn, inputs, fast_mode=True)


def check_gradients(spec: OpSpec, args: tuple) -> None:
    """Against float64 autograd of the composition, with cotangents of every layout: opcheck's is all ones, stride 0."""
    out = described(spec, spec.op(*args))
    inputs = leaves(spec, args)
    if not out.requires_grad:
        assert out.dtype.itemsize == 1 or not inputs, "the op cuts the graph"
        return
    exact = double(args)
    truth_out = spec.plain(*exact).expand(out.shape)
    for cotangent in (
        torch.randn(out.shape, dtype=F64).to(out.dtype),
        torch.randn(out.shape[::-1], dtype=F64).to(out.dtype).permute(tuple(range(out.dim()))[::-1]),
        torch.ones((), dtype=out.dtype).expand_as(out),
    ):
        got = torch.autograd.grad(out, inputs, cotangent, retain_graph=True)
        truth = torch.autograd.grad(truth_out, leaves(spec, exact), cotangent.double(), retain_graph=True)
        for g, t, x in zip(got, truth, inputs, strict=True):
            assert (g.shape, g.dtype) == (x.shape, x.dtype)
            # A gradient summed over a broadcast dimension cancels: its noise follows the terms.
            terms = float(cotangent.double().abs().sum()) if g.numel() < out.numel() else 0.0
            assert_rounded_once(g, t, spec.scale(args, cotangent) + terms)


@each(DIFFERENTIABLE, (F32, BF16, F16))
def test_gradients(spec, sample):
    check_gradients(spec, with_grad(spec, sample))


@each(dtypes=(F32,))
def test_is_a_function(spec, sample):
    """Same input, same bits; inputs unmodified; outputs fresh memory, no views of something larger."""
    before = [bits(a).clone() if isinstance(a, Tensor) else a for a in sample.args]
    first, second = outputs(spec.op(*sample.args)), outputs(spec.op(*sample.args))
    for a, b in zip(first, second, strict=True):
        assert_same_bits(a, b, "second run")
    for a, b in zip(sample.args, before, strict=True):
        assert torch.equal(bits(a), b) if isinstance(a, Tensor) else a == b
    owned = [t.untyped_storage().data_ptr() for t in (*first, *sample.args) if isinstance(t, Tensor) and t.numel()]
    results = owned[: sum(t.numel() > 0 for t in first)]
    assert all(owned.count(p) == 1 for p in results)
    assert not any(t._is_view() for t in first)


# --- registration ----------------------------------------------------------------------------------------------------
def fp8(*tensors) -> bool:
    return any(isinstance(t, Tensor) and t.is_floating_point() and t.dtype.itemsize == 1 for t in tensors)


@each(dtypes=(F32,))
def test_opcheck(spec, sample):
    utilities = [
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_static",
        "test_aot_dispatch_dynamic",
    ]
    # PyTorch's schema check compares with allclose, which float8 lacks, and has no strides to check on 0 elements;
    # test_is_a_function covers what it would find.
    empty = any(isinstance(a, Tensor) and a.numel() == 0 for a in sample.args)
    if not fp8(*sample.args, *outputs(spec.op(*sample.args))) and not empty:
        utilities.append("test_schema")
    torch.library.opcheck(spec.op, sample.args, test_utils=utilities)
    if spec.diff:
        if fp8(*outputs(spec.op(*sample.args))):  # its loss would sum codes, which PyTorch cannot; see test_compile
            utilities = ["test_autograd_registration", "test_faketensor"]
        torch.library.opcheck(spec.op, with_grad(spec, sample), test_utils=utilities)


def metadata(t: Tensor):
    strides = t.stride() if t.numel() else None  # those of an empty tensor mean nothing
    return tuple(t.shape), strides, t.dtype, t.device.type, t.storage_offset(), t.requires_grad


@each()
def test_fake_metadata(spec, sample):
    """Every dtype and layout: shape, strides, dtype and requires_grad of the fake are those of the real result."""
    for args in (sample.args, with_grad(spec, sample)):
        real = outputs(spec.op(*args))
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            fake = outputs(spec.op(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args)))
        assert [metadata(t) for t in fake] == [metadata(t) for t in real]
    meta = outputs(spec.op(*(a.to("meta") if isinstance(a, Tensor) else a for a in sample.args)))
    assert [(t.shape, t.dtype) for t in meta] == [(t.shape, t.dtype) for t in real]


def with_literals(spec: OpSpec, args: tuple):
    """The call as a function of its tensors. The rest is literal, as in a user's code: a float from a closure or an
    argument would become an input of the graph."""
    names = [f"t{i}" for i, a in enumerate(args) if isinstance(a, Tensor)]
    call = ", ".join(f"t{i}" if isinstance(a, Tensor) else repr(a) for i, a in enumerate(args))
    return eval(f"lambda {', '.join(names)}: op({call})", {"op": spec.op, "torch": torch})


@per_op([s for s in SPECS if s.rows])
def test_one_graph_for_all_row_counts(spec):
    from torch._dynamo.testing import CompileCounterWithBackend

    base = next(s for s in spec.samples(F32) if s.args[next(iter(spec.rows))].shape[0] > 1).args

    def resized(M):
        return tuple(
            a.contiguous()
            .narrow(spec.rows[i], 0, 1)
            .expand(*(M if d == spec.rows[i] else n for d, n in enumerate(a.shape)))
            .clone()
            if i in spec.rows
            else a
            for i, a in enumerate(base)
        )

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(with_literals(spec, base), backend=counter, fullgraph=True, dynamic=True)
    for M in (4, 2, 7, 16):
        args = resized(M)
        tensors = [a for a in args if isinstance(a, Tensor)]
        for a, b in zip(outputs(compiled(*tensors)), outputs(spec.op(*args)), strict=True):
            assert_same_bits(a, b)
    assert counter.frame_count == 1

    class Module(torch.nn.Module):
        forward = staticmethod(with_literals(spec, base))

    def tensors_of(args):
        return tuple(a for a in args if isinstance(a, Tensor))

    dims = tuple(
        {spec.rows[i]: torch.export.Dim.DYNAMIC} if i in spec.rows else None
        for i, a in enumerate(base)
        if isinstance(a, Tensor)
    )
    exported = torch.export.export(Module(), tensors_of(resized(4)), dynamic_shapes=dims)
    targets = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    assert [t for t in targets if "tle" in t] == [f"tle.{spec.name}.default"]
    args = resized(9)
    for a, b in zip(outputs(exported.module()(*tensors_of(args))), outputs(spec.op(*args)), strict=True):
        assert_same_bits(a, b)


# --- compile and transforms ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@per_op()
def test_compile(spec, backend):
    samples = list(spec.samples(F32))
    for sample in samples if backend == "aot_eager" else samples[:1]:
        args = with_grad(spec, sample)
        torch._dynamo.reset()
        compiled = torch.compile(spec.op, fullgraph=True, backend=backend, dynamic=False)
        got, want = outputs(compiled(*args)), outputs(spec.op(*args))
        for a, b in zip(got, want, strict=True):
            if backend == "inductor" and spec.name in INLINED and not spec.exact:  # Inductor's own exp and erf
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
            else:
                assert_same_bits(a, b, sample.id)
        if spec.diff and want[spec.output].requires_grad:
            cotangent = torch.randn_like(want[spec.output])
            grads = [torch.autograd.grad(o[spec.output], leaves(spec, args), cotangent) for o in (got, want)]
            for a, b in zip(*grads, strict=True):  # sums may run in another order
                assert (a - b).norm() <= 1e-5 * b.norm(), sample.id


def batches(t: Tensor) -> list[Tensor]:
    if t.dim() == 0:
        return [t, t, t]
    flipped = t.view(torch.uint8).flip(-1).view(t.dtype) if fp8(t) else t.flip(-1)
    return [t, flipped, t]


@per_op([s for s in SPECS if s.vmap])
@pytest.mark.filterwarnings("error:There is a performance drop")  # the slow loop of an op without a rule
def test_vmap(spec):
    checked = 0
    for sample in spec.samples(F32):
        tensors = [i for i, a in enumerate(sample.args) if isinstance(a, Tensor)]
        for dims in spec.vmap:
            if len(dims) != len(tensors) or any(
                d is not None and d > sample.args[i].dim() for i, d in zip(tensors, dims, strict=True)
            ):
                continue
            in_dims, stacked, single = (
                [None] * len(sample.args),
                list(sample.args),
                [list(sample.args) for _ in range(3)],
            )
            for i, d in zip(tensors, dims, strict=True):
                if d is not None:
                    in_dims[i] = d
                    stacked[i] = torch.stack(batches(sample.args[i]), d)
                    for row, t in zip(single, batches(sample.args[i]), strict=True):
                        row[i] = t
            got = outputs(torch.vmap(lambda *a: spec.op(*a), tuple(in_dims))(*stacked))
            for a, *rows in zip(got, *(outputs(spec.op(*a)) for a in single), strict=True):
                want = torch.stack([bits(t) for t in rows]).view(a.dtype)
                if spec.exact or fp8(a) or not a.is_floating_point():
                    assert_same_bits(a, want, sample.id)
                else:  # a loop's vector part and its tail may round exp differently
                    torch.testing.assert_close(a, want, rtol=1e-5, atol=1e-5, msg=lambda m, s=sample: f"{s.id}: {m}")
            checked += 1
    assert checked


@per_op(DIFFERENTIABLE)
def test_func_transforms(spec):
    sample = next(iter(spec.samples(F32)))
    at = spec.diff[0]

    def loss(t):
        args = list(sample.args)
        args[at] = t
        return described(spec, spec.op(*args)).float().sin().sum()

    x = sample.args[at].detach().clone().requires_grad_()
    if _register.PUBLIC_AUTOGRAD:  # PyTorch refuses torch.func on ops of register_autograd
        with pytest.raises(RuntimeError):
            torch.func.grad(loss)(x.detach())
        return
    want = torch.autograd.grad(loss(x), x)[0]
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), want)
    stacked = torch.stack([x.detach()] * 3)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(stacked), torch.stack([want] * 3))
    tangent = torch.randn_like(x)
    if spec.jvp:
        _, along = torch.func.jvp(loss, (x.detach(),), (tangent,))
        torch.testing.assert_close(along, (want * tangent).sum(), rtol=1e-4, atol=1e-4)
    else:
        with pytest.raises(NotImplementedError):  # loud, never a silent zero tangent
            torch.func.jvp(loss, (x.detach(),), (tangent,))


@per_op([s for s in SPECS if s.name not in FORMULAS])
def test_without_a_gradient_there_is_no_tangent(spec):
    """Codes, indices and counts are constants to forward mode too, though the reference is made of PyTorch's ops."""
    sample = next(iter(spec.samples(F32 if F32 in spec.dtypes else next(iter(spec.dtypes)))))
    with forward_ad.dual_level():
        args = [
            forward_ad.make_dual(a, torch.ones_like(a)) if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in sample.args
        ]
        tangents = [forward_ad.unpack_dual(t).tangent for t in outputs(spec.op(*args)) if t.is_floating_point()]
    if not _register.PUBLIC_AUTOGRAD:  # which has no kernel of its own for these ops
        assert tangents == [None] * len(tangents)


@per_op([s for s in DIFFERENTIABLE if not s.double_backward])
def test_double_backward_is_an_error(spec):
    args = with_grad(spec, next(iter(spec.samples(F32))))
    inputs = leaves(spec, args)
    (grad, *_) = torch.autograd.grad(described(spec, spec.op(*args)).sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(grad.sum(), inputs)


@per_op()
def test_no_grad_and_inference_mode(spec):
    sample = next(iter(spec.samples(F32)))
    want = outputs(spec.op(*sample.args))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for a, b in zip(outputs(spec.op(*with_grad(spec, sample))), want, strict=True):
                assert not a.requires_grad
                assert_same_bits(a, b)


# --- errors ----------------------------------------------------------------------------------------------------------
def message(call) -> str:
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as error:
        call()
    return f"{type(error.value).__name__}: {error.value}"


@pytest.mark.parametrize(
    "spec, args", [pytest.param(s, args, id=f"{s}-{name}") for s in SPECS for name, args in s.errors]
)
def test_errors_are_the_same_everywhere(spec, args, device):
    want = message(lambda: spec.op(*args))
    assert want.split(": ")[1] == spec.name
    if device == "cuda":
        assert message(lambda: spec.op(*to_device(args, "cuda"))) == want
        return
    assert message(lambda: spec.op(*pytree.tree_map_only(Tensor, lambda t: t.to("meta"), args))) == want
    torch._dynamo.reset()
    with pytest.raises(Exception) as error:  # noqa: PT011  (Dynamo wraps it; the text stays)
        torch.compile(lambda *a: spec.op(*a), fullgraph=True, backend="aot_eager")(*args)
    assert want.split(": ", 1)[1] in str(error.value)
