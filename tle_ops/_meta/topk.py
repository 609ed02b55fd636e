"""Contracts: topk, topk_selector, topk_gate and its backward."""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    contract,
    dtype_name,
    require,
    require_dim,
    require_float,
    require_number,
    require_same_device,
    require_shape,
    wrap_dim,
)
from tle_ops._meta.scan import INT32_MAX


@contract(
    "topk(Tensor x, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"
)
def topk(
    x: Tensor, k: int | torch.SymInt, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    require_number("topk", "x", x)
    require_dim("topk", "x", x, 1)
    dim = wrap_dim("topk", x, dim)
    N = x.shape[dim]

    def outside() -> str:
        return f"topk: k must be in [0, {N}], the size of dimension {dim}, got {k}"

    require(k >= 0, outside)
    require(k <= N, outside)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    values = torch.empty(shape, dtype=x.dtype, device=x.device)
    return values, torch.empty(shape, dtype=torch.int64, device=x.device)


@contract("topk_selector(Tensor scores, SymInt k, Tensor? starts=None, Tensor? ends=None) -> Tensor")
def topk_selector(
    scores: Tensor, k: int | torch.SymInt, starts: Tensor | None = None, ends: Tensor | None = None
) -> Tensor:
    require_number("topk_selector", "scores", scores)
    require_dim("topk_selector", "scores", scores, 1)
    require(k >= 0, lambda: f"topk_selector: k must not be negative, got {k}")
    N = scores.shape[-1]
    require(N <= INT32_MAX, lambda: f"topk_selector: scores must have at most 2**31 - 1 columns, got {N}")
    for name, bound in (("starts", starts), ("ends", ends)):
        if bound is None:
            continue
        if bound.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"topk_selector: {name} must be int32 or int64, got {dtype_name(bound.dtype)}")
        require_same_device("topk_selector", "scores", scores, name, bound)
        require_shape("topk_selector", name, bound, scores.shape[:-1])
    return torch.empty((*scores.shape[:-1], k), dtype=torch.int32, device=scores.device)


def _require_scoring(op: str, scoring: str) -> None:
    if scoring not in ("softmax", "sigmoid"):
        raise ValueError(f"{op}: scoring must be 'softmax' or 'sigmoid', got {scoring!r}")


@contract(
    'topk_gate(Tensor logits, int k, str scoring="softmax", Tensor? bias=None, int num_groups=1, int topk_groups=1, '
    "bool renormalize=True, float scale=1.0) -> (Tensor weights, Tensor indices)"
)
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
    op = "topk_gate"
    require_float(op, "logits", logits)
    _require_scoring(op, scoring)
    require_dim(op, "logits", logits, 1)
    E = logits.shape[-1]
    if bias is not None:
        require_float(op, "bias", bias)
        require_same_device(op, "logits", logits, "bias", bias)
        require_shape(op, "bias", bias, (E,))
    if num_groups < 1:
        raise ValueError(f"{op}: num_groups must be a positive int, got {num_groups}")
    if not 1 <= topk_groups <= num_groups:
        raise ValueError(f"{op}: topk_groups must be in [1, {num_groups}], the number of groups, got {topk_groups}")
    require(E % num_groups == 0, lambda: f"{op}: num_groups must divide the {E} experts, got {num_groups}")
    open_experts = E // num_groups * topk_groups

    def outside() -> str:
        of = "number of experts" if num_groups == 1 else f"experts of {topk_groups} of {num_groups} groups"
        return f"{op}: k must be in [1, {open_experts}], the {of}, got {k}"

    require(k >= 1, outside)
    require(k <= open_experts, outside)
    shape = (*logits.shape[:-1], k)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    return weights, torch.empty(shape, dtype=torch.int32, device=logits.device)


@contract(
    "topk_gate_bwd(Tensor dweights, Tensor logits, Tensor indices, str scoring, bool renormalize, float scale) "
    "-> Tensor"
)
def topk_gate_bwd(
    dweights: Tensor, logits: Tensor, indices: Tensor, scoring: str, renormalize: bool, scale: float
) -> Tensor:
    op = "topk_gate_bwd"
    require_float(op, "dweights", dweights)
    require_float(op, "logits", logits)
    _require_scoring(op, scoring)
    if indices.dtype != torch.int32:
        raise TypeError(f"{op}: indices must be int32, got {dtype_name(indices.dtype)}")
    for name, t in (("dweights", dweights), ("indices", indices)):
        require_same_device(op, "logits", logits, name, t)
    require_dim(op, "logits", logits, 1)
    require_shape(op, "indices", indices, (*logits.shape[:-1], *indices.shape[-1:]))
    require_shape(op, "dweights", dweights, indices.shape)
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
