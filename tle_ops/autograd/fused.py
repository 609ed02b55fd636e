"""Gradients of the ops fused with FP8 quantization. Codes and scales have none; the new residual is x + residual."""

from __future__ import annotations

from collections.abc import Callable

from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import leading


def _add_setup(ctx, inputs, output):
    q, scales, _ = output
    ctx.options = (None,) * (len(inputs) - 2)
    ctx.mark_non_differentiable(q, scales)
    ctx.set_materialize_grads(False)


def _add_backward(ctx, dq, dscales, dnew_residual):
    return dnew_residual, dnew_residual, *ctx.options


def _add_jvp(ctx, tx, tresidual, *_):
    tangents = [t for t in (tx, tresidual) if t is not None]
    return None, None, sum(tangents[1:], tangents[0].clone()) if tangents else None


FORMULAS: dict[str, Formula] = {"add_rms_norm_per_token_cast_fp8": Formula(_add_backward, _add_setup, _add_jvp)}
VMAP: dict[str, Callable] = {
    "swiglu_per_token_cast_fp8": leading("swiglu_per_token_cast_fp8", 2),
    "rms_norm_per_token_cast_fp8": leading("rms_norm_per_token_cast_fp8", 2, whole=(1,)),
    "add_rms_norm_per_token_cast_fp8": leading("add_rms_norm_per_token_cast_fp8", 3, whole=(2,)),
}
