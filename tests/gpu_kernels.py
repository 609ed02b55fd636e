"""Kernels of the tests of tle.gpu: compiled ahead of time in CI, run on a GPU."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import tle_ops.language as tle
from tle_ops.language import gpu as tl


@gluon.jit
def seed_example(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    """The document's example of a pipe, to the letter, but for where `tl` comes from."""
    stage_buf = tle.gpu.alloc([2, BLOCK], dtype=tl.float32, scope=tle.gpu.smem)
    pipe = tle.pipe(capacity=2, scope="cta", name="x_pipe", x=stage_buf)
    writer = pipe.writer()
    reader = pipe.reader()
    offs = tl.arange(0, BLOCK)

    for k in range(n):
        slot = writer.acquire(k)
        tl.store(tle.gpu.local_ptr(slot.x), tl.load(x_ptr + k * BLOCK + offs))
        writer.commit(k)

        ready = reader.wait(k)
        x = tl.load(tle.gpu.local_ptr(ready.slot.x))
        reader.release(k)

        tl.store(out_ptr + k * BLOCK + offs, x)


@gluon.jit
def whole(x_ptr, out_ptr, n, M: gl.constexpr, N: gl.constexpr, SWIZZLED: gl.constexpr):
    """Whole buffers, with and without masks; a scalar and a row broadcast; values cast to the buffer's dtype."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    if SWIZZLED:
        buf = tle.gpu.alloc([M, N], tl.float32, layout=gl.SwizzledSharedLayout(4, 2, 4, [1, 0]))
    else:
        buf = tle.gpu.alloc([M, N], tl.float32)
    p = tle.gpu.local_ptr(buf)
    tl.store(p, -1)
    tl.store(p, tl.load(x_ptr + at), mask=at < n)
    tl.store(out_ptr + at, tl.load(p))
    tl.store(out_ptr + M * N + at, tl.load(p, mask=at < n, other=7.0))
    tl.store(p, tl.arange(0, N)[None, :])
    tl.store(out_ptr + 2 * M * N + at, tl.load(p))


@gluon.jit
def gather(x_ptr, i_ptr, j_ptr, out_ptr, n, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    """Loads through indices: pairs of vectors, a mask, two dimensions of places, scalars."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    buf = tle.gpu.alloc([M, N], tl.float32)
    tl.store(tle.gpu.local_ptr(buf), tl.load(x_ptr + at))
    k = tl.arange(0, K)
    i = tl.load(i_ptr + k)
    j = tl.load(j_ptr + k)
    tl.store(out_ptr + k, tl.load(tle.gpu.local_ptr(buf, (i, j))))
    beyond = tl.where(k < n, i, 1 << 20)  # must not be touched
    tl.store(out_ptr + K + k, tl.load(tle.gpu.local_ptr(buf, (beyond, j)), mask=k < n, other=-2.0))
    rows = tl.arange(0, M)[:, None]
    cols = tl.arange(0, N)[None, :]
    flipped = tl.load(tle.gpu.local_ptr(buf, (M - 1 - rows, N - 1 - cols)))
    tl.store(out_ptr + 2 * K + at, flipped)
    tl.store(out_ptr + 2 * K + M * N, tl.load(tle.gpu.local_ptr(buf, (n, 3))))


@gluon.jit
def scatter(x_ptr, i_ptr, j_ptr, out_ptr, n, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    """Stores through indices, with masks that leave something and nothing."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    buf = tle.gpu.alloc([M, N], tl.float32)
    tl.store(tle.gpu.local_ptr(buf), 0.0)
    k = tl.arange(0, K)
    i = tl.load(i_ptr + k)
    j = tl.load(j_ptr + k)
    x = tl.load(x_ptr + k)
    tl.store(tle.gpu.local_ptr(buf, (i, j)), x)
    tl.store(out_ptr + at, tl.load(tle.gpu.local_ptr(buf)))
    beyond = tl.where(k < n, i, 1 << 20)
    tl.store(tle.gpu.local_ptr(buf, (beyond, j)), x + 1, mask=k < n)
    tl.store(out_ptr + M * N + at, tl.load(tle.gpu.local_ptr(buf)))
    tl.store(tle.gpu.local_ptr(buf, (i, j)), x + 2, mask=k < 0)
    tl.store(tle.gpu.local_ptr(buf, (n % M, 5)), 11)
    tl.store(out_ptr + 2 * M * N + at, tl.load(tle.gpu.local_ptr(buf)))


@gluon.jit
def ranks(x_ptr, rank_ptr, count_ptr, n, BLOCK: gl.constexpr, BINS: gl.constexpr):
    """A histogram that also gives each element its rank in its bin: what routing and radix selection need."""
    bins = tle.gpu.alloc([BINS], tl.int32)
    tl.store(tle.gpu.local_ptr(bins), 0)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=1 << 20)
        tl.store(rank_ptr + at, tl.atomic_add(tle.gpu.local_ptr(bins, (x,)), 1, mask=at < n), mask=at < n)
    tl.store(count_ptr + tl.arange(0, BINS), tl.load(tle.gpu.local_ptr(bins)))


@gluon.jit
def atomics(out_ptr, DTYPE: gl.constexpr, N: gl.constexpr):
    """Each atomic on a whole buffer, and one on a scalar place: what is left, and what came back."""
    k = tl.arange(0, N)
    buf = tle.gpu.alloc([N], DTYPE)
    p = tle.gpu.local_ptr(buf)
    tl.store(p, k)
    for op in gl.static_range(7):
        if op == 0:
            old = tl.atomic_add(p, 5)
        elif op == 1:
            old = tl.atomic_max(p, k * 2)
        elif op == 2:
            old = tl.atomic_min(p, k * 3)
        elif op == 3:
            old = tl.atomic_and(p, 0x7FFF)
        elif op == 4:
            old = tl.atomic_or(p, 16)
        elif op == 5:
            old = tl.atomic_xor(p, 3)
        else:
            old = tl.atomic_xchg(p, k + 100)
        tl.store(out_ptr + 2 * op * N + k, old)
        tl.store(out_ptr + (2 * op + 1) * N + k, tl.load(p))
    tl.store(out_ptr + 14 * N, tl.atomic_add(tle.gpu.local_ptr(buf, (3,)), 1))
    tl.store(out_ptr + 14 * N + 1, tl.load(tle.gpu.local_ptr(buf, (3,))))


@gluon.jit
def float_add(x_ptr, i_ptr, out_ptr, N: gl.constexpr, BINS: gl.constexpr):
    k = tl.arange(0, N)
    buf = tle.gpu.alloc([BINS], tl.float32)
    tl.store(tle.gpu.local_ptr(buf), 0)
    tl.atomic_add(tle.gpu.local_ptr(buf, (tl.load(i_ptr + k),)), tl.load(x_ptr + k))
    tl.store(out_ptr + tl.arange(0, BINS), tl.load(tle.gpu.local_ptr(buf)))


@gluon.jit
def sentinels(x_ptr, sums_ptr, out_ptr, bad_ptr, n, N: gl.constexpr, CAPACITY: gl.constexpr, SCATTER: gl.constexpr):
    """Buffers that live all the while, among those that a pipe, cumsums, gathers and scatters work on: each round, how
    many of their elements have changed."""
    L: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    k = gl.arange(0, N, L)
    first = tle.gpu.alloc([N], tl.int32)
    buf = tle.gpu.alloc([CAPACITY, N], tl.float32)
    second = tle.gpu.alloc([N], tl.int32)
    places = tle.gpu.alloc([N], tl.float32)
    third = tle.gpu.alloc([N], tl.int32)
    tl.store(tle.gpu.local_ptr(first), k * 3 + 1)
    tl.store(tle.gpu.local_ptr(second), k * 5 + 2)
    tl.store(tle.gpu.local_ptr(third), k * 7 + 3)
    tl.store(tle.gpu.local_ptr(places), 0)
    pipe = tle.pipe(capacity=CAPACITY, x=buf)
    writer = pipe.writer()
    reader = pipe.reader()
    for it in range(n):
        slot = writer.acquire(it)
        tl.store(tle.gpu.local_ptr(slot.x), tl.load(x_ptr + it * N + k))
        writer.commit(it)
        x = tl.load(tle.gpu.local_ptr(reader.wait(it).slot.x), layout=L)
        exclusive, total = tle.cumsum(x)
        count, _ = tle.cumsum((x > 0).to(tl.int32))
        if SCATTER:
            tl.store(tle.gpu.local_ptr(places, ((k + it) % N,)), exclusive)
        else:
            tl.store(tle.gpu.local_ptr(places), exclusive)
        turned = tl.load(tle.gpu.local_ptr(places, ((k * 5 + it) % N,)))
        reader.release(it)
        tl.store(sums_ptr + it * N + k, exclusive + count + total)
        tl.store(out_ptr + it * N + k, turned)
        bad = (tl.load(tle.gpu.local_ptr(first), layout=L) != k * 3 + 1).to(tl.int32)
        bad += (tl.load(tle.gpu.local_ptr(second), layout=L) != k * 5 + 2).to(tl.int32)
        bad += (tl.load(tle.gpu.local_ptr(third), layout=L) != k * 7 + 3).to(tl.int32)
        tl.store(bad_ptr + it, gl.sum(bad, 0))


@gluon.jit
def _feed(writer, x_ptr, n, N: gl.constexpr):
    k = gl.arange(0, N, gl.BlockedLayout([4], [32], [1], [0]))
    for it in range(n):
        slot = writer.acquire(it)
        slot.x.store(gl.load(x_ptr + it * N + k))
        writer.commit(it)


@gluon.jit
def _scan(reader, guard, sums_ptr, bad_ptr, n, STEP: gl.constexpr, N: gl.constexpr):
    """Cumsums whose scratch memory is this role's own."""
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    k = gl.arange(0, N, L)
    guard.store(k * STEP + 1)
    for it in range(n):
        x = reader.wait(it).slot.x.load(L)
        exclusive, total = tle.cumsum(x)
        again, _ = tle.cumsum(exclusive, reverse=True)
        reader.release(it)
        gl.store(sums_ptr + it * N + k, again + total)
        gl.store(bad_ptr + it, gl.sum((guard.load(L) != k * STEP + 1).to(gl.int32), 0))


@gluon.jit
def sentinels_of_roles(x_ptr, left_ptr, right_ptr, bad_ptr, n, N: gl.constexpr, CAPACITY: gl.constexpr):
    """Two roles scan at the same time, each beside a live buffer, while a third one feeds them."""
    left = tle.gpu.alloc([N], gl.int32)
    buf = tle.gpu.alloc([CAPACITY, N], gl.float32)
    right = tle.gpu.alloc([N], gl.int32)
    pipe = tle.pipe(capacity=CAPACITY, readers=("left", "right"), x=buf)
    gl.warp_specialize(
        [
            (_scan, (pipe.reader("left"), left, left_ptr, bad_ptr, n, 3, N)),
            (_scan, (pipe.reader("right"), right, right_ptr, bad_ptr + n, n, 5, N)),
            (_feed, (pipe.writer(), x_ptr, n, N)),
        ],
        [4, 1],
        [96, 40],
    )
