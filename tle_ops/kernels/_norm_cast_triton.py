"""Norms fused with FP8 quantization by token groups, in Triton: a row is read once and stays in registers.

amax and codes come from x * weight, which is exact for 16-bit inputs, and rstd joins the scales, so y itself is never
rounded. Constants and roots are kept as sums of two float32 wherever a code could depend on the last bit: products of
short floats meet ties often.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tle_ops.kernels._rows_triton import exact_root, exact_squares, load_rows, reciprocal, row_start, widened
from tle_ops.kernels._triton import kernel, magnitude, scale_of

_FLOOR = tl.constexpr(9.999999747378752e-05)  # 1e-4 in float32
_INF = tl.constexpr(0x7F800000)


# --- device functions -------------------------------------------------------------------------------------------------
@triton.jit
def _keep_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def group_max(y, axis: tl.constexpr):
    """max |y| along an axis; a NaN stays"""
    return tl.reduce(tl.abs(y), axis, _keep_nan)


@triton.jit
def two_sum(a, b):
    """a + b, and what its rounding lost (Knuth 1969)"""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


@triton.jit
def _weighted(x, weight, offset, offset_low, OFFSET: tl.constexpr):
    """x * (weight + offset) good to half an ulp or hardly less. OFFSET: 0 if it is 0, 1 a power of two, 2 else"""
    if OFFSET == 0:
        return x * weight
    elif OFFSET == 1:
        return tl.fma(x, weight, x * offset)  # this product is exact
    else:
        weight, low = two_sum(weight, offset)
        return tl.fma(x, weight, x * (low + offset_low))


@triton.jit
def _below(factor, steps: tl.constexpr):
    """factor > 0, some steps towards 0"""
    return (factor.to(tl.int32, bitcast=True) - steps).to(tl.float32, bitcast=True)


@triton.jit
def inverse_of(scale):
    """1 / scale as a sum of two float32, neither of which is negative; 0 of an infinite scale"""
    guess = reciprocal(scale)
    inverse = _below(tl.fma(tl.fma(scale * -1.0, guess, 1.0), guess, guess), 1)
    low = tl.fma(scale * -1.0, inverse, 1.0) * inverse
    finite = scale < float("inf")
    return tl.where(finite, inverse, guess), tl.where(finite, low, 0.0)


@triton.jit
def _encode(y, factor, low, CODE: tl.constexpr):
    """cast(y * (factor + low)). The product is good to half an ulp, so a code can only fall the other way at a tie.
    Neither part is negative, so that -0 stays -0."""
    return tl.fma(y, factor + tl.zeros_like(y), y * low).to(CODE)


@triton.jit
def _row_factors(rstd, rstd_low, FP8_MAX: tl.constexpr):
    """(rstd + rstd_low) / FP8_MAX as a sum of two float32, neither negative (an infinite amax times both is infinite):
    amax times it is the scale"""
    both = (rstd.to(tl.float64) + rstd_low.to(tl.float64)) * tl.full(rstd.shape, 1 / FP8_MAX, tl.float64)
    near = both.to(tl.float32)
    high = tl.where(near < float("inf"), _below(near, 1), near)
    return high, tl.where(near < float("inf"), (both - high.to(tl.float64)).to(tl.float32), 0.0)


@triton.jit
def _scale_and_factor(amax, rstd, rstd_low, by, by_low, FP8_MAX: tl.constexpr, UE8M0: tl.constexpr):
    """Of groups of x * weight with that amax: the scale, and rstd / scale in two parts. by: from `_row_factors`"""
    zeros = tl.zeros_like(amax)
    scale = _keep_nan(tl.fma(amax, zeros + by, amax * by_low), zeros + _FLOOR / FP8_MAX)
    if UE8M0:  # to the next power of two by the exponent's bits: exact powers stay
        up = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
        scale = tl.where(scale < float("inf"), up, scale)
    inverse, low = inverse_of(scale)
    product = rstd * inverse
    factor = _below(product, 2)
    low = tl.fma(zeros + rstd, inverse, factor * -1.0) + (rstd * low + rstd_low * inverse)
    finite = scale < float("inf")
    return scale, tl.where(finite, factor, product), tl.where(finite, low, 0.0)


@triton.jit
def _squares(xs, PIECES: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, EIGHT: tl.constexpr):
    """Sum of squares of a row held as PIECES tiles [G, GROUP]: a scalar in float64.

    Eight neighbours are added in float32, as a tree: of 16-bit numbers, whose squares are exact, that costs 3 u, half
    of it in the root. More would cost more (one large element among many small ones), and float64 for each element
    would cost time. Not EIGHT: four neighbours, so that u are left for x * weight."""
    if xs[0].dtype == tl.float32:
        total = tl.zeros((G, GROUP), tl.float64)
        for k in tl.static_range(PIECES):
            x = xs[k].to(tl.float64)
            total += x * x
        return tl.sum(total)
    else:
        total = tl.zeros((G, GROUP // 8) if EIGHT else (G, GROUP // 8, 2), tl.float64)
        for k in tl.static_range(PIECES):
            a, b = tl.split(tl.reshape(widened(xs[k]), (G, GROUP // 8, 4, 2)))
            a, b = tl.split(tl.reshape(tl.fma(a, a, b * b), (G, GROUP // 8, 2, 2)))
            few = a + b
            if EIGHT:
                a, b = tl.split(few)
                total += (a + b).to(tl.float64)
            else:
                total += few.to(tl.float64)
        return tl.sum(total)


@triton.jit
def _side_by_side(t, PIECES: tl.constexpr):
    """Up to 8 tensors [G] as one [G, 1, 2, 4 or 8], with copies of the first where there are none: a row's scales are
    stored at once, and change layout once."""
    if PIECES == 1:
        return t[0][:, None]
    elif PIECES == 2:
        return tl.join(t[0], t[1])
    elif PIECES <= 4:
        last = t[3 if PIECES > 3 else 0]
        return tl.reshape(tl.join(tl.join(t[0], t[2]), tl.join(t[1], last)), (t[0].shape[0], 4))
    else:
        a = tl.join(tl.join(t[0], t[4]), tl.join(t[2], t[6 if PIECES > 6 else 0]))
        b = tl.join(tl.join(t[1], t[5 if PIECES > 5 else 0]), tl.join(t[3], t[7 if PIECES > 7 else 0]))
        return tl.reshape(tl.join(a, b), (t[0].shape[0], 8))


@triton.jit
def _load(ptr, n, k: tl.constexpr, PIECE: tl.constexpr, N: tl.constexpr, EVICT: tl.constexpr):
    """Piece k of the row at ptr; zeros beyond its end"""
    if (k + 1) * PIECE <= N:
        return tl.load(ptr + k * PIECE + n, eviction_policy=EVICT)
    else:
        return tl.load(ptr + k * PIECE + n, n < N - k * PIECE, 0.0, eviction_policy=EVICT)


@triton.jit
def _store(ptr, n, k: tl.constexpr, PIECE: tl.constexpr, N: tl.constexpr, value):
    if (k + 1) * PIECE <= N:
        tl.store(ptr + k * PIECE + n, value)
    else:
        tl.store(ptr + k * PIECE + n, value, n < N - k * PIECE)


# --- long rows --------------------------------------------------------------------------------------------------------
@triton.jit
def _cast_row(
    x_ptr,
    residual_ptr,
    weight_ptr,
    q_ptr,
    scales_ptr,
    new_ptr,
    s_n,
    eps,
    eps_low,
    offset,
    offset_low,
    EVICT: tl.constexpr,
    N: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    OFFSET: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
    G: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The row at the pointers, in tiles of G groups that stay in x's type until their turn comes. Returns whether what
    was stored is right: not if the row holds a NaN, or if squares may have left the range of float32."""
    PIECE: tl.constexpr = G * GROUP
    PIECES: tl.constexpr = (N + PIECE - 1) // PIECE
    n = tl.arange(0, G)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]  # [G, GROUP]
    xs = ()
    for k in tl.static_range(PIECES):
        xs = xs + (_load(x_ptr, n, k, PIECE, N, EVICT),)  # noqa: RUF005  (Triton's tuples know no unpacking)
    others = ()
    if ADD:
        for k in tl.static_range(PIECES):
            others = others + (_load(residual_ptr, n, k, PIECE, N, EVICT),)  # noqa: RUF005
    weights = ()
    if WEIGHT and EARLY:  # now, so that its way here is not added to the row's
        for k in tl.static_range(PIECES):
            weights = weights + (_load(weight_ptr, n, k, PIECE, N, ""),)  # noqa: RUF005
    if ADD:
        sums = ()
        for k in tl.static_range(PIECES):
            x = (xs[k].to(tl.float32) + others[k].to(tl.float32)).to(new_ptr.dtype.element_ty)
            _store(new_ptr, n, k, PIECE, N, x)
            sums = sums + (x,)  # noqa: RUF005
        xs = sums
    EXACT: tl.constexpr = OFFSET == 0 and (not WEIGHT or weight_ptr.dtype.element_ty.primitive_bitwidth == 16)
    squares = _squares(xs, PIECES, G, GROUP, EXACT)  # EXACT: x * weight is
    rstd, rstd_low = exact_root(squares, eps, eps_low, N)
    by, by_low = _row_factors(rstd, rstd_low, FP8_MAX)
    largest = tl.zeros((G, GROUP), tl.float32)
    scales = ()
    for k in tl.static_range(PIECES):
        y = widened(xs[k], True)
        if WEIGHT:
            weight = weights[k] if EARLY else _load(weight_ptr, n, k, PIECE, N, "")
            y = _weighted(y, widened(weight), offset, offset_low, OFFSET)
        if WHOLE:
            largest = _keep_nan(largest, tl.abs(y))
        else:
            scale, factor, low = _scale_and_factor(group_max(y, 1), rstd, rstd_low, by, by_low, FP8_MAX, UE8M0)
            q = _encode(y, factor[:, None], low[:, None], CODE)
            _store(q_ptr, n, k, PIECE, N, q)
            scales = scales + (scale,)  # noqa: RUF005
    if WHOLE:
        amax = group_max(group_max(largest, 1)[None, :], 1)  # [1]
        scale, factor, low = _scale_and_factor(amax, rstd, rstd_low, by, by_low, FP8_MAX, UE8M0)
        for k in tl.static_range(PIECES):
            y = widened(xs[k], True)
            if WEIGHT:
                weight = weights[k] if EARLY else _load(weight_ptr, n, k, PIECE, N, "")
                y = _weighted(y, widened(weight), offset, offset_low, OFFSET)
            q = _encode(y, factor[:, None], low[:, None], CODE)
            _store(q_ptr, n, k, PIECE, N, q)
        tl.store(scales_ptr + tl.arange(0, 1), scale)
    else:
        scale = _side_by_side(scales, PIECES)
        g = tl.arange(0, G)[:, None] + tl.arange(0, scale.shape[1])[None, :] * G
        tl.store(scales_ptr + g * s_n, scale, mask=g * GROUP < N)
    return (squares < 1e38) & ((squares > 1e-30) | (eps > 1e-20))


@triton.jit
def _cast_odd_row(
    x_ptr,  # the row that is normalized
    weight_ptr,
    q_ptr,
    scales_ptr,
    s_n,
    eps,
    eps_low,
    offset,
    offset_low,
    N: tl.constexpr,
    WEIGHT: tl.constexpr,
    OFFSET: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    WHOLE: tl.constexpr,
    G: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A row that `_cast_row` leaves: seldom, so in little code, the row read from memory each time."""
    PIECE: tl.constexpr = G * GROUP
    n = tl.arange(0, G)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    total = tl.zeros((G, GROUP), tl.float64)
    for first in range(0, N, PIECE):
        x = tl.load(x_ptr + first + n, mask=first + n < N, other=0.0).to(tl.float64)
        total += x * x
    rstd, rstd_low = exact_root(tl.sum(total), eps, eps_low, N)
    # NaN, or 0 where even the mean overflows: x * weight could overflow, too, so rstd goes first. Infinite likewise.
    usual = (rstd > 0) & (rstd < float("inf"))
    before = tl.where(usual, 1.0, rstd)
    rstd_low = tl.where(usual, rstd_low, 0.0)
    rstd = tl.where(usual, rstd, 1.0)
    by, by_low = _row_factors(rstd, rstd_low, FP8_MAX)
    largest = tl.zeros((G,), tl.float32)
    if WHOLE:
        for first in range(0, N, PIECE):
            y = _weighted_piece(x_ptr, weight_ptr, first + n, before, offset, offset_low, N, WEIGHT, OFFSET)
            largest = _keep_nan(largest, group_max(y, 1))
    for first in range(0, N, PIECE):
        y = _weighted_piece(x_ptr, weight_ptr, first + n, before, offset, offset_low, N, WEIGHT, OFFSET)
        amax = group_max(largest[None, :], 1) if WHOLE else group_max(y, 1)
        scale, factor, low = _scale_and_factor(amax, rstd, rstd_low, by, by_low, FP8_MAX, UE8M0)
        if WHOLE:
            tl.store(scales_ptr + tl.arange(0, 1), scale)
        else:
            g = first // GROUP + tl.arange(0, G)
            tl.store(scales_ptr + g * s_n, scale, mask=g * GROUP < N)
        tl.store(q_ptr + first + n, _encode(y, factor[:, None], low[:, None], CODE), mask=first + n < N)


@triton.jit
def _weighted_piece(
    x_ptr, weight_ptr, n, before, offset, offset_low, N: tl.constexpr, WEIGHT: tl.constexpr, OFFSET: tl.constexpr
):
    y = tl.load(x_ptr + n, mask=n < N, other=0.0).to(tl.float32) * before
    if WEIGHT:
        weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        y = _weighted(y, weight, offset, offset_low, OFFSET)
    return y


_SCALARS = ("M", "heads", "outer", "pitch", "residual_pitch", "s_m", "s_n", "eps", "eps_low", "offset", "offset_low")


@kernel(*_SCALARS, "fits")
def _long_row_cast_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    residual_ptr,  # with ADD: [M, N], row pitch residual_pitch
    weight_ptr,  # with WEIGHT: [N]
    q_ptr,  # [M, N], contiguous
    scales_ptr,  # strides s_m, s_n
    new_ptr,  # with ADD: [M, N], contiguous
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    eps: tl.float32,
    eps_low: tl.float32,
    offset: tl.float32,
    offset_low: tl.float32,
    fits: tl.int32,  # the inputs may leave the L2 cache first: they are small, and what was written before stays there
    N: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    OFFSET: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,  # the row is one group, and GROUP only the width of a tile
    EARLY: tl.constexpr,  # the weight is fetched together with the row
    G: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One row per program."""
    m = tl.program_id(0).to(tl.int64)
    x_ptr += row_start(m, heads, outer, pitch, SPLIT, ALIGNED)
    residual_ptr += row_start(m, 1, 0, residual_pitch, False, ALIGNED)
    q_ptr += m * N
    new_ptr += m * N
    scales_ptr += m * s_m
    if fits != 0:  # two copies of the code, for a choice at run time
        done = _cast_row(
            *(x_ptr, residual_ptr, weight_ptr, q_ptr, scales_ptr, new_ptr, s_n, eps, eps_low, offset, offset_low),
            *("evict_first", N, ADD, WEIGHT, OFFSET, CODE, FP8_MAX, UE8M0, WHOLE, EARLY, G, GROUP),
        )
    else:
        done = _cast_row(
            *(x_ptr, residual_ptr, weight_ptr, q_ptr, scales_ptr, new_ptr, s_n, eps, eps_low, offset, offset_low),
            *("", N, ADD, WEIGHT, OFFSET, CODE, FP8_MAX, UE8M0, WHOLE, EARLY, G, GROUP),
        )
    if done == 0:
        tl.debug_barrier()  # codes are stored once more and sums read back, maybe by another thread than stored them
        if ADD:
            x_ptr = new_ptr
        _cast_odd_row(
            *(x_ptr, weight_ptr, q_ptr, scales_ptr, s_n, eps, eps_low, offset, offset_low),
            *(N, WEIGHT, OFFSET, CODE, FP8_MAX, UE8M0, WHOLE, G // 8 if G > 8 else 1, GROUP),  # few registers
        )


# --- short rows, several at once; and groups of sizes that are seldom -------------------------------------------------
@kernel(*_SCALARS)
def _short_rows_cast_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    residual_ptr,  # with ADD: [M, N], row pitch residual_pitch
    weight_ptr,  # with WEIGHT: [N]
    q_ptr,  # [M, N], contiguous
    scales_ptr,  # strides s_m, s_n
    new_ptr,  # with ADD: [M, N], contiguous
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    s_m: tl.int64,
    s_n: tl.int64,
    eps: tl.float32,
    eps_low: tl.float32,
    offset: tl.float32,
    offset_low: tl.float32,
    N: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    OFFSET: tl.constexpr,
    CODE: tl.constexpr,
    FP8_MAX: tl.constexpr,
    UE8M0: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    n = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    mask = (m < M) & (n < N) if ROWS > 1 else (m >= 0) & (n < N)
    x = load_rows(
        x_ptr, residual_ptr, new_ptr, m, n, mask, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED, ""
    )
    rstd, rstd_low = exact_root(exact_squares(x), eps, eps_low, N)
    rstd, rstd_low = rstd[:, None], rstd_low[:, None]
    weight = x
    if WEIGHT:
        weight = tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32) + tl.zeros_like(x)
    if tl.min(tl.min(rstd, axis=1), axis=0) > 0:
        by, by_low = _row_factors(rstd, rstd_low, FP8_MAX)
        y = _weighted(x, weight, offset, offset_low, OFFSET) if WEIGHT else x
        y = tl.reshape(y, (ROWS, BLOCK // GROUP, GROUP))
        scale, factor, low = _scale_and_factor(group_max(y, 2), rstd, rstd_low, by, by_low, FP8_MAX, UE8M0)
    else:  # a NaN, or squares that overflowed: x * weight could overflow, too, so rstd goes first
        y = x * rstd * (weight + offset) if WEIGHT else x * rstd
        y = tl.reshape(y, (ROWS, BLOCK // GROUP, GROUP))
        scale = scale_of(tl.max(magnitude(y), axis=2), FP8_MAX, UE8M0)
        factor, low = inverse_of(scale)
    q = _encode(y, factor[:, :, None], low[:, :, None], CODE)
    tl.store(q_ptr + m * N + n, tl.reshape(q, (ROWS, BLOCK)), mask=mask)
    g = tl.arange(0, BLOCK // GROUP)[None, :]
    tl.store(scales_ptr + m * s_m + g * s_n, scale, mask=(m < M) & (g * GROUP < N))


# --- the long way: y in float32 to memory -----------------------------------------------------------------------------
@kernel("M", "heads", "outer", "pitch", "residual_pitch")
def _squares_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    residual_ptr,  # with ADD: [M, N], row pitch residual_pitch
    new_ptr,  # with ADD: [M, N], contiguous
    squares_ptr,  # float64 [M, chunks]: the sum of squares of each chunk
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    residual_pitch: tl.int64,
    N: tl.constexpr,
    ADD: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks + tl.zeros((1, 1), tl.int64)
    n = pid % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = load_rows(
        x_ptr, residual_ptr, new_ptr, m, n, n < N, heads, outer, pitch, residual_pitch, N, ADD, SPLIT, ALIGNED, ""
    )
    tl.store(squares_ptr + pid + tl.arange(0, 1), exact_squares(x))


@kernel("M", "heads", "outer", "pitch", "eps", "eps_low", "offset", "offset_low")
def _rms_norm_kernel(
    x_ptr,  # [M, N], rows as `Rows` says
    weight_ptr,  # with WEIGHT: [N]
    squares_ptr,  # from _squares_kernel
    y_ptr,  # [M, N], contiguous
    M: tl.int64,
    heads: tl.int64,
    outer: tl.int64,
    pitch: tl.int64,
    eps: tl.float32,
    eps_low: tl.float32,
    offset: tl.float32,
    offset_low: tl.float32,
    N: tl.constexpr,
    WEIGHT: tl.constexpr,
    SPLIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,  # chunks, rounded up to a power of two
):
    chunks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    pid = tl.program_id(0).to(tl.int64)
    m = pid // chunks + tl.zeros((1, 1), tl.int64)
    n = pid % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, K)
    squares = tl.sum(tl.load(squares_ptr + pid // chunks * chunks + k, mask=k < chunks, other=0.0), axis=0)
    rstd, rstd_low = exact_root(squares, eps, eps_low, N)  # scalars
    x = load_rows(x_ptr, x_ptr, y_ptr, m, n, n < N, heads, outer, pitch, pitch, N, False, SPLIT, ALIGNED, "")
    rstd = tl.zeros_like(x) + rstd
    y = x * rstd
    rest = tl.fma(x, rstd, y * -1.0) + x * rstd_low
    if WEIGHT:
        weight, low = two_sum(tl.load(weight_ptr + n, mask=n < N, other=0.0).to(tl.float32), offset)
        rest = rest * weight + y * (low + offset_low)
        rest = tl.where(tl.abs(rest) < float("inf"), rest, 0.0)  # else y is not finite, or 0 * inf
        y = tl.fma(y, weight, rest)
    else:
        y += tl.where(tl.abs(rest) < float("inf"), rest, 0.0)
    tl.store(y_ptr + m * N + n, y, mask=n < N)
