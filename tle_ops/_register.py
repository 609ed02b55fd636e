"""Registers every operator of `_meta` with PyTorch. The only module of the package that talks to torch.library.

One op gets: its schema; one body per device; a fake implementation (the contract itself); ONE Autograd-key kernel,
generated from the schema; and, where there is a rule, vmap. The generated kernel has three ways out:

- a gradient may be needed: `apply` of an autograd Function that also works inside torch.func and under forward-mode AD;
- a tensor with no dispatch key besides {CPU | CUDA, Autograd<device>}: straight to the device body, which saves the
  second trip through the dispatcher. It is an allow-list: FakeTensor, dispatch modes, subclasses, functorch levels,
  lazy negation and meta all add or change a key and take the next way;
- everything else: redispatch below Autograd.

`TLE_PUBLIC_AUTOGRAD=1` registers the same formulas through torch.library.register_autograd: no private API in the
gradient path, twice the overhead, no torch.func.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import _C
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd.function import _SingleLevelFunction
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from tle_ops import _dispatch, _inductor, _meta
from tle_ops.autograd import FORMULAS, VMAP, Formula
from tle_ops.kernels import INLINED

NAMESPACE = "tle"
PUBLIC_AUTOGRAD = os.environ.get("TLE_PUBLIC_AUTOGRAD") == "1"
LIB = torch.library.Library(NAMESPACE, "FRAGMENT")  # module level: a collected Library leaves dangling handles

_KeySet, _Key = _C.DispatchKeySet, _C.DispatchKey
# Computed, not written down: the bit layout differs between torch versions.
_PLAIN = {
    (_KeySet(_Key.CPU) | _KeySet(_Key.AutogradCPU)).raw_repr(): "CPU",
    (_KeySet(_Key.CUDA) | _KeySet(_Key.AutogradCUDA)).raw_repr(): "CUDA",
}

# Names of the generated code start with an underscore, so that no argument of a schema can shadow them.
# A tensor that is not plain may carry a tangent that Python does not see (torch.compile enters forward-mode AD below
# `forward_ad`), so it always goes through the Function.
_KERNEL = """
def _kernel(_keys, {signature}):
    try:
        _device = _plain.get(_keys.raw_repr()){body}
    except AttributeError:
        _refuse_none(({call},))
        raise
"""
_DIFFERENTIABLE = """
        if _device is None or (_grad_enabled() and ({needs_grad})) or _forward_ad._current_level >= 0:
            if _device is not None:
                return _apply({call}, _run_plain, _device)
            if _functorch_level() is None:
                return _apply({call}, _run_below, _keys)
            with _single_level():
                return _apply({call}, _run_below, _keys)
        return _bodies[_device]({call})"""
# Without a formula the outputs are constants, to forward mode too. CUDA's kernels record nothing; the reference would.
_CONSTANT = """
        if _forward_ad._current_level >= 0:
            with _no_tangents(False), _no_grad():
                return _bodies[_device]({call}) if _device is not None else _run_below(_keys, {call})
        if _device == "CUDA" or _device is not None and not _grad_enabled():
            return _bodies[_device]({call})
        with _no_grad():
            return _bodies[_device]({call}) if _device is not None else _run_below(_keys, {call})"""


def _runners(bodies: dict[str, Callable], redispatch: Callable) -> tuple[Callable, Callable]:
    """What runs an op inside of its Function: on plain tensors its body, on others what lies below autograd."""

    def run_plain(device: str, *args: Any) -> Any:
        return bodies[device](*args)

    def run_below(keys: _C.DispatchKeySet, *args: Any) -> Any:
        with _C._AutoDispatchBelowAutograd():
            return redispatch(keys & _C._after_autograd_keyset, *args)

    return _skip_dynamo(run_plain), _skip_dynamo(run_below)


def _skip_dynamo(fn: Callable) -> Callable:
    """Keep Dynamo out of a body: after a graph break it would trace into it. Marking the code object is free per call
    (torch._disable_dynamo costs 0.5 us), but private."""
    try:
        frame = _C._dynamo.eval_frame
        skip = frame._FrameAction.SKIP
        frame.set_code_exec_strategy(fn.__code__, frame._FrameExecStrategy(skip, skip))
        return fn
    except AttributeError:
        return torch._disable_dynamo(fn)


def _parameters(name: str, contract: _meta.Contract, schema: _C.FunctionSchema) -> dict[str, inspect.Parameter]:
    """The contract's parameters, checked against the schema: the dispatcher drops arguments that equal the schema's
    default before it calls a Python kernel, so a default that differs would silently change the call."""
    parameters = inspect.signature(contract.fn).parameters
    for argument, parameter in zip(schema.arguments, parameters.values(), strict=True):
        if argument.kwarg_only:
            raise TypeError(f"{name}: keyword-only arguments break register_autograd; keep them in the public function")
        if argument.name != parameter.name:
            raise TypeError(f"{name}: the contract calls the argument {argument.name!r} {parameter.name!r}")
        want = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        if isinstance(parameter.default, torch.dtype):  # stored in a schema as a number
            same = f"{argument.name}={str(parameter.default).removeprefix('torch.')}" in contract.schema
        else:
            same = parameter.default == want
        if not same:
            raise TypeError(f"{name}: the default of {argument.name!r} is {want!r} in the schema")
    return dict(parameters)


def _needs_grad(schema: _C.FunctionSchema) -> str:
    """The test, as source text, whether an input of the op asks for a gradient."""
    tests = []
    for argument in schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor":
            tests.append(f"{argument.name}.requires_grad")
        elif kind == "Optional[Tensor]":
            tests.append(f"({argument.name} is not None and {argument.name}.requires_grad)")
        elif "Tensor" in kind:
            raise TypeError("an autograd Function does not see tensors inside a list: their gradients would be lost")
    return " or ".join(tests) or "False"


def _function(name: str, formula: Formula) -> type[_SingleLevelFunction]:
    """The autograd Function of one op. `run` and `keys` come last, so that formulas see inputs and needs_input_grad as
    the schema numbers them."""

    class Function(
        _SingleLevelFunction
    ):  # what functorch itself generates; Function.apply refuses to run in torch.func
        _compiled_autograd_key = staticmethod(lambda ctx: (ctx._autograd_function_id,))

        @staticmethod
        def forward(ctx, *args):  # one piece: the setup_context style costs 10 us more per call
            inputs = args[:-2]
            run, keys = args[-2:]
            output = run(keys, *inputs)
            if formula.setup_context is not None:
                formula.setup_context(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx, *grads):
            result = formula.backward(ctx, *grads)
            return (*result, None, None) if isinstance(result, tuple) else (result, None, None)

    if formula.jvp is not None:  # without a rule PyTorch raises NotImplementedError
        Function.jvp = staticmethod(lambda ctx, *tangents: formula.jvp(ctx, *tangents[:-2]))
    Function.__name__ = Function.__qualname__ = f"{NAMESPACE}_{name}"
    Function._backward_cls.__name__ = f"{NAMESPACE}_{name}_backward"  # the name that a profile shows
    return Function


def _register_autograd(
    name: str,
    op: torch._ops.OpOverload,
    formula: Formula | None,
    bodies: dict[str, Callable],
    parameters: dict[str, inspect.Parameter],
) -> None:
    if PUBLIC_AUTOGRAD and formula is not None:
        setup = formula.setup_context
        torch.library.register_autograd(
            op,
            formula.backward,
            lib=LIB,
            setup_context=setup and (lambda ctx, inputs, output: setup(ctx, inputs, output)),
        )  # it calls by keyword
        return
    if PUBLIC_AUTOGRAD:
        LIB.impl(name, torch.library.fallthrough_kernel, "Autograd")
        return
    env: dict[str, Any] = {
        f"_default_{p.name}": p.default for p in parameters.values() if p.default is not inspect.Parameter.empty
    }
    env.update(
        _bodies=bodies,
        _plain=_PLAIN,
        _forward_ad=forward_ad,
        _no_grad=torch.no_grad,
        _no_tangents=forward_ad._set_fwd_grad_enabled,
        _grad_enabled=torch.is_grad_enabled,
        _single_level=enable_single_level_autograd_function,
        _functorch_level=_C._functorch.peek_interpreter_stack,
        _refuse_none=functools.partial(_dispatch.refuse_none, name, op._schema),
    )
    env["_run_plain"], env["_run_below"] = _runners(bodies, op.redispatch)
    if formula is not None:
        env["_apply"] = _function(name, formula).apply
    call = ", ".join(parameters)
    body = _CONSTANT if formula is None else _DIFFERENTIABLE
    source = _KERNEL.format(
        call=call,
        body=body.format(call=call, needs_grad=_needs_grad(op._schema)),
        signature=", ".join(f"{n}=_default_{n}" if f"_default_{n}" in env else n for n in parameters),
    )
    exec(compile(source, f"<tle_ops: autograd kernel of {name}>", "exec"), env)
    LIB.impl(name, _skip_dynamo(env["_kernel"]), "Autograd", with_keyset=True)


def _define(name: str, schema: str) -> torch._ops.OpOverload | None:
    """The op, newly defined; None if an identical one exists already (the package was imported twice)."""
    try:
        existing = _C._get_schema(f"{NAMESPACE}::{name}", "")
    except RuntimeError:
        LIB.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
        return getattr(getattr(torch.ops, NAMESPACE), name).default
    if existing != _C.parse_schema(f"{NAMESPACE}::{schema}"):
        raise RuntimeError(
            f"tle_ops: {NAMESPACE}::{name} is already registered by another package as {existing}; "
            f"tle_ops ({__file__}) defines {schema}"
        )
    return None


def _per_sample(contract: _meta.Contract, rule: Callable) -> Callable:
    """The vmap rule, after the contract has seen one sample: a rule may fold the batch into a dimension that samples do
    not have, and errors should speak of what the caller passed."""

    def sample(a: Any, dim: int | None) -> Any:
        if not isinstance(a, torch.Tensor):
            return a
        shape = list(a.shape)
        if dim is not None:
            del shape[dim]
        return torch.empty(shape, dtype=a.dtype, device="meta")

    def checked(info: Any, in_dims: tuple, *args: Any) -> Any:
        contract.fn(*map(sample, args, in_dims))
        return rule(info, in_dims, *args)

    return checked


def _spell_out_dtypes(op: torch._ops.OpOverload, parameters: dict[str, inspect.Parameter]) -> None:
    """Defaults that are dtypes are written into traced graphs. The dispatcher drops arguments that equal the schema's
    default, and AOTInductor restores them from the schema, where a dtype is a number, which its loader then refuses
    ("to have serialized argument type as_scalar_type"; seen with torch 2.13). In torch 2.11 packages hand over another
    dtype in any case."""
    defaults = [p.default for p in parameters.values()]
    if not any(isinstance(d, torch.dtype) for d in defaults):
        return

    def traced(mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return mode.__torch_dispatch__(func, types, (*args, *defaults[len(args) :]), kwargs or {})

    torch.library.register_torch_dispatch(op, ProxyTorchDispatchMode, traced, lib=LIB)


def _inline(name: str, op: torch._ops.OpOverload, contract: _meta.Contract) -> None:
    """While AOTAutograd makes a graph for Inductor, the op becomes its definition. Eager calls, Dynamo, torch.export,
    other backends, to which that would bring other bits and no gain, and subclasses still see the op. The rule is part
    of the sources, and so of the disk caches' key."""

    def traced(mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        plain = all(t in (torch.Tensor, torch.nn.Parameter, FunctionalTensor) for t in types)
        if not (plain and _inductor.compiling()) or any(isinstance(a, torch.Tensor) and a.is_complex() for a in args):
            return mode.__torch_dispatch__(func, types, args, kwargs or {})  # below the mode, or it would come back
        with mode:
            contract.fn(*args)
            return _dispatch.definition(name)(*args)

    torch.library.register_torch_dispatch(op, FunctionalTensorMode, traced, lib=LIB)


_WHOLE: list[torch._ops.OpOverload] = []  # operators that Inductor calls


def _whole(name: str, op: torch._ops.OpOverload, parameters: dict[str, inspect.Parameter]) -> None:
    """While AOTAutograd makes a graph for Inductor, which is imported by then, it is told how to call the operators."""
    op.sites = _inductor.Sites(op, name, [p.default for p in parameters.values()])
    _WHOLE.append(op)

    def traced(mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        _inductor.teach(_WHOLE)
        return mode.__torch_dispatch__(func, types, args, kwargs or {})

    torch.library.register_torch_dispatch(op, FunctionalTensorMode, traced, lib=LIB)


def register(name: str, contract: _meta.Contract, formula: Formula | None) -> None:
    op = _define(name, contract.schema)
    if op is None:
        return
    parameters = _parameters(name, contract, op._schema)
    bodies = {"CPU": _dispatch.cpu_body(name, contract, op._schema), "CUDA": _dispatch.cuda_body(name, op._schema)}
    for device, body in bodies.items():
        if PUBLIC_AUTOGRAD and formula is None:  # or the aten ops inside would record a graph
            body = torch.no_grad()(body)
        bodies[device] = _skip_dynamo(body)
        LIB.impl(name, bodies[device], device)
    torch.library.register_fake(op, contract.fn, lib=LIB)
    _spell_out_dtypes(op, parameters)
    if name in INLINED:
        _inline(name, op, contract)
    else:
        _whole(name, op, parameters)
    _register_autograd(name, op, formula, bodies, parameters)
    if name in VMAP:
        torch.library.register_vmap(op, _per_sample(contract, VMAP[name]), lib=LIB)


def register_all() -> None:
    """Every op of the contracts, and the compile caches' key: without it PyTorch's disk caches, which find an op by its
    name only, would answer with the gradient or the fake of an older version of this package."""
    for name, contract in _meta.CONTRACTS.items():
        register(name, contract, FORMULAS.get(name))
    config = torch.compiler.config
    tag = f"tle_ops={_dispatch.source_hash()}"
    if tag not in (config.cache_key_tag or ""):
        config.cache_key_tag = f"{config.cache_key_tag};{tag}" if config.cache_key_tag else tag
