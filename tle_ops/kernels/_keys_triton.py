"""Keys: integers in the order of the values, and what every selection does with them."""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE = tl.constexpr(2**31 - 1)  # a column beyond every row


@triton.jit
def keys_of(x, LARGEST: tl.constexpr):
    """Signed integers in the order of the values, or inverted: every NaN the greatest, -0.0 equal to 0.0."""
    if x.dtype.is_floating():
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of negative numbers the greater magnitude is less
        keys = tl.where(bits == -0x80000000, 0, keys)
        keys = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, keys)
    elif x.dtype.primitive_bitwidth == 64:
        keys = x
    else:
        keys = x.to(tl.int32)
    return keys if LARGEST else ~keys


@triton.jit
def value_of(keys):
    """The float32 of a key; any NaN comes back as one NaN."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.constexpr_function
def least(dtype):
    """The least key: that of an element that must not be taken before any other."""
    return -(2 ** (dtype.primitive_bitwidth - 1))


@triton.constexpr_function
def greatest(dtype):
    return 2 ** (dtype.primitive_bitwidth - 1) - 1


@triton.constexpr_function
def unsigned(dtype):
    return tl.uint64 if dtype.primitive_bitwidth == 64 else tl.uint32


@triton.jit
def take(keys, columns):
    """In each row, the first by (key, column): its column, and the row without it. Taken elements are at NOWHERE."""
    best = tl.max(keys, axis=1)
    column = tl.min(tl.where(keys == best[:, None], columns, NOWHERE), axis=1)
    taken = columns == column[:, None]
    keys = tl.where(taken, least(keys.dtype), keys)
    columns = tl.where(taken, NOWHERE, columns)
    return column, keys, columns


@triton.constexpr_function
def spare(dtype):
    """Whether no element need have the least key, so that it can mean `none here`: floats have keys to spare."""
    return dtype.is_floating() or dtype.primitive_bitwidth < 32


@triton.jit
def take_spare(keys, columns):
    """`take`, if no element that is there has the least key."""
    best = tl.max(keys, axis=1)
    column = tl.min(tl.where(keys == best[:, None], columns, NOWHERE), axis=1)
    return column, tl.where(columns == column[:, None], least(keys.dtype), keys)


@triton.jit
def count(flags):
    """Of a block of less than 2^15. Of plain ones the compiler makes bit fields, which take more instructions."""
    return tl.sum(tl.where(flags, 65536, 0), 0) >> 16


@triton.jit
def middle_of(low, high):
    """Of low < high: what halves them, above low. Their difference may need all bits."""
    half = ((high - low).to(unsigned(low.dtype), bitcast=True) >> 1).to(low.dtype, bitcast=True)
    return low + half + 1


@triton.jit
def bisect(keys, low, high, k, enough):
    """Narrow (low, high), of which it is known that at least k keys are from low on and fewer than k above high, until
    no more than `enough` are from low on, or low is high."""
    at_least = enough + 1
    while (low < high) & (at_least > enough):
        middle = middle_of(low, high)
        above = count(keys >= middle)
        if above >= k:
            low = middle
            at_least = above
        else:
            high = middle - 1
    return low, high


@triton.jit
def _eighths(low, span, i):
    """low + 1 + i eighths of the span: above low, and not above low + span if that is not 0."""
    eighths = (span >> 3) * i + ((span & 7) * i >> 3)
    return low + 1 + eighths.to(low.dtype, bitcast=True)


@triton.jit
def _reach(keys, a, b):
    """Whether keys are from a on, and from b on, in the halves of an integer."""
    return tl.where(keys >= a, 1, 0) + tl.where(keys >= b, 65536, 0)


@triton.jit
def search(keys, low, high, k, enough):
    """`bisect`, but in eighths, of a block of at most 2^15. Most of a step is to sum over the warps, and seven counts
    are summed in the time of one. Returns how many keys are from low on as well, or enough + 1 if that was not known
    to be more than enough."""
    from_low = enough + 1
    while (low < high) & (from_low > enough):
        span = (high - low).to(unsigned(low.dtype), bitcast=True)
        p1, p2, p3 = _eighths(low, span, 1), _eighths(low, span, 2), _eighths(low, span, 3)
        p4, p5, p6 = _eighths(low, span, 4), _eighths(low, span, 5), _eighths(low, span, 6)
        p7 = _eighths(low, span, 7)
        flags = tl.join(_reach(keys, p1, p2), _reach(keys, p5, p6))
        flags = tl.join(flags, tl.join(_reach(keys, p3, p4), tl.where(keys >= p7, 1, 0)))
        s15, s37 = tl.split(tl.sum(flags, 0))
        s1, s5 = tl.split(s15)
        s3, s7 = tl.split(s37)
        step = tl.zeros_like(from_low)
        for i in tl.static_range(7):
            reached = (s1, s1 >> 16, s3, s3 >> 16, s5, s5 >> 16, s7)[i] & 0xFFFF
            step += (reached >= k).to(tl.int32)
            from_low = tl.where(reached >= k, reached, from_low)
        beyond = step.to(span.dtype)
        high = tl.where(step < 7, _eighths(low, span, beyond + 1) - 1, high)
        low = tl.where(step > 0, _eighths(low, span, beyond), low)
    return low, high, from_low
