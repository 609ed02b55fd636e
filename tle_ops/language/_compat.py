"""Where Triton 3.6 to 3.9 differ, in one place, and what a value needs to travel through a Gluon kernel.

Nothing here is called by the name of a private function, with one exception that says so (`reinterpreted`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language import core

TRITON = tuple(int(n) for n in re.findall(r"\d+", triton.__version__)[:2])
# What a shared-memory descriptor can do with a tensor of indices.
HAS_SCATTER = hasattr(gl.shared_memory_descriptor, "scatter")  # and gather: 3.7
HAS_ATOMICS = hasattr(gl.shared_memory_descriptor, "atomic_scatter_add")  # 3.8
# tl.load through pointers to whole blocks, with boundary_check and padding_option. Gone in 3.9.
HAS_BLOCK_POINTERS = "boundary_check" in inspect.signature(core.load).parameters

# A barrier of the warps that run the current role (of the whole block outside warp_specialize). Renamed in 3.7.
block_barrier = getattr(gl, "barrier", None) or gl.thread_barrier
# Global memory to shared memory, by TMA (descriptor, coordinates, barrier, buffer) and by cp.async (buffer, pointers,
# mask). Renamed in 3.8 and 3.9; in 3.9 the old names are there and raise.
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
cp_async = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared


def reinterpreted(buffer, shape: list[int], layout, semantic):
    """A shared buffer under another shape and layout. Public since 3.9; before, documented under a private name."""
    function = buffer.reinterpret if hasattr(buffer, "reinterpret") else buffer._reinterpret
    return function(buffer.dtype, shape, layout, _semantic=semantic)


def needs(what: str, version: str) -> NotImplementedError:
    return NotImplementedError(f"{what} needs Triton {version} or newer, this is {triton.__version__}")


def unwrapped(value: Any) -> Any:
    """Without constexpr, at any depth; Triton's tuples and lists become tuples."""
    if isinstance(value, core.constexpr):
        return unwrapped(value.value)
    if isinstance(value, core.tuple):
        return tuple(unwrapped(v) for v in value.values)
    if isinstance(value, (tuple, list)):
        return tuple(unwrapped(v) for v in value)
    return value


def gluon_builtin(function: Callable) -> Callable:
    """A function for Gluon kernels. Its parameter `_semantic` comes from the compiler; anywhere else the call says what
    it needs, by a TypeError."""
    name = function.__qualname__.replace("_", "", 1) if function.__name__.startswith("_") else function.__name__
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args, **kwargs):
        semantic = kwargs.get("_semantic")
        if semantic is None or not hasattr(semantic, "allocate_shared"):
            raise TypeError(
                f"{name}: shared memory needs a kernel under @triton.experimental.gluon.jit, compiled for a GPU; "
                "@triton.jit and Triton's interpreter have none"
            )
        return function(*args, **kwargs)

    assert "_semantic" in parameters
    call.__triton_builtin__ = True
    return call


class Target(NamedTuple):
    backend: str
    arch: str

    @property
    def capability(self) -> int:
        """90 for sm90, 0 for what is not an NVIDIA GPU."""
        digits = re.search(r"\d+", self.arch) if self.backend == "cuda" else None
        return int(digits.group()) if digits else 0


def target(semantic) -> Target:
    """What is being compiled for. Known while a kernel is traced: before any compiler could abort the process."""
    options = semantic.builder.options
    return Target(options.backend_name, str(options.arch))


def natural_layout(shape: list[int], num_warps: int) -> gl.BlockedLayout:
    """Up to four neighbours of the last dimension per thread, lanes and then warps beside them: what loads from shared
    memory use when no layout is asked for. It depends on nothing else, so such tensors fit each other."""
    rank = len(shape)
    threads = 32 * num_warps
    vector = max(1, min(4, shape[-1], functools.reduce(lambda a, b: a * b, shape) // threads))
    per_thread = [1] * (rank - 1) + [vector]
    lanes, warps = [1] * rank, [1] * rank
    left_lanes, left_warps = 32, num_warps
    for d in reversed(range(rank)):
        lanes[d] = min(left_lanes, max(1, shape[d] // per_thread[d]))
        left_lanes //= lanes[d]
        warps[d] = min(left_warps, max(1, shape[d] // (per_thread[d] * lanes[d])))
        left_warps //= warps[d]
    lanes[0] *= left_lanes  # more threads than elements: some hold the same one
    warps[0] *= left_warps
    return gl.BlockedLayout(per_thread, lanes, warps, list(reversed(range(rank))))


# --- values made of several IR values ---------------------------------------------------------------------------------
class StructType(core.base_type):
    """IR type of a `Struct`: its class, the types of its members, and hashable data known at compile time."""

    def __init__(self, cls: type, members: list[tuple[str, Any]], static: Any) -> None:
        self.cls, self.members, self.static = cls, tuple(members), static

    def _unflatten_ir(self, handles, cursor):
        values = {}
        for name, member in self.members:
            values[name], cursor = member._unflatten_ir(handles, cursor)
        return self.cls(values, self.static), cursor

    def _flatten_ir_types(self, builder, out):
        for _, member in self.members:
            member._flatten_ir_types(builder, out)

    def mangle(self) -> str:
        digest = hashlib.md5(repr(self.static).encode()).hexdigest()[:8]
        return "_".join([self.cls.__name__, *(name + member.mangle() for name, member in self.members), digest])

    def __eq__(self, other) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.cls.__name__, self.static))

    def __str__(self) -> str:
        return self.cls.__name__


class Struct(core.base_value):
    """Named IR values, and static data, as one value: it goes through calls, loops and warp_specialize."""

    def __init__(self, values: dict[str, Any], static: Any = ()) -> None:
        self._values, self._static = dict(values), static

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._values:
            return self._values[name]
        raise AttributeError(f"{type(self).__name__} has no member {name}, it has {', '.join(self._public())}")

    def _public(self) -> list[str]:
        return [name for name in self._values if not name.startswith("_")]

    def _flatten_ir(self, handles):
        for value in self._values.values():
            value._flatten_ir(handles)

    def _set_name(self, builder, name):
        """Triton 3.8 and newer call it on assignment, to name values in the IR."""

    @property
    def type(self) -> StructType:
        return StructType(type(self), [(name, value.type) for name, value in self._values.items()], self._static)
