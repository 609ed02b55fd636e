"""Contracts: moe_align."""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops._meta._contract import contract, dtype_name, require
from tle_ops._meta.scan import INT32_MAX


@contract(
    "moe_align(Tensor topk_ids, int num_experts, int block_size) "
    "-> (Tensor sorted_ids, Tensor expert_ids, Tensor num_tokens_post_pad)"
)
def moe_align(topk_ids: Tensor, num_experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    if topk_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"moe_align: topk_ids must be int32 or int64, got {dtype_name(topk_ids.dtype)}")
    for name, value in (("num_experts", num_experts), ("block_size", block_size)):
        if value < 1:
            raise ValueError(f"moe_align: {name} must be a positive int, got {value}")
    n = topk_ids.numel()
    slots = moe_slots(n, num_experts, block_size)
    require(slots <= INT32_MAX, lambda: f"moe_align: topk_ids must need at most 2**31 - 1 slots, got {n} ids")
    blocks = (slots + block_size - 1) // block_size
    sorted_ids, expert_ids, num_tokens_post_pad = (
        torch.empty(size, dtype=torch.int32, device=topk_ids.device) for size in (slots, blocks, 1)
    )
    return sorted_ids, expert_ids, num_tokens_post_pad


def moe_slots(n: int | torch.SymInt, num_experts: int, block_size: int) -> int | torch.SymInt:
    """Slots that n ids need at most: every expert may leave its last block all but empty."""
    return n + num_experts * (block_size - 1)
