"""Selection from long rows in TileLang, in one launch: a cluster of blocks shares a row.

    bound    every block draws the same sample of the row, and takes from it a key that almost certainly at least k
             elements exceed, and not many more
    filter   one read of the row: a block notes one bit for each column of its part, set if the element exceeds the
             bound, and makes a list of those columns, in order, and of their elements
    select   the first block reads the lists of the others in their shared memory, finds the k-th key by histograms
             and stores the columns in order

The bound is a guess. If the lists hold fewer than k elements, or more than there is room for, the cluster searches the
row itself by histograms, and every block stores what is found in its part: slower, and no list is needed. Nothing
depends on the order in which threads or blocks come to their work.
"""

import functools

import tilelang.language as T
import torch
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels import _cluster_plan
from tle_ops.kernels._cluster_plan import RUN
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._select_prelude import PRELUDE
from tle_ops.kernels._tilelang import DTYPE, PASS_CONFIGS, Kernel
from tle_ops.kernels._tilelang_select import (
    GREATEST,
    HELD,
    HI,
    INF_KEY,
    LEFT,
    LO,
    STATE,
    ballot,
    bits_set,
    block_scan,
    clear,
    count_key,
    drawn_column,
    exceeds,
    find_bound,
    joined,
    key_of,
    lowest_bit,
    narrow,
    peer,
    pointer,
    search,
    set_shift,
    start_search,
    u32,
    value_of,
    warp_max,
    warp_scan,
    warp_sum,
    within,
)

NAN_BITS = 0x7FC00000
COUNT, BEST, ABOVE, LEVEL = range(4)  # what a block tells the others


# TileLang's checks, and its search for barriers that are missing, take their time and do not see what is CUDA. The
# barriers are written out: every write and the reads of it were gone through, and the emulator runs three orders of the
# threads.
OFF = ("thread_storage_sync", "data_race_check", "buffer_init_check")


@functools.partial(Kernel, pass_configs={**PASS_CONFIGS, **{f"tl.disable_{name}": True for name in OFF}})
def select_kernel(
    dtype: torch.dtype,
    cluster: int,
    words: int,
    largest: bool,
    starts: torch.dtype | None,
    ends: torch.dtype | None,
    values: bool,
    wide: bool,
    threads: int,
    step: int,
    room: int,
    sample: int,
):
    """words: for the bits of a part, rounded up to whole steps. wide: indices are int64."""
    rows, columns, pitch, k = (T.dynamic(name, "int64") for name in ("rows", "columns", "pitch", "k"))
    storage = DTYPE[dtype]
    bits_type = f"uint{8 * dtype.itemsize}"
    index = "int64" if wide else "int32"
    warps = threads // 32
    bins = 2 * threads
    held = room // threads  # elements of the lists that a thread of the first block holds
    drawn = sample // threads
    starts_type = T.Tensor((rows, k), index) if starts is None else T.Tensor((rows,), DTYPE[starts])
    ends_type = T.Tensor((rows, k), index) if ends is None else T.Tensor((rows,), DTYPE[ends])
    values_type = T.Tensor((rows, k), storage if values else index)

    @T.macro
    def clamp(v, at, columns):
        v[0] = T.cast(T.min(T.max(T.cast(at, "int64"), T.int64(0)), columns), "int32")

    def element(X, row, column, begin, end):
        """Of the window; beyond it, 0."""
        return T.if_then_else(T.And(column >= begin, column < end), X[row, column], T.cast(0, storage))

    def key_at(X, row, column):
        return key_of(T.cast(X[row, column], "float32"), largest)

    def key_of_bits(bits):
        return key_of(T.cast(T.reinterpret(T.cast(bits, bits_type), storage), "float32"), largest)

    def passes(x, limit, last, everything):
        """Whether x has a key above the bound."""
        if largest:
            return exceeds(T.cast(x, "float32"), limit)
        x = T.cast(x, "float32")
        return T.Or(everything, T.Or(x < limit, x <= last))

    @T.macro
    def synchronize():
        if cluster > 1:
            T.cluster_sync()
        else:
            T.sync_threads()

    @T.macro
    def draw(keys, X, row, t, begin, end):
        """Somewhere in each of equal strata of the window; of what lies outside of it, the least key."""
        for e in T.unroll(drawn):
            column = drawn_column(e * threads + t, begin, end, sample // RUN, RUN)
            keys[e] = T.uint32(0)
            if column >= begin and column < end:
                keys[e] = key_at(X, row, column)

    @T.prim_func
    def select(
        X: T.StridedTensor((rows, columns), (pitch, 1), storage),
        starts_: starts_type,
        ends_: ends_type,
        V: values_type,
        C: T.Tensor((rows, k), index),
        part: T.int32,  # columns of a block, a multiple of 32
    ):
        with T.Kernel(rows * cluster, threads=threads, cluster_dims=cluster, prelude=PRELUDE) as bx:
            t = T.get_thread_binding()
            hist = T.alloc_shared((bins,), "uint32")
            marks = T.alloc_shared((words,), "uint32")
            marks2 = T.alloc_shared((words,), "uint32")
            listed = T.alloc_shared((room,), "uint32")  # columns
            raw = T.alloc_shared((room,), "uint32")  # the bits of their elements
            totals = T.alloc_shared((warps,), "uint32")
            totals2 = T.alloc_shared((warps,), "uint32")
            found = T.alloc_shared((4,), "uint32")
            info = T.alloc_shared((4,), "uint32")
            tail = T.alloc_shared((32,), "uint32")
            x = T.alloc_local((step,), storage)
            keys = T.alloc_local((drawn,), "uint32")
            own = T.alloc_local((held,), "uint32")
            own_raw = T.alloc_local((held,), "uint32")
            own_column = T.alloc_local((held,), "uint32")
            s = T.alloc_local((STATE,), "uint32")
            total, total2 = T.alloc_local((1,), "uint32"), T.alloc_local((1,), "uint32")
            start, end = T.alloc_local((1,), "int32"), T.alloc_local((1,), "int32")
            offsets = T.alloc_local((cluster + 1,), "uint32")
            row = T.alloc_var("int64")
            rank, base, begin, stop, at, count, per, mine = (T.alloc_var("int32") for _ in range(8))
            wanted, bound, word, place, level, best = (T.alloc_var("uint32") for _ in range(6))
            limit, last, expected = (T.alloc_var("float32") for _ in range(3))
            everything = T.alloc_var("bool")

            row = T.truncdiv(bx, T.int64(cluster))
            rank = T.cast(bx - row * T.int64(cluster), "int32")
            start[0] = 0
            end[0] = T.cast(columns, "int32")
            if starts is not None:
                clamp(start, starts_[row], columns)
            if ends is not None:
                clamp(end, ends_[row], columns)
            end[0] = T.max(start[0], end[0])
            base = rank * part
            begin = T.max(start[0], base)
            stop = T.min(end[0], base + part)

            # --- bound; the first step of the filter is under way meanwhile
            for u in T.unroll(step):
                x[u] = element(X, row, base + u * threads + t, begin, stop)
            everything = end[0] - start[0] <= room
            wanted = u32(T.min(T.cast(k, "int32"), end[0] - start[0]))
            bound = T.uint32(0)
            hist[t] = T.uint32(0)
            hist[threads + t] = T.uint32(0)
            if t < 4:
                info[t] = T.uint32(0)
                found[t] = T.if_then_else(t == 3, T.uint32(0), T.uint32(GREATEST))
            if not everything:
                draw(keys, X, row, t, start[0], end[0])
                # Five standard deviations more than the k-th of the row is expected to have before it in the sample.
                expected = sample * (T.cast(k, "float32") / T.cast(end[0] - start[0], "float32"))
                count = T.min(T.cast(expected + 5 * T.sqrt(expected), "int32") + 4, sample)
                T.sync_threads()
                find_bound(s, keys, u32(count), hist, totals, found, pointer(info, BEST), bins)
                bound = s[LO]
                if largest:
                    bound = T.min(bound, T.uint32(INF_KEY))  # a NaN compares with nothing
                    # No element has the key of -0.0, and as a value it would be that of 0.0.
                    bound = T.if_then_else(bound == T.uint32(0x7FFFFFFF), T.uint32(0x7FFFFFFE), bound)
            limit = value_of(bound, largest)
            last = T.reinterpret(T.uint32(NAN_BITS), "float32")  # reached by nothing
            if not largest and bound < ~T.uint32(INF_KEY):  # below all but NaN, and no number's: every number passes
                last = T.infinity("float32")

            # --- filter
            for i in T.serial(T.ceildiv(T.max(stop - base, 0), step * threads)):
                for u in T.unroll(step):
                    word = ballot(passes(x[u], limit, last, everything))
                    if t % 32 == 0:
                        marks[(i * step + u) * warps + t // 32] = word
                    x[u] = element(X, row, base + ((i + 1) * step + u) * threads + t, begin, stop)
            T.sync_threads()
            count = T.ceildiv(T.max(stop - base, 0), 32)  # words, of which a thread takes some that lie together
            per = T.ceildiv(count, threads)
            place = T.uint32(0)
            for w in T.serial(t * per, T.min(t * per + per, count)):
                word = within(marks[w], base + w * 32, begin, stop)
                marks[w] = word
                place = place + u32(bits_set(word))
            place = block_scan(place, total, totals, threads)
            if t == 0:
                info[COUNT] = total[0]
            for w in T.serial(t * per, T.min(t * per + per, count)):
                word = marks[w]
                while word != T.uint32(0) and place < T.uint32(room):
                    listed[place] = u32(base + w * 32 + lowest_bit(word))
                    word = word & (word - T.uint32(1))
                    place = place + T.uint32(1)
            T.sync_threads()
            count = T.min(T.cast(total[0], "int32"), room)
            best = T.uint32(0)
            for i in T.serial(T.ceildiv(count, threads)):
                at = i * threads + t
                if at < count:
                    word = u32(T.reinterpret(X[row, T.cast(listed[at], "int32")], bits_type))
                    raw[at] = word
                    best = T.max(best, key_of_bits(word))
            best = warp_max(best)
            if t % 32 == 0:
                T.atomic_max(info[BEST], best)
            synchronize()
            place = T.uint32(0)
            best = T.uint32(0)
            if t % 32 < cluster:
                place = peer(info[COUNT], t % 32)
                best = peer(info[BEST], t % 32)
            best = warp_max(best)
            place = warp_scan(place)
            offsets[0] = T.uint32(0)
            for r in T.unroll(cluster):
                offsets[r + 1] = T.shfl_sync(place, r)

            if offsets[cluster] >= wanted and offsets[cluster] <= T.uint32(room):
                # --- select, of what the lists hold
                per = T.ceildiv(T.cast(offsets[cluster], "int32"), threads)
                mine = T.min(T.max(T.cast(offsets[cluster], "int32") - t * per, 0), per)
                if rank == 0:
                    for e in T.unroll(held):
                        if e < mine:
                            own_column[e] = joined(listed, u32(t * per + e), offsets)
                            own_raw[e] = joined(raw, u32(t * per + e), offsets)
                synchronize()
                if rank == 0:
                    for e in T.unroll(held):
                        if e < mine:
                            own[e] = key_of_bits(own_raw[e])
                    low = T.if_then_else(everything, T.uint32(0), bound + T.uint32(1))
                    start_search(s, low, best, wanted, offsets[cluster])
                    search(s, own, mine, hist, totals, found, tail, bins)
                    word = T.uint32(0)  # how many are above the range, and 65536 times those within it
                    for e in T.unroll(held):
                        if e < mine:
                            if own[e] > s[HI]:
                                word = word + T.uint32(1)
                            elif own[e] >= s[LO]:
                                word = word + T.uint32(65536)
                    word = block_scan(word, total, totals2, threads)
                    place = word & T.uint32(65535)
                    level = word >> T.uint32(16)
                    for e in T.unroll(held):
                        if e < mine and own[e] >= s[LO]:
                            if own[e] > s[HI] or level < s[LEFT]:
                                C[row, place + T.min(level, s[LEFT])] = T.cast(own_column[e], index)
                                if values:
                                    V[row, place + T.min(level, s[LEFT])] = T.reinterpret(
                                        T.cast(own_raw[e], bits_type), storage
                                    )
                            if own[e] > s[HI]:
                                place = place + T.uint32(1)
                            else:
                                level = level + T.uint32(1)
            else:
                # --- search the row itself
                if offsets[cluster] < wanted:  # perhaps it is the bound
                    start_search(s, bound, bound, wanted - offsets[cluster], T.uint32(GREATEST))
                else:
                    start_search(s, bound + T.uint32(1), T.uint32(GREATEST), wanted, T.uint32(GREATEST))
                count = T.max(stop - base, 0)
                while s[HELD] == T.uint32(GREATEST) or (s[LO] < s[HI] and s[HELD] != s[LEFT]):
                    set_shift(s, bins)
                    for i in T.serial(T.ceildiv(count, threads)):
                        at = base + i * threads + t
                        if at >= begin and at < stop:
                            count_key(s, key_at(X, row, at), hist)
                    synchronize()
                    place = T.uint32(0)
                    level = T.uint32(0)
                    for r in T.unroll(cluster):
                        place = place + peer(hist[bins - 1 - 2 * t], r)
                        level = level + peer(hist[bins - 2 - 2 * t], r)
                    narrow(s, place, level, totals, found, bins)
                    synchronize()
                    clear(hist, bins)
                    T.sync_threads()
                for i in T.serial(T.ceildiv(count, threads)):
                    at = base + i * threads + t
                    best = T.uint32(0)
                    if at >= begin and at < stop:
                        best = key_at(X, row, at)
                    word = ballot(at >= begin and at < stop and best > s[HI])
                    place = ballot(at >= begin and at < stop and best >= s[LO] and best <= s[HI])
                    if t % 32 == 0:
                        marks[i * warps + t // 32] = word
                        marks2[i * warps + t // 32] = place
                T.sync_threads()
                count = T.ceildiv(count, 32)
                per = T.ceildiv(count, threads)
                place = T.uint32(0)
                level = T.uint32(0)
                for w in T.serial(t * per, T.min(t * per + per, count)):
                    place = place + u32(bits_set(marks[w]))
                    level = level + u32(bits_set(marks2[w]))
                place = block_scan(place, total, totals, threads)
                level = block_scan(level, total2, totals2, threads)
                if t == 0:
                    info[ABOVE] = total[0]
                    info[LEVEL] = total2[0]
                synchronize()
                word = T.uint32(0)
                best = T.uint32(0)
                if t % 32 < rank:
                    word = peer(info[ABOVE], t % 32)
                    best = peer(info[LEVEL], t % 32)
                place = place + warp_sum(word)
                level = level + warp_sum(best)
                for w in T.serial(t * per, T.min(t * per + per, count)):
                    word = marks[w] | marks2[w]
                    while word != T.uint32(0):
                        column = base + w * 32 + lowest_bit(word)
                        above = (marks[w] >> u32(lowest_bit(word))) & T.uint32(1)
                        if above != T.uint32(0) or level < s[LEFT]:
                            C[row, place + T.min(level, s[LEFT])] = T.cast(column, index)
                            if values:
                                V[row, place + T.min(level, s[LEFT])] = X[row, column]
                        place = place + above
                        level = level + (T.uint32(1) - above)
                        word = word & (word - T.uint32(1))
                synchronize()  # others may have been reading this block's counts
            if rank == 0:
                for i in T.serial(T.ceildiv(T.cast(k, "int32") - T.cast(wanted, "int32"), threads)):
                    at = T.cast(wanted, "int32") + i * threads + t
                    if at < T.cast(k, "int32"):
                        C[row, at] = T.cast(-1, index)

    return select


# --- launchers: `_cluster_plan` says which calls come here -----------------------------------------------------------
def _launch(x, k, largest, starts, ends, values, columns) -> None:
    """x [M, N], its columns side by side; the outputs [M, k]"""
    p = _cluster_plan
    cluster, part, words = p.plan(*x.shape, k)
    kinds = [t if t is None else t.dtype for t in (starts, ends)]
    sizes = (p.THREADS, p.STEP, p.ROOM, p.SAMPLE)
    wide = columns.dtype is torch.int64
    kernel = select_kernel(x.device, x.dtype, cluster, words, largest, *kinds, values is not None, wide, *sizes)
    kernel(x, *(columns if t is None else t for t in (starts, ends, values)), columns, part)


def _rows(x: Tensor) -> Tensor:
    """[M, N] with the columns side by side: x itself if it is so, which lets launches be replayed."""
    x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if x.shape[1] == 1:  # any stride is contiguous then, but the kernel wants to see 1
        return x.contiguous().as_strided(x.shape, (1, 1))
    return x if x.stride(1) == 1 else x.contiguous()


def _table(t: Tensor, k: int) -> Tensor:
    return t if t.dim() == 2 else t.view(-1, k)


@replayed
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    values, indices = _meta.topk(x, k, dim, largest, sorted)
    _launch(_rows(x), k, largest, None, None, _table(values, k), _table(indices, k))
    return values, indices


@replayed
def topk_selector(scores: Tensor, k: int, starts: Tensor | None = None, ends: Tensor | None = None) -> Tensor:
    out = _meta.topk_selector(scores, k, starts, ends)
    starts, ends = (t if t is None or t.dim() == 1 else t.reshape(-1) for t in (starts, ends))
    starts, ends = (t if t is None else t.contiguous() for t in (starts, ends))
    _launch(_rows(scores), k, True, starts, ends, None, _table(out, k))
    return out
