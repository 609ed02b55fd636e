"""Specs of the ops fused with per_token_cast_fp8. test_fused.py holds codes and scales to their definition."""

import torch
from torch import Tensor

from tests.table import BF16, E4M3, E5M2, F16, F32, F64, OpSpec, Sample, assert_same_bits, layouts, randn

FLOATS = (F32, BF16, F16, F64)
COLUMN_MAJOR = (64, E5M2, True, True)  # group size, codes, power-of-two scales, column-major


def _swiglu(dtype):
    for layout, x in layouts(randn(5, 512, dtype=dtype)):
        yield Sample(f"5x512-{layout}", (x,))
    yield Sample("limit", (randn(4, 256, dtype=dtype), 64, E4M3, False, False, 0.75))
    yield Sample("short-last-group", (randn(3, 202, dtype=dtype), 48))
    yield Sample("whole-row", (randn(3, 320, dtype=dtype), -1))
    yield Sample("column-major-3d", (randn(2, 3, 400, dtype=dtype), *COLUMN_MAJOR))
    yield Sample("1d", (randn(300, dtype=dtype),))
    yield Sample("no-rows", (randn(0, 256, dtype=dtype),))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype),))


def _rms(dtype):
    for layout, x in layouts(randn(5, 256, dtype=dtype)):
        yield Sample(f"5x256-{layout}", (x, randn(256, seed=7, dtype=dtype), 1e-6))
    yield Sample("offset-float32", (randn(4, 128, dtype=dtype), randn(128, seed=7), 1e-6, 32, E4M3, False, False, 1.0))
    yield Sample("no-weight", (randn(4, 128, dtype=dtype), None, 1e-6))
    yield Sample("short-last-group", (randn(3, 101, dtype=dtype), randn(101, seed=7, dtype=dtype), 1e-6, 48))
    yield Sample("whole-row", (randn(3, 320, dtype=dtype), randn(320, seed=7, dtype=dtype), 1e-6, -1))
    x = randn(2, 3, 200, dtype=dtype)
    yield Sample("column-major-3d", (x, randn(200, seed=7, dtype=dtype), 1e-6, *COLUMN_MAJOR))
    yield Sample("no-rows", (randn(0, 256, dtype=dtype), None, 1e-6))
    yield Sample("wide", (randn(2, 5000, dtype=dtype), randn(5000, seed=7, dtype=dtype), 1e-6))


def _add_rms(dtype):
    for sample in _rms(dtype):
        x, *rest = sample.args
        yield Sample(sample.id, (x, randn(*x.shape, seed=4, dtype=dtype), *rest))
    x = randn(4, 64, dtype=dtype)
    yield Sample("residual-transposed", (x, randn(64, 4, dtype=dtype).t(), None, 1e-6))


def steps(codes: Tensor) -> Tensor:
    """Codes numbered in the order of their values, so that neighbours differ by 1."""
    bits = codes.cpu().view(torch.uint8).int()
    return torch.where(bits < 128, bits, 128 - bits)


def assert_close_codes(q: Tensor, scales: Tensor, q_true: Tensor, scales_true: Tensor) -> None:
    """The contract of the fused ops: scales within 2 ulp of the float64 definition, codes at most one step off and few."""
    for got, true in ((q, q_true), (scales, scales_true)):
        assert (got.dtype, got.shape, got.stride()) == (true.dtype, true.shape, true.stride())
    assert torch.equal(scales.cpu().isnan(), scales_true.isnan())
    ulps = [t.cpu().contiguous().view(torch.int32) for t in (scales, scales_true)]
    assert int((ulps[0] - ulps[1]).abs().max() if scales.numel() else 0) <= 2, "scales"
    off = (steps(q) - steps(q_true)).abs()
    assert int(off.max() if off.numel() else 0) <= 1, "codes more than a step off"
    assert int((off > 0).sum()) <= 1 + off.numel() / 10_000, f"{int((off > 0).sum())} of {off.numel()} codes off"


def _wide(args) -> list:
    return [a.double() if isinstance(a, Tensor) else a for a in args]


def _compare_swiglu(got, want, args):
    assert_close_codes(*got, *torch.ops.tle.swiglu_per_token_cast_fp8(*_wide(args)))


def _compare_rms(got, want, args):
    assert_close_codes(*got, *torch.ops.tle.rms_norm_per_token_cast_fp8(*_wide(args)))


def _compare_add_rms(got, want, args):
    q, scales, new_residual = got
    assert_same_bits(new_residual, args[0] + args[1], "new_residual")
    _compare_rms((q, scales), None, (new_residual.cpu(), *args[2:]))


_X = randn(4, 128)
_W = randn(128)
SPECS = [
    OpSpec(
        "swiglu_per_token_cast_fp8",
        _swiglu,
        FLOATS,
        compare=_compare_swiglu,
        rows={0: 0},
        vmap=((0,), (1,)),
        errors=(
            ("odd", (randn(4, 7),)),
            ("int", (torch.ones(4, 6, dtype=torch.int32),)),
            ("group", (_X, 0)),
            ("dtype", (_X, 128, torch.int8)),
            ("limit", (_X, 128, E4M3, False, False, -2.0)),
        ),
    ),
    OpSpec(
        "rms_norm_per_token_cast_fp8",
        _rms,
        FLOATS,
        compare=_compare_rms,
        rows={0: 0},
        vmap=((0, None), (1, None), (0, 0), (0,)),
        errors=(
            ("weight", (_X, randn(127), 1e-6)),
            ("0-d", (randn(), None, 1e-6)),
            ("group", (_X, _W, 1e-6, -2)),
            ("dtype", (_X, _W, 1e-6, 128, torch.int8)),
        ),
    ),
    OpSpec(
        "add_rms_norm_per_token_cast_fp8",
        _add_rms,
        FLOATS,
        lambda x, residual, *_: x + residual,
        (0, 1),
        compare=_compare_add_rms,
        output=2,
        rows={0: 0, 1: 0},
        vmap=((0, 0, None), (1, 1, None), (0, None, None), (0, 0, 0), (0, 1)),
        jvp=True,
        double_backward=True,
        errors=(
            ("residual-shape", (_X, randn(3, 128), _W, 1e-6)),
            ("residual-dtype", (_X, _X.half(), _W, 1e-6)),
            ("weight", (_X, _X, randn(127), 1e-6)),
            ("group", (_X, _X, _W, 1e-6, 0)),
        ),
    ),
]
