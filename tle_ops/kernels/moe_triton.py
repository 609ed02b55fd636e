"""Routing of tokens to experts in Triton: a counting sort in three launches.

The ids of a chunk are ranked among themselves by comparing every pair, so the order inside an expert is that of the
slots, and no atomic decides anything.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

import tle_ops.language as tle
from tle_ops import _meta
from tle_ops.kernels._triton import kernel

_CHUNK = 128  # ids of a program: 16384 comparisons, 64 a thread
_COLUMNS = 32  # experts whose counts one program sums over the chunks
_ROWS = 64


@triton.jit
def _ids(ids_ptr, chunk, n, experts, CHUNK: tl.constexpr):
    """A chunk's slots and their experts; `experts` for none."""
    slot = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + slot, mask=slot < n, other=-1)
    return slot, tl.where((ids >= 0) & (ids < experts), ids, experts).to(tl.int32)


@kernel("n", "slots", "experts", "chunks")
def _count_kernel(
    ids_ptr,  # [n]
    counts_ptr,  # int32 [chunks, experts]
    sorted_ids_ptr,  # int32 [slots], filled with n
    n: tl.int32,
    slots: tl.int32,
    experts: tl.int32,
    chunks: tl.int32,
    CHUNK: tl.constexpr,
    BLOCK_E: tl.constexpr,  # more than the experts
):
    chunk = tl.program_id(0)
    _, ids = _ids(ids_ptr, chunk, n, experts, CHUNK)
    counts = tl.histogram(ids, BLOCK_E)
    expert = tl.arange(0, BLOCK_E)
    tl.store(counts_ptr + chunk.to(tl.int64) * experts + expert, counts, mask=expert < experts)
    for start in range(chunk * CHUNK, slots, chunks * CHUNK):
        at = start + tl.arange(0, CHUNK)
        tl.store(sorted_ids_ptr + at, tl.full((CHUNK,), 0, tl.int32) + n, mask=at < slots)


@kernel("experts", "chunks")
def _sum_kernel(
    counts_ptr,  # int32 [chunks, experts]: becomes the counts in the chunks before
    totals_ptr,  # int32 [experts]
    experts: tl.int32,
    chunks: tl.int32,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    expert = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]  # [1, COLUMNS]
    total = tl.zeros((1, COLUMNS), tl.int32)
    for start in range(0, chunks, ROWS):
        chunk = start + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        at = counts_ptr + chunk.to(tl.int64) * experts + expert
        mask = (chunk < chunks) & (expert < experts)
        counts = tl.load(at, mask=mask, other=0)
        tl.store(at, tl.cumsum(counts, 0) - counts + total, mask=mask)
        total += tl.sum(counts, 0)[None, :]
    tl.store(totals_ptr + expert, total, mask=expert < experts)


@kernel("n", "experts", "chunks", "blocks")
def _place_kernel(
    ids_ptr,  # [n]
    before_ptr,  # int32 [chunks, experts]
    totals_ptr,  # int32 [experts]
    sorted_ids_ptr,  # int32 [slots]
    expert_ids_ptr,  # int32 [blocks]
    used_ptr,  # int32 [1]
    n: tl.int32,
    experts: tl.int32,
    chunks: tl.int32,
    blocks: tl.int32,
    BLOCK_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    chunk = tl.program_id(0)
    expert = tl.arange(0, BLOCK_E)
    totals = tl.load(totals_ptr + expert, mask=expert < experts, other=0)
    padded = (totals + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE
    first, used = tle.cumsum(padded)  # [BLOCK_E], in slots
    if chunk == 0:
        tl.store(used_ptr, used)

    slot, ids = _ids(ids_ptr, chunk, n, experts, CHUNK)
    exists = ids < experts
    before = tl.load(before_ptr + chunk.to(tl.int64) * experts + ids, mask=exists, other=0)
    i = tl.arange(0, CHUNK)
    earlier = (ids[None, :] == ids[:, None]) & (i[None, :] < i[:, None])  # [CHUNK, CHUNK]
    rank = tl.sum(earlier.to(tl.int32), 1)
    tl.store(sorted_ids_ptr + tl.gather(first, ids, 0) + before + rank, slot, mask=exists)

    # The block's expert: how many experts end at or before its first slot.
    for start in range(chunk * BLOCKS, blocks, chunks * BLOCKS):
        block = start + tl.arange(0, BLOCKS)  # [BLOCKS]
        begin = block * BLOCK_SIZE
        ended = ((first + padded)[None, :] <= begin[:, None]) & (expert < experts)[None, :]  # [BLOCKS, BLOCK_E]
        owner = tl.where(begin < used, tl.sum(ended.to(tl.int32), 1), -1)
        tl.store(expert_ids_ptr + block, owner, mask=block < blocks)


def moe_align(topk_ids: Tensor, num_experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    sorted_ids, expert_ids, used = _meta.moe_align(topk_ids, num_experts, block_size)
    n = topk_ids.numel()
    ids = topk_ids.contiguous()
    chunks = max(1, triton.cdiv(n, _CHUNK))
    counts = torch.empty((chunks + 1, num_experts), dtype=torch.int32, device=ids.device)
    totals = counts[chunks]
    block_e = max(triton.next_power_of_2(num_experts + 1), 128)
    slots, blocks = sorted_ids.numel(), expert_ids.numel()
    constants = (_CHUNK, block_e)
    _count_kernel(chunks, (ids, counts, sorted_ids), (n, slots, num_experts, chunks), constants)
    strips = triton.cdiv(num_experts, _COLUMNS)
    _sum_kernel(strips, (counts, totals), (num_experts, chunks), (_ROWS, _COLUMNS))
    tensors = (ids, counts, totals, sorted_ids, expert_ids, used)
    constants = (block_size, _CHUNK, block_e, max(1, 8192 // block_e))
    _place_kernel(chunks, tensors, (n, num_experts, chunks, blocks), constants, num_warps=8)
    return sorted_ids, expert_ids, used
