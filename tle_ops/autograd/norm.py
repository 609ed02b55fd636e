"""Gradients of the norms.

A forward saves its input and recomputes the statistics in the backward, which has the row on chip anyhow. The backward
ops differentiate too: their own gradient (`_double`) is plain PyTorch, which can be differentiated as often as wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tle_ops._meta import compute_dtype
from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import leading, loop


# --- plain PyTorch of the derivatives, in float32 or float64 ----------------------------------------------------------
def _mean(t: Tensor) -> Tensor:
    return t.mean(-1, keepdim=True)


def _normed(x: Tensor, eps: float, centered: bool) -> tuple[Tensor, Tensor]:
    if centered:
        x = x - _mean(x)
    rstd = torch.rsqrt(_mean(x * x) + eps)
    return x * rstd, rstd


def _tangent(tx: Tensor, x: Tensor, eps: float, centered: bool) -> Tensor:
    """Of normed, along tx."""
    normed, rstd = _normed(x, eps, centered)
    if centered:
        tx = tx - _mean(tx)
    return rstd * (tx - normed * _mean(normed * tx))


def _double(
    ddx: Tensor | None,
    ddweight: Tensor | None,
    ddbias: Tensor | None,
    dy: Tensor,
    x: Tensor,
    scale: Tensor | None,
    ctx: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of <ddx, dx> + <ddweight, dweight> + <ddbias, dbias> by dy, x and the weight, where

        dx = rstd * (p - normed * mean(p * normed))  [- rstd * mean(p) if centered],  p = dy * scale
        dweight = sum(dy * normed),  dbias = sum(dy)

    First by p and by the two parts of x's statistics, normed and rstd; then from these to x.
    """
    if ddx is None:  # not made by autograd, which knows plain zeros alone, no DTensor of them
        ddx = torch.zeros_like(x)
    normed, rstd = _normed(x, ctx.eps, ctx.centered)
    p = dy if scale is None else dy * scale
    a, b = _mean(ddx * normed), _mean(p * normed)
    by_p = ddx - normed * a
    by_rstd = _mean(ddx * p) - a * b  # of a row, divided by N
    if ctx.centered:
        by_p = by_p - _mean(ddx)
        by_rstd = by_rstd - _mean(ddx) * _mean(p)
    by_p = rstd * by_p
    by_normed = -rstd * (ddx * b + p * a)
    by_dy = by_p if scale is None else by_p * scale
    if ddweight is not None:
        by_normed = by_normed + dy * ddweight
        by_dy = by_dy + normed * ddweight
    if ddbias is not None:
        by_dy = by_dy + ddbias
    by_x = rstd * (by_normed - normed * (_mean(by_normed * normed) + rstd * by_rstd))
    if ctx.centered:
        by_x = by_x - _mean(by_x)
    by_weight = None if scale is None else (dy * by_p).sum(tuple(range(dy.dim() - 1))) if dy.dim() > 1 else dy * by_p
    return by_dy, by_x, by_weight


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    dtype = compute_dtype(*tensors)
    return [None if t is None else t.to(dtype) for t in tensors]


def _like(t: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if t is None or like is None else t.to(like.dtype)


def _wanted(ctx, position: int, t: Tensor | None) -> torch.dtype | None:
    """The dtype in which the backward op should give t's gradient; None if nobody asks for it."""
    return t.dtype if t is not None and ctx.needs_input_grad[position] else None


def _asked(dtype: torch.dtype | None, gradient: Tensor) -> Tensor | None:
    return None if dtype is None else gradient


# --- rms_norm ---------------------------------------------------------------------------------------------------------
def _rms_norm_setup(ctx, inputs, output):
    x, weight, ctx.eps, ctx.offset = inputs
    ctx.save_for_backward(x, weight)
    ctx.save_for_forward(x, weight)
    ctx.set_materialize_grads(False)


def _rms_norm_backward(ctx, dy):
    if dy is None:
        return None, None, None, None
    x, weight = ctx.saved_tensors
    wanted = _wanted(ctx, 1, weight)
    dx, dweight = torch.ops.tle.rms_norm_bwd(dy, x, weight, ctx.eps, ctx.offset, wanted)
    return dx, _asked(wanted, dweight), None, None


def _rms_norm_tangent(tx: Tensor | None, tweight: Tensor | None, x: Tensor, weight: Tensor | None, ctx) -> Tensor:
    """Of y. x: what is normalized, which for add_rms_norm is the new residual."""
    dtype = x.dtype
    tx, tweight, x, weight = _wide(tx, tweight, x, weight)
    tangent = torch.zeros_like(x)
    if tx is not None:
        tangent = _tangent(tx, x, ctx.eps, False)
        if weight is not None:
            tangent = tangent * (weight + ctx.offset)
    if tweight is not None:
        tangent = tangent + _normed(x, ctx.eps, False)[0] * tweight
    return tangent.to(dtype)


def _rms_norm_jvp(ctx, tx, tweight, *_):
    return _rms_norm_tangent(tx, tweight, *ctx.saved_tensors, ctx)


def _rms_norm_bwd_setup(ctx, inputs, output):
    dy, x, weight, ctx.eps, ctx.offset, ctx.dweight_dtype = inputs
    ctx.centered = False
    ctx.save_for_backward(dy, x, weight)
    ctx.set_materialize_grads(False)


def _rms_norm_bwd_backward(ctx, ddx, ddweight):
    saved = ctx.saved_tensors
    ddx, ddweight, dy, x, weight = _wide(ddx, _asked(ctx.dweight_dtype, ddweight), *saved)
    scale = None if weight is None else weight + ctx.offset
    grads = _double(ddx, ddweight, None, dy, x, scale, ctx)
    return *map(_like, grads, saved), None, None, None


# --- add_rms_norm -----------------------------------------------------------------------------------------------------
def _add_rms_norm_setup(ctx, inputs, output):
    *_, weight, ctx.eps, ctx.offset = inputs
    new_residual = output[1]
    ctx.save_for_backward(new_residual, weight)
    ctx.save_for_forward(new_residual, weight)
    ctx.set_materialize_grads(False)


def _add_rms_norm_backward(ctx, dy, dnew_residual):
    if dy is None:
        return dnew_residual, dnew_residual, None, None, None
    new_residual, weight = ctx.saved_tensors
    wanted = _wanted(ctx, 2, weight)
    dx, dweight = torch.ops.tle.add_rms_norm_bwd(dy, dnew_residual, new_residual, weight, ctx.eps, ctx.offset, wanted)
    return dx, dx, _asked(wanted, dweight), None, None


def _add_rms_norm_jvp(ctx, tx, tresidual, tweight, *_):
    new_residual, weight = ctx.saved_tensors
    tangents = [t for t in (tx, tresidual) if t is not None]
    tsum = sum(tangents) if tangents else torch.zeros_like(new_residual)
    return _rms_norm_tangent(tsum, tweight, new_residual, weight, ctx), tsum.clone()


def _add_rms_norm_bwd_setup(ctx, inputs, output):
    dy, dnew_residual, new_residual, weight, ctx.eps, ctx.offset, ctx.dweight_dtype = inputs
    ctx.centered = False
    ctx.dnew_residual_dtype = None if dnew_residual is None else dnew_residual.dtype
    ctx.save_for_backward(dy, new_residual, weight)
    ctx.set_materialize_grads(False)


def _add_rms_norm_bwd_backward(ctx, ddx, ddweight):
    by_dy, by_x, by_weight, *_ = _rms_norm_bwd_backward(ctx, ddx, ddweight)
    by_dnew_residual = None if ctx.dnew_residual_dtype is None or ddx is None else ddx.to(ctx.dnew_residual_dtype)
    return by_dy, by_dnew_residual, by_x, by_weight, None, None, None


# --- layer_norm -------------------------------------------------------------------------------------------------------
def _layer_norm_setup(ctx, inputs, output):
    x, weight, bias, ctx.eps = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)
    ctx.save_for_forward(x, weight)
    ctx.set_materialize_grads(False)


def _layer_norm_backward(ctx, dy):
    if dy is None:
        return None, None, None, None
    x, weight = ctx.saved_tensors
    wanted = _wanted(ctx, 1, weight)
    wanted_bias = ctx.bias_dtype if ctx.needs_input_grad[2] else None
    dx, dweight, dbias = torch.ops.tle.layer_norm_bwd(dy, x, weight, ctx.eps, wanted, wanted_bias)
    return dx, _asked(wanted, dweight), _asked(wanted_bias, dbias), None


def _layer_norm_jvp(ctx, tx, tweight, tbias, _):
    x, weight = ctx.saved_tensors
    dtype = x.dtype
    tx, tweight, tbias, x, weight = _wide(tx, tweight, tbias, x, weight)
    tangent = torch.zeros_like(x)
    if tx is not None:
        tangent = _tangent(tx, x, ctx.eps, True)
        if weight is not None:
            tangent = tangent * weight
    if tweight is not None:
        tangent = tangent + _normed(x, ctx.eps, True)[0] * tweight
    if tbias is not None:
        tangent = tangent + tbias
    return tangent.to(dtype)


def _layer_norm_bwd_setup(ctx, inputs, output):
    dy, x, weight, ctx.eps, ctx.dweight_dtype, ctx.dbias_dtype = inputs
    ctx.centered = True
    ctx.save_for_backward(dy, x, weight)
    ctx.set_materialize_grads(False)


def _layer_norm_bwd_backward(ctx, ddx, ddweight, ddbias):
    saved = ctx.saved_tensors
    ddweight, ddbias = _asked(ctx.dweight_dtype, ddweight), _asked(ctx.dbias_dtype, ddbias)
    grads = _double(*_wide(ddx, ddweight, ddbias, *saved), ctx)
    return *map(_like, grads, saved), None, None, None


FORMULAS: dict[str, Formula] = {
    "rms_norm": Formula(_rms_norm_backward, _rms_norm_setup, _rms_norm_jvp),
    "rms_norm_bwd": Formula(_rms_norm_bwd_backward, _rms_norm_bwd_setup),
    "add_rms_norm": Formula(_add_rms_norm_backward, _add_rms_norm_setup, _add_rms_norm_jvp),
    "add_rms_norm_bwd": Formula(_add_rms_norm_bwd_backward, _add_rms_norm_bwd_setup),
    "layer_norm": Formula(_layer_norm_backward, _layer_norm_setup, _layer_norm_jvp),
    "layer_norm_bwd": Formula(_layer_norm_bwd_backward, _layer_norm_bwd_setup),
}
# The sums over rows of a backward belong to one sample.
VMAP: dict[str, Callable] = {
    "rms_norm": leading("rms_norm", whole=(1,)),
    "rms_norm_bwd": loop("rms_norm_bwd", 2),
    "add_rms_norm": leading("add_rms_norm", 2, whole=(2,)),
    "add_rms_norm_bwd": loop("add_rms_norm_bwd", 2),
    "layer_norm": leading("layer_norm", whole=(1, 2)),
    "layer_norm_bwd": loop("layer_norm_bwd", 3),
}
