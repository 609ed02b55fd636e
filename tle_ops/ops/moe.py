"""Routing of tokens to experts, for grouped matrix products."""

import torch
from torch import Tensor


def moe_align(topk_ids: Tensor, num_experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the slots of a routing by expert, each expert padded to whole blocks, as block-wise grouped GEMMs read them.

    Args:
        topk_ids: int32 or int64, any shape and strides, such as [tokens, k]: the expert of each slot. Slots are
            numbered in row-major order, 0 to n - 1. A slot whose id is outside [0, num_experts), such as -1, goes
            nowhere.
        num_experts: E.
        block_size: rows of a block.

    Returns:
        sorted_ids: [n + E * (block_size - 1)] int32: the slots of expert 0 in ascending order, filled up with n to a
            multiple of block_size, then those of expert 1, and so on; n in all the rest.
        expert_ids: [ceil(len(sorted_ids) / block_size)] int32: the expert of each block; -1 after the last one.
        num_tokens_post_pad: [1] int32: how much of sorted_ids is in use, a multiple of block_size.

    Raises:
        ValueError: num_experts or block_size is not positive, or the result would need more than 2**31 - 1 slots.
        TypeError: topk_ids is of another type.

    The sizes do not depend on the data, so nothing waits for the device. Not differentiable; vmap. Plain PyTorch:

        order = topk_ids.flatten().sort(stable=True).indices
        count = torch.bincount(topk_ids.flatten(), minlength=num_experts)
        padded = (count + block_size - 1) // block_size * block_size

    and expert e's part of `order` goes to `sorted_ids[padded[:e].sum():]`. The layout is that of vLLM's
    `moe_align_block_size`, with a fixed order inside an expert.
    """
    return torch.ops.tle.moe_align(topk_ids, num_experts, block_size)
