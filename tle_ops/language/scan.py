"""tle.cumsum: exclusive sums and the total of a block."""

import triton
import triton.language as tl


@triton.constexpr_function
def _scan_dtype(dtype, want):
    """Of the sums: what is asked for, else bfloat16 in float32 and integers in at least 32 bits."""
    if want is not None:
        return want
    if dtype.is_bf16():
        return tl.float32
    if dtype.is_int_signed() and dtype.int_bitwidth < 32:
        return tl.int32
    if dtype.is_int_unsigned() and dtype.int_bitwidth < 32:
        return tl.uint32
    return dtype


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def join(before_a, sum_a, before_b, sum_b):
    """Of two neighbouring runs, each as (sum of all but the last element, sum): the same of both together."""
    return sum_a + before_b, sum_a + sum_b


@triton.jit
def cumsum(input, axis: tl.constexpr = 0, reverse: tl.constexpr = False, dtype: tl.constexpr = None):
    """Exclusive sums of a block, and the total.

    input: [BLOCK], or a scalar, whose sums are (0, input). Load lanes beyond the data as 0, or they count in the total.
    axis: 0 (or -1), the only one.
    reverse: sum what comes after a lane, in place of what comes before it.
    dtype: of the sums. Default: float32 for bfloat16, int32 (uint32) for signed (unsigned and bool) integers below 32
        bits, otherwise that of the input. float16 is summed in float16: ask for float32 where that is too narrow.

    Returns (exclusive [BLOCK], total). `exclusive + input` are the inclusive sums. Integers wrap. An infinity or a NaN
    reaches only the sums that contain it: for floats, exclusive is never `inclusive - input`.
    """
    v = input.to(_scan_dtype(input.dtype, dtype))
    tl.static_assert(len(input.shape) < 2, "cumsum: input must be a block of one dimension")
    tl.static_assert(axis == 0 or axis == -1, "cumsum: axis must be 0")
    total = v if len(input.shape) == 0 else tl.sum(v, 0).to(v.dtype)
    zeros = (v < v).to(v.dtype)  # also of a NaN; tl.zeros_like has no layout to give in a Gluon kernel
    if len(input.shape) == 0:
        exclusive = zeros
    elif v.dtype.is_floating():
        # A scan of pairs costs twice the shuffles of a plain one and needs no trip through shared memory, as shifting
        # its result by one lane would.
        exclusive, _ = tl.associative_scan((zeros, v), 0, join, reverse=reverse)
    else:
        exclusive = tl.associative_scan(v, 0, plus, reverse=reverse) - v
    return exclusive, total
