"""tle.gpu: buffers in shared memory, and loads, stores and atomics through `local_ptr`. For Gluon kernels.

`load`, `store`, `atomic_*` and `arange` take global pointers as well, and every other name is Gluon's own, so that

    from tle_ops.language import gpu as tl

lets a kernel that was written against `tl` with `local_ptr` run unchanged. Buffers are Gluon's: their methods, TMA and
wgmma work on them.

What the installed Triton can do decides what runs; anything else is a NotImplementedError that names the version:
    any           whole buffers, and loads through indices (before 3.7 by way of registers)
    3.7 and newer stores through indices
    3.8 and newer atomics; compare-and-swap nowhere
"""

from __future__ import annotations

import math
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import core
from triton.runtime.jit import constexpr_function

from tle_ops.language import _checks
from tle_ops.language._compat import (
    HAS_ATOMICS,
    HAS_SCATTER,
    Struct,
    cp_async,
    gluon_builtin,
    natural_layout,
    needs,
    reinterpreted,
    tma_load,
    unwrapped,
)
from tle_ops.language.mesh import shown

__all__ = ["alloc", "arange", "cp_async", "load", "local_ptr", "row_layout", "smem", "store", "tma_load"]

_LAYOUTS = ("SwizzledSharedLayout", "NVMMASharedLayout", "PaddedSharedLayout", "SharedLinearLayout")
_REGISTERS = gl.BlockedLayout.__mro__[1]  # what all layouts of registers are
_SHARED = tuple(getattr(gl, name) for name in _LAYOUTS if hasattr(gl, name))


class _Scope:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"tle.gpu.{self.name}"


_SMEM = _Scope("smem")
smem = core.constexpr(_SMEM)


def __getattr__(name: str) -> Any:
    """Every name of Gluon's language that is not defined here."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(gl, name)


def _require(condition: bool, message: str, kind: type[Exception] = ValueError) -> None:
    if not condition:
        raise kind(message)


# --- buffers ----------------------------------------------------------------------------------------------------------
@gluon_builtin
def alloc(shape, dtype, layout=None, scope=smem, nv_mma_shared_layout=True, _semantic=None):
    """A buffer in shared memory, uninitialised.

    shape: compile-time ints, powers of two; of a buffer of stages the first may be any int > 0.
    layout: a shared layout of the rank of `shape`, or of one less: then the first dimension counts stages, as
        `tle.pipe` and `buffer.index(stage)` need it. Default for rank 1: unswizzled. For rank 2 and more: stages of
        unswizzled rows, or, from rank 3 on and with nv_mma_shared_layout, of the tiles that wgmma and TMA take.
    scope: tle.gpu.smem.

    `local_ptr` sees a buffer whole, its stages included.
    """
    shape, dtype, layout, scope = unwrapped(shape), unwrapped(dtype), unwrapped(layout), unwrapped(scope)
    nv_mma = unwrapped(nv_mma_shared_layout)
    shape = shape if isinstance(shape, tuple) else (shape,)
    _require(
        len(shape) > 0 and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape),
        f"alloc: shape must be compile-time ints > 0, got {_list(shape)}",
    )
    _require(
        isinstance(dtype, core.dtype) and not dtype.is_ptr() and dtype.primitive_bitwidth >= 8,
        f"alloc: dtype must be a Triton type of 8 bits or more, such as tl.float32, got {shown(dtype)}",
        TypeError,
    )
    _require(scope is _SMEM, f"alloc: scope must be tle.gpu.smem, got {shown(scope)}")
    _require(isinstance(nv_mma, bool), f"alloc: nv_mma_shared_layout must be a bool, got {shown(nv_mma)}")
    ctas = _semantic.builder.options.num_ctas
    _require(ctas == 1, f"alloc: num_ctas must be 1, got {ctas}", NotImplementedError)
    if layout is None:
        layout = _default_layout(shape, dtype, nv_mma)
    _require(
        isinstance(layout, _SHARED),
        f"alloc: layout must be a shared layout of Gluon, got {shown(layout)}",
        TypeError,
    )
    rank = _rank_of(layout, len(shape))
    _require(
        rank in (len(shape), len(shape) - 1),
        f"alloc: layout must have rank {len(shape)}, or {len(shape) - 1} for stages, got {rank}",
    )
    for n in shape[len(shape) - rank :]:
        _require(n & (n - 1) == 0, f"alloc: shape must be powers of two (but for stages), got {_list(shape)}")
    return gl.allocate_shared_memory(dtype, list(shape), layout, _semantic=_semantic)


def _list(values: tuple) -> list:
    return [f"<{v.type}>" if isinstance(v, core.base_value) else v for v in values]


def _unswizzled(rank: int):
    return gl.SwizzledSharedLayout(1, 1, 1, list(reversed(range(rank))))


def _default_layout(shape: tuple[int, ...], dtype, nv_mma: bool):
    stage = list(shape[1:]) if len(shape) > 1 else list(shape)
    fits = len(stage) >= 2 and stage[-1] * dtype.primitive_bitwidth >= 128 and stage[-2] >= 8
    if nv_mma and fits:
        return gl.NVMMASharedLayout.get_default_for(stage, dtype)
    return _unswizzled(len(stage))


def _rank_of(layout, otherwise: int) -> int:
    rank = getattr(layout, "rank", None)
    return rank if isinstance(rank, int) else len(getattr(layout, "order", [0] * otherwise))


def _is_unswizzled(layout) -> bool:
    if not isinstance(layout, gl.SwizzledSharedLayout):
        return False
    row_major = list(layout.order) == list(reversed(range(len(layout.order))))
    return row_major and (layout.max_phase == 1 or layout.vec * layout.per_phase == 0)


@constexpr_function
def row_layout(rows, columns, vector, num_warps):
    """Of tensors [rows, columns] in registers: `vector` neighbours per thread, a warp along a row, warps on rows first
    and then along them."""
    for name, n in (("rows", rows), ("columns", columns), ("vector", vector), ("num_warps", num_warps)):
        if not isinstance(n, int) or n <= 0 or n & (n - 1):
            raise ValueError(f"row_layout: {name} must be a power of two, got {n}")
    lanes = min(32, max(1, columns // vector))
    down = min(num_warps, max(1, rows // (32 // lanes)))
    return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [down, num_warps // down], [1, 0])


# --- pointers ---------------------------------------------------------------------------------------------------------
class local_pointers(Struct):
    """Places in a shared buffer: `buffer`, and `at`, their number in row-major order (None: all of it)."""

    @property
    def dtype(self):
        return self.buffer.dtype

    @property
    def shape(self) -> list[int]:
        if "at" not in self._values:
            return list(self.buffer.shape)
        return list(self.at.shape) if self.at.type.is_block() else []


@gluon_builtin
def local_ptr(buf, indices=None, _semantic=None):
    """Places in a buffer of shared memory, for `load`, `store` and `atomic_*`.

    indices: as many integers as the buffer has dimensions, all of them scalars, or all tensors of one shape (or shapes
        that broadcast to one). None: the whole buffer.
    Indices are not checked at run time.
    """
    s = _semantic
    _require(
        isinstance(buf, gl.shared_memory_descriptor),
        f"local_ptr: buf must be a buffer of tle.gpu.alloc, got {shown(buf)}",
        TypeError,
    )
    if indices is None or unwrapped(indices) is None:
        return local_pointers({"buffer": buf})
    indices = indices.values if isinstance(indices, core.tuple) else unwrapped(indices)
    indices = tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)
    shape = [int(n) for n in buf.shape]
    _require(
        len(indices) == len(shape),
        f"local_ptr: indices must be {len(shape)}, one per dimension of the buffer {shape}, got {len(indices)}",
    )
    for d, i in enumerate(map(unwrapped, indices)):
        if isinstance(i, int) and not isinstance(i, bool):
            _require(0 <= i < shape[d], f"local_ptr: index {d} must be in [0, {shape[d]}), got {i}")
        else:
            _require(
                isinstance(i, core.tensor) and i.dtype.is_int() and not i.dtype.is_int1(),
                f"local_ptr: indices must be integers, got {shown(i)}",
                TypeError,
            )
    tensors = [s.to_tensor(unwrapped(i)) for i in indices]
    blocks = sum(t.type.is_block() for t in tensors)
    _require(blocks in (0, len(tensors)), "local_ptr: indices must be all scalars or all tensors, got both", TypeError)
    shapes = [[int(n) for n in t.shape] for t in tensors]
    _require(_fit(shapes), f"local_ptr: indices must have shapes that broadcast to one, got {shapes}")
    n = math.prod(shape)
    _require(
        n & (n - 1) == 0,
        f"local_ptr: a buffer with indices must have a power of two of elements, got {shape}: index a stage of it",
    )
    at = None
    for t, size in zip(tensors, shape, strict=True):
        t = t.to(gl.int32, _semantic=s)
        at = t if at is None else at.__mul__(size, _semantic=s).__add__(t, _semantic=s)
    return local_pointers({"buffer": buf, "at": at})


def _fit(shapes: list[list[int]]) -> bool:
    """Whether they broadcast to one."""
    return all(len(same) == len(shapes[0]) for same in shapes) and all(
        len({n for n in sizes if n != 1}) < 2 for sizes in zip(*shapes, strict=True)
    )


def _global(op: str, pointer) -> None:
    """What is not of `local_ptr` must be a pointer to global memory."""
    buffer = isinstance(pointer, gl.shared_memory_descriptor)
    _require(
        _checks.is_pointer(pointer),
        f"{op}: pointer must be of local_ptr, or to global memory, got {shown(pointer)}"
        + (": shared memory is reached through tle.gpu.local_ptr(buffer)" if buffer else ""),
        TypeError,
    )


def _mask(op: str, mask, shape):
    """Nothing or bools that broadcast to `shape`, without a wrapper."""
    mask = unwrapped(mask)
    if mask is None or isinstance(mask, bool):
        return mask
    _require(
        isinstance(mask, core.tensor) and mask.dtype.is_int1(),
        f"{op}: mask must be bools, got {shown(mask)}",
        TypeError,
    )
    _broadcasts(op, "mask", mask, shape)
    return mask


def _value(op: str, name: str, value, shape):
    """A number or numbers that broadcast to `shape`, without a wrapper."""
    value = unwrapped(value)
    _require(
        isinstance(value, int | float) or (isinstance(value, core.tensor) and not value.dtype.is_ptr()),
        f"{op}: {name} must be a number or a tensor, got {shown(value)}",
        TypeError,
    )
    _broadcasts(op, name, value, shape)
    return value


def _broadcasts(op: str, name: str, value, shape) -> None:
    if isinstance(value, core.tensor) and value.type.is_block():
        mine, there = [int(n) for n in value.shape], [int(n) for n in shape]
        ok = len(mine) == len(there) and all(m in (1, n) for m, n in zip(mine, there, strict=True))
        _require(ok, f"{op}: {name} must broadcast to the shape {there} of the pointers, got {shown(value)}")


def _flat(buffer, s):
    """A buffer as one row."""
    shape = [int(n) for n in buffer.shape]
    if len(shape) == 1 and len(getattr(buffer.layout, "order", [0])) == 1:
        return buffer
    if not _is_unswizzled(buffer.layout):
        raise NotImplementedError(
            f"local_ptr: indices into a buffer of rank {len(shape)} need an unswizzled one "
            f"(alloc(..., nv_mma_shared_layout=False)), got {type(buffer.layout).__name__}"
        )
    return reinterpreted(buffer, [math.prod(shape)], _unswizzled(1), s)


def _whole(buffer, s):
    """A buffer as a tensor sees it: no dimension is apart as the stages'."""
    rank = len(buffer.shape)
    if _rank_of(buffer.layout, rank) == rank:
        return buffer
    if not _is_unswizzled(buffer.layout):
        raise NotImplementedError(
            f"local_ptr: stages of {type(buffer.layout).__name__} can only be taken one by one: index a stage first"
        )
    return reinterpreted(buffer, [int(n) for n in buffer.shape], _unswizzled(rank), s)


def _layout(shape, generator, s):
    return natural_layout([int(n) for n in shape], unwrapped(s.num_warps(generator)))


def _settled(tensor, generator, s, shape=None):
    """A tensor that may go into memory: broadcast to `shape`, with a layout even if it was left to the compiler."""
    if shape is not None and (not tensor.type.is_block() or list(tensor.shape) != list(shape)):
        layout = _layout(shape, generator, s)
        if not tensor.type.is_block():
            return gl.full(list(shape), tensor, tensor.dtype, layout, _semantic=s)
        tensor = s.broadcast_impl_shape(tensor, list(shape))
    if isinstance(tensor.type.layout, gl.AutoLayout):
        tensor = gl.set_auto_layout(tensor, _layout(tensor.shape, generator, s), _semantic=s)
    return tensor


def _row_of(tensor, generator, s, layout=None):
    """A tensor as one row, in `layout` or that of a row of its length."""
    tensor = _settled(tensor, generator, s)
    if len(tensor.shape) > 1:
        tensor = gl.reshape(tensor, [math.prod(int(n) for n in tensor.shape)], _semantic=s)
        layout = layout or _layout(tensor.shape, generator, s)
    return tensor if layout is None else gl.convert_layout(tensor, layout, _semantic=s)


def _like(row, tensor, generator, s):
    """A row in the shape and the layout of a tensor."""
    if len(tensor.shape) > 1:
        row = gl.reshape(row, [int(n) for n in tensor.shape], _semantic=s)
    return gl.convert_layout(row, tensor.type.layout, _semantic=s)


def _places(pointer, generator, s):
    """Where a pointer points: as a tensor with a layout, and as a row. One place is a row of one."""
    if "at" not in pointer._values:
        shape = [int(n) for n in pointer.buffer.shape]
        layout = _layout([math.prod(shape)], generator, s)
        at = gl.arange(0, math.prod(shape), layout, _semantic=s)
        return at, at
    at = pointer.at
    if not at.type.is_block():
        at = gl.full([1], at, gl.int32, _layout([1], generator, s), _semantic=s)
        return at, at
    at = _settled(at, generator, s)
    return at, _row_of(at, generator, s)


def _beside(value, at, row, generator, s, dtype=None):
    """`value`, broadcast to the places, as a row beside theirs."""
    value = s.to_tensor(unwrapped(value)) if not isinstance(value, core.tensor) else value
    value = value if dtype is None else s.cast(value, dtype)
    value = _settled(value, generator, s, [int(n) for n in at.shape])
    return _row_of(value, generator, s, row.type.layout)


# --- loads and stores -------------------------------------------------------------------------------------------------
@gluon_builtin
def arange(start, end, layout=None, _semantic=None):
    """start .. end - 1. Without a layout the compiler finds one from what the tensor meets: an access to a buffer, or a
    tensor that has one. Where it meets nothing but global memory, give one: `gl.BlockedLayout([1], [32], [4], [0])` for
    4 warps."""
    first, last = unwrapped(start), unwrapped(end)
    for name, value in (("start", first), ("end", last)):
        _require(
            isinstance(value, int) and not isinstance(value, bool),
            f"arange: {name} must be a compile-time int, got {shown(value)}",
            TypeError,
        )
    n = last - first
    _require(n > 0 and n & (n - 1) == 0, f"arange: end - start must be a power of two, got {last} - {first} = {n}")
    if unwrapped(layout) is not None:
        _check_register_layout("arange", unwrapped(layout), 1)
    return gl.arange(start, end, layout, _semantic=_semantic)


@gluon_builtin
def load(pointer, mask=None, other=None, layout=None, _semantic=None, _generator=None, **options):
    """Through `local_ptr`: what is there, 0 or `other` where the mask is false. From global memory: `gl.load`.

    layout: of the result, for a whole buffer (the default suits its shape). Indices bring their own.
    """
    s, generator = _semantic, _generator
    layout = unwrapped(layout)
    if not isinstance(pointer, local_pointers):
        _global("load", pointer)
        _require(layout is None, "load: layout must not be given for global memory, whose pointers have one")
        mask = _mask("load", mask, pointer.shape)
        return gl.load(pointer, mask=mask, other=other, **options, _semantic=s)
    _require(not options, f"load: {', '.join(options)} must not be given for shared memory")
    mask, other = _mask("load", mask, pointer.shape), unwrapped(other)
    _require(mask is not None or other is None, "load: other must come with a mask, got none")
    other = other if other is None else _value("load", "other", other, pointer.shape)
    if "at" not in pointer._values:
        buffer = _whole(pointer.buffer, s)
        if layout is not None:
            _check_register_layout("load", layout, len(buffer.shape))
        result = buffer.load(layout or _layout(buffer.shape, generator, s), _semantic=s)
        return result if mask is None else _masked(result, mask, other, generator, s)
    _require(layout is None, "load: layout must not be given with indices, which have one")
    at, row = _places(pointer, generator, s)
    if mask is not None:  # a place that is masked out may be beyond the buffer
        inside = _beside(mask, at, row, generator, s)
        row = gl.where(inside, row, 0, _semantic=s)
    buffer = _flat(pointer.buffer, s)
    if HAS_SCATTER:
        values = buffer.gather(row, 0, _semantic=s)
    else:
        values = gl.gather(buffer.load(_layout(buffer.shape, generator, s), _semantic=s), row, 0, _semantic=s)
    if mask is not None:
        values = _masked(values, inside, other, generator, s)
    if not pointer.shape:
        return values.item(_semantic=s)
    return _like(values, at, generator, s)


def _check_register_layout(op: str, layout, rank: int) -> None:
    """Of registers, and of that rank as far as it tells."""
    registers = isinstance(layout, _REGISTERS)
    _require(registers, f"{op}: layout must be a layout of registers of Gluon, got {shown(layout)}", TypeError)
    of = getattr(layout, "rank", None)
    _require(not isinstance(of, int) or of == rank, f"{op}: layout must have the rank {rank} of the buffer, got {of}")


def _masked(values, mask, other, generator, s):
    other = s.to_tensor(0 if other is None else other) if not isinstance(other, core.tensor) else other
    shape = [int(n) for n in values.shape]
    mask, other = (
        gl.convert_layout(_settled(t, generator, s, shape), values.type.layout, _semantic=s)
        for t in (s.to_tensor(mask), s.cast(other, values.dtype))
    )
    return gl.where(mask, values, other, _semantic=s)


@gluon_builtin
def store(pointer, value, mask=None, _semantic=None, _generator=None, **options):
    """Through `local_ptr`: write `value`, broadcast and cast as `tl.store` does, where the mask is true. Of several
    values for one place any may stay. A masked store to a whole buffer reads it first. To global memory: `gl.store`."""
    s, generator = _semantic, _generator
    if not isinstance(pointer, local_pointers):
        _global("store", pointer)
        mask = _mask("store", mask, pointer.shape)
        return gl.store(pointer, value, mask=mask, **options, _semantic=s)
    _require(not options, f"store: {', '.join(options)} must not be given for shared memory")
    mask, value = _mask("store", mask, pointer.shape), _value("store", "value", value, pointer.shape)
    value = value if isinstance(value, core.tensor) else s.to_tensor(value)
    if "at" not in pointer._values:
        buffer = _whole(pointer.buffer, s)
        value = _settled(s.cast(value, buffer.dtype), generator, s, [int(n) for n in buffer.shape])
        if mask is not None:
            before = buffer.load(value.type.layout, _semantic=s)
            value = _masked(value, mask, before, generator, s)
        buffer.store(value, _semantic=s)
        return
    if not HAS_SCATTER:
        raise needs("store: local_ptr with indices", "3.7")
    at, row = _places(pointer, generator, s)
    buffer = _flat(pointer.buffer, s)
    values = _beside(value, at, row, generator, s, buffer.dtype)
    if mask is None:
        buffer.scatter(values, row, 0, _semantic=s)
    else:
        inside = _beside(mask, at, row, generator, s)
        _generator.call_JitFunction(_scatter_where, (buffer, values, row, inside), {})


@gluon.jit
def _scatter_where(buffer, values, row, inside):
    """Scatter has no mask. A lane that is masked out writes once more what the first active lane writes, to the same
    place: it can neither touch another place nor undo a store."""
    N: gl.constexpr = row.shape[0]
    lane = gl.arange(0, N, row.type.layout)
    first = gl.min(gl.where(inside, lane, N), 0)
    if first < N:
        chosen = gl.full([N], 0, gl.int32, row.type.layout) + first
        row = gl.where(inside, row, gl.gather(row, chosen, 0))
        values = gl.where(inside, values, gl.gather(values, chosen, 0))
        buffer.scatter(values, row, 0)


# --- atomics ----------------------------------------------------------------------------------------------------------
def _atomic(op: str, pointer, value, mask, s, generator):
    name = f"atomic_{op}"
    if op == "cas":
        raise NotImplementedError(f"{name}: no Triton has compare-and-swap on shared memory, use global memory")
    if not HAS_ATOMICS:
        raise needs(f"{name}: local_ptr", "3.8")
    dtype = pointer.dtype
    floats = op in ("add", "xchg")
    _require(
        dtype.primitive_bitwidth in (32, 64) and (dtype.is_int() or (floats and dtype.is_floating())),
        f"{name}: a buffer must hold {'numbers' if floats else 'integers'} of 32 or 64 bits, got {dtype}",
        TypeError,
    )
    mask, value = _mask(name, mask, pointer.shape), _value(name, "val", value, pointer.shape)
    at, row = _places(pointer, generator, s)
    values = _beside(value, at, row, generator, s, dtype)
    inside = None if mask is None else _beside(mask, at, row, generator, s)
    buffer = _flat(pointer.buffer, s)
    old = getattr(buffer, f"atomic_scatter_{op}")(values, row, 0, mask=inside, _semantic=s)
    if "at" not in pointer._values:
        shape = [int(n) for n in pointer.buffer.shape]
        old = gl.reshape(old, shape, _semantic=s) if len(shape) > 1 else old
        return gl.convert_layout(old, _layout(shape, generator, s), _semantic=s)
    return _like(old, at, generator, s) if pointer.shape else old.item(_semantic=s)


def _of_shared_memory(op: str):
    of_global = getattr(gl, f"atomic_{op}")

    def function(pointer, val, mask=None, _semantic=None, _generator=None, **options):
        if not isinstance(pointer, local_pointers):
            _global(f"atomic_{op}", pointer)
            mask = _mask(f"atomic_{op}", mask, pointer.shape)
            return of_global(pointer, val, mask=mask, **options, _semantic=_semantic)
        _require(not options, f"atomic_{op}: {', '.join(options)} must not be given for shared memory")
        return _atomic(op, pointer, val, mask, _semantic, _generator)

    function.__name__ = function.__qualname__ = f"atomic_{op}"
    function.__doc__ = f"""Through `local_ptr` (Triton 3.8): `{op}` of `val` and what is there, one by one, where the
    mask is true; what was there before. On global memory: `gl.atomic_{op}`."""
    return gluon_builtin(function)


atomic_add = _of_shared_memory("add")
atomic_and = _of_shared_memory("and")
atomic_max = _of_shared_memory("max")
atomic_min = _of_shared_memory("min")
atomic_or = _of_shared_memory("or")
atomic_xchg = _of_shared_memory("xchg")
atomic_xor = _of_shared_memory("xor")


@gluon_builtin
def atomic_cas(pointer, cmp, val, _semantic=None, **options):
    """On global memory: `gl.atomic_cas`. Shared memory has none."""
    if not isinstance(pointer, local_pointers):
        _global("atomic_cas", pointer)
        return gl.atomic_cas(pointer, cmp, val, **options, _semantic=_semantic)
    return _atomic("cas", pointer, val, None, _semantic, None)
