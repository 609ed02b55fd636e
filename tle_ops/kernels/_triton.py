"""What the Triton kernels of this package share: a short way to a launch, and the device functions of FP8
quantization."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

INTERPRETED = knobs.runtime.interpret
_current_device = torch._C._cuda_getDevice if hasattr(torch._C, "_cuda_getDevice") else None
_recorder = threading.local()


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
    ) -> None:
        """Launch `grid` programs on the current stream of the first tensor's device."""
        if INTERPRETED:
            self.fn[(grid,)](*tensors, *scalars, *constants)
            return
        index = tensors[0].get_device()
        if index != _current_device():
            with torch.cuda.device(index):
                self(grid, tensors, scalars, constants, num_warps, maxnreg)
            return
        pointers = [t.data_ptr() for t in tensors]
        key = (index, num_warps, maxnreg, constants, *(t.dtype for t in tensors), *(p & 15 == 0 for p in pointers))
        variant = self.variants.get(key)
        if variant is None:
            options = {"num_warps": num_warps} if maxnreg is None else {"num_warps": num_warps, "maxnreg": maxnreg}
            variant = self.fn[(grid,)](*tensors, *scalars, *constants, **options)
            self.variants[key] = variant
        else:
            launch, head = _launcher(variant)
            launch(grid, 1, 1, torch._C._cuda_getCurrentRawStream(index), *head, *pointers, *scalars, *constants)
        launches = getattr(_recorder, "launches", None)
        if launches is not None:
            launches.append(_Launch(variant, grid, tensors, (*scalars, *constants)))


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


# --- replaying -------------------------------------------------------------------------------------------------------
class _Launch(NamedTuple):
    variant: Any
    grid: int
    tensors: tuple[Tensor, ...]
    tail: tuple  # scalars and constants


class _Replay(NamedTuple):
    outputs: list[tuple]  # shape, strides, dtype of each
    single: bool  # one tensor, not a tuple of one
    pick: Callable  # from (*inputs, *outputs) the pointers of the launch
    launch: Callable
    grid: int
    head: tuple
    tail: tuple


def replayed(launcher: Callable) -> Callable:
    """Decorator of a launcher: what one call works out from the metadata of its arguments, the next one remembers.

    The contract, the geometry and the choice of the variant depend on shapes, strides, dtypes, alignment, device and
    plain arguments alone. So if a call came down to one launch over its own inputs and outputs, the same metadata
    again means the same launch: allocate, launch, done. That takes half the time of working it out. Other calls
    (copies, two launches, another current device, one tensor given twice) go through the launcher every time.
    """
    replays: dict[tuple, _Replay] = {}

    def replay(args: tuple) -> Any:
        """The outputs, or None if no such call has been recorded."""
        device = _current_device()
        key = [device]
        pointers = []
        for a in args:
            if isinstance(a, Tensor):
                pointer = a.data_ptr()
                pointers.append(pointer)
                key += (a.shape, a.stride(), a.dtype, a.get_device(), pointer & 15)
            else:
                key.append(a)
        known = replays.get(tuple(key))
        if known is None:
            return None
        out = [_empty(*description) for description in known.outputs]
        pointers += [t.data_ptr() for t in out]
        stream = torch._C._cuda_getCurrentRawStream(device)
        known.launch(known.grid, 1, 1, stream, *known.head, *known.pick(pointers), *known.tail)
        return out[0] if known.single else tuple(out)

    @functools.wraps(launcher)
    def call(*args):
        if INTERPRETED:
            return launcher(*args)
        result = replay(args)
        return _record(launcher, args, replays) if result is None else result

    call.replay, call.replays = replay, replays
    return call


try:
    from torch._C._dynamo.guards import _empty_strided_cuda as _empty  # torch.empty costs three times as much
except ImportError:

    def _empty(shape: tuple, strides: tuple, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def _record(launcher: Callable, args: tuple, replays: dict) -> Any:
    """Call the launcher, and remember the call if it was one launch over its inputs and outputs."""
    device = _current_device()
    outer = getattr(_recorder, "launches", None)
    _recorder.launches = launches = []
    try:
        result = launcher(*args)
    finally:
        _recorder.launches = outer
    if outer is not None:
        outer.extend(launches)
    inputs = [a for a in args if isinstance(a, Tensor)]
    outputs = [result] if isinstance(result, Tensor) else list(result)
    known = {id(t): i for i, t in enumerate((*inputs, *outputs))}
    if (
        len(launches) == 1
        and len(known) == len(inputs) + len(outputs)
        and all(id(t) in known for t in launches[0].tensors)
        and all(t.get_device() == device for t in (*inputs, *outputs))
        and all(t.numel() for t in outputs)
    ):
        key: list = [device]
        for a in args:
            key += (a.shape, a.stride(), a.dtype, device, a.data_ptr() & 15) if isinstance(a, Tensor) else (a,)
        if len(replays) >= 4096:  # every new row count is an entry
            replays.clear()
        variant, grid, tensors, tail = launches[0]
        positions = [known[id(t)] for t in tensors]
        replays[tuple(key)] = _Replay(
            [(tuple(t.shape), t.stride(), t.dtype) for t in outputs],
            isinstance(result, Tensor),
            eval(f"lambda pointers: ({' '.join(f'pointers[{i}],' for i in positions)})"),
            _launcher(variant)[0],
            grid,
            _launcher(variant)[1],
            tail,
        )
    return result


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
