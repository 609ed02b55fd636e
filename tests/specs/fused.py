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


def quantized(y: Tensor, group_size: int, dtype: torch.dtype, ue8m0: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, of y in float64: codes, scales and y / scales, all [.., G, group] but the scales [.., G, 1]."""
    y = y.double()
    N = y.shape[-1]
    size = max(1, N if group_size == -1 else min(group_size, N))
    y = torch.nn.functional.pad(y, (0, -N % size)).unflatten(-1, (-(-N // size) if N else int(group_size == -1), size))
    top = torch.finfo(dtype).max
    scales = (y.abs().amax(-1, keepdim=True).clamp_min(1e-4) / top).float()
    if ue8m0:
        scales = torch.exp2(torch.ceil(torch.log2(scales.double()))).float()
    ratio = y / scales
    return ratio.clamp(-top, top).to(dtype), scales, ratio


def steps(codes: Tensor) -> Tensor:
    """Codes numbered in the order of their values, so that neighbours differ by 1."""
    bits = codes.view(torch.uint8).int()
    return torch.where(bits < 128, bits, 128 - bits)


def assert_close_codes(q: Tensor, scales: Tensor, y: Tensor, group_size=128, dtype=E4M3, ue8m0=False, *_) -> float:
    """The contract of the fused ops, against the float64 definition: scales within 2 ulp, codes at most one step off,
    and that only at ties. Returns the share of codes that are off."""
    q, scales = q.cpu(), scales.cpu()
    want_q, want_scales, ratio = quantized(y, group_size, dtype, ue8m0)
    assert q.dtype == dtype
    assert q.shape == y.shape
    assert scales.shape == want_scales.shape[:-1]
    ulps = [t.contiguous().view(torch.int32) for t in (scales, want_scales.squeeze(-1))]
    assert int((ulps[0] - ulps[1]).abs().max() if scales.numel() else 0) <= 2, "scales"
    got_q = torch.nn.functional.pad(q.view(torch.uint8), (0, ratio.shape[-2:].numel() - y.shape[-1])).view(dtype)
    got_q = got_q.view(want_q.shape)
    off = (steps(got_q) - steps(want_q)).abs()
    assert int(off.max() if off.numel() else 0) <= 1, "a code is more than a step off"
    middle = (got_q.double() + want_q.double()) / 2
    assert ((ratio - middle).abs() <= 1e-6 * middle.abs())[off > 0].all(), "a code is off that is not at a tie"
    return float((off > 0).double().mean()) if off.numel() else 0.0


def swiglu_true(x: Tensor, limit: float | None = None) -> Tensor:
    gate, up = x.double().tensor_split(2, -1)
    if limit is not None:
        limit = torch.tensor(limit, dtype=torch.promote_types(x.dtype, F32)).item()
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def rms_true(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> Tensor:
    x = x.double()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight.double() + offset)


def _compare_swiglu(got, want, args):
    x, *how = args
    assert_close_codes(*got, swiglu_true(x, *how[4:]), *how[:3])


def _compare_rms(got, want, args):
    x, weight, eps, *how = args
    assert_close_codes(*got, rms_true(x, weight, eps, *how[4:]), *how[:3])


def _compare_add_rms(got, want, args):
    x, residual, weight, eps, *how = args
    assert_same_bits(got[2], x + residual, "new_residual")
    assert_close_codes(*got[:2], rms_true(x + residual, weight, eps, *how[4:]), *how[:3])


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
            ("eps-negative", (_X, _W, -1.0)),
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
            ("eps-negative", (_X, _X, _W, -1.0)),
            ("group", (_X, _X, _W, 1e-6, 0)),
        ),
    ),
]
