"""Gradients of rope. It is linear in x and in the tables, and its inverse rotation is the op rope_bwd."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from tle_ops._meta import compute_dtype
from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import front


def _setup(ctx, inputs, output):
    x, cos, sin, ctx.interleaved = inputs
    ctx.set_materialize_grads(False)
    # x serves the tables' gradients alone: a training step should not keep it alive for nothing.
    keep = x if ctx.needs_input_grad[1] or ctx.needs_input_grad[2] or forward_ad._current_level >= 0 else None
    ctx.save_for_backward(keep, cos, sin)
    ctx.save_for_forward(keep, cos, sin)


def _pairs(t: Tensor, R: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return t[..., 0:R:2], t[..., 1:R:2]
    return t[..., : R // 2], t[..., R // 2 : R]


def _table_gradients(ctx, dy: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """By cos and sin of <dy, rope(x)> = sum((da * a + db * b) * cos + (db * a - da * b) * sin)"""
    R = 2 * cos.shape[-1]
    wide = compute_dtype(dy, x, cos, sin)
    da, db = _pairs(dy.to(wide), R, ctx.interleaved)  # [.., S, H, R/2]
    a, b = _pairs(x.to(wide), R, ctx.interleaved)
    shape = (*cos.shape[:-1], 1, R // 2)
    dcos, dsin = ((t.sum_to_size(shape)).squeeze(-2) for t in (da * a + db * b, db * a - da * b))
    return dcos.to(cos.dtype), dsin.to(sin.dtype)


def _derivatives(forward: str, back: str, sign: int) -> Formula:
    """Of the rotation `forward`, whose inverse is `back`; it turns by sign * angle."""

    def backward(ctx, dy):
        if dy is None:
            return None, None, None, None
        x, cos, sin = ctx.saved_tensors
        dx = dcos = dsin = None
        if ctx.needs_input_grad[0]:
            dx = getattr(torch.ops.tle, back)(dy, cos, sin, ctx.interleaved)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dcos, dsin = _table_gradients(ctx, dy, x, cos, sin)
            dsin = dsin * sign
        return dx, dcos, dsin, None

    def jvp(ctx, tx, tcos, tsin, _):
        x, cos, sin = ctx.saved_tensors
        rotate = getattr(torch.ops.tle, forward)
        tangents = [] if tx is None else [rotate(tx, cos, sin, ctx.interleaved)]
        if tcos is not None or tsin is not None:
            tables = [torch.zeros_like(cos) if t is None else t for t in (tcos, tsin)]
            R = 2 * cos.shape[-1]
            turned = rotate(x[..., :R], *tables, ctx.interleaved)
            tangents.append(torch.nn.functional.pad(turned, (0, x.shape[-1] - R)))  # the rest does not turn
        return sum(tangents)

    return Formula(backward, _setup, jvp)


def _vmap(op: str) -> Callable:
    def rule(info, in_dims, x, cos, sin, interleaved=False):
        shared = in_dims[1] is None and in_dims[2] is None and cos.dim() == 2
        x = front(info, in_dims[0], x)  # [batch, .., S, H, D]
        if not shared:
            cos, sin = (front(info, d, t) for d, t in zip(in_dims[1:3], (cos, sin), strict=True))
            batch, (S, half) = x.shape[:-3], cos.shape[-2:]
            ones = (1,) * (len(batch) - cos.dim() + 2)
            cos, sin = (t.reshape(t.shape[0], *ones, *t.shape[1:]).expand(*batch, S, half) for t in (cos, sin))
        return getattr(torch.ops.tle, op)(x, cos, sin, interleaved), 0

    return rule


FORMULAS: dict[str, Formula] = {
    "rope": _derivatives("rope", "rope_bwd", 1),
    "rope_bwd": _derivatives("rope_bwd", "rope", -1),
}
VMAP: dict[str, Callable] = {"rope": _vmap("rope"), "rope_bwd": _vmap("rope_bwd")}
