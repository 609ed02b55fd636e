"""The protocol of tle.pipe on the host: its own code, over simulated barriers and copies, in thousands of orders."""

import pytest
from triton.experimental.gluon import language as gl

from tests import pipe_simulator as simulator
from tests.pipe_simulator import Buffer, Deadlock, Scalar, Semantic
from tle_ops.language import _pipe

S = {"_semantic": Semantic()}
NBYTES = 4 * 32


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    simulator.install(monkeypatch)


def pipe_of(capacity, names="x", **options):
    fields = {name: Buffer([capacity, 32]) for name in names}
    return _pipe.pipe(capacity=capacity, **options, **fields, **S)


def iterations(end, n, style):
    """0 .. n - 1 as compile-time ints, run-time scalars of 32 and 64 bits, or cursors."""
    cursor = end.cursor(0, **S)
    for k in range(n):
        yield k, (k, Scalar(k), Scalar(k, gl.int64), cursor)[style]
        cursor = cursor.advance(**S)


def producer(pipe, n, style=0, transports=("store",), commit=None):
    """Writes iteration k as the value k of every field, field f by transports[f]."""

    def write(warp):
        writer = pipe.writer(**S)
        for k, it in iterations(writer, n, style):
            slot = writer.acquire(it, **S)
            tma, copied = [], []
            for (name, stage), transport in zip(slot.fields.items(), transports, strict=True):
                if transport == "store":
                    stage.store(k)
                elif transport == "cp_async":
                    simulator.cp_async(stage, k)
                    copied.append(name)
                else:
                    simulator.tma(writer.barrier(it, **S), stage, k, NBYTES)
                    tma.append(name)
            writer.commit(it, tma=tuple(tma), cp_async=tuple(copied), **S)

    return write


def consumer(pipe, n, seen, name=None, fields=None, style=0, release=lambda k: True):
    def read(warp):
        reader = pipe.reader(name, fields, **S)
        for k, it in iterations(reader, n, style):
            result = reader.wait(it, **S)
            assert not result.is_closed
            for stage in result.slot.fields.values():
                seen.append((k, stage.values()))
            if release(k):
                reader.release(it, **S)

    return read


def assert_all(seen, n, times):
    assert len(seen) == n * times
    assert all(values == {k} for k, values in seen), seen


@pytest.mark.parametrize("style", range(4), ids=["static", "int32", "int64", "cursor"])
@pytest.mark.parametrize("capacity", range(1, 9))
def test_one_reader(capacity, style):
    for seed in range(3):
        for n in (0, 1, capacity, 3 * capacity + 1):
            seen = []
            pipe = pipe_of(capacity)
            simulator.run(seed, [(producer(pipe, n, style), 2), (consumer(pipe, n, seen, style=style), 3)])
            assert_all(seen, n, 3)


@pytest.mark.parametrize("capacity", (1, 2, 3, 8))
def test_two_readers_with_fields_of_their_own(capacity):
    for seed in range(8):
        left, right, n = [], [], 2 * capacity + 3
        pipe = pipe_of(capacity, "xy", readers=("left", "right"))
        simulator.run(
            seed,
            [
                (producer(pipe, n, transports=("store", "store")), 2),
                (consumer(pipe, n, left, "left"), 1),
                (consumer(pipe, n, right, "right", fields=("y",)), 2),
            ],
        )
        assert_all(left, n, 2)
        assert_all(right, n, 2)


@pytest.mark.parametrize("warps", (1, 3))
@pytest.mark.parametrize(
    "transports",
    [("tma",), ("cp_async",), ("tma", "tma"), ("tma", "cp_async"), ("tma", "cp_async", "store")],
    ids="+".join,
)
@pytest.mark.parametrize("capacity", (1, 2, 5))
def test_transports(capacity, transports, warps):
    for seed in range(8):
        seen, n = [], 3 * capacity + 2
        pipe = pipe_of(capacity, "xyz"[: len(transports)])
        simulator.run(seed, [(producer(pipe, n, 1, transports), warps), (consumer(pipe, n, seen, style=1), 2)])
        assert_all(seen, n, 2 * len(transports))


@pytest.mark.parametrize("capacity", (1, 2, 5))
def test_close(capacity):
    for seed in range(8):
        for n in (0, 1, capacity, 2 * capacity + 1):
            pipe, seen = pipe_of(capacity), []

            def write(warp, pipe=pipe, n=n):
                producer(pipe, n)(warp)
                pipe.writer(**S).close(n, **S)

            def drain(warp, pipe=pipe, seen=seen):
                reader, k = pipe.reader(**S), 0
                while not (result := reader.wait(k, **S)).is_closed:
                    seen.append((k, result.slot.x.values()))
                    reader.release(k, **S)
                    k += 1

            simulator.run(seed, [(write, 2), (drain, 2)])
            assert_all(seen, n, 2)


def test_one_shot():
    for seed in range(8):
        pipe, seen = pipe_of(2, one_shot=True, readers=("a", "b")), []
        roles = [(producer(pipe, 2), 2), (consumer(pipe, 2, seen, "a"), 1), (consumer(pipe, 2, seen, "b"), 1)]
        simulator.run(seed, roles)
        assert_all(seen, 2, 2)


# --- what the simulator is for: faults are found, and named -----------------------------------------------------------
def test_a_missing_release_is_a_deadlock():
    pipe = pipe_of(2)
    with pytest.raises(Deadlock, match=r"role 0 \(write\), warp 0: wait for phase 0 of stage 1"):
        simulator.run(0, [(producer(pipe, 6), 1), (consumer(pipe, 6, [], release=lambda k: k != 1), 1)])


def test_a_reader_that_never_comes_is_a_deadlock():
    pipe = pipe_of(2, readers=("a", "b"))
    with pytest.raises(Deadlock, match="stage 0"):
        simulator.run(0, [(producer(pipe, 3), 1), (consumer(pipe, 3, [], "a"), 1)])


def test_releasing_before_reading_is_a_race():
    def read(warp):
        reader = pipe.reader(**S)
        for k in range(12):
            slot = reader.wait(k, **S).slot
            reader.release(k, **S)
            assert slot.x.values() == {k}

    with pytest.raises(AssertionError):  # noqa: PT012
        for seed in range(50):
            pipe = pipe_of(2)
            simulator.run(seed, [(producer(pipe, 12), 1), (read, 1)])


@pytest.mark.parametrize("where", ["commit", "release"])
def test_the_barriers_of_a_role_are_needed(where, monkeypatch):
    """Without the barrier before an arrival, one thread speaks for warps that are not done."""
    barrier = simulator._block_barrier
    call = {"commit": "store", "release": "load"}[where]
    monkeypatch.setattr(
        _pipe,
        "block_barrier",
        lambda _semantic: None if simulator.Warp.current and simulator.Warp.current.what == call else barrier(),
    )
    with pytest.raises((AssertionError, Deadlock)):  # noqa: PT012
        for seed in range(200):
            pipe, seen = pipe_of(2), []
            simulator.run(seed, [(producer(pipe, 12), 3), (consumer(pipe, 12, seen), 3)])
            assert_all(seen, 12, 3)
