"""What the Triton kernels of this package share: a short way to a launch, and the device functions of FP8
quantization."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from tle_ops.kernels._replay import STREAM, Launch, current_device, current_stream, record

INTERPRETED = knobs.runtime.interpret


# --- launching -------------------------------------------------------------------------------------------------------
class Kernel:
    """A Triton kernel whose parameters are, in this order: pointers, run-time scalars, constexprs.

    `kernel[grid](...)` costs 15 to 19 us on a slow host, most of it to work out again, from every argument, which
    compiled variant is meant. Here the caller says so: the constants, the dtypes and the alignment of the pointers are
    the key. Run-time scalars are never specialised (they carry an annotation and stand in `do_not_specialize`), so no
    value of theirs builds a new variant.
    """

    def __init__(self, fn: Callable, scalars: Sequence[str]) -> None:
        self.fn = triton.jit(fn, do_not_specialize=list(scalars))
        self.variants: dict[tuple, Any] = {}

    def __call__(
        self,
        grid: int,
        tensors: tuple[Tensor, ...],
        scalars: tuple,
        constants: tuple,
        num_warps: int = 4,
        maxnreg: int | None = None,
        pdl: bool = False,
    ) -> None:
        """Launch `grid` programs on the current stream of the first tensor's device. pdl: they may start before the
        launch ahead of this one has ended (programmatic dependent launch), and wait for it with `gdc_wait`."""
        if INTERPRETED:
            self.fn[(grid,)](*tensors, *scalars, *constants)
            return
        index = tensors[0].get_device()
        if index != current_device():
            with torch.cuda.device(index):
                self(grid, tensors, scalars, constants, num_warps, maxnreg, pdl)
            return
        pointers = [t.data_ptr() for t in tensors]
        key = (index, num_warps, maxnreg, pdl, constants, *(t.dtype for t in tensors), *(p & 15 == 0 for p in pointers))
        variant = self.variants.get(key)
        if variant is None:
            options = {"maxnreg": maxnreg, "launch_pdl": pdl}
            options = {"num_warps": num_warps, **{name: value for name, value in options.items() if value}}
            variant = self.fn[(grid,)](*tensors, *scalars, *constants, **options)
            self.variants[key] = variant
        else:
            launch, head = _launcher(variant)
            launch(grid, 1, 1, current_stream(index), *head, *pointers, *scalars, *constants)
        launch, head = _launcher(variant)
        record(Launch(launch, (grid, 1, 1, STREAM, *head, *tensors, *scalars, *constants), by_pointer=True))


def kernel(*scalars: str) -> Callable[[Callable], Kernel]:
    """Decorator: `@kernel("n", "alpha")` makes a Kernel whose run-time scalars have these names."""
    return lambda fn: Kernel(fn, scalars)


@functools.lru_cache(4096)
def _launcher(variant: Any) -> tuple[Callable, tuple]:
    """The compiled kernel's C launcher and its arguments between the stream and the kernel's own. Launch metadata and
    hooks serve Triton's own profiler; None leaves them out."""
    run = variant.run
    if hasattr(run, "launch_pdl") and not run.global_scratch_size and not run.profile_scratch_size:  # Triton 3.6
        flags = (run.launch_cooperative_grid, run.launch_pdl, None, None)
        return run.launch, (variant.function, *flags, variant.packed_metadata, None, None, None)
    return run, (variant.function, variant.packed_metadata, None, None, None)


# --- flat kernels: n elements, all tensors contiguous -----------------------------------------------------------------
@triton.jit
def flat(n, BLOCK: tl.constexpr):
    """This program's elements of all but the last n % 16, and which of them there are: a mask of whole vectors, which
    keeps accesses of 16 bytes whole. (A branch for the last block costs every program the registers of scalar
    accesses, half as many again or twice as many.)"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < n // 16 * 16


@triton.jit
def last(n):
    """The last n % 16, for one program."""
    at = n // 16 * 16 + tl.arange(0, 16)
    return at, at < n


# --- FP8 quantization: shared by every kernel that ends in codes and scales -------------------------------------------
@triton.jit
def magnitude(x):
    """|x| as the bits of a float32. They order as the magnitudes do, with inf above every number and NaN above inf, so
    an integer maximum keeps a NaN that a float maximum would drop."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def divided(x, divisor, reciprocal):
    """x / divisor, correctly rounded, where `reciprocal` is 1 / divisor, correctly rounded, and neither is infinite:
    the product, its exact remainder, the correction (Markstein 1990). Three instructions where a division takes ten.
    Holds for every pair of float32 significands (bench/proofs/division.py tries all 2^46). -0 stays -0: hence the
    signs, and `* -1.0`, which is a sign flip to the compiler where `-x` is 0 - x."""
    y = x * reciprocal
    return tl.fma(tl.fma(y, divisor, x * -1.0), reciprocal * -1.0, y)


@triton.jit
def scale_of(bits, FP8_MAX: tl.constexpr, UE8M0: tl.constexpr):
    """The scale of a group from the bits of its amax: max(amax, 1e-4) / fp8_max, correctly rounded."""
    amax = tl.maximum(bits, 0x38D1B717).to(tl.float32, bitcast=True)  # the bits of 1e-4
    scale = divided(amax, tl.full(amax.shape, FP8_MAX, tl.float32), tl.full(amax.shape, 1.0 / FP8_MAX, tl.float32))
    if UE8M0:  # to the next power of two by the exponent's bits: exact powers stay
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    scale = tl.where(bits == 0x7F800000, float("inf"), scale)
    return tl.where(bits > 0x7F800000, float("nan"), scale)


@triton.jit
def encode(x, scale, CODE: tl.constexpr):
    """The codes of x: x / scale, correctly rounded, then cast, which saturates. An infinite scale has the reciprocal
    0, and a finite stand-in keeps the remainder from becoming NaN."""
    finite = tl.where(scale == float("inf"), 1.0, scale)
    guess = 1.0 / finite  # approximate on the GPU; one Newton step rounds it correctly
    reciprocal = tl.fma(tl.fma(finite * -1.0, guess, 1.0), guess, guess)
    reciprocal = tl.where(scale == float("inf"), 0.0, reciprocal)
    return divided(x, finite, reciprocal).to(CODE)
