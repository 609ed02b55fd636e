"""Kernels of the tests of tle.pipe and tle.gpu: compiled ahead of time in CI, run on a GPU."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import tle_ops.language as tle


# --- pipes ------------------------------------------------------------------------------------------------------------
@gluon.jit
def one_role(x_ptr, out_ptr, n, BLOCK: gl.constexpr, CAPACITY: gl.constexpr, AHEAD: gl.constexpr):
    """One role plays both: the producer is AHEAD iterations in front."""
    buf = tle.gpu.alloc([CAPACITY, BLOCK], dtype=tl.float32, scope=tle.gpu.smem)
    pipe = tle.pipe(capacity=CAPACITY, name="x_pipe", x=buf)
    writer = pipe.writer()
    reader = pipe.reader()
    offs = tle.gpu.arange(0, BLOCK)
    for k in range(n + AHEAD):
        if k < n:
            slot = writer.acquire(k)
            tle.gpu.store(tle.gpu.local_ptr(slot.fields["x"]), tl.load(x_ptr + k * BLOCK + offs))
            writer.commit(k)
        if k >= AHEAD:
            ready = reader.wait(k - AHEAD)
            x = tle.gpu.load(tle.gpu.local_ptr(ready.slot.x))
            reader.release(k - AHEAD)
            tl.store(out_ptr + (k - AHEAD) * BLOCK + offs, x * 2)


@gluon.jit
def _store_producer(writer, x_ptr, s_ptr, n, BLOCK: gl.constexpr, CURSOR: gl.constexpr):
    offs = gl.arange(0, BLOCK)
    at = writer.cursor()
    for k in range(n):
        it = at if CURSOR else k
        slot = writer.acquire(it)
        tle.gpu.store(tle.gpu.local_ptr(slot.x), gl.load(x_ptr + k * BLOCK + offs))
        tle.gpu.store(tle.gpu.local_ptr(slot.scale), gl.load(s_ptr + k * BLOCK + offs))
        writer.commit(it)
        at = at.advance()


@gluon.jit
def _mul_consumer(reader, out_ptr, n, BLOCK: gl.constexpr):
    offs = gl.arange(0, BLOCK)
    for k in range(n):
        r = reader.wait(k)
        y = tle.gpu.load(tle.gpu.local_ptr(r.slot.x)) * tle.gpu.load(tle.gpu.local_ptr(r.slot.scale))
        reader.release(k)
        gl.store(out_ptr + k * BLOCK + offs, y)


@gluon.jit
def _copy_consumer(reader, out_ptr, n, BLOCK: gl.constexpr):
    offs = gl.arange(0, BLOCK)
    at = reader.cursor()
    for k in range(n):
        r = reader.wait(at)
        y = tle.gpu.load(tle.gpu.local_ptr(r.slot.x))
        reader.release(at)
        at = at.advance()
        gl.store(out_ptr + k * BLOCK + offs, y)


@gluon.jit
def two_readers(x_ptr, s_ptr, mul_ptr, copy_ptr, n, BLOCK: gl.constexpr, CAPACITY: gl.constexpr, CURSOR: gl.constexpr):
    """One producer of two fields, two readers in roles of their own, the second narrowed to one field."""
    x = tle.gpu.alloc([CAPACITY, BLOCK], gl.float32)
    scale = tle.gpu.alloc([CAPACITY, BLOCK], gl.float32)
    pipe = tle.pipe(capacity=CAPACITY, readers=("mul", "copy"), x=x, scale=scale)
    gl.warp_specialize(
        [
            (_mul_consumer, (pipe.reader("mul"), mul_ptr, n, BLOCK)),
            (_store_producer, (pipe.writer(), x_ptr, s_ptr, n, BLOCK, CURSOR)),
            (_copy_consumer, (pipe.reader("copy", fields=("x",)), copy_ptr, n, BLOCK)),
        ],
        [4, 1],
        [40, 40],
    )


@gluon.jit
def _closing_producer(writer, x_ptr, n_ptr, BLOCK: gl.constexpr):
    offs = gl.arange(0, BLOCK)
    n = gl.load(n_ptr)  # only the producer knows how many there are
    for k in range(n):
        slot = writer.acquire(k)
        tle.gpu.store(tle.gpu.local_ptr(slot.x), gl.load(x_ptr + k * BLOCK + offs))
        writer.commit(k)
    writer.close(n)


@gluon.jit
def _draining_consumer(reader, out_ptr, BLOCK: gl.constexpr):
    offs = gl.arange(0, BLOCK)
    k = 0
    r = reader.wait(k)
    while not r.is_closed:
        y = tle.gpu.load(tle.gpu.local_ptr(r.slot.x))
        reader.release(k)
        gl.store(out_ptr + k * BLOCK + offs, y)
        k += 1
        r = reader.wait(k)


@gluon.jit
def closing(x_ptr, n_ptr, out_ptr, BLOCK: gl.constexpr, CAPACITY: gl.constexpr):
    pipe = tle.pipe(capacity=CAPACITY, x=tle.gpu.alloc([CAPACITY, BLOCK], gl.float32))
    gl.warp_specialize(
        [
            (_draining_consumer, (pipe.reader(), out_ptr, BLOCK)),
            (_closing_producer, (pipe.writer(), x_ptr, n_ptr, BLOCK)),
        ],
        [4],
        [40],
    )


@gluon.jit
def broadcast_once(x_ptr, out_ptr, BLOCK: gl.constexpr):
    offs = gl.arange(0, BLOCK)
    pipe = tle.pipe(capacity=1, one_shot=True, x=tle.gpu.alloc([1, BLOCK], gl.float32))
    writer = pipe.writer()
    slot = writer.acquire(0)
    tle.gpu.store(tle.gpu.local_ptr(slot.x), gl.load(x_ptr + offs))
    writer.commit(0)
    reader = pipe.reader()
    y = tle.gpu.load(tle.gpu.local_ptr(reader.wait(0).slot.x))
    reader.release(0)
    gl.store(out_ptr + offs, y)


# --- transports -------------------------------------------------------------------------------------------------------
@gluon.jit
def _mixed_producer(writer, desc, c_ptr, s_ptr, n, BM: gl.constexpr, BN: gl.constexpr, WARPS: gl.constexpr):
    """One slot, three transports: TMA, cp.async and stores."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // (BN // 4), BN // 4], [WARPS, 1], [1, 0])
    rows = gl.arange(0, BM, gl.SliceLayout(1, L))
    cols = gl.arange(0, BN, gl.SliceLayout(0, L))
    inside = rows[:, None] * BN + cols[None, :]
    offs = gl.arange(0, BM)
    for k in range(n):
        slot = writer.acquire(k)
        tle.gpu.tma_load(desc, [k * BM, 0], writer.barrier(k), slot.t)
        tle.gpu.cp_async(slot.c, c_ptr + k * BM * BN + inside)
        tle.gpu.store(tle.gpu.local_ptr(slot.s), gl.load(s_ptr + k * BM + offs))
        writer.commit(k, tma=("t",), cp_async=("c",))


@gluon.jit
def _mixed_consumer(reader, out_ptr, n, BM: gl.constexpr, BN: gl.constexpr, WARPS: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // (BN // 4), BN // 4], [WARPS, 1], [1, 0])
    rows = gl.arange(0, BM, gl.SliceLayout(1, L))
    cols = gl.arange(0, BN, gl.SliceLayout(0, L))
    inside = rows[:, None] * BN + cols[None, :]
    for k in range(n):
        slot = reader.wait(k).slot
        t = slot.t.load(L)
        c = slot.c.load(L)
        s = slot.s.load(gl.SliceLayout(1, L))
        reader.release(k)
        gl.store(out_ptr + k * BM * BN + inside, t * s[:, None] + c)


@gluon.jit
def mixed(
    desc, c_ptr, s_ptr, out_ptr, n, BM: gl.constexpr, BN: gl.constexpr, CAPACITY: gl.constexpr, WARPS: gl.constexpr
):
    pipe = tle.pipe(
        capacity=CAPACITY,
        t=tle.gpu.alloc([CAPACITY, BM, BN], gl.float32, layout=desc.layout),
        c=tle.gpu.alloc([CAPACITY, BM, BN], gl.float32, layout=gl.SwizzledSharedLayout(1, 1, 1, [1, 0])),
        s=tle.gpu.alloc([CAPACITY, BM], gl.float32),
    )
    gl.warp_specialize(
        [
            (_mixed_consumer, (pipe.reader(), out_ptr, n, BM, BN, 4)),
            (_mixed_producer, (pipe.writer(), desc, c_ptr, s_ptr, n, BM, BN, WARPS)),
        ],
        [WARPS],
        [64],
    )


@gluon.jit
def _tma_producer(writer, desc, n, BM: gl.constexpr):
    for k in range(n):
        slot = writer.acquire(k)
        tle.gpu.tma_load(desc, [k * BM, 0], writer.barrier(k), slot.x)
        writer.commit(k, tma=("x",))


@gluon.jit
def _tile_consumer(reader, out_ptr, n, BM: gl.constexpr, BN: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // (BN // 4), BN // 4], [4, 1], [1, 0])
    rows = gl.arange(0, BM, gl.SliceLayout(1, L))
    cols = gl.arange(0, BN, gl.SliceLayout(0, L))
    for k in range(n):
        x = reader.wait(k).slot.x.load(L)
        reader.release(k)
        gl.store(out_ptr + (k * BM + rows)[:, None] * BN + cols[None, :], x)


@gluon.jit
def by_tma(desc, out_ptr, n, BM: gl.constexpr, BN: gl.constexpr, CAPACITY: gl.constexpr):
    pipe = tle.pipe(capacity=CAPACITY, x=tle.gpu.alloc([CAPACITY, BM, BN], desc.dtype, layout=desc.layout))
    gl.warp_specialize(
        [
            (_tile_consumer, (pipe.reader(), out_ptr, n, BM, BN)),
            (_tma_producer, (pipe.writer(), desc, n, BM)),
        ],
        [1],
        [24],
    )


@gluon.jit
def _cp_async_producer(writer, x_ptr, n, n_elements, BM: gl.constexpr, BN: gl.constexpr, WARPS: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32 // (BN // 4), BN // 4], [WARPS, 1], [1, 0])
    rows = gl.arange(0, BM, gl.SliceLayout(1, L))
    cols = gl.arange(0, BN, gl.SliceLayout(0, L))
    inside = rows[:, None] * BN + cols[None, :]
    at = writer.cursor()
    for k in range(n):
        slot = writer.acquire(at)
        offs = k * BM * BN + inside
        tle.gpu.cp_async(slot.x, x_ptr + offs, mask=offs < n_elements)
        writer.commit(at, cp_async=("x",))
        at = at.advance()


@gluon.jit
def by_cp_async(
    x_ptr, out_ptr, n, n_elements, BM: gl.constexpr, BN: gl.constexpr, CAPACITY: gl.constexpr, WARPS: gl.constexpr
):
    x = tle.gpu.alloc([CAPACITY, BM, BN], gl.float32, layout=gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    pipe = tle.pipe(capacity=CAPACITY, x=x)
    gl.warp_specialize(
        [
            (_tile_consumer, (pipe.reader(), out_ptr, n, BM, BN)),
            (_cp_async_producer, (pipe.writer(), x_ptr, n, n_elements, BM, BN, WARPS)),
        ],
        [WARPS],
        [40],
    )
