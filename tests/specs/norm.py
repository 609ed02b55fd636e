"""Specs of rms_norm, add_rms_norm, layer_norm and their backwards."""

import torch
from torch import Tensor

from tests.specs.derivative import gradient_of
from tests.table import BF16, E4M3, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def _inputs(dtype):
    """(id, x) over memory layouts, ranks and widths"""
    for layout, x in layouts(randn(4, 96, dtype=dtype)):
        yield f"4x96-{layout}", x
    yield "odd-width", randn(5, 33, dtype=dtype)
    yield "heads-of-qkv", randn(3, 3 * 4 * 16, dtype=dtype)[:, 64:128].unflatten(-1, (4, 16))
    yield "4d-permuted", randn(2, 3, 2, 8, dtype=dtype).permute(0, 2, 1, 3)
    yield "1d", randn(40, dtype=dtype)
    yield "one-column", randn(3, 1, dtype=dtype)
    yield "expanded", randn(1, 24, dtype=dtype).expand(3, 24)
    yield "no-rows", randn(0, 16, dtype=dtype)
    yield "no-columns", randn(3, 0, dtype=dtype)
    yield "wide", randn(2, 5000, dtype=dtype)


FEW = ("contiguous", "transposed", "qkv", "no-rows", "wide")  # for the backwards, whose inputs the forwards' cover too


def _weight(x: Tensor, dtype: torch.dtype, seed: int = 7) -> Tensor:
    return randn(x.shape[-1], seed=seed, dtype=dtype)


def _rms(dtype):
    for name, x in _inputs(dtype):
        yield Sample(name, (x, _weight(x, dtype), 1e-5))
    x = randn(4, 64, dtype=dtype)
    yield Sample("no-weight", (x, None, 1e-5))
    yield Sample("offset", (x, _weight(x, dtype), 1e-6, 1.0))
    yield Sample("eps-0", (x, _weight(x, dtype), 0.0))
    yield Sample("weight-float32", (x, _weight(x, F32), 1e-6))
    yield Sample("weight-bf16-strided", (x, randn(128, seed=7, dtype=BF16)[::2], 1e-6))
    yield Sample("zero-row", (torch.cat([x[:1] * 0, x[1:]]), _weight(x, dtype), 1e-2))
    yield Sample("large", (x * 1e4, _weight(x, dtype), 1e-6))  # squares beyond float16


def _on_grid(x: Tensor) -> Tensor:
    """Multiples of 1/8 of a few bits: sums of two are exact in 16 bits, so that x + residual has one truth."""
    return (x * 8).round() / 8


def _add_rms(dtype):
    for name, x in _inputs(dtype):
        yield Sample(name, (_on_grid(x), _on_grid(x.flip(0) + 0.25), _weight(x, dtype), 1e-5))
    x = _on_grid(randn(4, 64, dtype=dtype))
    yield Sample("residual-transposed", (x, _on_grid(randn(64, 4, dtype=dtype)).t(), _weight(x, dtype), 1e-5))
    yield Sample("no-weight", (x, x.flip(0), None, 1e-5))
    yield Sample("offset-float32", (x, x.flip(0), _weight(x, F32), 1e-6, 1.0))
    yield Sample("same-tensor", (x, x, _weight(x, dtype), 1e-6))


def _layer(dtype):
    for name, x in _inputs(dtype):
        yield Sample(name, (x, _weight(x, dtype), _weight(x, dtype, 8), 1e-5))
    x = randn(4, 64, dtype=dtype)
    yield Sample("no-weight", (x, None, _weight(x, dtype), 1e-5))
    yield Sample("no-bias", (x, _weight(x, dtype), None, 1e-5))
    yield Sample("neither", (x, None, None, 1e-5))
    yield Sample("float32-parameters", (x, _weight(x, F32), _weight(x, F32, 8), 1e-5))
    yield Sample("large-mean", (x + 64, _weight(x, dtype), _weight(x, dtype, 8), 1e-5))


def _cotangent(x: Tensor, name: str) -> Tensor:
    dy = randn(*x.shape, seed=2, dtype=x.dtype)
    return dy[..., :1].expand(x.shape) if name.endswith("transposed") else dy


def _rms_bwd(dtype):
    for name, x in _inputs(dtype):
        if name.endswith(FEW):
            yield Sample(name, (_cotangent(x, name), x, _weight(x, dtype), 1e-5, 0.0, dtype))
    x = randn(4, 64, dtype=dtype)
    dy = _cotangent(x, "")
    yield Sample("no-weight", (dy, x, None, 1e-5))
    yield Sample("frozen-weight", (dy, x, _weight(x, F32), 1e-5, 1.0))
    yield Sample("offset-float32", (dy, x, _weight(x, F32), 1e-5, 1.0, F32))
    yield Sample("many-rows", (randn(300, 8, dtype=dtype), randn(300, 8, seed=1, dtype=dtype), None, 1e-5, 0.0, F32))


def _add_rms_bwd(dtype):
    for name, x in _inputs(dtype):
        if name.endswith(FEW):
            r = randn(*x.shape, seed=3, dtype=dtype)
            yield Sample(name, (_cotangent(x, name), r, x, _weight(x, dtype), 1e-5, 0.0, dtype))
    x = randn(4, 64, dtype=dtype)
    dy = _cotangent(x, "")
    yield Sample("residual-transposed", (dy, randn(64, 4, dtype=dtype).t(), x, _weight(x, F32), 1e-5, 1.0, F32))
    yield Sample("no-residual", (dy, None, x, _weight(x, dtype), 1e-5, 0.0, dtype))
    yield Sample("no-weight", (dy, dy.flip(0), x, None, 1e-5))


def _layer_bwd(dtype):
    for name, x in _inputs(dtype):
        if name.endswith(FEW):
            yield Sample(name, (_cotangent(x, name), x, _weight(x, dtype), 1e-5, dtype, dtype))
    x = randn(4, 64, dtype=dtype)
    dy = _cotangent(x, "")
    yield Sample("no-weight", (dy, x, None, 1e-5, None, F32))
    yield Sample("frozen", (dy, x, _weight(x, F32), 1e-5))
    yield Sample("frozen-bias", (dy, x, _weight(x, F32), 1e-5, F32))
    yield Sample("large-mean", (dy, x + 64, _weight(x, dtype), 1e-5, dtype, dtype))


def _rms_plain(x, weight, eps, offset=0.0, *_):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight + offset)


def _layer_plain(x, weight, bias, eps, *_):
    y = _rms_plain(x - x.mean(-1, keepdim=True), weight, eps)
    return y if bias is None else y + bias


def _add_rms_bwd_plain(dy, dr, new_residual, weight, eps, offset=0.0, *_):
    dx = gradient_of(_rms_plain, 0)(dy, new_residual, weight, eps, offset)
    return dx if dr is None else dx + dr


def _layer_bwd_plain(dy, x, weight, eps, *_):
    return gradient_of(_layer_plain, 0)(dy, x, weight, None, eps)


def _top(*tensors) -> float:
    return max([1.0, *(float(t.detach().double().abs().max()) for t in tensors if t is not None and t.numel())])


def _spread(x: Tensor, eps: float, centered: bool) -> float:
    """The largest rstd of a row."""
    x = x.detach().double()
    if not x.numel():
        return 1.0
    mean_square = (x - x.mean(-1, keepdim=True) if centered else x).square().mean(-1)
    return max(1.0, float((mean_square + eps).rsqrt().max()))


def _forward_scale(x_of, weight_at: int, eps_at: int, centered: bool):
    def scale(args, cotangent):
        weight, x = args[weight_at], x_of(args)
        return 2 * _top(cotangent) * (_top(weight) + 1) * _spread(x, args[eps_at], centered) * _top(x) ** centered

    return scale


def _backward_scale(x_at: int, eps_at: int, centered: bool):
    def scale(args, cotangent):
        x = args[x_at]
        rstd = _spread(x, args[eps_at], centered)
        weight = args[eps_at - 1]
        return 8 * _top(cotangent) * _top(args[0]) * (_top(weight) + 1) * rstd**2 * _top(x) ** (1 + centered)

    return scale


def _value_scale(x_at: int, eps_at: int, centered: bool):
    """Of dx, by the terms of its formula."""

    def scale(args):
        x = args[x_at]
        size = _spread(x, args[eps_at], centered) * _top(x)
        return _top(args[0]) * (_top(args[eps_at - 1]) + 1) * _spread(x, args[eps_at], centered) * size**centered

    return scale


_X = randn(4, 6)
_W = randn(6)


def _errors(*before, after=(1e-6,)):
    """Bad weights and bad x; `before` stands between x and the weight."""
    return (
        ("weight-long", (_X, *before, randn(7), *after)),
        ("weight-rank", (_X, *before, randn(1, 6), *after)),
        ("weight-int", (_X, *before, torch.ones(6, dtype=torch.int64), *after)),
        ("x-float8", (_X.to(E4M3), *before, _W, *after)),
        ("x-0-d", (randn(), *before, _W, *after)),
        ("eps-negative", (_X, *before, _W, *after[:-1], -1e-6)),
        ("eps-nan", (_X, *before, _W, *after[:-1], float("nan"))),
    )


SPECS = [
    OpSpec(
        "rms_norm",
        _rms,
        FLOATS,
        _rms_plain,
        (0, 1),
        rows={0: 0},
        vmap=((0, None), (1, None), (0, 0), (None, 1)),
        jvp=True,
        double_backward=True,
        errors=_errors(),
        scale=_forward_scale(lambda args: args[0], 1, 2, False),
    ),
    OpSpec(
        "rms_norm_bwd",
        _rms_bwd,
        FLOATS,
        gradient_of(_rms_plain, 0),
        (0, 1, 2),
        rows={0: 0, 1: 0},
        vmap=((0, 0, None), (1, 1, None), (0, 0, 0), (None, 0)),
        double_backward=True,
        errors=(
            ("dy-shape", (randn(4, 5), _X, _W, 1e-6)),
            ("weight", (_X, _X, randn(5), 1e-6)),
            ("dweight-dtype", (_X, _X, _W, 1e-6, 0.0, torch.int32)),
            ("eps-negative", (_X, _X, _W, -1.0)),
        ),
        scale=_backward_scale(1, 3, False),
        value_scale=_value_scale(1, 3, False),
    ),
    OpSpec(
        "add_rms_norm",
        _add_rms,
        FLOATS,
        lambda x, residual, *rest: _rms_plain(x + residual, *rest),
        (0, 1, 2),
        rows={0: 0, 1: 0},
        vmap=((0, 0, None), (1, 1, None), (0, None, None), (0, 0, 0), (None, 1)),
        jvp=True,
        double_backward=True,
        errors=(
            *_errors(_X)[:3],
            ("eps-negative", (_X, _X, _W, -1.0)),
            ("residual-shape", (_X, randn(3, 6), _W, 1e-6)),
            ("residual-rank", (_X, _W, _W, 1e-6)),
            ("residual-dtype", (_X.bfloat16(), _X, _W, 1e-6)),
        ),
        scale=_forward_scale(lambda args: args[0] + args[1], 2, 3, False),
    ),
    OpSpec(
        "add_rms_norm",
        _add_rms,
        FLOATS,
        lambda x, residual, *_: x + residual,
        (0, 1),
        output=1,
        jvp=True,
        double_backward=True,
    ),
    OpSpec(
        "add_rms_norm_bwd",
        _add_rms_bwd,
        FLOATS,
        _add_rms_bwd_plain,
        (0, 1, 2, 3),
        rows={0: 0, 1: 0, 2: 0},
        vmap=((0, 0, 0, None), (1, 1, 1, None), (0, 0, 0, 0)),
        double_backward=True,
        errors=(
            ("dy-shape", (randn(4, 5), None, _X, _W, 1e-6)),
            ("dnew-residual-shape", (_X, randn(4, 5), _X, _W, 1e-6)),
            ("weight", (_X, _X, _X, randn(5), 1e-6)),
            ("eps-negative", (_X, _X, _X, _W, -1.0)),
        ),
        scale=_backward_scale(2, 4, False),
        value_scale=_value_scale(2, 4, False),
    ),
    OpSpec(
        "layer_norm",
        _layer,
        FLOATS,
        _layer_plain,
        (0, 1, 2),
        rows={0: 0},
        vmap=((0, None, None), (1, None, None), (0, 0, 0), (0,), (1, None)),
        jvp=True,
        double_backward=True,
        errors=(*_errors(after=(_W, 1e-6)), ("bias", (_X, _W, randn(5), 1e-6))),
        scale=_forward_scale(lambda args: args[0], 1, 3, True),
        value_scale=lambda args: _top(args[0]) * _spread(args[0], args[3], True) * _top(args[1]) + _top(args[2]),
    ),
    OpSpec(
        "layer_norm_bwd",
        _layer_bwd,
        FLOATS,
        _layer_bwd_plain,
        (0, 1, 2),
        rows={0: 0, 1: 0},
        vmap=((0, 0, None), (1, 1, None), (0, 0, 0), (None, 0)),
        double_backward=True,
        errors=(
            ("dy-shape", (randn(4, 5), _X, _W, 1e-6)),
            ("dbias-dtype", (_X, _X, _W, 1e-6, None, torch.int32)),
            ("eps-negative", (_X, _X, _W, -1.0)),
        ),
        scale=_backward_scale(1, 3, True),
        value_scale=_value_scale(1, 3, True),
    ),
]
