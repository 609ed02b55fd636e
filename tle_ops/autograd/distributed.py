"""Gradients of the ops that move data between processes. All of them are linear, and a gradient goes the way back: so
every process of the group must run the backward, as it ran the forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import front


# --- remote: y = x of `shard`; back, x gets the sum over its readers -------------------------------------------------
def _remote_setup(ctx, inputs, output):
    _, ctx.shard, ctx.group = inputs


def _remote_backward(ctx, dy):
    return torch.ops.tle.remote_bwd(dy, ctx.shard, ctx.group), None, None


def _remote_jvp(ctx, tx, *_):
    return torch.ops.tle.remote(tx, ctx.shard, ctx.group)


def _remote_bwd_backward(ctx, ddx):
    return torch.ops.tle.remote(ddx, ctx.shard, ctx.group), None, None


def _remote_bwd_jvp(ctx, tdy, *_):
    return torch.ops.tle.remote_bwd(tdy, ctx.shard, ctx.group)


# --- remote_put: y = the value that a peer put here, or x ------------------------------------------------------------
def _put_setup(ctx, inputs, output):
    _, _, ctx.shard, ctx.group = inputs
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _put_backward(ctx, dy, _):
    (source,) = ctx.saved_tensors
    return torch.where(source < 0, dy, 0), torch.ops.tle.remote(dy, ctx.shard, ctx.group), None, None


def _put_jvp(ctx, tx, tvalue, *_):
    like = tvalue if tx is None else tx
    tangents = [torch.zeros_like(like) if t is None else t for t in (tx, tvalue)]
    return torch.ops.tle.remote_put(*tangents, ctx.shard, ctx.group)[0], None


# --- ring_exchange ---------------------------------------------------------------------------------------------------
def _ring_setup(ctx, inputs, output):
    _, ctx.shift, ctx.group = inputs


def _ring_backward(ctx, dy):
    return torch.ops.tle.ring_exchange(dy, -ctx.shift, ctx.group), None, None


def _ring_jvp(ctx, tx, *_):
    return torch.ops.tle.ring_exchange(tx, ctx.shift, ctx.group)


# --- distributed_barrier passes its token through --------------------------------------------------------------------
def _barrier_backward(ctx, dtoken):
    return dtoken, None, None, None


def _barrier_jvp(ctx, ttoken, *_):
    return ttoken.clone()


# --- reduce_scatter_fp8: straight through the rounding; the gradients are gathered, in FP8 as well -------------------
def _scatter_setup(ctx, inputs, output):
    x, ctx.group_size, ctx.code, ctx.scale_ue8m0, ctx.group = inputs
    ctx.dtype = x.dtype


def _scatter_backward(ctx, dy):
    q, scales = torch.ops.tle.all_gather_fp8(dy, ctx.group_size, ctx.code, ctx.scale_ue8m0, ctx.group)
    return torch.ops.tle.per_token_cast_back(q, scales, ctx.group_size, ctx.dtype), None, None, None, None


FORMULAS: dict[str, Formula] = {
    "remote": Formula(_remote_backward, _remote_setup, _remote_jvp),
    "remote_bwd": Formula(_remote_bwd_backward, _remote_setup, _remote_bwd_jvp),
    "remote_put": Formula(_put_backward, _put_setup, _put_jvp),
    "ring_exchange": Formula(_ring_backward, _ring_setup, _ring_jvp),
    "distributed_barrier": Formula(_barrier_backward, None, _barrier_jvp),
    "reduce_scatter_fp8": Formula(_scatter_backward, _scatter_setup),
}


# --- vmap: a batch is one more dimension of what is exchanged; all processes must map alike --------------------------
def _whole(op: str) -> Callable:
    def rule(info, in_dims, x, *rest):
        return getattr(torch.ops.tle, op)(front(info, in_dims[0], x), *rest), 0

    return rule


def _put_vmap(info, in_dims, x, value, *rest):
    x, value = (front(info, d, t) for d, t in zip(in_dims[:2], (x, value), strict=True))
    return torch.ops.tle.remote_put(x, value, *rest), (0, None)


def _second(info, dim: int | None, x: Tensor) -> Tensor:
    """The first dimension is the one that is gathered or scattered: the batch becomes the second."""
    return front(info, dim, x).movedim(0, 1)


def _gather_vmap(info, in_dims, x, *rest):
    return torch.ops.tle.all_gather_fp8(_second(info, in_dims[0], x), *rest), (1, 1)


def _scatter_vmap(info, in_dims, x, *rest):
    return torch.ops.tle.reduce_scatter_fp8(_second(info, in_dims[0], x), *rest), 1


VMAP: dict[str, Callable] = {
    **{op: _whole(op) for op in ("remote", "remote_bwd", "ring_exchange", "distributed_barrier")},
    "remote_put": _put_vmap,
    "all_gather_fp8": _gather_vmap,
    "reduce_scatter_fp8": _scatter_vmap,
}
