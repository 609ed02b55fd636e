"""The first few of each row without a loop: lists that threads sort by themselves and then merge.

A row is K tiles of a K-th of its columns. Lane by lane the tiles are sorted, so that every lane has a list of K, and
`tl.reduce` merges the lists of two lanes into the first K of both until one list is left. All of it is minima and
maxima of 32 bits: a key whose lowest bits are replaced by the column orders as the stable sort does, up to elements
that differ in those bits alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tle_ops.kernels._keys_triton import least


@triton.jit
def _clean(t):
    """A bitonic list in descending order."""
    n: tl.constexpr = len(t)
    if n == 1:
        return t
    else:
        high = ()
        low = ()
        for i in tl.static_range(n // 2):
            high += (tl.maximum(t[i], t[i + n // 2]),)
            low += (tl.minimum(t[i], t[i + n // 2]),)
        return _clean(high) + _clean(low)


@triton.jit
def _merged(a, b):
    """Two descending lists of one length as one (Batcher's odd-even merge)."""
    n: tl.constexpr = len(a)
    if n == 1:
        return (tl.maximum(a[0], b[0]), tl.minimum(a[0], b[0]))
    else:
        even = _merged(a[0::2], b[0::2])
        odd = _merged(a[1::2], b[1::2])
        merged = even[:1]
        for i in tl.static_range(n - 1):
            merged += (tl.maximum(even[i + 1], odd[i]), tl.minimum(even[i + 1], odd[i]))
        return merged + odd[n - 1 :]


@triton.jit
def _sorted(t):
    """A list of a power of two elements in descending order."""
    n: tl.constexpr = len(t)
    if n == 1:
        return t
    else:
        return _merged(_sorted(t[: n // 2]), _sorted(t[n // 2 :]))


@triton.jit
def _first(a, b):
    """Of two descending lists of one length, the first half of all."""
    n: tl.constexpr = len(a)
    high = ()
    for i in tl.static_range(n):
        high += (tl.maximum(a[i], b[n - 1 - i]),)
    return _clean(high)


@triton.jit
def _first_2(a0, a1, b0, b1):
    return _first((a0, a1), (b0, b1))


@triton.jit
def _first_4(a0, a1, a2, a3, b0, b1, b2, b3):
    return _first((a0, a1, a2, a3), (b0, b1, b2, b3))


@triton.jit
def _first_8(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    return _first((a0, a1, a2, a3, a4, a5, a6, a7), (b0, b1, b2, b3, b4, b5, b6, b7))


@triton.jit
def _first_16(
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
    b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15,
):  # fmt: skip
    return _first(
        (a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15),
        (b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15),
    )


@triton.jit
def first_of(t):
    """Of K tiles [ROWS, L] the first K elements of each row, descending: K tensors [ROWS]. K is 1, 2, 4, 8 or 16."""
    t = _sorted(t)
    n: tl.constexpr = len(t)
    if n == 1:
        return (tl.max(t[0], 1),)
    elif n == 2:
        return tl.reduce(t, 1, _first_2)
    elif n == 4:
        return tl.reduce(t, 1, _first_4)
    elif n == 8:
        return tl.reduce(t, 1, _first_8)
    else:
        return tl.reduce(t, 1, _first_16)


@triton.constexpr_function
def exact(dtype):
    """Whether 16 bits, or floats that have as few, keep all of their key beside a column."""
    return dtype.primitive_bitwidth <= 16


@triton.constexpr_function
def log2(n):
    return n.bit_length() - 1


@triton.jit
def _quickly(keys, n, inside, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """Tiles of 32 bits: the upper bits of the keys, then what falls as the columns rise."""
    SHIFTED: tl.constexpr = exact(DTYPE) and not DTYPE.is_floating()
    t = ()
    for j in tl.static_range(len(keys)):
        high = keys[j] << log2(BLOCK) if SHIFTED else keys[j] & -BLOCK
        t += (tl.where(inside[j], high | (BLOCK - 1 - n[j]), least(tl.int32)),)
    return t


@triton.jit
def _settled(t, keys, inside, top, undecided, K: tl.constexpr, BLOCK: tl.constexpr):
    """`top` of the tiles `t`, with those elements that are `undecided` (K flags [ROWS]) taken one by one, by all of
    their key, from those that have the same upper bits. Only the columns in the lowest bits are right then."""
    lower = ()  # bits of the key, and what falls as the columns rise; -1 of what is not there or taken
    for j in tl.static_range(len(t)):
        below = ((keys[j] & (BLOCK - 1)) << log2(BLOCK)) | (t[j] & (BLOCK - 1))
        lower += (tl.where(inside[j], below, -1),)
    ROWS: tl.constexpr = t[0].shape[0]
    place = tl.arange(0, len(t))[None, :]
    order = tl.zeros((ROWS, len(t)), tl.int32)
    waiting = tl.zeros((ROWS, len(t)), tl.int32)
    for j in tl.static_range(K):
        order = tl.where(place == j, top[j][:, None], order)
        waiting = tl.where(place == j, undecided[j].to(tl.int32)[:, None], waiting)
    for j in range(0, K):
        here = (place == j) & (waiting > 0)
        rows = tl.max(here.to(tl.int32), 1)  # [ROWS]: of the others no element may be taken
        if tl.max(rows, 0) > 0:
            best, lower = _take(t, lower, tl.sum(tl.where(here, order, 0), 1), rows > 0, BLOCK)
            order = tl.where(here, best[:, None], order)
    settled = ()
    for j in tl.static_range(K):
        settled += (tl.sum(tl.where(place == j, order, 0), 1),)
    return settled


@triton.jit
def _take(t, lower, level, rows, BLOCK: tl.constexpr):
    """In those `rows`, of the elements whose upper bits are those of `level`, the first one's lower bits; those of the
    others."""
    same = ()
    best = tl.full(t[0].shape, -1, tl.int32)
    for j in tl.static_range(len(t)):
        same += ((((t[j] ^ level[:, None]) & -BLOCK) == 0) & rows[:, None],)
        best = tl.maximum(best, tl.where(same[j], lower[j], -1))
    best = tl.max(best, 1)
    others = ()
    for j in tl.static_range(len(t)):
        others += (tl.where(same[j] & (lower[j] == best[:, None]), -1, lower[j]),)
    return best, others


@triton.jit
def first_columns(keys, n, inside, K: tl.constexpr, BLOCK: tl.constexpr, ORDERED: tl.constexpr, DTYPE: tl.constexpr):
    """Of keys of DTYPE in tiles [ROWS, L], and of their columns `n` below BLOCK, of which those `inside` are there:
    the columns of the first K by (key, column) of each row, a tuple of tensors [ROWS]. If not ORDERED, in any order."""
    t = _quickly(keys, n, inside, BLOCK, DTYPE)
    top = first_of(t)[:K]
    if not exact(DTYPE):
        last = top[K - 1]
        cut = tl.zeros(t[0].shape, tl.int1)  # whether what was cut off would have mattered
        for j in tl.static_range(len(t)):
            cut = cut | ((t[j] >= (last & -BLOCK)[:, None]) & (t[j] < last[:, None]))
        cut = tl.max(cut.to(tl.int32), 1) > 0
        doubt = cut
        undecided = ()
        for j in tl.static_range(K):
            level = cut & ((top[j] & -BLOCK) == (last & -BLOCK))
            if ORDERED:
                if j > 0:
                    level = level | (((top[j] ^ top[j - 1]) & -BLOCK) == 0)
                if j < K - 1:
                    level = level | (((top[j] ^ top[j + 1]) & -BLOCK) == 0)
                doubt = doubt | level
            undecided += (level,)
        if tl.max(doubt.to(tl.int32), 0) > 0:
            top = _settled(t, keys, inside, top, undecided, K, BLOCK)
    columns = ()
    for j in tl.static_range(K):
        columns += (BLOCK - 1 - (top[j] & (BLOCK - 1)),)
    return columns
