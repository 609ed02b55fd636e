"""Histograms in TileLang: each block counts in shared memory, by atomics, which Triton does not have there. Sums of
integers: the order does not matter."""

import tilelang.language as T
import torch
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._tilelang import DTYPE, Kernel, vector_width

THREADS = 256
FEW_THREADS = 64  # for short rows: more blocks at a time, for it is their number that takes the time
STEPS = 4  # vectors of 16 bytes that a thread has under way
ENOUGH = 528  # blocks: four for each multiprocessor of an H200
ROOMS = (256, 1024, 4096, 16384, 49152)  # bins that shared memory has place for; of more, a block counts a range
LANES = 32  # bins side by side that one block sums over the parts of a row


@Kernel
def histogram_kernel(dtype: torch.dtype, vector: int, room: int, threads: int):
    """room: bins that shared memory has place for."""
    rows, columns, pitch, bins = (T.dynamic(name, "int64") for name in ("rows", "columns", "pitch", "bins"))
    outputs = T.dynamic("outputs", "int64")
    wide = "int64" if dtype is torch.int64 else "int32"

    @T.prim_func
    def histogram(
        X: T.StridedTensor((rows, columns), (pitch, 1), DTYPE[dtype]),
        C: T.Tensor((outputs, bins), "int32"),  # [rows * parts, bins]
        parts: T.int32,  # blocks that share a row
        ranges: T.int32,  # of `room` bins
    ):
        with T.Kernel(rows * parts * ranges, threads=threads) as bx:
            t = T.get_thread_binding()
            Xv = T.Tensor((T.int64(1 << 40), vector), DTYPE[dtype], X.data)  # the same memory in vectors
            x = T.alloc_local((STEPS, vector), DTYPE[dtype])
            h = T.alloc_shared((room,), "int32")
            row, output, first = T.alloc_var("int64"), T.alloc_var("int64"), T.alloc_var("int64")
            part, vectors, start, size, left = (T.alloc_var("int32") for _ in range(5))
            value = T.alloc_var(wide)
            output = T.truncdiv(bx, T.cast(ranges, "int64"))
            row = T.truncdiv(output, T.cast(parts, "int64"))
            part = T.cast(output - row * parts, "int32")
            start = T.cast(bx - output * ranges, "int32") * room
            size = T.min(T.cast(bins, "int32") - start, room)
            vectors = T.truncdiv(T.cast(columns, "int32"), vector)
            first = row * T.truncdiv(pitch, T.int64(vector))
            for k in T.serial((size + threads - 1) // threads):
                if k * threads + t < size:
                    h[k * threads + t] = 0
            T.sync_threads()
            left = vectors - part * (STEPS * threads) - t
            while left > 0:
                for k in T.unroll(STEPS):
                    if k * threads < left:
                        for j in T.vectorized(vector):
                            x[k, j] = Xv[first + (vectors - left) + k * threads, j]
                for k in T.unroll(STEPS):
                    if k * threads < left:
                        for j in T.unroll(vector):
                            value = T.cast(x[k, j], wide) - T.cast(start, wide)
                            if value >= 0 and value < T.cast(size, wide):
                                T.atomic_add(h[value], 1)
                left = left - parts * (STEPS * threads)
            T.sync_threads()
            for k in T.serial((size + threads - 1) // threads):
                if k * threads + t < size:
                    C[output, start + k * threads + t] = h[k * threads + t]

    return histogram


@Kernel
def sum_kernel():
    rows, parts, bins = (T.dynamic(name, "int64") for name in ("rows", "parts", "bins"))
    across = THREADS // LANES

    @T.prim_func
    def histogram_sum(P: T.Tensor((rows, parts, bins), "int32"), C: T.Tensor((rows, bins), "int32")):
        with T.Kernel(rows * T.ceildiv(bins, LANES), threads=THREADS) as bx:
            t = T.get_thread_binding()
            h = T.alloc_shared((across, LANES), "int32")
            strips, row, b = T.alloc_var("int64"), T.alloc_var("int64"), T.alloc_var("int64")
            count = T.alloc_var("int32")
            strips = T.truncdiv(bins + LANES - 1, T.int64(LANES))
            row = T.truncdiv(bx, strips)
            b = (bx - row * strips) * LANES + t % LANES
            count = 0
            if b < bins:
                for k in T.serial(T.truncdiv(parts - t // LANES + across - 1, T.int64(across))):
                    count = count + P[row, k * across + t // LANES, b]
            h[t // LANES, t % LANES] = count
            T.sync_threads()
            if t < LANES and b < bins:
                count = 0
                for k in T.unroll(across):
                    count = count + h[k, t]
                C[row, b] = count

    return histogram_sum


@replayed
def histogram(x: Tensor, bins: int) -> Tensor:
    counts = _meta.histogram(x, bins)
    if counts.numel() == 0 or x.numel() == 0:
        return counts.zero_()
    x = x.view(torch.uint8) if x.dtype is torch.bool else x
    N = x.shape[-1]
    if x.dim() != 2:
        x = x.reshape(-1, N)
    if N == 1:  # any stride is contiguous then, but the kernel wants to see 1
        x = x.contiguous().as_strided(x.shape, (1, 1))
    elif x.stride(1) != 1:
        x = x.contiguous()
    M = x.shape[0]
    out = counts if counts.dim() == 2 else counts.view(M, bins)
    size = x.element_size()
    vector = vector_width(16 // size, N, x.stride(0), x.data_ptr() // size)
    room = next((r for r in ROOMS if bins <= r), ROOMS[-1])
    ranges = -(-bins // room)
    threads = FEW_THREADS if STEPS * FEW_THREADS * vector >= N and bins <= ROOMS[1] else THREADS
    parts = min(-(-N // (STEPS * threads * vector)), -(-ENOUGH // (M * ranges)))
    launch = histogram_kernel(x.device, x.dtype, vector, room, threads)
    if parts == 1:
        launch(x, out, 1, ranges)
        return counts
    partial = torch.empty((M, parts, bins), dtype=torch.int32, device=x.device)
    launch(x, partial.view(-1, bins), parts, ranges)
    sum_kernel(x.device)(partial, out)
    return counts
