"""How Inductor's code calls an operator that stays whole.

In compiled code shapes, strides, dtypes and devices of a call are fixed, autograd is done, and nothing is left to be
decided by the dispatcher, which takes as long as the launch. So where all of these are numbers, the generated line
names them,

    buf0 = torch.ops.tle.rms_norm.default.sites['x: ...'](arg0, arg1, 1e-06)

and the site of that name replays the launches of its first call; it only looks at addresses. Everything else is a call
of the operator, as before: symbolic sizes, the CPU, a profiler or a dispatch mode that wants to see operators, a forced
backend, an address that is not a multiple of 16, C++ wrappers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tle_ops import _dispatch

_HOOK = "torch._inductor.codegen.custom_extern_kernel_codegen"  # in PyTorch 2.11 to 2.14; private
_DEVICES = ("cuda",)  # whose calls have sites
_profiled = torch.autograd._profiler_enabled
_modes = torch._C._len_torch_dispatch_stack


class Site:
    """Calls of one operator with tensors of one description."""

    def __init__(self, op: torch._ops.OpOverload, name: str, defaults: list) -> None:
        self.op, self.name, self.defaults = op, name, defaults
        self.known: tuple | None = None  # set at once, since several threads may call

    def __call__(self, *args: Any) -> Any:
        known = self.known
        if _dispatch._forced is not None or _profiled() or _modes():
            return self.op(*args)
        if known is None:
            return self._first(args)
        device, current_device, positions, replay, run = known
        tensors = [args[i] for i in positions]
        pointers = [t.data_ptr() for t in tensors]
        low = 0
        for pointer in pointers:
            low |= pointer
        if low & 15 or current_device() != device:
            return self.op(*args)
        return run(replay, tensors, pointers)

    def _first(self, args: tuple) -> Any:
        """The operator, and whether its launches can be replayed."""
        result = self.op(*args)
        positions = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        if all(args[i].is_cuda and args[i].data_ptr() % 16 == 0 for i in positions):
            kernel = _dispatch._kernel(_dispatch._choose(self.name, args, None).module, self.name)
            if hasattr(kernel, "look_up"):
                from tle_ops.kernels import _replay

                replay, *_ = kernel.look_up((*args, *self.defaults[len(args) :]))
                if replay is not None:
                    device = _replay.current_device
                    self.known = (device(), device, positions, replay, _replay.run)
        return result


class Sites(dict):
    """description -> Site, made when it is asked for. defaults: of all arguments of the operator, for those that a call
    leaves out."""

    def __init__(self, op: torch._ops.OpOverload, name: str, defaults: list) -> None:
        self.site = functools.partial(Site, op, name, defaults)

    def __missing__(self, description: str) -> Site:
        site = self[description] = self.site()
        return site


def _described(node: Any) -> str | None:
    """What is fixed about a call in the generated code; None if not everything is."""
    import sympy
    from torch._inductor import ir

    args, kwargs = node.unflatten_args(node.inputs, node.constant_args)
    if kwargs:
        return None
    words = []
    for a in args:
        if isinstance(a, ir.IRNode):
            sizes = [*a.get_size(), *a.get_stride()]
            if a.get_device().type not in _DEVICES or not all(isinstance(n, (int, sympy.Integer)) for n in sizes):
                return None
            rank = len(a.get_size())
            words.append(f"{a.get_dtype()}{sizes[:rank]}{sizes[rank:]}{a.get_device()}")
        elif a is None or isinstance(a, (bool, int, float, str, torch.dtype)):
            words.append(repr(a))
        else:
            return None
    return " ".join(words).replace("torch.", "")


def _call(node: Any, writeline: Callable[[str], None]) -> None:
    """Writes the line that calls the operator of an Inductor node."""
    name = node.get_kernel_name()
    arguments = ", ".join([*node.codegen_args(), *node.codegen_kwargs()])
    description = _described(node)
    call = name if description is None else f"{name}.sites[{description!r}]"
    writeline(f"{node.get_name()} = {call}({arguments})")


def compiling() -> bool:
    """Whether the graph that is being made is for Inductor."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    return virtualized is not None and isinstance(virtualized.V.fake_mode, FakeTensorMode)


def teach(ops: list[torch._ops.OpOverload]) -> None:
    """Tell Inductor, if it is there, to write these operators' calls by `_call`."""
    module = sys.modules.get(_HOOK)
    table = getattr(module, "CUSTOM_EXTERN_KERNEL_CODEGEN", None)
    if table is not None:
        for op in ops:
            table.setdefault(f"torch.ops.{op}", module.CustomCodegen(python=_call))
