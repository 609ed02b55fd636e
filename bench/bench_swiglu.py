"""Cases: gated activations and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.check import Tolerance
from bench.harness import Case, wide_op

BF16 = torch.bfloat16
ROUNDED = Tolerance(ulps=1)


def normal(count):
    return lambda shape, device: tuple(torch.randn(shape, dtype=BF16, device=device) for _ in range(count))


def eager_swiglu(gate, up):
    return F.silu(gate.float()).mul(up).to(gate.dtype)


def eager_geglu(gate, up):
    return F.gelu(gate.float()).mul(up).to(gate.dtype)


def eager_swiglu_bwd(dy, gate, up):
    dy, gate, up = dy.float(), gate.float(), up.float()
    s = gate.sigmoid()
    return (dy * up * s * (1 + gate * (1 - s))).to(BF16), (dy * gate * s).to(BF16)


def packed(eager):
    return lambda x: eager(*x.chunk(2, -1))


def case(op, M, H, inputs, eager, peers=None, us=None, earlier=None, **more):
    width = 2 * H if op.endswith("packed") else H
    label = f"{M}x(2x{H})"
    tolerances = {"tolerance": ROUNDED, "peer_tolerance": Tolerance(ulps=4), "wide": wide_op(op)}
    return Case(op, label, (M, width), inputs, eager, peers or {}, {}, us, earlier or {}, **tolerances, **more)


LIGER = {"Liger": lambda m, gate, up: m.LigerSiLUMulFunction.apply(gate, up)}

CASES = [
    case("swiglu", 8192, 14336, normal(2), eager_swiglu, LIGER, 168),
    case("swiglu", 4096, 2048, normal(2), eager_swiglu, LIGER, 17.8, quick=True),
    case("swiglu_packed", 8192, 14336, normal(1), packed(eager_swiglu), us=168),
    case("swiglu_packed", 4096, 2048, normal(1), packed(eager_swiglu), us=17.8, quick=True),
    case("swiglu_bwd", 8192, 14336, normal(3), eager_swiglu_bwd, us=283, earlier={"Liger (in place)": 280}, quick=True),
    case("geglu", 4096, 2048, normal(2), eager_geglu, quick=True),
    case("geglu_packed", 4096, 2048, normal(1), packed(eager_geglu), quick=True),
]
