"""Gradients of the selections: a gradient flows through the chosen values to where they came from."""

import torch
from torch import Tensor

from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import leading


# --- topk ------------------------------------------------------------------------------------------------------------
def _topk_setup(ctx, inputs, output):
    x, _, ctx.dim, *_ = inputs
    indices = output[1]
    ctx.shape = x.shape
    ctx.save_for_backward(indices)
    ctx.save_for_forward(indices)
    ctx.mark_non_differentiable(indices)
    ctx.set_materialize_grads(False)


def _topk_backward(ctx, dvalues, _):
    if dvalues is None:
        return None, None, None, None, None
    (indices,) = ctx.saved_tensors
    return dvalues.new_zeros(ctx.shape).scatter(ctx.dim, indices, dvalues), None, None, None, None


def _topk_jvp(ctx, dx, *_):
    (indices,) = ctx.saved_tensors
    return dx.gather(ctx.dim, indices), None


# The dispatcher drops arguments that equal the schema's defaults.
def _topk_vmap(info, in_dims, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True):
    x = x.movedim(in_dims[0], 0)
    return torch.ops.tle.topk(x, k, dim if dim < 0 else dim + 1, largest, sorted), (0, 0)


# --- topk_gate -------------------------------------------------------------------------------------------------------
def _gate_setup(ctx, inputs, output):
    logits, _, ctx.scoring, _, _, _, ctx.renormalize, ctx.scale = inputs
    indices = output[1]
    ctx.save_for_backward(logits, indices)
    ctx.mark_non_differentiable(indices)
    ctx.set_materialize_grads(False)


def _gate_backward(ctx, dweights, _):
    rest = (None,) * 7  # the bias only selects
    if dweights is None or not ctx.needs_input_grad[0]:
        return None, *rest
    logits, indices = ctx.saved_tensors
    return torch.ops.tle.topk_gate_bwd(dweights, logits, indices, ctx.scoring, ctx.renormalize, ctx.scale), *rest


def _gate_bwd_backward(ctx, *_):
    raise RuntimeError("topk_gate: double backward is not supported")


FORMULAS = {
    "topk": Formula(_topk_backward, _topk_setup, _topk_jvp),
    "topk_gate": Formula(_gate_backward, _gate_setup),
    "topk_gate_bwd": Formula(_gate_bwd_backward),
}
VMAP = {
    "topk": _topk_vmap,
    "topk_selector": leading("topk_selector", 1),
    "topk_gate": leading("topk_gate", 2, whole=(3,)),
    "topk_gate_bwd": leading("topk_gate_bwd", 1),
}
