"""Cases: an activation or a norm with FP8 quantization in one pass."""

from __future__ import annotations

import torch

from bench.bench_norm import eager_rms, rows_and_weights
from bench.bench_quant import activations, eager_token
from bench.check import Tolerance
from bench.harness import Case

# Against the definition in float64: scales within 2 ulp, 1 code of 10 000 one step off at most.
TOLERANCES = {"tolerance": Tolerance(codes=1e-4, ulps=2), "peer_tolerance": Tolerance(codes=1e-3, ulps=16)}


def eager_swiglu_quant(x, group_size):
    gate, up = x.float().chunk(2, -1)
    return eager_token(gate.sigmoid() * gate * up, group_size)


def eager_rms_quant(x, weight, eps):
    return eager_token(eager_rms(x.float(), weight.float(), eps))


def eager_add_rms_quant(x, residual, weight, eps):
    residual = x + residual
    return *eager_rms_quant(residual, weight, eps), residual


def defined(op):
    """For `Case.wide`: the op's definition, whatever dtype; the sum with the residual is rounded first."""

    def call(dtype, x, *args):
        if op.startswith("add_"):
            residual, *args = args
            x = x + residual
        args = (a.double() if isinstance(a, torch.Tensor) else a for a in args)
        result = getattr(torch.ops.tle, op.removeprefix("add_"))(x.double(), *args)
        return (*result, x) if op.startswith("add_") else result

    return call


TILEKERNELS = {"TileKernels": lambda m, x, g: m.quant.swiglu_forward_and_per_token_cast(x, "e4m3", g)}


def case(op, label, shape, inputs, eager, peers, us=None, earlier=None, quick=False):
    more = TOLERANCES | {"wide": defined(op)}
    return Case(op, f"group 128, {label}", shape, inputs, eager, peers, {}, us, earlier or {}, quick, **more)


CASES = [
    *(
        case(
            "swiglu_per_token_cast_fp8",
            f"{M}x(2x{H})",
            (M, 2 * H),
            activations(128),
            eager_swiglu_quant,
            TILEKERNELS,
            us,
            {"vLLM": vllm},
            M == 4096,
        )
        for M, H, us, vllm in ((4096, 2048, 16.2, 55), (8192, 14336, 147, 689))
    ),
    *(
        case(
            "rms_norm_per_token_cast_fp8",
            f"{M}x{N}",
            (M, N),
            rows_and_weights(1),
            eager_rms_quant,
            {},
            us,
            None,
            M == 4096,
        )
        for M, N, us in ((4096, 7168, 27.5), (16384, 8192, 104), (65536, 2048, 104))
    ),
    case(
        "add_rms_norm_per_token_cast_fp8",
        "4096x7168",
        (4096, 7168),
        rows_and_weights(2),
        eager_add_rms_quant,
        {},
        quick=True,
    ),
]
