"""tle.load."""

import triton
import triton.language as tl

from tle_ops.language import _checks
from tle_ops.language._compat import HAS_BLOCK_POINTERS

_BLOCK_POINTERS = tl.constexpr(HAS_BLOCK_POINTERS)


@triton.jit
def load(
    pointer,
    mask=None,
    other=None,
    boundary_check: tl.constexpr = None,
    padding_option: tl.constexpr = None,
    cache_modifier: tl.constexpr = None,
    eviction_policy: tl.constexpr = None,
    volatile: tl.constexpr = False,
    is_async: tl.constexpr = False,
):
    """`tl.load`. `is_async` is a hint that never changes a value, and stock Triton has no attribute to carry it: loads
    become asynchronous copies in a loop `tl.range(..., num_stages=n)`. Block pointers, to which boundary_check and
    padding_option belong, went with Triton 3.9."""
    _checks.pointers("load", "pointer", pointer)
    _checks.mask("load", mask)
    _checks.flag("load", "volatile", volatile)
    _checks.flag("load", "is_async", is_async)
    if boundary_check is None and padding_option is None:
        return tl.load(
            pointer,
            mask=mask,
            other=other,
            cache_modifier=cache_modifier,
            eviction_policy=eviction_policy,
            volatile=volatile,
        )
    else:  # not even to be seen by the compiler of Triton 3.9
        tl.static_assert(
            _BLOCK_POINTERS, "load: boundary_check and padding_option are for block pointers, which Triton 3.9 dropped"
        )
        return tl.load(
            pointer,
            mask=mask,
            other=other,
            boundary_check=boundary_check,
            padding_option=padding_option,
            cache_modifier=cache_modifier,
            eviction_policy=eviction_policy,
            volatile=volatile,
        )
