"""tle.cumsum: exclusive sums and the total of a block."""

import triton
import triton.language as tl
from triton import knobs

from tle_ops.language import _checks


@triton.constexpr_function
def _wide(dtype):
    """What is added in: bfloat16 and float8 in float32, integers in at least 32 bits."""
    if dtype.is_bf16() or dtype.is_fp8():
        return tl.float32
    if dtype.is_int_signed() and dtype.int_bitwidth < 32:
        return tl.int32
    if dtype.is_int_unsigned() and dtype.int_bitwidth < 32:
        return tl.uint32
    return dtype


@triton.jit
def join(before_a, sum_a, before_b, sum_b):
    """Of two neighbouring runs, each as (sum of all but the last element, sum): the same of both together."""
    return sum_a + before_b, sum_a + sum_b


@triton.jit
def _floats(v, reverse: tl.constexpr):
    """Exclusive sums of floats, and the total. A scan of pairs costs twice the shuffles of a plain one and needs no
    trip through shared memory, as shifting its result by one lane would."""
    zeros = (v < v).to(v.dtype)  # also of a NaN; tl.zeros_like has no layout to give in a Gluon kernel
    exclusive, _ = tl.associative_scan((zeros, v), 0, join, reverse=reverse)
    return exclusive, tl.sum(v, 0).to(v.dtype)


@triton.jit
def _many_floats(v, reverse: tl.constexpr):
    """The same in three levels: 4 elements of a thread, 32 threads of a warp, the rest. A third fewer instructions and
    registers, and the total comes for nothing."""
    ROWS: tl.constexpr = v.shape[0] // 128
    w = tl.reshape(v, (ROWS, 32, 4))
    fours, _ = tl.associative_scan((tl.zeros_like(w), w), 2, join, reverse=reverse)
    sums = tl.cumsum(tl.sum(w, 2), 1, reverse)  # [ROWS, 32], inclusive
    lane = tl.arange(0, 32)[None, :] + tl.zeros((ROWS, 32), tl.int32)
    end: tl.constexpr = 31 if reverse else 0
    beside = tl.gather(sums, tl.minimum(lane + 1, 31) if reverse else tl.maximum(lane - 1, 0), 1)
    last = tl.gather(sums, tl.full((ROWS, 1), 31 - end, tl.int32), 1)  # [ROWS, 1]
    rows, total = _floats(tl.reshape(last, (ROWS,)), reverse)
    inside = tl.where(lane == end, 0, beside) + rows[:, None]  # [ROWS, 32]
    return tl.reshape(fours + inside[:, :, None], v.shape), total


@triton.constexpr_function
def _in_levels(type):
    """In a Gluon kernel blocks have layouts, and it takes more than a reshape to change them."""
    return type.is_block() and type.shape[0] >= 512 and not hasattr(type, "layout")


@triton.constexpr_function
def _interpreted(dtype):
    """Triton's interpreter refuses a sum that does not fit in int32, where the GPU wraps."""
    return knobs.runtime.interpret and dtype.primitive_bitwidth == 32


@triton.jit
def cumsum(input, axis: tl.constexpr = 0, reverse: tl.constexpr = False, dtype: tl.constexpr = None):
    """Exclusive sums of a block, and the total.

    input: [BLOCK], or a scalar, whose sums are (0, input). Load lanes beyond the data as 0, or they count in the total.
    axis: 0 (or -1), the only one.
    reverse: sum what comes after a lane, in place of what comes before it.
    dtype: of the sums, a dtype of Triton. Default: float32 for bfloat16 and float8, int32 (uint32) for signed (unsigned
        and bool) integers below 32 bits, otherwise that of the input. The input is converted to it, then summed. Asked
        for, bfloat16 is summed in float32 and rounded once. float16 is summed in float16: ask for float32 where that is
        too narrow.

    Returns (exclusive [BLOCK], total). `exclusive + input` are the inclusive sums. Integers wrap. An infinity or a NaN
    reaches only the sums that contain it: for floats, exclusive is never `inclusive - input`.
    """
    _checks.row("cumsum", "input", input, scalar=True)
    _checks.axis("cumsum", axis)
    _checks.flag("cumsum", "reverse", reverse)
    _checks.dtype_of_sums("cumsum", dtype)
    sums: tl.constexpr = _wide(input.dtype) if dtype is None else dtype
    if input.dtype.is_fp8() or (input.dtype.is_int() and sums.is_bf16()):
        # Triton converts float8 to no integer and no float64, and its interpreter takes an integer for bfloat16's bits.
        input = input.to(tl.float32)
    v = input.to(sums).to(_wide(sums))
    if len(input.shape) == 0:
        exclusive, total = (v < v).to(v.dtype), v
    elif not v.dtype.is_floating():
        wide = v.to(tl.int64) if _interpreted(v.dtype) else v
        total = tl.sum(wide, 0).to(v.dtype)
        inclusive = tl.cumsum(v, 0)
        exclusive = total - inclusive if reverse else inclusive - v  # exact, since integers wrap
    elif _in_levels(v.type):
        exclusive, total = _many_floats(v, reverse)
    else:
        exclusive, total = _floats(v, reverse)
    return exclusive.to(sums), total.to(sums)
