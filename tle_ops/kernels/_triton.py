"""What the Triton kernels of this package share: a short way to a launch, and the device functions of FP8 quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

INTERPRETED = knobs.runtime.interpret


class Kernel:
    """A Triton kernel whose parameters are, in this order: pointers, run-time scalars, constexprs.

    `kernel[grid](...)` costs 15 us on a slow host, most of it to work out again, from every argument, which compiled
    variant is meant. Here the caller says so: the constants, the dtypes and the alignment of the pointers are the key, and
    run-time scalars are never specialised (they carry an annotation and stand in `do_not_specialize`), so that no value of
    theirs builds a new variant. A call whose key is known goes straight to the compiled kernel's launcher.
    """

    def __init__(self, fn: Any, scalars: Sequence[str]) -> None:
        self.fn = triton.jit(fn, do_not_specialize=list(scalars))
        self.variants: dict[tuple, Any] = {}

    def __call__(
        self, grid: int, tensors: tuple[Tensor, ...], scalars: tuple, constants: tuple, num_warps: int = 4
    ) -> None:
        """Launch `grid` programs on the current stream of the first tensor's device."""
        if INTERPRETED:
            self.fn[(grid,)](*tensors, *scalars, *constants)
            return
        index = tensors[0].get_device()
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self(grid, tensors, scalars, constants, num_warps)
            return
        pointers = [t.data_ptr() for t in tensors]
        dtypes = [t.dtype for t in tensors]
        alignment = [p & 15 == 0 for p in pointers]
        key = (index, num_warps, *dtypes, *alignment, *constants)
        variant = self.variants.get(key)
        if variant is None:
            self.variants[key] = self.fn[(grid,)](*tensors, *scalars, *constants, num_warps=num_warps)
            return
        variant.run(
            grid,
            1,
            1,
            torch._C._cuda_getCurrentRawStream(index),
            variant.function,
            variant.packed_metadata,
            None,  # launch metadata and hooks serve Triton's own profiler
            None,
            None,
            *pointers,
            *scalars,
            *constants,
        )


def kernel(*scalars: str):
    """Decorator: `@kernel("n", "alpha")` makes a Kernel whose run-time scalars have these names."""
    return lambda fn: Kernel(fn, scalars)


# --- FP8 quantization: shared by every kernel that ends in codes and scales -------------------------------------------
@triton.jit
def amax_bits(x, axis: tl.constexpr):
    """max |x| along `axis` (None: of all), as the bits of a float32. Bits of magnitudes order as the magnitudes do, with
    inf above every number and NaN above inf, so an integer maximum keeps a NaN that a float maximum would drop."""
    return tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=axis)


@triton.jit
def scale_of(bits, FP8_MAX: tl.constexpr, UE8M0: tl.constexpr):
    """The scale of a group from the bits of its amax: max(amax, 1e-4) / fp8_max, by IEEE division."""
    amax = tl.maximum(bits, 0x38D1B717).to(tl.float32, bitcast=True)  # the bits of 1e-4; a NaN stays the largest
    scale = tl.div_rn(amax, tl.full(amax.shape, FP8_MAX, tl.float32))
    if UE8M0:  # to the next power of two by the exponent's bits: exact powers, inf and NaN stay
        up = (scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        scale = up.to(tl.float32, bitcast=True)
    return tl.where(bits > 0x7F800000, float("nan"), scale)


@triton.jit
def quotient(x, scale, inverse):
    """x / scale, correctly rounded, where `inverse` is 1 / scale, correctly rounded. Three instructions in place of a
    division's ten: the product, its exact remainder, the correction (Markstein 1990). The signs are so arranged that
    -0 stays -0. An infinite scale has the inverse 0, and a finite stand-in keeps its remainder from becoming NaN."""
    finite = tl.where(scale == float("inf"), 1.0, scale)
    y = x * inverse
    return tl.fma(tl.fma(y, finite + tl.zeros_like(x), -x), -inverse + tl.zeros_like(x), y)
