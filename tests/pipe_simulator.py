"""Runs the code of tle.pipe on the host: Gluon has no interpreter.

The functions of `tle_ops.language._pipe` are the real ones; what they emit is replaced. Each warp of each role is
a thread, one of them runs at a time, and at every instruction on a barrier a seeded scheduler picks who goes on: a warp
whose wait is over, or a copy that lands. When nobody can go on, that is a deadlock, and an error names who waits for
what. Mbarriers count arrivals and bytes as PTX says. Weak memory order is not modelled.
"""

from __future__ import annotations

import functools
import random
import threading
import types

from triton.experimental.gluon import language as gl
from triton.language import core

from tle_ops.language import _pipe


class Deadlock(AssertionError):
    pass


# --- who runs ---------------------------------------------------------------------------------------------------------
class Scheduler:
    """Warps (threads) and landing copies (events), one at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.warps: list[Warp] = []
        self.events: list[tuple] = []  # (warp, action) in order of issue
        self.failure: BaseException | None = None

    def run(self) -> None:
        for warp in self.warps:
            warp.thread.start()
        while not self.failure and (self.events or any(not w.done for w in self.warps)):
            ready: list = [w for w in self.warps if not w.done and w.ready()]
            # What one warp has issued lands in order; copies of different warps in any.
            first = {id(e[0]): e for e in reversed(self.events)}
            ready += list(first.values())
            if not ready:
                waiting = "; ".join(f"{w.name}: {w.what}" for w in self.warps if not w.done)
                self.failure = Deadlock(waiting)
                break
            chosen = self.random.choice(ready)
            if isinstance(chosen, Warp):
                chosen.step()
            else:
                self.events.remove(chosen)
                chosen[1]()
        for warp in self.warps:
            warp.stop()
        if self.failure:
            raise self.failure


class Stop(BaseException):
    pass


class Warp:
    current: Warp | None = None

    def __init__(self, scheduler: Scheduler, name: str, role: Role, index: int, body) -> None:
        self.scheduler, self.name, self.role, self.index = scheduler, name, role, index
        self.ready, self.what, self.done, self.stopped = lambda: True, "start", False, False
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._main, args=(body,), daemon=True)
        scheduler.warps.append(self)

    def _main(self, body) -> None:
        self.go.acquire()
        try:
            if not self.stopped:
                body()
        except Stop:
            pass
        except BaseException as e:
            self.scheduler.failure = e
        self.done = True
        self.back.release()

    def step(self) -> None:
        Warp.current = self
        self.go.release()
        self.back.acquire()

    def pause(self, what: str, ready=lambda: True) -> None:
        self.what, self.ready = what, ready
        self.back.release()
        self.go.acquire()
        if self.stopped:
            raise Stop
        assert ready()

    def stop(self) -> None:
        self.stopped = True
        if not self.done:
            self.go.release()
        self.thread.join(10)
        assert not self.thread.is_alive()


class Role:
    def __init__(self, warps: int) -> None:
        self.warps, self.arrived, self.round = warps, 0, 0


def pause(what: str, ready=lambda: True) -> None:
    if Warp.current is not None:  # None: the part before the roles, which runs alone
        Warp.current.pause(what, ready)


# --- what instructions do ---------------------------------------------------------------------------------------------
class Mbarrier:
    def __init__(self) -> None:
        self.count = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes, self.phase, self.completed = 0, 0, 0

    def arrive(self, nbytes: int = 0, n: int = 1) -> None:
        self.bytes += nbytes
        assert self.pending >= n, "more arrivals than the barrier counts"
        self.pending -= n
        self.settle()

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.completed += 1
            self.pending = self.count


class Buffer(gl.shared_memory_descriptor):
    """[stages, ...]; a stage holds one value per warp of the writer, so that a torn one is seen."""

    def __init__(self, shape, dtype=gl.float32, make=lambda: {}):
        layout = gl.SwizzledSharedLayout(1, 1, 1, list(range(len(shape) - 1)))
        self.type = gl.shared_memory_descriptor_type(dtype, list(shape), layout, list(shape)) if layout else None
        self.cells = [make() for _ in range(shape[0])]

    def index(self, stage, _semantic=None):
        return Stage(self.cells, int(stage))


class Stage:
    def __init__(self, cells, stage: int) -> None:
        self.cells, self.stage = cells, stage

    @property
    def cell(self):
        return self.cells[self.stage]

    def store(self, value, _semantic=None) -> None:
        pause("store")
        self.cell[Warp.current.index if Warp.current else 0] = value

    def load(self, layout=None, _semantic=None):
        pause("load")
        return Flag(self.cell.get(0, 0))

    def values(self) -> set:
        pause("load")
        return set(self.cell.values())


class Flag(int):
    def item(self, _semantic=None):
        return Scalar(int(self))


class Scalar(core.tensor):
    """An integer at run time."""

    def __init__(self, value: int, dtype=core.int32) -> None:
        self.value, self.type, self.dtype, self.shape = value, dtype, dtype, ()

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self.value)

    def to(self, dtype, _semantic=None):
        assert self.value >= 0
        return Scalar(self.value, dtype)


def _operator(function):
    def call(self, other, _semantic=None):
        return Scalar(int(function(self.value, int(other))), self.dtype)

    return call


for _name in ("add", "mod", "floordiv", "and", "xor", "eq", "ne"):
    setattr(Scalar, f"__{_name}__", _operator(getattr(int, f"__{_name}__")))


class Semantic:
    """Stands for the compiler."""

    def __init__(self, arch: str = "sm90", num_ctas: int = 1, backend: str = "cuda") -> None:
        options = types.SimpleNamespace(backend_name=backend, arch=arch, num_ctas=num_ctas)
        self.builder = types.SimpleNamespace(options=options)

    def allocate_shared(self):
        """Marks a compiler of Gluon."""

    def to_tensor(self, value):
        return value if isinstance(value, Scalar) else Scalar(int(value))

    def num_warps(self, generator):
        return Warp.current.role.warps if Warp.current else 1


def _leads() -> bool:
    """The thread that acts for its role."""
    return Warp.current is None or Warp.current.index == 0


def _barrier_of(stage: Stage) -> Mbarrier:
    return stage.cell


def _wait(stage, phase, _semantic=None) -> None:
    barrier, parity = _barrier_of(stage), int(phase)
    pause(f"wait for phase {parity} of stage {stage.stage}", lambda: barrier.phase != parity)


def _arrive(stage, count=1, _semantic=None) -> None:
    pause("arrive")
    if _leads():
        _barrier_of(stage).arrive(n=count)


def _expect(stage, nbytes, _semantic=None) -> None:
    pause("expect")
    if _leads():
        _barrier_of(stage).arrive(nbytes)


def _init(stage, count, _semantic=None) -> None:
    _barrier_of(stage).init(count)


def _block_barrier(_semantic=None) -> None:
    if Warp.current is None:
        return
    role = Warp.current.role
    mine = role.round
    role.arrived += 1
    if role.arrived == role.warps:
        role.arrived, role.round = 0, role.round + 1
    pause("barrier of the role", lambda: role.round > mine)


def _cp_async_arrive(stage, increment_count, _semantic=None) -> None:
    assert increment_count
    pause("cp.async arrive")
    barrier, warp = _barrier_of(stage), Warp.current
    barrier.pending += 1
    warp.scheduler.events.append((warp, barrier.arrive))


def _allocate(dtype, shape, layout, _semantic=None):
    return Buffer(shape, dtype, Mbarrier if dtype == gl.int64 else dict)


def cp_async(stage: Stage, value) -> None:
    """A warp's part of an asynchronous copy."""
    warp, cell = Warp.current, stage.cell
    pause("cp.async")
    warp.scheduler.events.append((warp, lambda: cell.__setitem__(warp.index, value)))


def tma(barrier: Stage, stage: Stage, value, nbytes: int) -> None:
    """A bulk copy, issued once for its role."""
    pause("tma")
    if not _leads():
        return
    warp, cell, target = Warp.current, stage.cell, _barrier_of(barrier)

    def land():
        cell.update({0: value})
        target.bytes -= nbytes
        target.settle()

    warp.scheduler.events.append((object(), land))  # in no order with anything


# --- the machine ------------------------------------------------------------------------------------------------------
def install(monkeypatch) -> None:
    """Put the simulated instructions in place of those that tle.pipe emits."""
    fake = types.SimpleNamespace(**{n: getattr(gl, n) for n in ("int32", "int64", "uint32", "uint64")})
    fake.shared_memory_descriptor = gl.shared_memory_descriptor
    fake.SwizzledSharedLayout, fake.BlockedLayout = gl.SwizzledSharedLayout, gl.BlockedLayout
    fake.where = lambda condition, a, b, _semantic: Scalar(int(a if condition else b))
    fake.full = lambda shape, value, dtype, layout, _semantic: value
    fake.allocate_shared_memory = _allocate
    barriers = {"init": _init, "wait": _wait, "arrive": _arrive, "expect": _expect}
    monkeypatch.setattr(_pipe, "gl", fake)
    monkeypatch.setattr(_pipe, "mbarrier", types.SimpleNamespace(MBarrierLayout=lambda: None, **barriers))
    monkeypatch.setattr(_pipe, "async_copy", types.SimpleNamespace(mbarrier_arrive=_cp_async_arrive))
    monkeypatch.setattr(_pipe, "fence_async_shared", lambda _semantic: None)
    monkeypatch.setattr(_pipe, "block_barrier", _block_barrier)


def run(seed: int, roles: list[tuple]) -> None:
    """roles: (function, warps). Every warp of a role runs the function."""
    scheduler = Scheduler(seed)
    for number, (function, warps) in enumerate(roles):
        role = Role(warps)
        for index in range(warps):
            name = f"role {number} ({getattr(function, '__name__', 'function')}), warp {index}"
            Warp(scheduler, name, role, index, functools.partial(function, index))
    try:
        scheduler.run()
    finally:
        Warp.current = None
