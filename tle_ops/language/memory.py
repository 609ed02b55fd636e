"""tle.load."""

import triton
import triton.language as tl


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
    become asynchronous copies in a loop `tl.range(..., num_stages=n)`."""
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
