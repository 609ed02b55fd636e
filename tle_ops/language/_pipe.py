"""tle.pipe: data handed from one producer to one or several consumers of a block, through stages in shared memory.

State, all in shared memory: full[capacity] and empty[capacity] are mbarriers, closed[capacity] are flags. Iteration
`it` uses stage `it % capacity` for the `it // capacity`-th time, and the parity of that is the phase that a wait asks
for. A writer waits for the opposite parity of `empty`, which a fresh barrier counts as passed: nothing is primed.

A stage is full after one arrival, that of `commit`. What a field's transport adds to it:
    store     threads have written: a barrier of the role's warps orders them before the arrival
    cp.async  each thread raises the count by one, and lowers it when its copies have landed
    TMA       the arrival brings the number of bytes that the copies will still deliver (or have delivered)
so a slot may mix them, and `commit` never waits for a copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tle_ops.language import _checks
from tle_ops.language._compat import Struct, block_barrier, gluon_builtin, target, unwrapped
from tle_ops.language.mesh import shown

CAPABILITY = 90  # of the mbarrier instructions used here
_RESERVED = ("fields", "readers", "type")  # `type`: every value of a kernel has one


class Plan(NamedTuple):
    """What is known of a pipe at compile time."""

    label: str  # begins its messages
    capacity: int
    fields: tuple[str, ...]
    readers: tuple[str, ...] | None
    one_shot: bool


# --- checks: plain functions, all messages of one form ----------------------------------------------------------------
def require(condition: bool, message: str, kind: type[Exception] = ValueError) -> None:
    if not condition:
        raise kind(message)


def _check_name(label: str, kind: str, name: Any) -> None:
    require(
        isinstance(name, str) and name.isidentifier(),
        f"{label}: the name of a {kind} must be a Python identifier, got {shown(name)}",
    )
    require(
        not name.startswith("_") and name not in _RESERVED,
        f"{label}: the name of a {kind} must not start with '_' nor be one of {', '.join(_RESERVED)}, got {name!r}",
    )


def _check_names(label: str, what: str, names: Any, declared: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A non-empty tuple or list of different names, each among those declared."""
    require(
        isinstance(names, tuple) and len(names) > 0,
        f"{label}: {what} must be a non-empty tuple or list of names, got {_names(names)}",
    )
    for name in names:
        if declared is None:
            _check_name(label, "reader", name)
        else:
            require(
                isinstance(name, str) and name in declared,
                f"{label}: {what} must be among {', '.join(declared)}, got {shown(name)}",
            )
    require(len(set(names)) == len(names), f"{label}: {what} must not name one twice, got {names!r}")
    return names


def plan(capacity: Any, scope: Any, name: Any, readers: Any, one_shot: Any, fields: dict[str, Any]) -> Plan:
    """The checked arguments of `pipe`, but for the buffers."""
    capacity, scope, name, readers, one_shot = map(unwrapped, (capacity, scope, name, readers, one_shot))
    require(name is None or isinstance(name, str), f"pipe: name must be a string or None, got {shown(name)}")
    label = "pipe" if name is None else f"pipe {name}"
    require(
        isinstance(capacity, int) and not isinstance(capacity, bool) and capacity > 0,
        f"{label}: capacity must be a compile-time int > 0, got {shown(capacity)}",
    )
    require(isinstance(scope, str) and scope == "cta", f"{label}: scope must be 'cta', got {shown(scope)}")
    require(isinstance(one_shot, bool), f"{label}: one_shot must be a compile-time bool, got {shown(one_shot)}")
    require(bool(fields), f"{label}: at least one field must be given, got none")
    for field in fields:
        _check_name(label, "field", field)
    if readers is not None:
        _check_names(label, "readers", readers)
    return Plan(label, capacity, tuple(fields), readers, one_shot)


def _names(names: Any) -> str:
    return repr(names) if isinstance(names, tuple) and all(isinstance(n, str) for n in names) else shown(names)


def _check_buffer(p: Plan, name: str, buffer: Any) -> None:
    require(
        isinstance(buffer, gl.shared_memory_descriptor),
        f"{p.label}: field {name} must be a shared-memory buffer, got {shown(unwrapped(buffer))}",
    )
    shape = list(buffer.shape)
    require(
        len(shape) >= 2 and shape[0] == p.capacity,
        f"{p.label}: field {name} must have rank >= 2 and a first dimension of capacity = {p.capacity}, got {shape}",
    )
    rank = getattr(buffer.layout, "rank", None) or len(getattr(buffer.layout, "order", shape[1:]))
    require(
        rank == len(shape) - 1,
        f"{p.label}: field {name} must have a layout of rank {len(shape) - 1} (that of one stage), got {rank}",
    )


def _check_target(label: str, semantic) -> None:
    t = target(semantic)
    require(
        t.capability >= CAPABILITY,
        f"{label}: the target must be an NVIDIA GPU of sm_{CAPABILITY} or newer, got {t.backend} {t.arch}",
        NotImplementedError,
    )
    ctas = semantic.builder.options.num_ctas
    require(ctas == 1, f"{label}: num_ctas must be 1, got {ctas}", NotImplementedError)


# --- arithmetic on iterations ---------------------------------------------------------------------------------------
class pipe_cursor(Struct):
    """Where an endpoint stands: stage and phase, kept without a division. Pass it in place of an iteration."""

    @gluon_builtin
    def advance(self, _semantic=None):
        """The cursor of the next iteration."""
        s, capacity = _semantic, self._static
        after = self.stage.__add__(1, _semantic=s)
        wraps = after.__eq__(capacity, _semantic=s)
        stage = gl.where(wraps, 0, after, _semantic=s)
        phase = self.phase.__xor__(wraps.to(gl.int32, _semantic=s), _semantic=s)
        return pipe_cursor({"stage": stage, "phase": phase}, capacity)


def _at(p: Plan, iteration: Any, s) -> tuple[Any, Any]:
    """Stage and phase of an iteration, int32 scalars; constants if it is known at compile time."""
    if isinstance(iteration, pipe_cursor):
        require(
            iteration._static == p.capacity,
            f"{p.label}: a cursor must be of a pipe of capacity {p.capacity}, got {iteration._static}",
        )
        return iteration.stage, iteration.phase
    iteration = unwrapped(iteration)
    if isinstance(iteration, int) and not isinstance(iteration, bool):
        require(iteration >= 0, f"{p.label}: an iteration must be >= 0, got {iteration}")
        require(
            not p.one_shot or iteration < p.capacity,
            f"{p.label}: an iteration of a one_shot pipe must be < capacity = {p.capacity}, got {iteration}",
        )
        return s.to_tensor(iteration % p.capacity), s.to_tensor(iteration // p.capacity % 2)
    require(
        _checks.is_scalar(iteration),
        f"{p.label}: an iteration must be an int, an integer scalar or a cursor, got {shown(iteration)}",
        TypeError,
    )
    if p.capacity == 1:
        return s.to_tensor(0), _int32(iteration.__and__(1, _semantic=s), s)
    # Iterations are not negative, and unsigned division is the cheaper one.
    wide = gl.uint64 if iteration.dtype.primitive_bitwidth == 64 else gl.uint32
    iteration = iteration.to(wide, _semantic=s)
    stage = iteration.__mod__(p.capacity, _semantic=s)
    phase = iteration.__floordiv__(p.capacity, _semantic=s).__and__(1, _semantic=s)
    return _int32(stage, s), _int32(phase, s)


def _int32(scalar, s):
    return scalar.to(gl.int32, _semantic=s)


def _one(generator, s, value: int):
    """A tensor of one int32, as the flags are read and written."""
    num_warps = unwrapped(s.num_warps(generator))
    return gl.full([1], value, gl.int32, _flag_layout(num_warps), _semantic=s)


def _flag_layout(num_warps: int):
    return gl.BlockedLayout([1], [32], [num_warps], [0])


# --- what kernels hold ------------------------------------------------------------------------------------------------
class Fields(dict):
    """name -> buffer; keys may be constexpr, as they are inside a kernel."""

    def __getitem__(self, name):
        name = unwrapped(name)
        require(
            isinstance(name, str) and name in self,
            f"fields: a name must be one of {', '.join(self)}, got {shown(name)}",
        )
        return super().__getitem__(name)


class pipe_slot(Struct):
    """One stage: a buffer per field, without the stages' dimension, as an attribute and in `fields`."""

    @property
    def fields(self) -> Fields:
        return Fields(self._values)


class pipe_wait_result(Struct):
    """slot: a pipe_slot. is_closed: a run-time bool."""


class _Endpoint(Struct):
    """Members: _full, _empty, _closed (unless one_shot), and the fields."""

    @property
    def _plan(self) -> Plan:
        return self._static

    def _slot(self, stage, names, s) -> pipe_slot:
        return pipe_slot({name: self._values[name].index(stage, _semantic=s) for name in names})

    def _barrier(self, which: str, stage, s):
        return self._values[which].index(stage, _semantic=s)

    @gluon_builtin
    def cursor(self, start=0, _semantic=None):
        """Stage and phase of iteration `start`, to be carried through a loop: `c = c.advance()`."""
        stage, phase = _at(self._plan, start, _semantic)
        return pipe_cursor({"stage": stage, "phase": phase}, self._plan.capacity)


class pipe_writer(_Endpoint):
    """The producer's end."""

    @gluon_builtin
    def acquire(self, iter, _semantic=None):
        """Wait until the stage is free; its slot. Of a one_shot pipe it never has to wait."""
        p, s = self._plan, _semantic
        stage, phase = _at(p, iter, s)
        if not p.one_shot:
            mbarrier.wait(self._barrier("_empty", stage, s), phase.__xor__(1, _semantic=s), _semantic=s)
        return self._slot(stage, p.fields, s)

    @gluon_builtin
    def barrier(self, iter, _semantic=None):
        """The mbarrier of the stage, for TMA loads into it."""
        return self._barrier("_full", _at(self._plan, iter, _semantic)[0], _semantic)

    @gluon_builtin
    def commit(self, iter, tma=(), cp_async=(), _semantic=None):
        """Publish the stage.

        tma: names of the fields that TMA loads fill, each whole, all on `barrier(iter)`.
        cp_async: names of the fields that `async_copy.async_copy_global_to_shared` fills.
        Other fields were stored by threads. Readers see the stage when all of it is there; nothing waits here.
        """
        p, s = self._plan, _semantic
        stage, _ = _at(p, iter, s)
        full = self._barrier("_full", stage, s)
        tma, cp_async = unwrapped(tma), unwrapped(cp_async)
        for what, names in (("tma", tma), ("cp_async", cp_async)):
            if not isinstance(names, tuple) or names:
                _check_names(p.label, f"commit({what}=)", names, p.fields)
        both = [name for name in tma if name in cp_async]
        require(not both, f"{p.label}: a field must have one transport, got two for {', '.join(both)}")
        if cp_async:
            # The count rises before it can fall, and the last arrival is the one below.
            async_copy.mbarrier_arrive(full, increment_count=True, _semantic=s)
        if len(tma) < len(p.fields):
            fence_async_shared(_semantic=s)  # what threads have stored, wgmma and TMA may read
        # Orders stores before the arrival; and no warp may fall behind by a round, where the phase looks old again.
        block_barrier(_semantic=s)
        if tma:
            nbytes = sum(_nbytes(self._values[name]) for name in tma)
            mbarrier.expect(full, nbytes, _semantic=s)
        else:
            mbarrier.arrive(full, count=1, _semantic=s)

    @gluon_builtin
    def close(self, iter, _semantic=None, _generator=None):
        """Publish a stage that holds nothing but the end of the data; waits until it is free."""
        p, s = self._plan, _semantic
        require(not p.one_shot, f"{p.label}: a one_shot pipe must not be closed")
        stage, phase = _at(p, iter, s)
        mbarrier.wait(self._barrier("_empty", stage, s), phase.__xor__(1, _semantic=s), _semantic=s)
        self._barrier("_closed", stage, s).store(_one(_generator, s, 1), _semantic=s)
        block_barrier(_semantic=s)
        mbarrier.arrive(self._barrier("_full", stage, s), count=1, _semantic=s)


def _nbytes(buffer) -> int:
    """Of one stage."""
    n = buffer.dtype.primitive_bitwidth // 8
    for size in buffer.shape[1:]:
        n *= int(size)
    return n


class pipe_reader(_Endpoint):
    """A consumer's end."""

    def __init__(self, values, static):
        super().__init__(values, static)
        self._names = static[1]

    @property
    def _plan(self) -> Plan:
        return self._static[0]

    @gluon_builtin
    def wait(self, iter, _semantic=None, _generator=None):
        """Wait until the stage is published or closed; its slot, narrowed to this reader's fields, and is_closed."""
        p, s = self._plan, _semantic
        stage, phase = _at(p, iter, s)
        mbarrier.wait(self._barrier("_full", stage, s), phase, _semantic=s)
        if p.one_shot:
            is_closed = s.to_tensor(False)
        else:
            layout = _flag_layout(unwrapped(s.num_warps(_generator)))
            flag = self._barrier("_closed", stage, s).load(layout, _semantic=s)
            is_closed = flag.item(_semantic=s).__ne__(0, _semantic=s)
        return pipe_wait_result({"slot": self._slot(stage, self._names, s), "is_closed": is_closed})

    @gluon_builtin
    def release(self, iter, _semantic=None):
        """Give the stage back, after its last read. The writer may take it when every declared reader has."""
        p, s = self._plan, _semantic
        if p.one_shot:
            return
        stage, _ = _at(p, iter, s)
        block_barrier(_semantic=s)  # one thread arrives for all: they must have read
        mbarrier.arrive(self._barrier("_empty", stage, s), count=1, _semantic=s)


class pipe_value(_Endpoint):
    """A pipe: `writer()` and `reader(...)` are its ends."""

    @gluon_builtin
    def writer(self, _semantic=None):
        return pipe_writer(self._values, self._static)

    @gluon_builtin
    def reader(self, name=None, fields=None, _semantic=None):
        """name: one of the declared readers, if there are any. fields: names of those that it reads (default: all)."""
        p = self._plan
        name, fields = unwrapped(name), unwrapped(fields)
        if p.readers is None:
            require(name is None, f"{p.label}: a reader's name must be declared by readers=, got {shown(name)}")
        else:
            declared = ", ".join(p.readers)
            require(
                isinstance(name, str) and name in p.readers,
                f"{p.label}: reader(name) must be one of {declared}, got {shown(name)}",
            )
        if fields is not None:
            _check_names(p.label, "reader(fields=)", fields, p.fields)
        return pipe_reader(self._values, (p, fields or p.fields))


@gluon_builtin
def pipe(
    *, capacity, scope="cta", name=None, readers=None, one_shot=False, _semantic=None, _generator=None, **fields
) -> pipe_value:
    """A pipe between a producer and one or several consumers of a block. In Gluon kernels, sm_90 and newer.

    capacity: stages, a compile-time int; iteration `it` uses stage `it % capacity`.
    scope: "cta", the only one.
    name: begins the messages of its errors.
    readers: names of the consumers. None: one, without a name. Each declared reader must release every stage.
    one_shot: one iteration per stage and no reuse: `acquire` does not wait, `release` does nothing, no `close`.
    fields: name=buffer, shared-memory buffers [capacity, ...] whose layout is that of one stage (`tle.gpu.alloc`).

    Producer and consumers use the same iterations, each from 0 (or a cursor), and every stage that is committed is
    released: a release too few waits for ever. Bad arguments: ValueError, TypeError while the kernel is traced.

    Its ends: `pipe.writer()`, a `pipe_writer` (acquire, barrier, commit, close, cursor), and `pipe.reader(name,
    fields)`, a `pipe_reader` (wait, release, cursor); both classes are in `tle_ops.language._pipe`.
    """
    p, s = plan(capacity, scope, name, readers, one_shot, fields), _semantic
    for field, buffer in fields.items():
        _check_buffer(p, field, buffer)
    _check_target(p.label, s)
    values = {}
    barriers = {"_full": 1}
    if not p.one_shot:
        barriers["_empty"] = 1 if p.readers is None else len(p.readers)
    for which, count in barriers.items():
        values[which] = gl.allocate_shared_memory(gl.int64, [p.capacity, 1], mbarrier.MBarrierLayout(), _semantic=s)
        for stage in range(p.capacity):
            mbarrier.init(values[which].index(stage, _semantic=s), count, _semantic=s)
    if not p.one_shot:
        layout = gl.SwizzledSharedLayout(1, 1, 1, [0])
        values["_closed"] = gl.allocate_shared_memory(gl.int32, [p.capacity, 1], layout, _semantic=s)
        for stage in range(p.capacity):
            values["_closed"].index(stage, _semantic=s).store(_one(_generator, s, 0), _semantic=s)
    fence_async_shared(_semantic=s)  # TMA must see the fresh barriers, and so must the other warps
    block_barrier(_semantic=s)
    return pipe_value({**values, **fields}, p)
