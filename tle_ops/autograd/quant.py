"""Gradients of the quantization ops. Codes and scales have none; `fake_quant_fp8` passes its gradient straight through,
and the casts back are linear in their scales."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tle_ops._groups import rows, split, split_blocks
from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import leading


# --- fake_quant_fp8 --------------------------------------------------------------------------------------------------
def _straight_through(ctx, dy):
    return dy, None, None, None


# --- the casts back: y = q * scales ----------------------------------------------------------------------------------
def _cast_back_setup(ctx, inputs, output):
    q, _scales, ctx.size, ctx.dtype = inputs
    ctx.save_for_backward(q)
    ctx.save_for_forward(q)
    ctx.set_materialize_grads(False)


def _cast_back(op: str, group_sum: Callable[[Tensor, int], Tensor]) -> Formula:
    """group_sum: [shape of q], group or block size -> [shape of the scales]"""

    def backward(ctx, dy):
        if dy is None or not ctx.needs_input_grad[1]:
            return None, None, None, None
        (q,) = ctx.saved_tensors
        wide = torch.promote_types(dy.dtype, torch.float32)
        return None, group_sum(dy.to(wide) * q.to(wide), ctx.size).float(), None, None

    def jvp(ctx, _, dscales, *__):
        (q,) = ctx.saved_tensors
        return getattr(torch.ops.tle, op)(q, dscales, ctx.size, ctx.dtype)

    return Formula(backward, _cast_back_setup, jvp)


FORMULAS = {
    "fake_quant_fp8": Formula(_straight_through, jvp=lambda ctx, dx, *_: dx.clone()),
    "per_token_cast_back": _cast_back("per_token_cast_back", lambda t, size: split(t, -1, size).sum(-1)),
    "per_block_cast_back": _cast_back("per_block_cast_back", lambda t, size: split_blocks(t, size).sum((-3, -1))),
    "per_channel_cast_back": _cast_back("per_channel_cast_back", lambda t, size: split(rows(t), 0, size).sum(1)),
}


# --- vmap ------------------------------------------------------------------------------------------------------------
def _beside_columns(info, dim: int | None, t: Tensor) -> Tensor:
    """[.., N] with a batch -> [.., batch * N]: columns do not know each other, so a batch is more columns."""
    t = t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.movedim(0, -2).flatten(-2)


def _per_channel_cast_fp8_vmap(info, in_dims, x, *args):
    q, scales = torch.ops.tle.per_channel_cast_fp8(_beside_columns(info, in_dims[0], x), *args)
    N = x.shape[-1] if in_dims[0] not in (-1, x.dim() - 1) else x.shape[-2]
    return (q.unflatten(-1, (info.batch_size, N)), scales.unflatten(-1, (info.batch_size, N))), (q.dim() - 1, 1)


def _per_channel_cast_back_vmap(info, in_dims, q, scales, *args):
    wide = [_beside_columns(info, d, t) for t, d in zip((q, scales), in_dims[:2], strict=True)]
    y = torch.ops.tle.per_channel_cast_back(*wide, *args)
    N = q.shape[-1] if in_dims[0] not in (-1, q.dim() - 1) else q.shape[-2]
    return y.unflatten(-1, (info.batch_size, N)), y.dim() - 1


VMAP = {
    "per_token_cast_fp8": leading("per_token_cast_fp8", 2),
    "per_token_cast_back": leading("per_token_cast_back", 1),
    "per_block_cast_fp8": leading("per_block_cast_fp8", 2),
    "per_block_cast_back": leading("per_block_cast_back", 1),
    "per_channel_cast_fp8": _per_channel_cast_fp8_vmap,
    "per_channel_cast_back": _per_channel_cast_back_vmap,
    "fake_quant_fp8": leading("fake_quant_fp8", 1),
}
