"""tle.rank, tle.compact, tle.digit_histogram: places of the lanes of a block."""

import triton
import triton.language as tl

from tle_ops.language import _checks
from tle_ops.language.scan import cumsum


@triton.jit
def _comparable(x):
    """8-bit floats cannot be compared; of bfloat16 the interpreter of Triton 3.9 compares the bits: -0.0 is not 0."""
    if x.dtype.is_fp8() or x.dtype.is_bf16():
        x = x.to(tl.float32)
    return x


@triton.jit
def rank(keys):
    """For each lane of keys [BLOCK], how many lanes before it have the same key: int32 [BLOCK].

    Compares every pair, BLOCK comparisons a lane: for blocks of a few hundred lanes.
    """
    _checks.triton_only("rank", "")
    _checks.row("rank", "keys", keys)
    keys = _comparable(keys)
    lane = tl.arange(0, keys.shape[0])
    # Summed over the first axis, which lies within a thread: no shuffles.
    earlier = (keys[:, None] == keys[None, :]) & (lane[:, None] < lane[None, :])  # [BLOCK, BLOCK]
    return tl.sum(earlier.to(tl.int32), 0)


@triton.jit
def compact(keep):
    """Stable compaction of the lanes of a block: where each goes, and how many are kept.

    keep: bool [BLOCK], or numbers, of which those that are not 0 are kept.

    Returns (place int32 [BLOCK], count). Kept lanes go to 0, 1, 2, .. in their order, the others to count, count + 1,
    .. in theirs: together each place once, so one store without a mask fills a block.
    """
    _checks.triton_only("compact", "")
    _checks.row("compact", "keep", keep)
    keep = _comparable(keep) != 0
    before, count = cumsum(keep.to(tl.int32))
    return tl.where(keep, before, count + tl.arange(0, keep.shape[0]) - before), count


@triton.jit
def digit_histogram(keys, shift, BITS: tl.constexpr, mask=None):
    """How often each value of the `BITS` bits from `shift` on occurs among the integers keys [BLOCK]: int32 [2**BITS].

    One digit of a radix sort or select; with shift 0, a histogram of keys below 2**BITS. mask: bool [BLOCK], the lanes
    that count; all by default. shift: below the width of the keys, an int or a scalar; BITS: 1 to 20. Bits beyond a
    signed key's width are those of its sign.
    """
    _checks.triton_only("digit_histogram", "")
    _checks.row("digit_histogram", "keys", keys, integers=True)
    _checks.index("digit_histogram", "shift", shift, 0, keys.dtype.primitive_bitwidth)
    _checks.size("digit_histogram", "BITS", BITS, 1, 21)  # Triton's largest block has 2**20 elements
    _checks.mask("digit_histogram", mask, keys)
    if keys.dtype.primitive_bitwidth < 32:
        keys = keys.to(tl.int32)
    digits = ((keys >> shift) & ((1 << BITS) - 1)).to(tl.int32)
    return tl.histogram(digits, 1 << BITS, mask=mask)
