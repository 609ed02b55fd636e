"""Cases: norms and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.check import Tolerance
from bench.harness import Case, wide_op

BF16, EPS = torch.bfloat16, 1e-6
TOLERANCES = {"tolerance": Tolerance(ulps=1), "peer_tolerance": Tolerance(ulps=4)}
SUMS = {"tolerance": Tolerance(ulps=1, sums=True), "peer_tolerance": Tolerance(ulps=4, sums=True), "rowwise": False}


def rows_and_weights(rows, weights=1, *settings):
    """`rows` tensors [M, N] and `weights` of [N]; then eps and the op's other arguments."""
    return lambda shape, device: (
        *(torch.randn(shape, dtype=BF16, device=device) for _ in range(rows)),
        *(torch.randn(shape[-1:], dtype=BF16, device=device) for _ in range(weights)),
        EPS,
        *settings,
    )


def eager_rms(x, weight, eps):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def eager_add_rms(x, residual, weight, eps):
    residual = x + residual
    return eager_rms(residual, weight, eps), residual


def eager_layer(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def eager_add_rms_bwd(dy, dresidual, residual, weight, eps, offset, dweight_dtype):
    dy, x = dy.float(), residual.float()
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normed, p = x * rstd, dy * weight
    dx = rstd * (p - normed * (p * normed).mean(-1, keepdim=True)) + dresidual
    return dx.to(BF16), (dy * normed).sum(0).to(dweight_dtype)


def wide_add_rms(dtype, x, residual, weight, eps):
    """The sum is rounded whatever the norm is computed in."""
    residual = x + residual
    return wide_op("rms_norm")(dtype, residual, weight, eps), residual


def liger_add_rms(m, x, residual, weight, eps):
    return m.LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "gemma")


BACKWARD = rows_and_weights(3, 1, 0.0, BF16)
LIGER_RMS = {"Liger": lambda m, x, weight, eps: m.LigerRMSNormFunction.apply(x, weight, eps, 0.0, "gemma", False)}
LIGER_LAYER = {"Liger": lambda m, *args: m.LigerLayerNormFunction.apply(*args)}


def case(op, M, N, inputs, eager, peers=None, us=None, earlier=None, **more):
    wide = wide_add_rms if op == "add_rms_norm" else wide_op(op) if not op.endswith("_bwd") else None
    more = TOLERANCES | {"wide": wide} | more
    return Case(op, f"{M}x{N}", (M, N), inputs, eager, peers or {}, {}, us, earlier or {}, **more)


CASES = [
    case("rms_norm", 4096, 7168, rows_and_weights(1), eager_rms, LIGER_RMS, quick=True),
    case("layer_norm", 4096, 7168, rows_and_weights(1, 2), eager_layer, LIGER_LAYER, quick=True),
    *(
        case(
            "add_rms_norm",
            M,
            N,
            rows_and_weights(2),
            eager_add_rms,
            {"Liger": liger_add_rms},
            us,
            {"quack": quack},
            quick=quick,
        )
        for M, N, us, quack, quick in (
            (128, 7168, 6.6, 6.6, True),
            (4096, 7168, 61.5, 62.6, False),
            (16384, 8192, 257, 267, False),
        )
    ),
    *(
        case("add_rms_norm_bwd", M, N, BACKWARD, eager_add_rms_bwd, {}, us, earlier, quick=N == 4096, **SUMS)
        for M, N, us, earlier in (
            (4096, 4096, 42, {"quack": 59.5, "Liger": 132}),
            (16384, 8192, 268, {"quack": 278, "Liger": 340}),
            (65536, 2048, 265, {"quack": 269, "Liger": 751}),
        )
    ),
]
