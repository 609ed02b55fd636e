"""Routing of tokens to experts in plain PyTorch: the definition, and the CPU kernel. No step waits for the device."""

import torch
from torch import Tensor

from tle_ops._meta import moe_slots


def moe_align(topk_ids: Tensor, num_experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    n = topk_ids.numel()
    slots = moe_slots(n, num_experts, block_size)
    blocks = (slots + block_size - 1) // block_size
    ids = topk_ids.reshape(n).long()
    # What belongs to no expert here goes to one expert past the end, and from there to one slot past the end.
    expert = torch.where((ids >= 0) & (ids < num_experts), ids, num_experts)
    expert, order = expert.sort(stable=True)
    count = ids.new_zeros(num_experts + 1).scatter_add_(0, expert, torch.ones_like(expert))  # [E + 1]
    padded = (count[:-1] + block_size - 1) // block_size * block_size  # [E]
    end = padded.cumsum(0)  # [E], in slots
    first = torch.cat([end - padded, end.new_full((1,), slots)])  # [E + 1], the slot of each expert's first token
    rank = torch.arange(n, device=ids.device) - (count.cumsum(0) - count)[expert]  # within the expert
    slot = (first[expert] + rank).clamp_max(slots)
    sorted_ids = torch.full((slots + 1,), n, dtype=torch.int32, device=ids.device)
    sorted_ids = sorted_ids.scatter_(0, slot, order.int())[:slots].contiguous()
    begin = torch.arange(blocks, device=ids.device) * block_size
    expert_ids = torch.searchsorted(end, begin, right=True).int()
    return sorted_ids, expert_ids.masked_fill(expert_ids == num_experts, -1), end[-1:].int()
