"""The MoE router in Triton: scores, group-limited selection and weights of several tokens a program, in registers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._best_triton import first_columns
from tle_ops.kernels._keys_triton import NOWHERE, keys_of, least, take, value_of
from tle_ops.kernels._lines_triton import aligned, known, lines
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._triton import kernel

_SHORT, _FEW = 1024, 16  # experts of a row and chosen ones that are sorted in lists


@triton.jit
def _exp(x):
    """e^x to a few units in the last place: what the product with log2(e) loses is put back, for large |x| too."""
    high = x * 1.4426950408889634
    low = tl.fma(x, tl.full(x.shape, 1.4426950408889634, tl.float32), -high) + x * 1.925963033500e-08
    return tl.exp2(high) * (1.0 + tl.where(tl.abs(high) < 200, low, 0.0) * 0.6931471805599453)


@triton.jit
def _score(logits, top, total, SOFTMAX: tl.constexpr):
    if SOFTMAX:
        return tl.div_rn(_exp(logits - top), total + tl.zeros_like(logits))
    else:
        return tl.div_rn(tl.full(logits.shape, 1.0, tl.float32), 1.0 + _exp(-logits))


@triton.jit
def _normalizer(logits, inside, SOFTMAX: tl.constexpr):
    """Of each row, the greatest logit and the sum of e^(logit - greatest), [ROWS, 1]; unused by the sigmoid."""
    if SOFTMAX:
        top = tl.max(tl.where(inside, logits, float("-inf")), 1)[:, None]
        total = tl.sum(tl.where(inside, _exp(logits - top), 0.0), 1)[:, None]
        return top, total
    else:
        nothing = tl.zeros((logits.shape[0], 1), tl.float32)
        return nothing, nothing


@triton.jit
def _open_groups(ranked, inside, size, GROUPS: tl.constexpr, KEPT: tl.constexpr, BLOCK_G: tl.constexpr):
    """Which lanes [ROWS, BLOCK_G * BLOCK_S] belong to the KEPT groups with the greatest sum of their two best."""
    ROWS: tl.constexpr = ranked.shape[0]
    BLOCK_S: tl.constexpr = ranked.shape[1] // BLOCK_G
    LEAST: tl.constexpr = least(tl.int32)
    keys = tl.reshape(tl.where(inside, keys_of(ranked, True), LEAST), (ROWS, BLOCK_G, BLOCK_S))
    at = tl.arange(0, BLOCK_S)[None, None, :]
    best = tl.max(keys, 2)  # [ROWS, BLOCK_G]
    first = tl.min(tl.where(keys == best[:, :, None], at, NOWHERE), 2)
    second = tl.max(tl.where(at == first[:, :, None], LEAST, keys), 2)
    worth = value_of(best) + tl.where(size > 1, value_of(second), 0.0)

    group = tl.arange(0, BLOCK_G)[None, :] + tl.zeros((ROWS, BLOCK_G), tl.int32)
    left = tl.where(group < GROUPS, group, NOWHERE)
    keys = tl.where(group < GROUPS, keys_of(worth, True), LEAST)
    opened = tl.zeros((ROWS, BLOCK_G), tl.int32)
    for _ in range(0, KEPT):
        chosen, keys, left = take(keys, left)
        opened = tl.where(group == chosen[:, None], 1, opened)
    lanes = tl.broadcast_to(opened[:, :, None], (ROWS, BLOCK_G, BLOCK_S))
    return tl.reshape(lanes, (ROWS, BLOCK_G * BLOCK_S)) != 0


@kernel("M", "size", "pitch", "bias_step", "scale")
def _gate_kernel(
    logits_ptr,  # [M, GROUPS * size], rows pitch apart
    bias_ptr,  # with BIAS [GROUPS * size], bias_step apart
    weights_ptr,  # float32 [M, K]
    indices_ptr,  # int32 [M, K]
    M: tl.int64,
    size: tl.int32,  # experts of a group
    pitch: tl.int64,
    bias_step: tl.int64,
    scale: tl.float32,
    K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    lane = tl.arange(0, BLOCK_G * BLOCK_S)[None, :]
    expert = lane // BLOCK_S * size + lane % BLOCK_S
    inside = (row < M) & (lane % BLOCK_S < size) & (lane // BLOCK_S < GROUPS)
    logits = tl.load(logits_ptr + row * pitch + expert, mask=inside, other=0).to(tl.float32)
    top, total = _normalizer(logits, inside, SOFTMAX)
    if BIAS or KEPT < GROUPS:
        ranked = _score(logits, top, total, SOFTMAX)
        if BIAS:
            bias = tl.load(bias_ptr + expert * bias_step, mask=inside, other=0).to(tl.float32)
            ranked += bias
    choice = ranked if BIAS else logits
    if KEPT < GROUPS:
        inside = inside & _open_groups(ranked, inside, size, GROUPS, KEPT, BLOCK_G)
    keys = tl.where(inside, keys_of(choice, True), least(tl.int32))
    columns = tl.where(inside, expert, NOWHERE)
    place = tl.arange(0, BLOCK_K)[None, :]  # [1, BLOCK_K]
    chosen = tl.full((ROWS, BLOCK_K), NOWHERE, tl.int32)
    for j in range(0, K):
        column, keys, columns = take(keys, columns)
        chosen = tl.where(place == j, column[:, None], chosen)

    mask = (row < M) & (place < K)
    logits = tl.load(logits_ptr + row * pitch + chosen, mask=mask, other=0).to(tl.float32)
    weights = tl.where(mask, _score(logits, top, total, SOFTMAX), 0.0)
    if RENORMALIZE:
        weights = tl.div_rn(weights, tl.sum(weights, 1)[:, None] + 1e-20 + tl.zeros_like(weights))
    tl.store(weights_ptr + row * K + place, weights * scale, mask=mask)
    tl.store(indices_ptr + row * K + place, chosen, mask=mask)


@kernel("M", "E", "pitch", "bias_step", "scale")
def _gate_few_kernel(
    logits_ptr,  # [M, E], rows pitch apart
    bias_ptr,  # with BIAS [E], bias_step apart
    weights_ptr,  # float32 [M, K]
    indices_ptr,  # int32 [M, K]
    M: tl.int64,
    E: tl.int32,
    pitch: tl.int64,
    bias_step: tl.int64,
    scale: tl.float32,
    K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BIAS: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`_gate_kernel` without groups: the experts in BLOCK_K tiles, as `first_columns` takes them."""
    L: tl.constexpr = BLOCK // BLOCK_K
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.minimum(tl.arange(0, ROWS)[:, None], M - 1 - first).to(tl.int32)
    logits_ptr += first * known(pitch, ALIGNED)
    experts = ()
    inside = ()
    logits = ()
    for j in tl.static_range(BLOCK_K):
        expert = j * L + tl.arange(0, L)[None, :]  # [1, L]
        there = expert < known(E, ALIGNED)
        x = tl.load(logits_ptr + row * known(pitch, ALIGNED) + expert, mask=there, other=float("-inf"))
        experts += (expert,)
        inside += (there,)
        logits += (x.to(tl.float32),)
    top = tl.zeros((ROWS, 1), tl.float32)
    total = tl.zeros((ROWS, 1), tl.float32)
    if SOFTMAX:
        x = logits[0]
        for j in tl.static_range(1, BLOCK_K):
            x = tl.maximum(x, logits[j])
        top = tl.max(x, 1)[:, None]
        x = tl.zeros((ROWS, L), tl.float32)
        for j in tl.static_range(BLOCK_K):
            x += tl.where(inside[j], _exp(logits[j] - top), 0.0)
        total = tl.sum(x, 1)[:, None]
    keys = ()
    for j in tl.static_range(BLOCK_K):
        if BIAS:
            bias = tl.load(bias_ptr + experts[j] * bias_step, mask=inside[j], other=0).to(tl.float32)
            keys += (keys_of(_score(logits[j], top, total, SOFTMAX) + bias, True),)
        else:
            keys += (keys_of(logits[j], True),)
    KIND: tl.constexpr = tl.float32 if BIAS else logits_ptr.dtype.element_ty
    chosen = first_columns(keys, experts, inside, K, BLOCK, True, KIND)

    place = tl.arange(0, BLOCK_K)[None, :]
    n = tl.zeros((ROWS, BLOCK_K), tl.int32)
    for j in tl.static_range(K):
        n = tl.where(place == j, chosen[j][:, None], n)
    mask = (first + tl.arange(0, ROWS)[:, None] < M) & (place < K)
    x = tl.load(logits_ptr + row * known(pitch, ALIGNED) + n, mask=mask, other=0).to(tl.float32)
    weights = tl.where(mask, _score(x, top, total, SOFTMAX), 0.0)
    if RENORMALIZE:
        weights = tl.div_rn(weights, tl.sum(weights, 1)[:, None] + 1e-20 + tl.zeros_like(weights))
    at = first * K + tl.arange(0, ROWS)[:, None] * K + place
    tl.store(weights_ptr + at, weights * scale, mask=mask)
    tl.store(indices_ptr + at, n, mask=mask)


@kernel("M", "E", "pitch", "scale")
def _gate_bwd_kernel(
    dweights_ptr,  # [M, K]
    logits_ptr,  # [M, E], rows pitch apart
    indices_ptr,  # int32 [M, K]
    dlogits_ptr,  # [M, E]
    M: tl.int64,
    E: tl.int32,
    pitch: tl.int64,
    scale: tl.float32,
    K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    expert = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (expert < E)
    logits = tl.load(logits_ptr + row * pitch + expert, mask=inside, other=0).to(tl.float32)
    top, total = _normalizer(logits, inside, SOFTMAX)
    scores = tl.where(inside, _score(logits, top, total, SOFTMAX), 0.0)

    place = tl.arange(0, BLOCK_K)[None, :]  # [1, BLOCK_K]
    mask = (row < M) & (place < K)
    chosen = tl.load(indices_ptr + row * K + place, mask=mask, other=0)
    picked = tl.load(logits_ptr + row * pitch + chosen, mask=mask, other=0).to(tl.float32)
    picked = tl.where(mask, _score(picked, top, total, SOFTMAX), 0.0)
    dpicked = tl.load(dweights_ptr + row * K + place, mask=mask, other=0).to(tl.float32) * scale
    if RENORMALIZE:
        whole = tl.sum(picked, 1)[:, None] + 1e-20
        dpicked = (dpicked - tl.sum(dpicked * picked, 1)[:, None] / whole) / whole
    dscores = tl.zeros((ROWS, BLOCK), tl.float32)
    for j in range(0, K):  # to its expert, each
        target = tl.sum(tl.where(place == j, chosen, 0), 1)[:, None]
        dscores += tl.where(expert == target, tl.sum(tl.where(place == j, dpicked, 0.0), 1)[:, None], 0.0)
    if SOFTMAX:
        dlogits = scores * (dscores - tl.sum(dscores * scores, 1)[:, None])
    else:
        dlogits = dscores * scores * (1.0 - scores)
    tl.store(dlogits_ptr + row * E + expert, dlogits.to(dlogits_ptr.dtype.element_ty), mask=inside)


# --- launchers -------------------------------------------------------------------------------------------------------
def _router_rows(block: int) -> tuple[int, int]:
    """Rows of a program, and warps: a warp holds up to 1024 experts, so that choosing needs no barrier."""
    return max(1, 512 // block), min(16, max(1, block // 1024))


@replayed
def topk_gate(
    logits: Tensor,
    k: int,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    weights, indices = _meta.topk_gate(logits, k, scoring, bias, num_groups, topk_groups, renormalize, scale)
    if weights.numel() == 0:
        return weights, indices
    x, M, E, pitch = lines(logits)
    if topk_groups == num_groups and k <= _FEW and E <= _SHORT:
        block, block_k = max(triton.next_power_of_2(E), 32), triton.next_power_of_2(k)
        constants = (k, scoring == "softmax", bias is not None, renormalize, aligned(E, pitch))
        rows, warps = _router_rows(block)
        tensors = (x, x if bias is None else bias, weights, indices)
        scalars = (M, E, pitch, 0 if bias is None else bias.stride(0), scale)
        constants += (rows, block, block_k)
        _gate_few_kernel(triton.cdiv(M, rows), tensors, scalars, constants, num_warps=warps)
        return weights, indices
    size = E // num_groups
    block_g, block_s = triton.next_power_of_2(num_groups), triton.next_power_of_2(size)
    block_s = max(block_s, 32 // block_g)  # at least a lane for every thread
    rows, warps = _router_rows(block_g * block_s)
    constants = (k, scoring == "softmax", bias is not None, num_groups, topk_groups, renormalize)
    blocks = (rows, block_g, block_s, triton.next_power_of_2(k))
    tensors = (x, x if bias is None else bias, weights, indices)
    scalars = (M, size, pitch, 0 if bias is None else bias.stride(0), scale)
    _gate_kernel(triton.cdiv(M, rows), tensors, scalars, (*constants, *blocks), num_warps=warps)
    return weights, indices


@replayed
def topk_gate_bwd(
    dweights: Tensor, logits: Tensor, indices: Tensor, scoring: str, renormalize: bool, scale: float
) -> Tensor:
    dlogits = _meta.topk_gate_bwd(dweights, logits, indices, scoring, renormalize, scale)
    if dlogits.numel() == 0:
        return dlogits
    k = indices.shape[-1]
    if k == 0:
        return dlogits.zero_()
    x, M, E, pitch = lines(logits)
    block = max(triton.next_power_of_2(E), 32)
    rows, warps = _router_rows(block)
    constants = (k, scoring == "softmax", renormalize, rows, block, triton.next_power_of_2(k))
    tensors = (dweights.contiguous(), x, indices.contiguous(), dlogits)
    _gate_bwd_kernel(triton.cdiv(M, rows), tensors, (M, E, pitch, scale), constants, num_warps=warps)
    return dlogits
