"""The kernels of the FP8 quantizers. Sizes are run-time values where a kernel can afford it; group sizes, dtypes and
vector widths are static. The arithmetic is in _tilelang_fp8.py, the launchers are in quant_tilelang.py.

A thread loads vectors of up to 8 elements and holds up to 64: a group that fits into the registers of a block is read
once, a longer one twice.
"""

import tilelang.language as T
import torch

from tle_ops.kernels._tilelang import DTYPE, Kernel
from tle_ops.kernels._tilelang_fp8 import (
    float_bits,
    half,
    make_scale,
    pairs,
    quantize,
    quotient,
    warp_max,
    widen,
    word_abs,
    word_max,
    words,
)

REGISTER_ELEMENTS = 64  # of one thread


def _power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


# Memory is addressed as rows of whole vectors, [number, width], which makes their alignment plain to TileLang.
def _vectors(x, dtype: torch.dtype, width: int):
    return T.Tensor((T.int64(1 << 40), width), DTYPE[dtype], x.data)


@T.macro
def _load(X, vector, x, at, width, guard, ok):
    """x[at, :] = X[vector, :], zeros where not ok: they change no amax."""
    if guard:
        if ok:
            for j in T.vectorized(width):
                x[at, j] = X[vector, j]
        else:
            for j in T.vectorized(width):
                x[at, j] = T.cast(0, x.dtype)
    else:
        for j in T.vectorized(width):
            x[at, j] = X[vector, j]


@T.macro
def _store(Q, vector, codes, width):
    for j in T.vectorized(width):
        Q[vector, j] = codes[j]


@T.macro
def _accumulate(m, x, at, width, pair):
    """m[0] = max(m[0], |x[at, :]|)"""
    xw = words(x, pair)
    for j in T.unroll(width // pair):
        m[0] = word_max(m[0], word_abs(xw[at, j], pair), pair)


@T.macro
def _group_max(m, pair, lanes, t, partials):
    """m[0] = its max over the `lanes` threads of a group: a part of a warp, or warps, of which a block may have several
    groups. partials [warps of the block]"""
    warp_max(m, 0, pair, min(lanes, 32))
    if lanes > 32:
        if t % 32 == 0:
            partials[t // 32] = m[0]
        T.sync_threads()
        m[0] = partials[t // lanes * (lanes // 32) + t % (lanes // 32)]
        warp_max(m, 0, pair, lanes // 32)
    if pair == 2:
        m[0] = T.max(half(m[0], 0), half(m[0], 1))


# --- groups along a row ----------------------------------------------------------------------------------------------
class Tiling:
    """How a block of `threads` shares groups of `length` elements: `lanes` threads per group, each with `chunks`
    vectors; `subs` groups at once, `steps` times.

    Large inputs: two vectors per lane, which halves the work on scales, and 32 elements per thread on the way. Small
    ones: as many threads as possible. A lane takes up to 64 elements, then more lanes do, up to 512.
    """

    def __init__(self, length: int, vector: int, many: bool) -> None:
        vectors = -(-length // vector)
        lanes = min(32, _power_of_two(-(-vectors // (2 if many else 1))))
        while lanes < 512 and -(-vectors // lanes) * vector > REGISTER_ELEMENTS:
            lanes *= 2
        self.lanes = lanes
        self.chunks = -(-vectors // lanes)
        self.resident = self.chunks * vector <= REGISTER_ELEMENTS
        self.partial = self.chunks * lanes * vector != length  # some lanes are past the end of their group
        self.threads = max(128, lanes)
        self.subs = self.threads // lanes
        self.steps = 1
        while many and self.resident and self.steps * 2 * self.chunks * vector <= 32:
            self.steps *= 2

    def blocks(self, M, G: int, across: int):
        """Blocks that cover M rows of G groups, `across` groups of a row side by side. The steps go along the row if it
        has several groups, else down the rows."""
        if G == 1:
            return T.ceildiv(M, self.steps * self.subs)
        return T.ceildiv(M, self.subs // across) * -(-G // (across * self.steps))


@T.macro
def _token_block(X, Q, S, bx, M, N, pitch, length, tiling, across, width, dtype, qdtype, ue8m0):
    """One block of a kernel over the groups of X [M, N]. Sizes count vectors. S is None: dequantize at once."""
    lanes, chunks, steps = tiling.lanes, tiling.chunks, tiling.steps
    pair = pairs(dtype, width)
    G = -(-N // length)
    rows_at_once = tiling.subs // across
    rows_per_block = rows_at_once * (steps if G == 1 else 1)
    tiles = 1 if G == 1 else -(-G // (across * steps))  # along a row

    t = T.get_thread_binding()
    lane = t % lanes
    x = T.alloc_local((steps * chunks if tiling.resident else 1, width), DTYPE[dtype])
    wide = T.alloc_local((width,), "float32")
    codes = T.alloc_local((width,), DTYPE[qdtype])
    y = T.alloc_local((width,), DTYPE[dtype])
    amax = T.alloc_local((1,), "uint32")
    s = T.alloc_local((3,), "float32")
    partials = T.alloc_shared((tiling.threads // 32,), "uint32")
    row = T.alloc_local((steps,), "int64")
    group = T.alloc_local((steps,), "int32")
    first = T.alloc_local((steps,), "int64")
    size = T.alloc_local((steps,), "int32")

    guard = tiling.partial or N % length != 0
    for step in T.unroll(steps):
        row[step] = T.cast(bx // tiles, "int64") * rows_per_block + t // lanes // across
        group[step] = (bx % tiles) * (across * steps) + t // lanes % across
        if G == 1:
            row[step] += step * rows_at_once
        else:
            group[step] += step * across
        # Threads past the end read the last group again: cheaper than a branch.
        within = T.min(group[step], G - 1) * length
        size[step] = T.min(length, N - within)
        first[step] = T.min(row[step], M - 1) * pitch + within
    if tiling.resident:
        for step in T.unroll(steps):
            for k in T.unroll(chunks):
                at = k * lanes + lane
                _load(X, first[step] + at, x, step * chunks + k, width, guard, at < size[step])
    for step in T.unroll(steps):
        amax[0] = T.uint32(0)
        if tiling.resident:
            for k in T.unroll(chunks):
                _accumulate(amax, x, step * chunks + k, width, pair)
        else:
            for k in T.serial(chunks):
                at = k * lanes + lane
                _load(X, first[step] + at, x, 0, width, guard, at < size[step])
                _accumulate(amax, x, 0, width, pair)
        _group_max(amax, pair, lanes, t, partials)
        make_scale(float_bits(amax[0], dtype, pair), s, qdtype, ue8m0)
        if row[step] < M and group[step] < G:
            to = row[step] * N + group[step] * length
            for k in T.unroll(chunks) if tiling.resident else T.serial(chunks):
                at = k * lanes + lane
                if not guard or at < size[step]:
                    if not tiling.resident:
                        _load(X, first[step] + at, x, 0, width, False, True)
                    quantize(x, step * chunks + k if tiling.resident else 0, width, s, wide, codes, ue8m0)
                    if S is None:
                        for j in T.vectorized(width):
                            y[j] = T.cast(T.cast(codes[j], "float32") * s[0], DTYPE[dtype])
                        _store(Q, to + at, y, width)
                    else:
                        _store(Q, to + at, codes, width)
            if S is not None:  # noqa: SIM102
                if lane == 0:
                    S[row[step], group[step]] = s[0]


@Kernel
def token_kernel(dtype, qdtype, length: int, N: int | None, across: int, width: int, ue8m0: bool, many: bool):
    """Groups of `length` in rows of N elements, with any row and scale strides. N = None: whole groups, contiguous rows
    and scales, so that the size of a row does not matter."""
    tiling = Tiling(length, width, many)
    rows = T.dynamic("rows", "int64")
    v = length // width  # vectors in a group
    if N is None:
        columns = T.dynamic("columns", "int64")

        @T.prim_func
        def per_token_cast_fp8(
            X: T.Tensor((rows, columns), DTYPE[dtype]),
            Q: T.Tensor((rows, columns), DTYPE[qdtype]),
            S: T.Tensor((rows, columns // length), "float32"),
        ):
            M = rows * (columns // length)
            with T.Kernel(tiling.blocks(M, 1, 1), threads=tiling.threads) as bx:
                Xv = _vectors(X, dtype, width)
                Qv = _vectors(Q, qdtype, width)
                Sv = T.Tensor((M, 1), "float32", S.data)
                _token_block(Xv, Qv, Sv, bx, M, v, v, v, tiling, 1, width, dtype, qdtype, ue8m0)

        return per_token_cast_fp8

    G = -(-N // length)
    pitch, row_pitch, group_pitch = (T.dynamic(name, "int64") for name in ("pitch", "row_pitch", "group_pitch"))

    @T.prim_func
    def per_token_cast_fp8(
        X: T.StridedTensor((rows, N), (pitch, 1), DTYPE[dtype]),
        Q: T.Tensor((rows, N), DTYPE[qdtype]),
        S: T.StridedTensor((rows, G), (row_pitch, group_pitch), "float32"),
    ):
        with T.Kernel(tiling.blocks(rows, G, across), threads=tiling.threads) as bx:
            Xv = _vectors(X, dtype, width)
            Qv = _vectors(Q, qdtype, width)
            _token_block(
                Xv, Qv, S, bx, rows, N // width, pitch // width, v, tiling, across, width, dtype, qdtype, ue8m0
            )

    return per_token_cast_fp8


@Kernel
def fake_quant_kernel(dtype, qdtype, length: int, N: int | None, across: int, width: int, ue8m0: bool, many: bool):
    """`token_kernel` that writes what the codes stand for, and no scales."""
    tiling = Tiling(length, width, many)
    rows = T.dynamic("rows", "int64")
    v = length // width
    if N is None:
        columns = T.dynamic("columns", "int64")

        @T.prim_func
        def fake_quant_fp8(X: T.Tensor((rows, columns), DTYPE[dtype]), Y: T.Tensor((rows, columns), DTYPE[dtype])):
            M = rows * (columns // length)
            with T.Kernel(tiling.blocks(M, 1, 1), threads=tiling.threads) as bx:
                Xv = _vectors(X, dtype, width)
                Yv = _vectors(Y, dtype, width)
                _token_block(Xv, Yv, None, bx, M, v, v, v, tiling, 1, width, dtype, qdtype, ue8m0)

        return fake_quant_fp8

    pitch = T.dynamic("pitch", "int64")

    @T.prim_func
    def fake_quant_fp8(X: T.StridedTensor((rows, N), (pitch, 1), DTYPE[dtype]), Y: T.Tensor((rows, N), DTYPE[dtype])):
        with T.Kernel(tiling.blocks(rows, -(-N // length), across), threads=tiling.threads) as bx:
            Xv = _vectors(X, dtype, width)
            Yv = _vectors(Y, dtype, width)
            _token_block(
                Xv, Yv, None, bx, rows, N // width, pitch // width, v, tiling, across, width, dtype, qdtype, ue8m0
            )

    return fake_quant_fp8


# --- square blocks ---------------------------------------------------------------------------------------------------
@Kernel
def block_kernel(dtype, qdtype, block: int, width: int, ue8m0: bool, batched: bool):
    """One thread block per block of X, whose rows are those of all matrices one after the other, M to a matrix."""
    pair = pairs(dtype, width)
    across = -(-block // width)  # vectors in a row of the block
    threads = min(256, max(32, _power_of_two(block * across)))
    chunks = -(-block * across // threads)
    resident = chunks * width <= REGISTER_ELEMENTS
    rows, columns, pitch = (T.dynamic(name, "int64") for name in ("rows", "columns", "pitch"))
    scale_rows, scale_columns = (T.dynamic(name, "int64") for name in ("scale_rows", "scale_columns"))

    @T.prim_func
    def per_block_cast_fp8(
        X: T.StridedTensor((rows, columns), (pitch, 1), DTYPE[dtype]),
        Q: T.Tensor((rows, columns), DTYPE[qdtype]),
        S: T.Tensor((scale_rows, scale_columns), "float32"),
        M: T.int64,
    ):
        with T.Kernel(scale_rows * scale_columns, threads=threads) as bx:
            t = T.get_thread_binding()
            Xv = _vectors(X, dtype, width)
            Qv = _vectors(Q, qdtype, width)
            x = T.alloc_local((chunks if resident else 1, width), DTYPE[dtype])
            wide = T.alloc_local((width,), "float32")
            codes = T.alloc_local((width,), DTYPE[qdtype])
            amax = T.alloc_local((1,), "uint32")
            s = T.alloc_local((3,), "float32")
            partials = T.alloc_shared((threads // 32,), "uint32")

            scale_row, scale_column = T.alloc_var("int32"), T.alloc_var("int32")
            first_row, height, length = T.alloc_var("int64"), T.alloc_var("int64"), T.alloc_var("int64")
            scale_row = T.truncdiv(bx, T.cast(scale_columns, "int32"))
            scale_column = bx - scale_row * T.cast(scale_columns, "int32")
            first_row = T.cast(scale_row, "int64") * block
            height = T.min(T.int64(block), M - first_row)
            if batched:
                blocks = T.cast(T.ceildiv(M, block), "int32")
                matrix = T.truncdiv(scale_row, blocks)
                inside = T.cast(scale_row - matrix * blocks, "int64") * block
                first_row = T.cast(matrix, "int64") * M + inside
                height = T.min(T.int64(block), M - inside)
            first = T.cast(scale_column, "int64") * across  # a block begins at a whole vector, or is the only one
            length = T.min(T.int64(across), columns // width - first)

            amax[0] = T.uint32(0)
            if resident:
                for k in T.unroll(chunks):
                    r = (k * threads + t) // across
                    c = (k * threads + t) % across
                    _load(
                        Xv, (first_row + r) * (pitch // width) + first + c, x, k, width, True, r < height and c < length
                    )
                for k in T.unroll(chunks):
                    _accumulate(amax, x, k, width, pair)
            else:
                for k in T.serial(T.ceildiv(height * length, threads)):
                    i = k * threads + t
                    r = T.truncdiv(i, length)
                    at = (first_row + r) * (pitch // width) + first + i - r * length
                    _load(Xv, at, x, 0, width, True, i < height * length)
                    _accumulate(amax, x, 0, width, pair)
            _group_max(amax, pair, threads, t, partials)
            make_scale(float_bits(amax[0], dtype, pair), s, qdtype, ue8m0)
            if t == 0:
                S[scale_row, scale_column] = s[0]
            if resident:
                for k in T.unroll(chunks):
                    r = (k * threads + t) // across
                    c = (k * threads + t) % across
                    if r < height and c < length:
                        quantize(x, k, width, s, wide, codes, ue8m0)
                        _store(Qv, (first_row + r) * (columns // width) + first + c, codes, width)
            else:
                for k in T.serial(T.ceildiv(height * length, threads)):
                    i = k * threads + t
                    if i < height * length:
                        r = T.truncdiv(i, length)
                        c = first + i - r * length
                        _load(Xv, (first_row + r) * (pitch // width) + c, x, 0, width, False, True)
                        quantize(x, 0, width, s, wide, codes, ue8m0)
                        _store(Qv, (first_row + r) * (columns // width) + c, codes, width)

    return per_block_cast_fp8


# --- groups along the rows -------------------------------------------------------------------------------------------
@Kernel
def channel_kernel(dtype, qdtype, group: int | None, width: int, ue8m0: bool):
    """A thread block takes a strip of `across` vectors, `down` threads below each other, through one group of rows;
    each thread keeps the maxima of its columns. group = None: all rows."""
    threads, across = (128, 8) if group is not None and group <= 128 and width == 8 else (256, 32 // width)
    pair = pairs(dtype, width)
    parts = width // pair  # words in a vector
    down, warps = threads // across, threads // 32
    chunks = -(-group // down) if group is not None else 0
    resident = group is not None and chunks * width <= REGISTER_ELEMENTS
    strip = across * width  # columns
    rows, columns, pitch, groups = (T.dynamic(name, "int64") for name in ("rows", "columns", "pitch", "groups"))

    @T.prim_func
    def per_channel_cast_fp8(
        X: T.StridedTensor((rows, columns), (pitch, 1), DTYPE[dtype]),
        Q: T.Tensor((rows, columns), DTYPE[qdtype]),
        S: T.Tensor((groups, columns), "float32"),
    ):
        with T.Kernel(groups * T.ceildiv(columns, strip), threads=threads) as bx:
            if threads == 128 and pair == 2:
                T.annotate_min_blocks_per_sm(8)  # 64 registers a thread: half of them hold the tile
            t = T.get_thread_binding()
            Xv = _vectors(X, dtype, width)
            Qv = _vectors(Q, qdtype, width)
            x = T.alloc_local((chunks if resident else 1, width), DTYPE[dtype])
            wide = T.alloc_local((width,), "float32")
            codes = T.alloc_local((width,), DTYPE[qdtype])
            amax = T.alloc_local((parts,), "uint32")
            word = T.alloc_local((1,), "uint32")
            s = T.alloc_local((3,), "float32")
            divisors = T.alloc_local((width,), "float32")
            reciprocals = T.alloc_local((width,), "float32")
            # One buffer: two would be given the same memory, and a barrier between them.
            shared = T.alloc_shared((2 + warps // pair, strip), "float32")
            partials = T.view(shared, (2 * pair + warps, across * parts), "uint32")  # from row 2 * pair on

            strips = T.cast(T.ceildiv(columns, strip), "int32")
            g, at_strip = T.alloc_var("int32"), T.alloc_var("int32")
            first_row, column = T.alloc_var("int64"), T.alloc_var("int64")
            height = T.alloc_var("int32" if resident else "int64")  # of this thread's columns: 0 past the last one
            g = T.truncdiv(T.cast(bx, "int32"), strips)  # a grid has fewer than 2^31 blocks, and 64 bits take long
            at_strip = T.cast(bx, "int32") - g * strips
            if group is None:
                first_row = T.int64(0)
                height = rows
            else:
                first_row = T.cast(g, "int64") * group
                height = T.cast(T.min(T.int64(group), rows - first_row), height.dtype)
            column = T.cast(at_strip, "int64") * across + t % across  # of vectors
            if column >= columns // width:
                height = 0
            top = t // across
            from_ = (first_row + top) * (pitch // width) + column
            to = (first_row + top) * (columns // width) + column
            from_step = pitch // width * down
            to_step = columns // width * down

            for j in T.unroll(parts):
                amax[j] = T.uint32(0)
            xw = words(x, pair)
            if resident:
                if height == chunks * down:  # loads without a condition each
                    for k in T.unroll(chunks):
                        _load(Xv, from_ + k * from_step, x, k, width, False, True)
                else:
                    for k in T.unroll(chunks):
                        _load(Xv, from_ + k * from_step, x, k, width, True, k * down + top < height)
                for k in T.unroll(chunks):
                    for j in T.unroll(parts):
                        amax[j] = word_max(amax[j], word_abs(xw[k, j], pair), pair)
            else:
                for k in T.serial(T.ceildiv(height, down)):
                    _load(Xv, from_ + k * from_step, x, 0, width, True, k * down + top < height)
                    for j in T.unroll(parts):
                        amax[j] = word_max(amax[j], word_abs(xw[0, j], pair), pair)
            for j in T.unroll(parts):
                warp_max(amax, j, pair, 32, across)
            if t % 32 < across:
                for j in T.vectorized(parts):
                    partials[2 * pair + t // 32, t % across * parts + j] = amax[j]
            T.sync_threads()
            if t < strip:  # one thread per column makes the scale
                word[0] = T.uint32(0)
                for w in T.unroll(warps):
                    word[0] = word_max(word[0], partials[2 * pair + w, t // pair], pair)
                if pair == 2:
                    word[0] = half(word[0], t % 2)
                make_scale(float_bits(word[0], dtype, pair), s, qdtype, ue8m0)
                shared[0, t] = s[1]
                shared[1, t] = s[2]
                if T.cast(at_strip, "int64") * strip + t < columns:
                    S[g, T.cast(at_strip, "int64") * strip + t] = s[0]
            T.sync_threads()
            for j in T.vectorized(width):
                divisors[j] = shared[0, t % across * width + j]
            for j in T.vectorized(width):
                reciprocals[j] = shared[1, t % across * width + j]
            for k in T.unroll(chunks) if resident else T.serial(T.ceildiv(height, down)):
                if k * down + top < height:
                    if not resident:
                        _load(Xv, from_ + k * from_step, x, 0, width, False, True)
                    widen(x, k if resident else 0, width, wide)
                    for j in T.unroll(width):
                        wide[j] = quotient(wide[j], divisors[j], reciprocals[j], ue8m0)
                    for j in T.vectorized(width):
                        codes[j] = T.cast(wide[j], DTYPE[qdtype])
                    _store(Qv, to + k * to_step, codes, width)

    return per_channel_cast_fp8


# --- back ------------------------------------------------------------------------------------------------------------
@Kernel
def back_kernel(qdtype, dtype, down: int | None, along: int | None, width: int, batched: bool):
    """Y = Q * scale: one scale for `down` rows (of a matrix of M rows, if batched) and `along` columns; None: all."""
    threads, across, steps = 256, 16, 8
    rows_at_once = threads // across
    tile = rows_at_once * steps
    one_scale_row = down is None or (down % tile == 0 and not batched)
    per_element = along == 1
    rows, columns = (T.dynamic(name, "int64") for name in ("rows", "columns"))
    scale_rows, scale_columns = (T.dynamic(name, "int64") for name in ("scale_rows", "scale_columns"))
    row_pitch, column_pitch = (T.dynamic(name, "int64") for name in ("row_pitch", "column_pitch"))

    def scale_row(row, M):
        if down is None:
            return T.int64(0)
        if not batched:
            return row // down
        matrix = T.truncdiv(row, M)
        return matrix * T.ceildiv(M, down) + (row - matrix * M) // down

    @T.prim_func
    def cast_back(
        Q: T.Tensor((rows, columns), DTYPE[qdtype]),
        S: T.StridedTensor((scale_rows, scale_columns), (row_pitch, column_pitch), "float32"),
        Y: T.Tensor((rows, columns), DTYPE[dtype]),
        M: T.int64,
    ):
        with T.Kernel(T.ceildiv(rows, tile) * T.ceildiv(columns, across * width), threads=threads) as bx:
            t = T.get_thread_binding()
            Qv = _vectors(Q, qdtype, width)
            Yv = _vectors(Y, dtype, width)
            q = T.alloc_local((steps, width), DTYPE[qdtype])
            wide = T.alloc_local((width,), "float32")
            y = T.alloc_local((width,), DTYPE[dtype])
            s = T.alloc_local((width if per_element else 1,), "float32")

            strips = T.cast(T.ceildiv(columns, across * width), "int32")
            v = columns // width
            down_tile = T.alloc_var("int32")
            column, first_row, scale_column = T.alloc_var("int64"), T.alloc_var("int64"), T.alloc_var("int64")
            down_tile = T.truncdiv(bx, strips)
            column = T.cast(bx - down_tile * strips, "int64") * across + t % across  # of vectors
            first_row = T.cast(down_tile, "int64") * tile + t // across
            scale_column = T.int64(0) if along is None else column * width // along
            if column < v:
                for k in T.unroll(steps):
                    row = T.min(first_row + k * rows_at_once, rows - 1)
                    for j in T.vectorized(width):
                        q[k, j] = Qv[row * v + column, j]
                for k in T.unroll(steps):
                    row = first_row + k * rows_at_once
                    if row < rows:
                        if k == 0 or not one_scale_row:
                            if per_element:
                                for j in T.unroll(width):
                                    s[j] = S[scale_row(row, M), scale_column + j]
                            else:
                                s[0] = S[scale_row(row, M), scale_column]
                        for j in T.vectorized(width):
                            wide[j] = T.cast(q[k, j], "float32")
                        for j in T.unroll(width):
                            wide[j] = wide[j] * s[j if per_element else 0]
                        for j in T.vectorized(width):
                            y[j] = T.cast(wide[j], DTYPE[dtype])
                        _store(Yv, row * v + column, y, width)

    return cast_back
