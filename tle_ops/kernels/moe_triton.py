"""Routing of tokens to experts in Triton: a counting sort, without atomics, so that the order inside an expert is that
of the slots.

    few ids     every program counts all of them and writes what belongs to its own experts       `_align_kernel`
    more        a program for each chunk counts; then each ranks its chunk's ids among themselves,
                adds up the counts of the chunks before it, and places them     `_count_kernel`, `_place_kernel`
    very many   the same, with the counts added up once in between                                `_sum_kernel`

The later launches start before the earlier ones have ended, and wait where they need what these write.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import tle_ops.language as tle
from tle_ops import _meta
from tle_ops.kernels._replay import replayed, scratch
from tle_ops.kernels._triton import INTERPRETED, kernel

_FEW = (256, 1024)  # ids that a program counts alone, by the sizes of its block: two builds for every number of ids
_FEW_EXPERTS = 1024
_PROGRAMS = 128  # that share what there is to write
_CHUNK = 256  # ids of a program: as many comparisons a thread to rank them
_CHUNKS = 32  # whose counts every program adds up for itself
_ROWS = 16  # chunks whose counts are under way at once
_STRIP = (64, 32)  # chunks and experts whose counts one program adds up at once


@triton.jit
def _experts(ids_ptr, slot, n, experts):
    """The experts of slots, and which slots have one. The others have expert 0."""
    ids = tl.load(ids_ptr + slot, mask=slot < n, other=-1)
    exists = (ids >= 0) & (ids < experts)
    return tl.where(exists, ids, 0).to(tl.int32), exists


@triton.jit
def _blocks(counts, BLOCK_SIZE: tl.constexpr):
    """Slots of whole blocks that hold `counts`."""
    return (counts + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE


@triton.jit
def _fill(ptr, start, end, step, value, BLOCK: tl.constexpr):
    """ptr[start:end] = value, a block at every `step`; in 64 bits, for a step may lead beyond 32."""
    i = tl.arange(0, BLOCK)
    for at in range(start.to(tl.int64), end.to(tl.int64), step):
        tl.store(ptr + at + i, tl.full((BLOCK,), 0, tl.int32) + value, mask=at + i < end)


@kernel("n", "slots", "experts", "blocks")
def _align_kernel(
    ids_ptr,  # [n]
    sorted_ids_ptr,  # int32 [slots]
    expert_ids_ptr,  # int32 [blocks]
    used_ptr,  # int32 [1]
    n: tl.int32,
    slots: tl.int32,
    experts: tl.int32,
    blocks: tl.int32,
    BLOCK_SIZE: tl.constexpr,
    BITS: tl.constexpr,  # of an expert's number
    STRIP: tl.constexpr,  # experts of a program
    BLOCK: tl.constexpr,  # at least n
):
    program = tl.program_id(0)
    slot = tl.arange(0, BLOCK)
    ids, exists = _experts(ids_ptr, slot, n, experts)
    counts = tle.digit_histogram(ids, 0, BITS, exists)  # [1 << BITS]
    first, used = tle.cumsum(_blocks(counts, BLOCK_SIZE))
    if program == 0:
        tl.store(used_ptr, used)
    for s in tl.static_range(STRIP):
        expert = program * STRIP + s  # beyond the experts: none of the ids
        mine = exists & (ids == expert)
        rank, count = tle.cumsum(mine.to(tl.int32))
        begin = tl.sum(tl.where(tl.arange(0, 1 << BITS) == expert, first, 0), 0)
        end = begin + _blocks(count, BLOCK_SIZE)
        tl.store(sorted_ids_ptr + begin + rank, slot, mask=mine)
        _fill(sorted_ids_ptr, begin + count, end, BLOCK, n, BLOCK)
        _fill(expert_ids_ptr, begin // BLOCK_SIZE, end // BLOCK_SIZE, BLOCK, expert, BLOCK)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    _fill(sorted_ids_ptr, used + program * BLOCK, slots, step, n, BLOCK)
    _fill(expert_ids_ptr, used // BLOCK_SIZE + program * BLOCK, blocks, step, -1, BLOCK)


@kernel("n", "slots", "experts", "chunks")
def _count_kernel(
    ids_ptr,  # [n]
    counts_ptr,  # int32 [chunks, 1 << BITS]
    sorted_ids_ptr,  # int32 [slots], filled with n
    n: tl.int32,
    slots: tl.int32,
    experts: tl.int32,
    chunks: tl.int32,
    BITS: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    chunk = tl.program_id(0)
    ids, exists = _experts(ids_ptr, chunk * CHUNK + tl.arange(0, CHUNK), n, experts)
    at = (chunk.to(tl.int64) << BITS) + tl.arange(0, 1 << BITS)
    counts = tle.digit_histogram(ids, 0, BITS, exists)
    tl.store(counts_ptr + at, counts, mask=chunk < chunks)
    _fill(sorted_ids_ptr, chunk * CHUNK, slots, tl.num_programs(0).to(tl.int64) * CHUNK, n, CHUNK)


@kernel("chunks")
def _sum_kernel(
    counts_ptr,  # int32 [chunks + 1, 1 << BITS]: becomes the counts in the chunks before, the last row those in all
    chunks: tl.int32,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]  # [1, COLUMNS]
    total = tl.zeros((1, COLUMNS), tl.int32)
    for start in range(0, chunks, ROWS):
        chunk = start + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        at = counts_ptr + (chunk.to(tl.int64) << BITS) + expert
        counts = tl.load(at, mask=chunk < chunks, other=0)
        tl.store(at, tl.cumsum(counts, 0) - counts + total, mask=chunk < chunks)
        total += tl.sum(counts, 0)[None, :]
    tl.store(counts_ptr + (chunks.to(tl.int64) << BITS) + expert, total)


@kernel("n", "experts", "chunks", "blocks")
def _place_kernel(
    ids_ptr,  # [n]
    counts_ptr,  # int32 [chunks, 1 << BITS]; with SUMMED [chunks + 1, 1 << BITS], as _sum_kernel leaves them
    sorted_ids_ptr,  # int32 [slots]
    expert_ids_ptr,  # int32 [blocks]
    used_ptr,  # int32 [1]
    n: tl.int32,
    experts: tl.int32,
    chunks: tl.int32,
    blocks: tl.int32,
    BLOCK_SIZE: tl.constexpr,
    BITS: tl.constexpr,
    CHUNK: tl.constexpr,
    SUMMED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
):
    chunk = tl.program_id(0)
    slot = chunk * CHUNK + tl.arange(0, CHUNK)
    ids, exists = _experts(ids_ptr, slot, n, experts)
    rank = tle.rank(tl.where(exists, ids, -1))
    if PDL:
        gdc_wait()
    expert = tl.arange(0, 1 << BITS)
    if SUMMED:
        before = tl.load(counts_ptr + (tl.minimum(chunk, chunks).to(tl.int64) << BITS) + expert)
        totals = tl.load(counts_ptr + (chunks.to(tl.int64) << BITS) + expert)
    else:
        row = tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        sums = tl.zeros((ROWS, 1 << BITS), tl.int32)
        early = tl.zeros((ROWS, 1 << BITS), tl.int32)
        for start in range(0, chunks, ROWS):
            at = counts_ptr + ((start + row) << BITS) + expert[None, :]
            counts = tl.load(at, mask=start + row < chunks, other=0)
            sums += counts
            early += tl.where(start + row < chunk, counts, 0)
        before = tl.sum(early, 0)
        totals = tl.sum(sums, 0)
    padded = _blocks(totals, BLOCK_SIZE)
    first, used = tle.cumsum(padded)  # [1 << BITS], in slots
    if chunk == 0:
        tl.store(used_ptr, used)
    tl.store(sorted_ids_ptr + tl.gather(first + before, ids, 0) + rank, slot, mask=exists)

    # The block's expert: how many experts end at or before its first slot.
    for start in range(chunk * BLOCKS, blocks, tl.num_programs(0) * BLOCKS):
        block = start + tl.arange(0, BLOCKS)  # [BLOCKS]
        begin = block * BLOCK_SIZE
        ended = (first + padded)[None, :] <= begin[:, None]  # [BLOCKS, 1 << BITS]
        owner = tl.where(begin < used, tl.sum(ended.to(tl.int32), 1), -1)
        tl.store(expert_ids_ptr + block, owner, mask=block < blocks)


@replayed
def moe_align(topk_ids: Tensor, num_experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    outputs = _meta.moe_align(topk_ids, num_experts, block_size)
    sorted_ids, expert_ids, _ = outputs
    n = topk_ids.numel()
    ids = topk_ids.contiguous()
    slots, blocks = sorted_ids.numel(), expert_ids.numel()
    bits = max((num_experts - 1).bit_length(), 7)
    if n <= _FEW[-1] and num_experts <= _FEW_EXPERTS:
        block = next(b for b in _FEW if n <= b)
        strip = triton.next_power_of_2(triton.cdiv(num_experts, _PROGRAMS))
        constants = (block_size, bits, strip, block)
        scalars = (n, slots, num_experts, blocks)
        _align_kernel(triton.cdiv(num_experts, strip), (ids, *outputs), scalars, constants, num_warps=block // 128)
        return outputs
    chunks = max(1, triton.cdiv(n, _CHUNK))
    summed = chunks > _CHUNKS
    (counts,) = scratch(ids.device, ((chunks + 1) << bits, torch.int32))
    pdl = not INTERPRETED
    programs = max(chunks, _PROGRAMS)  # those beyond the chunks share the work on the slots and blocks
    _count_kernel(programs, (ids, counts, sorted_ids), (n, slots, num_experts, chunks), (bits, _CHUNK, pdl))
    if summed:
        constants = (bits, *_STRIP, pdl)
        _sum_kernel((1 << bits) // _STRIP[1], (counts,), (chunks,), constants, pdl=pdl)
    constants = (block_size, bits, _CHUNK, summed, _ROWS, max(1, 1024 >> bits), pdl)
    tensors = (ids, counts, *outputs)
    _place_kernel(programs, tensors, (n, num_experts, chunks, blocks), constants, num_warps=8, pdl=pdl)
    return outputs
