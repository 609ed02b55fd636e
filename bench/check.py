"""Whether an output is right. Nothing that is wrong gets a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_INT = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Tolerance(NamedTuple):
    codes: float = 0.0  # fraction of float8 codes that may be one step off
    ulps: float = (
        0.0  # of every other float output, relative to the element or, if greater, to the output's mean magnitude
    )
    elements: float = 0.0  # fraction of these that may be further off, by up to one float8 step (a dequantized output)
    sums: bool = False  # outputs hold long sums, which cancel: relative to the mean magnitude where that is greater


EXACT = Tolerance()  # bit for bit, strides included: the contract of the plain quantizers, casts and copies
# Peers multiply by a reciprocal where the contract divides, and so does torch on CUDA with a Python divisor.
PEER = Tolerance(codes=2e-3, ulps=4)


class Truth(NamedTuple):
    """What an output is compared with where the reference rounds, too: two right results then differ by a unit in the
    last place in an element out of a million, and by more where terms cancel."""

    value: Tensor  # in float64; of float8 codes, the codes
    slack: float  # twice the largest error of the reference before it rounds to the output's type


class Verdict(NamedTuple):
    ok: bool
    different: float | None  # fraction of float8 codes that differ from the reference's, None without any
    why: str = ""


def outputs(result: Tensor | tuple | list) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def truths(wide: Callable[..., Tensor | tuple], args: tuple) -> tuple[Truth, ...]:
    """wide(dtype, *args): the outputs computed in dtype, with no rounding to another at the end."""
    single, double = (outputs(wide(dtype, *args)) for dtype in (torch.float32, torch.float64))
    found = []
    for s, d in zip(single, double, strict=True):
        if d.dtype in FP8:
            found.append(Truth(d, 0.0))
        else:
            off = (s.double() - d.double()).abs().nan_to_num(0, 0)
            found.append(Truth(d.double(), 2 * float(off.max()) if off.numel() else 0.0))
    return tuple(found)


def judge(
    got: Tensor | tuple, want: Tensor | tuple, tolerance: Tolerance = EXACT, truth: Sequence[Truth] | None = None
) -> Verdict:
    """Compare all outputs of a call with the reference's, or with the truth where there is one."""
    got, want = outputs(got), outputs(want)
    if len(got) != len(want):
        return Verdict(False, None, f"{len(got)} outputs instead of {len(want)}")
    different = None
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return Verdict(False, None, f"output {i} is {_text(g)} instead of {_text(w)}")
        if tolerance == EXACT and g.stride() != w.stride():
            return Verdict(False, None, f"output {i} has strides {g.stride()} instead of {w.stride()}")
        if g.dtype in FP8:
            different, why = _codes(g, truth[i].value if truth else w, tolerance)
        elif tolerance == EXACT or not g.is_floating_point():
            bad = int((_bits(g) != _bits(w)).sum())
            why = f"{bad} of {g.numel()} elements differ" if bad else ""
        else:
            why = _floats(g, w, tolerance, truth[i] if truth else None)
        if why:
            return Verdict(False, different, f"output {i}: {why}")
    return Verdict(True, different)


def _codes(got: Tensor, want: Tensor, tolerance: Tolerance) -> tuple[float, str]:
    where = _bits(got) != _bits(want)
    fraction = int(where.sum()) / max(got.numel(), 1)
    if fraction == 0:
        return 0.0, ""
    if not torch.equal(got.isnan(), want.isnan()):
        return fraction, "a NaN is missing or too much"
    steps = int((_ordered(got[where]) - _ordered(want[where])).abs().max())
    if fraction > tolerance.codes or steps > 1:
        return fraction, f"{fraction:.2g} of the codes differ, by up to {steps} step{'s' * (steps > 1)}"
    return fraction, ""


def _ordered(codes: Tensor) -> Tensor:
    """Float8 codes as integers in the order of their values: neighbours differ by 1, and -0 equals 0."""
    bits = codes.view(torch.uint8).int()
    magnitude = bits & 0x7F
    return torch.where(bits > 0x7F, -magnitude, magnitude)


def _floats(got: Tensor, want: Tensor, tolerance: Tolerance, truth: Truth | None) -> str:
    if not torch.equal(got.isnan(), want.isnan()):
        return "a NaN is missing or too much"
    wide = want.float() if truth is None else truth.value
    size = wide.abs()
    off = (got.to(wide.dtype) - wide).abs().masked_fill(got == want, 0)  # inf - inf
    base = torch.maximum(size, size.nan_to_num(0, 0).mean()) if tolerance.sums else size
    if truth:  # units in the last place as they are, not up to twice as large
        base = torch.where(size > 0, torch.ldexp(torch.ones_like(base), torch.frexp(base).exponent - 1), 0)
    limit = (base * torch.finfo(want.dtype).eps + (truth.slack if truth else 0.0)) * tolerance.ulps
    far = off > limit
    fraction = int(far.sum()) / max(got.numel(), 1)
    # One float8 step is at most 1/8 of a value, or 2^-9 / 448 of the greatest of its group.
    step = size / 8 + size.nan_to_num(0, 0).max() * 2**-17 if got.numel() else size
    if fraction > tolerance.elements or bool((off > torch.maximum(step, limit))[far].any()):
        return f"{fraction:.2g} of the elements are off, the worst by {float(off.nan_to_num(0).max()):.3g}"
    return ""


def _bits(t: Tensor) -> Tensor:
    return t.view(_INT[t.dtype.itemsize]) if t.is_floating_point() else t


def _text(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
