"""Which kernel a call takes, and that `tle_ops.backend` and `tle_ops.explain` say so."""

import importlib
import pathlib
import threading
import warnings

import pytest
import torch

import tle_ops
from tests.table import F64, assert_same_bits, randn
from tle_ops import _dispatch
from tle_ops.kernels import CPU, CUDA

KERNELS = pathlib.Path(_dispatch.__file__).parent / "kernels"


class FakeCuda(torch.Tensor):
    """What the choice of a kernel looks at, without a GPU."""

    is_cuda = True

    @staticmethod
    def __new__(cls, dtype=torch.float32):
        return torch.Tensor._make_subclass(cls, torch.empty(2, 128, dtype=dtype))


@pytest.fixture(autouse=True)
def whole_toolchain(monkeypatch):
    monkeypatch.setattr(_dispatch, "missing_toolchain", lambda: "")


def chosen(op, *args):
    """The kernel of a call with these arguments, which need not be all of them."""
    return _dispatch._choose(op, args, _dispatch._forced)


def test_explain_on_the_cpu():
    choice = tle_ops.explain("per_token_cast_fp8", torch.ones(2, 128))
    assert (choice.device, choice.backend, choice.module) == ("cpu", "ref", "quant_ref")
    assert str(choice) == "per_token_cast_fp8 on cpu: ref (quant_ref), the reference is the CPU kernel"
    with tle_ops.backend("triton"):
        choice = tle_ops.explain("per_token_cast_fp8", torch.randn(2, 128))
    assert choice.reason == "the reference is the CPU kernel; 'triton', which is asked for, is for CUDA tensors"
    x = torch.ones(2, device="meta")
    assert tle_ops.explain("add", x, x).backend == "contract"


def test_explain_for_a_gpu_that_is_not_there():
    x = torch.ones(2, 128)
    assert tle_ops.explain("add", x, x, device="cuda").module == CUDA["add"]
    assert tle_ops.explain("per_token_cast_fp8", x, scale_ue8m0=True).backend == "ref"
    with pytest.raises(ValueError, match="explain: the arguments of add must contain a tensor"):
        tle_ops.explain("add", "cuda")


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
@pytest.mark.parametrize(
    "call, error",
    [
        (lambda f, x: f("add", x, torch.ones(3)), ValueError),
        (lambda f, x: f("topk", x, 200), ValueError),
        (lambda f, x: f("topk", x, 2.5), RuntimeError),
        (lambda f, x: f("per_token_cast_fp8", x, 0), ValueError),
        (lambda f, x: f("per_token_cast_fp8", x.int()), TypeError),
        (lambda f, x: f("per_token_cast_fp8", x, dtype=torch.float16), TypeError),
        (lambda f, x: f("rms_norm", x, weight=torch.ones(3)), ValueError),
        (lambda f, x: f("add", x), TypeError),
        (lambda f, x: f("add", x, None), TypeError),
        (lambda f, x: f("histogram", x, bins=4), TypeError),
        (lambda f, x: f("swiglu", x, x, limits=1.0), TypeError),
    ],
)
def test_explain_raises_what_the_call_raises(call, error, device):
    x = torch.ones(2, 128)
    with pytest.raises(error) as real:
        call(lambda op, *args, **options: getattr(tle_ops, op)(*args, **options), x)
    with pytest.raises(error) as explained:
        call(lambda op, *args, **options: tle_ops.explain(op, *args, device=device, **options), x)
    assert str(explained.value) == str(real.value)


def test_explain_takes_the_arguments_of_either_form():
    x = torch.ones(2, 128, requires_grad=True)
    for args, options in (((x, 64, torch.float8_e5m2), {}), ((x, 64), {"dtype": torch.float8_e5m2}), ((), {"x": x})):
        assert tle_ops.explain("per_token_cast_fp8", *args, device="cuda", **options).module == "quant_triton"
    assert tle_ops.explain("rope_bwd", x[:, None], x[:, :64], x[:, :64], False, device="cuda")
    with pytest.raises(ValueError, match="explain: device must be 'cpu', 'cuda' or None, got 'xpu'"):
        tle_ops.explain("add", x, x, device="xpu")
    with pytest.raises(ValueError, match="add: y must be on the device of x, meta, got cpu"):
        tle_ops.explain("add", x.to("meta"), x)


def test_explain_names_the_default_on_cuda():
    for op, module in CUDA.items():
        choice = chosen(op, FakeCuda())
        assert choice.module == module
        assert tle_ops.backends(op)[0] == choice.backend


@pytest.mark.parametrize("op, module", CUDA.items(), ids=CUDA)
def test_the_default_backend_is_listed_and_can_be_forced(op, module):
    name = module.rsplit("_", 1)[1]
    assert name in tle_ops.backends(op)
    with tle_ops.backend(name):
        assert chosen(op, FakeCuda()).module == module


@pytest.mark.parametrize("module", sorted(m.stem for m in KERNELS.glob("[a-z]*_*.py")))
def test_exports_are_those_of_the_imported_module(module):
    """What is read in the source is what the module has, but for the ops of another public module."""
    backend = module.rsplit("_", 1)[1]
    if backend != "ref":
        pytest.importorskip("tilelang" if backend == "tilelang" else "triton")
    loaded = importlib.import_module(f"tle_ops.kernels.{module}")
    homes = {op: getattr(loaded, op).__module__.rsplit(".", 1)[1] for op in CPU if hasattr(loaded, op)}
    own = {op for op, home in homes.items() if home == module or home.startswith("_")}
    assert own
    assert _dispatch._exports(module) == own


def test_float64_goes_to_the_reference():
    assert chosen("add", FakeCuda(F64)).backend == "ref"
    assert "float64" in chosen("scale_cast", FakeCuda(), 1.0, F64).reason
    with tle_ops.backend("triton"):
        assert chosen("add", FakeCuda(F64)).backend == "ref"


def test_backend_forces_and_restores():
    with tle_ops.backend("triton"):
        assert chosen("add", FakeCuda()).module == "elementwise_triton"
        with tle_ops.backend("ref"):
            assert chosen("add", FakeCuda()).module == "elementwise_ref"
        assert chosen("add", FakeCuda()).module == "elementwise_triton"
    assert chosen("add", FakeCuda()).module == CUDA["add"]
    tle_ops.backend("tilelang")  # as a setter
    assert chosen("add", FakeCuda()).module == "elementwise_tilelang"
    tle_ops.backend(None)
    assert chosen("add", FakeCuda()).module == CUDA["add"]


def test_backend_can_be_used_twice():
    forced = tle_ops.backend("ref")
    with forced:
        assert _dispatch._forced == "ref"
    with forced:
        assert _dispatch._forced == "ref"
    assert _dispatch._forced is None


def test_backend_as_a_decorator():
    @tle_ops.backend("ref")
    def forced(x):
        """It."""
        return tle_ops.explain("add", x, x, device="cuda").backend

    x = torch.ones(3)
    assert tle_ops.explain("add", x, x, device="cuda").backend == "triton"  # not by the definition
    assert forced(x) == "ref"
    assert forced.__doc__ == "It."
    assert tle_ops.explain("add", x, x, device="cuda").backend == "triton"


def test_a_decorator_undoes_only_what_its_own_line_has_forced():
    def now():
        return tle_ops._dispatch._forced

    kept = tle_ops.backend("ref")
    once = kept(now)
    with tle_ops.backend("triton"):
        again = kept(now)
        assert now() == "triton"
        assert once() == again() == "ref"
        assert now() == "triton"
    with tle_ops.backend("gluon") as inside:
        assert inside(now)() == "gluon"
        assert now() == "gluon"
    assert now() is None


def test_what_runs_later_is_not_decorated():
    async def later():
        return 1

    def several():
        yield 1

    for function in (later, several):
        with pytest.raises(TypeError, match=f"backend: {function.__name__} must be a plain function"):
            tle_ops.backend("ref")(function)
        assert tle_ops._dispatch._forced is None


def test_backend_is_restored_after_an_error():
    with pytest.raises(KeyError), tle_ops.backend("ref"):
        raise KeyError
    assert _dispatch._forced is None


def test_wrong_names_are_errors():
    with pytest.raises(ValueError, match="name must be one of triton, tilelang, gluon, ref or None, got 'cutile'"):
        tle_ops.backend("cutile")
    with pytest.raises(ValueError, match=r"explain: .* operator, got 'softmax'; one of add, .*per_token_cast_fp8"):
        tle_ops.explain("softmax")
    with pytest.raises(ValueError, match=r"backends: .* got 'rmsnorm'; did you mean 'rms_norm'"):
        tle_ops.backends("rmsnorm")
    with tle_ops.backend("gluon"), pytest.raises(NotImplementedError, match="add: the backend 'gluon' has no kernel"):
        chosen("add", FakeCuda())


def test_without_the_toolchain_triton_serves_and_says_so_once(monkeypatch):
    monkeypatch.setattr(_dispatch, "missing_toolchain", lambda: "nvcc was not found")
    monkeypatch.setitem(_dispatch.CUDA, "add", "elementwise_tilelang")
    monkeypatch.setattr(_dispatch, "_kernel", lambda module, op: lambda *args: module)
    _dispatch._warn_once.cache_clear()
    assert "nvcc was not found" in chosen("add", FakeCuda()).reason
    body = _dispatch.cuda_body("add", torch.ops.tle.add.default._schema)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert {body(FakeCuda(), FakeCuda()) for _ in range(3)} == {"elementwise_triton"}
    assert [str(w.message) for w in caught] == [
        "tle_ops: add on cuda: triton (elementwise_triton), "
        "TileLang, the default, cannot build here: nvcc was not found"
    ]


def test_eight_threads_at_once():
    x = randn(64, 512)
    want = tle_ops.per_token_cast_fp8(x)
    failures = []

    def work():
        for _ in range(20):
            for a, b in zip(tle_ops.per_token_cast_fp8(x), want, strict=True):
                try:
                    assert_same_bits(a, b)
                except AssertionError as e:
                    failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
