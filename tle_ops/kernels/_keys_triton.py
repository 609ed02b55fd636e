"""Keys: integers in the order of the values, and what every selection does with them."""

from __future__ import annotations

import triton
import triton.language as tl

from tle_ops.kernels._triton import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)
NOWHERE = tl.constexpr(2**31 - 1)  # a column beyond every row


@triton.jit
def keys_of(x, LARGEST: tl.constexpr):
    """Signed integers in the order of the values, or inverted: every NaN the greatest, -0.0 equal to 0.0."""
    if x.dtype.is_floating() and _INTERPRETED:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of negative numbers the greater magnitude is less
        keys = tl.where(bits == -0x80000000, 0, keys)
        keys = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, keys)
    elif x.dtype.is_floating():
        # The same in three instructions in place of seven. A sum that is NaN has the bits 0x7FFFFFFF whatever was
        # added, and -0.0 + 0.0 is 0.0. Of an arithmetic shift and a mask LLVM would make a selection.
        bits = (x.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
        keys = bits ^ ((bits >> 31).to(tl.uint32, bitcast=True) >> 1).to(tl.int32, bitcast=True)
    elif x.dtype.primitive_bitwidth == 64:
        keys = x
    else:
        keys = x.to(tl.int32)
    return keys if LARGEST else ~keys


@triton.jit
def value_of(keys):
    """The float32 of a key; any NaN comes back as one NaN."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def comparable(bound, LARGEST: tl.constexpr):
    """The bound, or the next lower one, above which are the same elements, if it is the key of -0.0: no element has
    that, and as a value it would be that of 0.0."""
    return tl.where(bound == (-1 if LARGEST else 0), bound - 1, bound)


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
def search(keys, low, high, k, enough):
    """Narrow (low, high), of which it is known that at least k keys are from low on and fewer than k above high, until
    no more than `enough` are from low on, or low is high. How many are from low on is returned as well, or enough + 1
    if all that is known is that there are enough."""
    from_low = enough + 1
    while (low < high) & (from_low > enough):
        middle = middle_of(low, high)
        reached = count(keys >= middle)
        if reached >= k:
            low = middle
            from_low = reached
        else:
            high = middle - 1
    return low, high, from_low


@triton.jit
def bisect(keys, low, high, k, enough):
    """`search` for the range alone."""
    low, high, _ = search(keys, low, high, k, enough)
    return low, high
