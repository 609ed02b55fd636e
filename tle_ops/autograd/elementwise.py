"""Gradients of the elementwise ops."""

import torch
from torch import Tensor

from tle_ops._meta import FP8_MAX
from tle_ops.autograd._formula import Formula


# --- add -------------------------------------------------------------------------------------------------------------
def _add_setup(ctx, inputs, output):
    ctx.inputs = [(t.shape, t.dtype) for t in inputs]
    ctx.output = output.shape, output.dtype
    ctx.set_materialize_grads(False)


def _add_backward(ctx, dy):
    if dy is None:
        return None, None
    return tuple(
        dy.sum_to_size(shape).to(dtype) if needed else None
        for (shape, dtype), needed in zip(ctx.inputs, ctx.needs_input_grad, strict=False)
    )


def _add_jvp(ctx, dx, dy):
    shape, dtype = ctx.output
    tangents = [t.to(dtype).expand(shape) for t in (dx, dy) if t is not None]
    return tangents[0].clone() if len(tangents) == 1 else tangents[0] + tangents[1]


def _add_vmap(info, in_dims, x, y):
    # The dtype that one sample has: with the batch dimension a 0-D tensor would promote differently.
    shapes = ([n for i, n in enumerate(t.shape) if i != d] for t, d in zip((x, y), in_dims, strict=True))
    samples = [torch.empty(s, dtype=t.dtype, device="meta") for s, t in zip(shapes, (x, y), strict=True)]
    dtype = torch.result_type(*samples)
    batched = [t.unsqueeze(0) if d is None else t.movedim(d, 0) for t, d in zip((x, y), in_dims, strict=True)]
    rank = max(t.dim() for t in batched)
    aligned = [t.reshape(t.shape[0], *[1] * (rank - t.dim()), *t.shape[1:]).to(dtype) for t in batched]
    return torch.ops.tle.add(*aligned), 0


# --- scale_cast ------------------------------------------------------------------------------------------------------
def _scale_cast_setup(ctx, inputs, output):
    x, ctx.alpha, ctx.dtype = inputs
    ctx.x_dtype = x.dtype
    if ctx.dtype in FP8_MAX:
        ctx.mark_non_differentiable(output)
    ctx.set_materialize_grads(False)


def _scale_cast_backward(ctx, dy):
    return None if dy is None else torch.ops.tle.scale_cast(dy, ctx.alpha, ctx.x_dtype), None, None


def _scale_cast_jvp(ctx, dx, *_):
    return None if ctx.dtype in FP8_MAX else torch.ops.tle.scale_cast(dx, ctx.alpha, ctx.dtype)


def _scale_cast_vmap(info, in_dims, x: Tensor, alpha: float, dtype: torch.dtype):
    return torch.ops.tle.scale_cast(x, alpha, dtype), in_dims[0]


FORMULAS = {
    "add": Formula(_add_backward, _add_setup, _add_jvp),
    "scale_cast": Formula(_scale_cast_backward, _scale_cast_setup, _scale_cast_jvp),
}
VMAP = {"add": _add_vmap, "scale_cast": _scale_cast_vmap}
