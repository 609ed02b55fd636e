"""Gradients of the gated activations y = act(gate) * up.

The backward ops differentiate too: with the first two derivatives of act their own gradient is plain PyTorch, which can
be differentiated as often as wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tle_ops._meta import compute_dtype
from tle_ops._normal import cdf, density
from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import leading


# --- the activations: value, first and second derivative --------------------------------------------------------------
def _silu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = torch.sigmoid(x)
    slope = s * (1 - s)
    return x * s, s + x * slope, slope * (2 + x * (1 - 2 * s))


def _gelu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    below, slope = cdf(x), density(x)
    return x * below, below + x * slope, slope * (2 - x * x)


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k, c = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(k * (x + c * x * x * x))
    inner = k * (1 + 3 * c * x * x)
    slope = 0.5 * (1 - t * t)  # of (1 + t) / 2, by the argument of tanh
    first = 0.5 * (1 + t) + x * slope * inner
    second = slope * (2 * inner + x * (6 * k * c * x - 2 * t * inner * inner))
    return 0.5 * x * (1 + t), first, second


def _activate(gate: Tensor, up: Tensor, option: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """act, act', act'' at the clamped gate; the clamped up; as gradients see them: zero where a clamp cuts."""
    if option in ("none", "tanh"):
        return *(_gelu if option == "none" else _gelu_tanh)(gate), up, torch.ones_like(up)
    if option is None:
        return *_silu(gate), up, torch.ones_like(up)
    value, first, second = _silu(gate.clamp(max=option))
    passes = (gate <= option).to(gate.dtype)
    return value, first * passes, second * passes, up.clamp(-option, option), (up.abs() <= option).to(up.dtype)


def _tangent(tgate: Tensor | None, tup: Tensor | None, gate: Tensor, up: Tensor, option: Any) -> Tensor:
    value, first, _, clamped, passes = _activate(gate, up, option)
    tangent = torch.zeros_like(value)
    if tgate is not None:
        tangent = tangent + tgate * first * clamped
    if tup is not None:
        tangent = tangent + tup * passes * value
    return tangent


def _double(
    ddgate: Tensor | None, ddup: Tensor | None, dy: Tensor, gate: Tensor, up: Tensor, option: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of <ddgate, dgate> + <ddup, dup> by dy, gate and up, where

    dgate = dy * act'(gate) * up   and   dup = dy * act(gate)
    """
    # Zeros are not made by autograd, which knows plain ones alone, no DTensors.
    ddgate = torch.zeros_like(gate) if ddgate is None else ddgate
    ddup = torch.zeros_like(up) if ddup is None else ddup
    value, first, second, clamped, passes = _activate(gate, up, option)
    ddup = ddup * passes
    return (
        ddgate * first * clamped + ddup * value,
        dy * (ddgate * second * clamped + ddup * first),
        dy * ddgate * first * passes,
    )


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    dtype = compute_dtype(*tensors)
    return [None if t is None else t.to(dtype) for t in tensors]


# --- gate and up apart ------------------------------------------------------------------------------------------------
def _apart_setup(ctx, inputs, output):
    gate, up, ctx.option = inputs
    ctx.dtype = output.dtype
    ctx.save_for_backward(gate, up)
    ctx.save_for_forward(gate, up)
    ctx.set_materialize_grads(False)


def _apart(op: str) -> Formula:
    def backward(ctx, dy):
        if dy is None:
            return None, None, None
        return *getattr(torch.ops.tle, f"{op}_bwd")(dy, *ctx.saved_tensors, ctx.option), None

    def jvp(ctx, tgate, tup, _):
        return _tangent(*_wide(tgate, tup, *ctx.saved_tensors), ctx.option).to(ctx.dtype)

    return Formula(backward, _apart_setup, jvp)


def _apart_bwd_setup(ctx, inputs, output):
    *tensors, ctx.option = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _apart_bwd_backward(ctx, ddgate, ddup):
    saved = ctx.saved_tensors
    grads = _double(*_wide(ddgate, ddup, *saved), ctx.option)
    return *(g.to(t.dtype) for g, t in zip(grads, saved, strict=True)), None


# --- gate and up side by side in one tensor ---------------------------------------------------------------------------
def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    H = x.shape[-1] // 2
    return x[..., :H], x[..., H:]


def _packed_setup(ctx, inputs, output):
    x, ctx.option = inputs
    ctx.save_for_backward(x)
    ctx.save_for_forward(x)
    ctx.set_materialize_grads(False)


def _packed(op: str) -> Formula:
    def backward(ctx, dy):
        return None if dy is None else getattr(torch.ops.tle, f"{op}_bwd")(dy, *ctx.saved_tensors, ctx.option), None

    def jvp(ctx, tx, _):
        (x,) = ctx.saved_tensors
        tx, wide = _wide(tx, x)
        return _tangent(*_halves(tx), *_halves(wide), ctx.option).to(x.dtype)

    return Formula(backward, _packed_setup, jvp)


def _packed_bwd_setup(ctx, inputs, output):
    dy, x, ctx.option = inputs
    ctx.save_for_backward(dy, x)


def _packed_bwd_backward(ctx, ddx):
    dy, x = ctx.saved_tensors
    ddx, wide_dy, wide_x = _wide(ddx, dy, x)
    ddy, dgate, dup = _double(*_halves(ddx), wide_dy, *_halves(wide_x), ctx.option)
    return ddy.to(dy.dtype), torch.cat((dgate, dup), -1).to(x.dtype), None


FORMULAS: dict[str, Formula] = {
    "swiglu": _apart("swiglu"),
    "swiglu_bwd": Formula(_apart_bwd_backward, _apart_bwd_setup),
    "swiglu_packed": _packed("swiglu_packed"),
    "swiglu_packed_bwd": Formula(_packed_bwd_backward, _packed_bwd_setup),
    "geglu": _apart("geglu"),
    "geglu_bwd": Formula(_apart_bwd_backward, _apart_bwd_setup),
    "geglu_packed": _packed("geglu_packed"),
    "geglu_packed_bwd": Formula(_packed_bwd_backward, _packed_bwd_setup),
}
VMAP: dict[str, Callable] = {op: leading(op, 2 if op in ("swiglu_bwd", "geglu_bwd") else 1) for op in FORMULAS}
