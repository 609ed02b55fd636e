"""Cases: rotary position embedding of queries and keys together."""

from __future__ import annotations

import torch

from bench.check import Tolerance
from bench.harness import Case, wide_op


def heads(shape, device):
    """x [T, H, D] in bf16, cos and sin [T, D/2] in float32."""
    T, _, D = shape
    angles = torch.arange(T, device=device)[:, None] * 10000 ** (-torch.arange(0, D, 2, device=device) / D)
    return torch.randn(shape, dtype=torch.bfloat16, device=device), angles.cos(), angles.sin()


def eager_rope(x, cos, sin):
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


CASES = [
    Case(
        "rope",
        f"T={T}, 32+8 heads, D=128",
        (T, 40, 128),
        heads,
        eager_rope,
        target_us=us,
        earlier={"Liger (in place)": liger},
        quick=T == 8192,
        tolerance=Tolerance(ulps=1),
        peer_tolerance=Tolerance(ulps=4),
        wide=wide_op("rope"),
    )
    for T, us, liger in ((8192, 47, 46.8), (32768, 170, 174))
]
