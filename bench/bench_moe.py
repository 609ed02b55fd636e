"""Cases: aligning tokens to the blocks of their experts."""

from __future__ import annotations

import torch

from bench.harness import Case


def routes(shape, device):
    """8 of 256 experts a token, each once."""
    return torch.rand((shape[0], 256), device=device).argsort(-1)[:, : shape[1]].int(), 256, 128


CASES = [
    Case(
        "moe_align",
        f"{tokens * 8} ids, 256 experts",
        (tokens, 8),
        routes,
        target_us=us,
        earlier=earlier,
        quick=tokens == 128,
        rowwise=False,
    )
    for tokens, us, earlier in ((128, 12, {"FlagGems": 65}), (4096, 18, {"SGLang (published)": 21, "FlagGems": 62}))
]
