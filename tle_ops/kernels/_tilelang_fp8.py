"""The arithmetic of the FP8 quantizers in the words of a TileLang kernel, bit for bit the reference:

- amax is an INTEGER max over the bits of |x|. They order like the numbers, then inf, then NaN, so that NaN wins. Two
  16-bit floats share a 32-bit word and are compared in one instruction.
- x / scale is no division but the product with the rounded reciprocal, corrected by one Newton step whose remainder
  is exact (Markstein, IBM J. Res. Dev. 34, 1990). Every quotient that FP8 can tell from its neighbours comes out as
  IEEE division has it; tests/test_tilelang_fp8.py tries all divisors at all rounding borders.
"""

import struct

import tilelang.language as T
import torch

from tle_ops._meta import AMAX_FLOOR, FP8_MAX
from tle_ops.kernels._tilelang import DTYPE

FLOOR_BITS = struct.unpack("<i", struct.pack("<f", AMAX_FLOOR))[0]
INF_BITS = 0x7F800000
NAN_BITS = 0x7FC00000


def pairs(dtype: torch.dtype, width: int) -> int:
    """Elements per 32-bit word of an amax: 2 where two 16-bit floats are adjacent in a vector of `width`."""
    return 2 if dtype.itemsize == 2 and width > 1 else 1


def words(x, pair: int):
    """The register array x [n, width] as [n, width / pair] words."""
    return T.view(x, (x.shape[0], x.shape[1] // pair), "uint32") if pair == 2 else x


def word_max(a, b, pair: int):
    return T.call_extern("uint32", "__vmaxu2", a, b) if pair == 2 else T.max(a, b)


def word_abs(w, pair: int):
    if pair == 2:
        return w & T.uint32(0x7FFF7FFF)
    return T.reinterpret(T.cast(w, "float32"), "uint32") & T.uint32(0x7FFFFFFF)


def half(word, which):
    """One of the two 16-bit floats of a word"""
    return (word >> (T.cast(which, "uint32") * T.uint32(16))) & T.uint32(0xFFFF)


def float_bits(w, dtype: torch.dtype, pair: int):
    """The bits, as a float32, of a non-negative number of `dtype`."""
    if pair == 2:
        return T.reinterpret(T.cast(T.reinterpret(T.cast(w, "uint16"), DTYPE[dtype]), "float32"), "int32")
    return T.reinterpret(w, "int32")


@T.macro
def warp_max(m, i, pair, lanes, first=1):
    """m[i] = its max over lanes of a warp that differ by multiples of `first` below `lanes`"""
    for k in T.unroll((lanes // first).bit_length() - 1):
        m[i] = word_max(m[i], T.shfl_xor(m[i], first << k), pair)


def _float32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def _divide(x, divisor, reciprocal):
    """x / divisor, nearest even. The order of the terms keeps the sign of a zero."""
    q = x * reciprocal
    return T.ieee_fmaf(T.ieee_fmaf(q, divisor, -x), -reciprocal, q)


def quotient(x, divisor, reciprocal, ue8m0: bool):
    """x / scale. The product with a power of two is exact."""
    return x * reciprocal if ue8m0 else _divide(x, divisor, reciprocal)


@T.macro
def make_scale(amax, s, qdtype, ue8m0):
    """amax: bits. s[0] = scale, s[1] = divisor and s[2] = reciprocal for `quotient`"""
    bits = T.alloc_local((2,), "int32")
    bits[0] = T.max(amax, FLOOR_BITS)
    top = FP8_MAX[qdtype]
    s[0] = _divide(T.reinterpret(bits[0], "float32"), T.float32(top), T.float32(_float32(1 / top)))
    bits[1] = T.reinterpret(s[0], "int32")
    if ue8m0:  # up to a power of two; the scale of a finite amax is a normal number far below inf
        bits[1] = ((bits[1] + 0x7FFFFF) >> 23) << 23
    if bits[0] >= INF_BITS:
        bits[1] = T.if_then_else(bits[0] == INF_BITS, INF_BITS, NAN_BITS)  # one NaN of the many
    s[0] = T.reinterpret(bits[1], "float32")
    s[2] = T.float32(1.0) / s[0]
    # The remainder with scale = inf would be NaN; divisor 0 gives +-0 for a finite x and NaN for an infinite one.
    s[1] = T.if_then_else(bits[0] == INF_BITS, T.float32(0.0), s[0])


@T.macro
def widen(x, at, width, wide):
    """wide[:] = x[at, :] as float32"""
    if x.dtype == "bfloat16" and width > 1:  # one instruction an element; a cast takes two for the upper halves
        xw = words(x, 2)
        for j in T.unroll(width // 2):
            wide[2 * j] = T.reinterpret(xw[at, j] << T.uint32(16), "float32")
            wide[2 * j + 1] = T.reinterpret(xw[at, j] & T.uint32(0xFFFF0000), "float32")
    else:
        for j in T.vectorized(width):
            wide[j] = T.cast(x[at, j], "float32")


@T.macro
def quantize(x, at, width, s, wide, codes, ue8m0):
    """codes[:] = cast(x[at, :] / scale), saturating"""
    for j in T.vectorized(width):  # `widen` would do; here it has not been timed
        wide[j] = T.cast(x[at, j], "float32")
    for j in T.unroll(width):
        wide[j] = quotient(wide[j], s[1], s[2], ue8m0)
    for j in T.vectorized(width):
        codes[j] = T.cast(wide[j], codes.dtype)
