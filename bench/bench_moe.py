"""Cases: aligning tokens to the blocks of their experts."""

from __future__ import annotations

import torch

from bench.harness import Case


def routes(shape, device):
    """8 of 256 experts a token, each once."""
    return torch.rand((shape[0], 256), device=device).argsort(-1)[:, : shape[1]].int(), 256, 128


def flaggems_align(flaggems, topk_ids, num_experts, block_size):
    return flaggems.fused.moe_align_block_size(topk_ids, block_size, num_experts)


def blocks(args, result):
    """Which ids each expert's blocks hold, in any order within an expert; what lies beyond them is free."""
    topk_ids, _, block_size = args
    ids, experts, total = result
    expert = experts.long().repeat_interleave(block_size)[: len(ids)]
    kept = torch.arange(len(ids), device=ids.device) < total
    return torch.where(kept, expert * (topk_ids.numel() + 1) + ids, -1).sort().values, total


CASES = [
    Case(
        "moe_align",
        f"{tokens * 8} ids, 256 experts",
        (tokens, 8),
        routes,
        None,
        {"FlagGems": flaggems_align},
        target_us=us,
        earlier=earlier,
        quick=tokens == 128,
        rowwise=False,
        canonical=blocks,
    )
    for tokens, us, earlier in ((128, 12, {}), (4096, 18, {"SGLang (published)": 21}))
]
