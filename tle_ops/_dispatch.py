"""Chooses the kernel of a call. Ordinary code over the two tables of `kernels`: no priorities, no swallowed
exceptions."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels import BY_SHAPE, CPU, CUDA, _cluster_plan

BACKENDS = ("triton", "tilelang", "gluon", "ref")
# The CUDA kernels compute in float32; these types go to the reference.
_REF_DTYPES = frozenset((torch.float64, torch.complex32, torch.complex64, torch.complex128))
_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_lock = threading.Lock()
_forced: str | None = None


class Choice(NamedTuple):
    """The kernel that a call takes, and why."""

    op: str
    device: str
    backend: str
    module: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op} on {self.device}: {self.backend} ({self.module}), {self.reason}"


class backend:
    """Force one backend for CUDA tensors, in the whole process: at once, and until the `with` block ends if there is
    one. As a decorator, only while the function runs.

    Args:
        name: "triton", "tilelang", "gluon", "ref" (plain PyTorch), or None for each op's default.

    Raises:
        ValueError: an unknown name. A call of an op that the backend does not have raises NotImplementedError.
        TypeError: decorates a coroutine or a generator, which runs when the call is over.

    float64 always goes to the reference, and CPU tensors know nothing else. What counts is when a compiled function
    runs, not what stands in it: use it around the call of one.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in BACKENDS:
            raise ValueError(f"backend: name must be one of {', '.join(BACKENDS)} or None, got {name!r}")
        self.name = name
        self._force()
        self._alone = True  # neither `with` nor a decorator so far

    def _force(self) -> None:
        global _forced
        self._before, _forced = _forced, self.name

    def __enter__(self) -> backend:
        self._alone = False
        if _forced != self.name:  # used a second time
            self._force()
        return self

    def __exit__(self, *exc: object) -> None:
        global _forced
        _forced = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._alone and _forced == self.name:  # what the decorator's own line has forced
            self.__exit__()
        self._alone = False
        if any(test(function) for test in _RUN_LATER):
            raise TypeError(f"backend: {function.__name__} must be a plain function, got a coroutine or a generator")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with backend(self.name):
                return function(*args, **kwargs)

        return call


def _refuse_unknown(where: str, op: Any) -> NoReturn:
    """ValueError, with the name that was meant if there is a similar one."""
    public = sorted(name for name in CUDA if not name.endswith("_bwd"))
    meant = difflib.get_close_matches(str(getattr(op, "__name__", op)), public, 1)
    hint = f"did you mean {meant[0]!r}?" if meant else f"one of {', '.join(public)}"
    raise ValueError(f"{where}: op must be the name of an operator, got {op!r}; {hint}")


def backends(op: str) -> tuple[str, ...]:
    """The backends that CUDA tensors can take for `op`, the default first; "ref" is plain PyTorch. ValueError for an
    unknown op."""
    if not isinstance(op, str) or op not in CUDA:
        _refuse_unknown("backends", op)
    default = CUDA[op]
    family = default.rsplit("_", 1)[0]
    names = [default.rsplit("_", 1)[1], *BACKENDS]
    return tuple(dict.fromkeys(b for b in names if op in _exports(f"{family}_{b}")))


@functools.cache
def _exports(module: str) -> frozenset[str]:
    """The ops that a kernel module defines, or takes from a private module of `kernels`, read from its source:
    importing it could need what is not installed. What comes from another public module is that module's op."""
    path = pathlib.Path(__file__).parent / "kernels" / f"{module}.py"
    if not path.exists():
        return frozenset()
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tle_ops.kernels._"):
            names.update(alias.asname or alias.name for alias in node.names)
    return frozenset(names & CPU.keys())


def explain(op: str, *args: Any, device: str | None = None, **options: Any) -> Choice:
    """Which kernel `tle_ops.<op>(*args, **options)` would take, and why. Launches nothing.

    Args:
        op: the operator's name, such as "per_token_cast_fp8".
        args, options: the call's arguments, or those of `torch.ops.tle.<op>` by position; the tensors may be on any
            device.
        device: "cuda" asks what CUDA tensors like these would take, also where there is no GPU.

    Raises:
        ValueError: an unknown op, or no tensor among the arguments.
        NotImplementedError: the forced backend has no kernel for this op.
        Whatever the call itself would raise for these arguments.
    """
    if not isinstance(op, str) or op not in _meta.CONTRACTS:
        _refuse_unknown("explain", op)
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"explain: device must be 'cpu', 'cuda' or None, got {device!r}")
    given = (*args, *options.values())
    tensors = [a for a in given if isinstance(a, Tensor)]
    if not tensors:
        raise ValueError(f"explain: the arguments of {op} must contain a tensor, got {given}")
    kind = device or next((t.device.type for t in tensors if t.device.type != "cpu"), "cpu")
    arguments = _try_fake(op, args, options, device)
    if kind == "cuda":
        choice = _choose(op, given if arguments is None else arguments, _forced)
    elif kind == "meta":
        reason = "meta tensors hold no data: only shapes and dtypes are computed"
        choice = Choice(op, "meta", "contract", "_meta", reason)
    else:
        reason = "the reference is the CPU kernel"
        if _forced not in (None, "ref"):
            reason += f"; {_forced!r}, which is asked for, is for CUDA tensors"
        choice = Choice(op, "cpu", "ref", CPU[op], reason)
    return choice


def _try_fake(op: str, args: tuple[Any, ...], options: dict[str, Any], device: str | None) -> tuple[Any, ...] | None:
    """The call with tensors without data, on `device` if one is given: raises what the call would raise. Returns the
    arguments that the operator gets, defaults at the end left out, if it is called at all."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[Any, ...]] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if func is getattr(torch.ops.tle, op).default:
                seen.append((*args, *(kwargs or {}).values()))
            return func(*args, **(kwargs or {}))

    def fake(a: Any) -> Any:
        if not isinstance(a, Tensor):
            return a
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=device or a.device)

    def binds(fn: Callable[..., Any]) -> bool:
        try:
            inspect.signature(fn).bind(*args, **options)
        except TypeError:
            return False
        return True

    call = getattr(sys.modules["tle_ops"], op, None)  # a backward has no public function
    if call is None or (not binds(call) and binds(_meta.CONTRACTS[op].fn)):
        call = getattr(torch.ops.tle, op)
    with torch.no_grad(), FakeTensorMode(), Seen():
        call(*map(fake, args), **{name: fake(a) for name, a in options.items()})
    return seen[0] if seen else None


def _choose(op: str, args: tuple[Any, ...], forced: str | None) -> Choice:
    default = CUDA[op]
    family, name = default.rsplit("_", 1)
    wide = next((d for d in map(_dtype, args) if d in _REF_DTYPES), None)
    if wide is not None:
        return Choice(op, "cuda", "ref", f"{family}_ref", f"the kernels compute in float32 and the call has {wide}")
    if forced is not None:
        if op not in _exports(f"{family}_{forced}"):
            raise NotImplementedError(
                f"{op}: the backend {forced!r} has no kernel for it, there are {', '.join(backends(op))}"
            )
        if BY_SHAPE.get(op) == f"{family}_{forced}" and not _cluster_plan.takes(op, args):
            return Choice(op, "cuda", name, default, f"the default, since {forced} has no kernel for such a call")
        return Choice(op, "cuda", forced, f"{family}_{forced}", "forced by tle_ops.backend")
    if op in BY_SHAPE and _cluster_plan.pays(op, args) and not missing_toolchain():
        return Choice(
            op, "cuda", BY_SHAPE[op].rsplit("_", 1)[1], BY_SHAPE[op], "sooner than the default for this shape"
        )
    if name == "tilelang" and op in _exports(f"{family}_triton") and (missing := missing_toolchain()):
        return Choice(op, "cuda", "triton", f"{family}_triton", f"TileLang, the default, cannot build here: {missing}")
    return Choice(op, "cuda", name, default, "the default")


def _dtype(argument: Any) -> torch.dtype | None:
    return argument if isinstance(argument, torch.dtype) else getattr(argument, "dtype", None)


@functools.cache
def missing_toolchain() -> str:
    """What TileLang lacks on this machine, in words; empty if it can build."""
    import shutil

    if importlib.util.find_spec("tilelang") is None:
        return "the package tilelang is not installed"
    from tle_ops.kernels._cuda_home import nvcc

    if nvcc() is None:
        return "nvcc was not found (set CUDA_HOME, or install a CUDA toolkit)"
    if not (shutil.which("c++") or shutil.which("g++")):
        return "a C++ compiler (c++ or g++) was not found"
    return ""


# --- the bodies that _register hands to the dispatcher ---------------------------------------------------------------
def refuse_none(op: str, schema: torch._C.FunctionSchema, args: tuple[Any, ...]) -> None:
    """TypeError if an argument that must be a tensor is None: the dispatcher lets None through. Called where that has
    failed already, so that it costs nothing."""
    for argument, value in zip(schema.arguments, args, strict=False):
        if value is None and str(argument.type) == "Tensor":
            raise TypeError(f"{op}: {argument.name} must be a tensor, got None")


def cpu_body(op: str, contract: _meta.Contract, schema: torch._C.FunctionSchema) -> Callable[..., Any]:
    """The contract's checks, then the reference."""
    check = contract.fn
    for table, name in ((CPU, "CPU"), (CUDA, "CUDA")):
        if op not in table:
            raise RuntimeError(f"{op}: the table {name} in tle_ops/kernels/__init__.py has no row for it")
    module = CPU[op]

    def body(*args: Any) -> Any:
        try:
            return _own(op, check(*args), _kernel(module, op)(*args))
        except AttributeError:
            refuse_none(op, schema, args)
            raise

    return body


def _own(op: str, fresh: Any, result: Any) -> Any:
    """The result, with every output that is a view (of a padded or a cast tensor) copied into the contract's: a view
    would refuse in-place operations under autograd, and keep memory that nobody sees."""
    if isinstance(result, Tensor):
        if not result._is_view():
            return result
        if (result.shape, result.dtype) != (fresh.shape, fresh.dtype):
            raise RuntimeError(f"{op}: the reference and the contract disagree about an output")
        return fresh.copy_(result)
    return tuple(_own(op, f, r) for f, r in zip(fresh, result, strict=True))


def cuda_body(op: str, schema: torch._C.FunctionSchema) -> Callable[..., Any]:
    """The default kernel at once, unless something asks for another one."""
    positions = tuple(  # of the arguments that have, or are, a dtype
        i for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type) or "ScalarType" in str(a.real_type)
    )
    default: Callable[..., Any] | None = None
    replay: Callable[..., Any] | None = None  # of the default kernel, if it has one
    other: Callable[..., Any] | None = None  # for some shapes
    by_shape = op in BY_SHAPE

    def body(*args: Any) -> Any:
        nonlocal default, replay, other
        try:
            forced = _forced  # read once: another thread may change it
            pays = by_shape and forced is None and _cluster_plan.pays(op, args) and not missing_toolchain()
            if pays and other is not None:
                return other(*args)
            if default is not None and forced is None and not pays:
                if replay is not None and (result := replay(args)) is not None:
                    return result
                for i in positions:
                    if i < len(args) and _dtype(args[i]) in _REF_DTYPES:
                        break
                else:
                    return default(*args)
            choice = _choose(op, args, forced)
            kernel = _kernel(choice.module, op)
            if choice.backend == "ref":
                with torch.no_grad():  # a non-differentiable op comes here with autograd on
                    return _own(op, _meta.CONTRACTS[op].fn(*args), kernel(*args))
            if forced is None and choice.module == BY_SHAPE.get(op):
                other = kernel
            elif forced is None:
                if choice.module != CUDA[op]:
                    _warn_once(f"tle_ops: {choice}")
                default, replay = kernel, getattr(kernel, "replay", None)
            return kernel(*args)
        except AttributeError:
            refuse_none(op, schema, args)
            raise

    return body


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


@functools.cache
def _kernel(module: str, op: str) -> Callable[..., Any]:
    with _lock:  # two threads may make the first call
        try:
            return getattr(importlib.import_module(f"tle_ops.kernels.{module}"), op)
        except ImportError as e:
            package = (e.name or "").split(".")[0]
            if package in ("triton", "tilelang"):
                raise RuntimeError(
                    f"{op}: its CUDA kernel needs the package {package!r}, which is not installed; "
                    f"install it, or call tle_ops.backend('ref')"
                ) from e
            raise


def definition(op: str) -> Callable[..., Any]:
    """The op in plain PyTorch."""
    return _kernel(CPU[op], op)


def source_hash() -> str:
    """A hash of this package's sources: part of the key of PyTorch's disk caches."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
