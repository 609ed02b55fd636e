"""Gradients of the scans. Both are linear in x: the transpose of a scan is the scan from the other end, that of a
compaction puts each element back where it came from."""

import torch
from torch import Tensor

from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import leading


# --- cumsum ----------------------------------------------------------------------------------------------------------
def _cumsum_setup(ctx, inputs, output):
    x, ctx.dim, ctx.reverse, ctx.dtype = inputs
    ctx.x_dtype, ctx.shape = x.dtype, x.shape
    if not output[0].is_floating_point():
        ctx.mark_non_differentiable(*output)
    ctx.set_materialize_grads(False)


def _cumsum_backward(ctx, dexclusive, dtotal):
    grads = [g for g in (dexclusive, dtotal) if g is not None]
    if not grads:
        return None, None, None, None
    wide = torch.promote_types(torch.promote_types(grads[0].dtype, ctx.x_dtype), torch.float32)
    dx = None
    if dexclusive is not None:
        dx = torch.ops.tle.cumsum(dexclusive, ctx.dim, not ctx.reverse, wide)[0]
    if dtotal is not None:
        dtotal = (dtotal.unsqueeze(ctx.dim) if ctx.shape else dtotal).to(wide)
        dx = dtotal.expand(ctx.shape) if dx is None else dx + dtotal
    return dx.to(ctx.x_dtype), None, None, None


def _cumsum_jvp(ctx, dx, *_):
    if ctx.dtype is not None and not ctx.dtype.is_floating_point:
        return None, None
    return torch.ops.tle.cumsum(dx, ctx.dim, ctx.reverse, ctx.dtype)


# The dispatcher drops arguments that equal the schema's defaults.
def _cumsum_vmap(info, in_dims, x: Tensor, dim: int = -1, reverse: bool = False, dtype: torch.dtype | None = None):
    x = x.movedim(in_dims[0], 0)
    if x.dim() == 1:  # each sample is one number: a row of length 1
        exclusive, total = torch.ops.tle.cumsum(x[:, None], -1, reverse, dtype)
        return (exclusive[:, 0], total), (0, 0)
    return torch.ops.tle.cumsum(x, dim if dim < 0 else dim + 1, reverse, dtype), (0, 0)


# --- compact ---------------------------------------------------------------------------------------------------------
def _compact_setup(ctx, inputs, output):
    _, mask = inputs
    _, indices, count = output
    ctx.save_for_backward(mask)
    ctx.save_for_forward(mask)
    ctx.mark_non_differentiable(indices, count)
    ctx.set_materialize_grads(False)


def _compact_backward(ctx, dpacked, *_):
    if dpacked is None:
        return None, None
    (mask,) = ctx.saved_tensors
    rank = torch.ops.tle.cumsum(mask, -1)[0].long()  # where each kept element went
    return torch.where(mask, dpacked.gather(-1, rank), 0), None


def _compact_jvp(ctx, dx, _):
    (mask,) = ctx.saved_tensors
    return torch.ops.tle.compact(dx, mask)[0], None, None


FORMULAS = {
    "cumsum": Formula(_cumsum_backward, _cumsum_setup, _cumsum_jvp),
    "compact": Formula(_compact_backward, _compact_setup, _compact_jvp),
}
VMAP = {"cumsum": _cumsum_vmap, "compact": leading("compact", 3), "histogram": leading("histogram", 1)}
