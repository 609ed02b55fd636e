"""Gradients of the tile ops: linear, and the transpose of each other."""

import torch
import torch.nn.functional as F

from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import front


# --- extract_tile ----------------------------------------------------------------------------------------------------
def _extract_setup(ctx, inputs, output):
    x, ctx.index, ctx.tile = inputs
    ctx.shape = x.shape


def _extract_backward(ctx, dtile):
    around = []  # the zeros before and after the tile, last dimension first
    for N, T, i in zip(reversed(ctx.shape), reversed(ctx.tile), reversed(ctx.index), strict=True):
        around += [i * T, N - (i + 1) * T]
    return F.pad(dtile, around), None, None


def _extract_jvp(ctx, dx, *_):
    return torch.ops.tle.extract_tile(dx, ctx.index, ctx.tile)


def _extract_vmap(info, in_dims, x, index, shape):
    x = x.movedim(in_dims[0], 0)
    return torch.ops.tle.extract_tile(x, [0, *index], [info.batch_size, *shape]), 0


# --- insert_tile -----------------------------------------------------------------------------------------------------
def _insert_setup(ctx, inputs, output):
    x, tile, ctx.index = inputs
    ctx.shape, ctx.tile, ctx.dtype, ctx.device = x.shape, tile.shape, x.dtype, x.device


def _insert_backward(ctx, dy):
    dx = dtile = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.tle.insert_tile(dy, dy.new_zeros(ctx.tile), ctx.index)
    if ctx.needs_input_grad[1]:
        dtile = torch.ops.tle.extract_tile(dy, ctx.index, ctx.tile)
    return dx, dtile, None


def _insert_jvp(ctx, dx, dtile, _):
    def or_zeros(t, shape):
        return torch.zeros(shape, dtype=ctx.dtype, device=ctx.device) if t is None else t

    return torch.ops.tle.insert_tile(or_zeros(dx, ctx.shape), or_zeros(dtile, ctx.tile), ctx.index)


def _insert_vmap(info, in_dims, x, tile, index):
    x, tile = front(info, in_dims[0], x), front(info, in_dims[1], tile)
    return torch.ops.tle.insert_tile(x, tile, [0, *index]), 0


FORMULAS = {
    "extract_tile": Formula(_extract_backward, _extract_setup, _extract_jvp),
    "insert_tile": Formula(_insert_backward, _insert_setup, _insert_jvp),
}
VMAP = {"extract_tile": _extract_vmap, "insert_tile": _insert_vmap}
