"""Sparse attention as in DeepSeek-V3.2: a small indexer scores all earlier tokens, `topk_selector` picks the best of
them, and attention reads those alone.

    python examples/sparse_attention.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import tle_ops


def index_scores(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """q [S, H, D], k [S, D], weights [S, H] -> [S, S] float32: how much each token matters to each."""
    return torch.einsum("shd,td->sht", q, k).relu().mul(weights[..., None]).sum(1).float()


def select(scores: Tensor, topk: int) -> Tensor:
    """scores [S, S] -> [S, topk] int32: for token s the best of tokens 0 to s, ascending, then -1."""
    ends = torch.arange(1, scores.shape[0] + 1, dtype=torch.int32, device=scores.device)
    return tle_ops.topk_selector(scores, topk, ends=ends)


def attend(q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> Tensor:
    """q [S, H, D], k, v [S, D] (one head of keys for all), indices [S, topk] -> [S, H, D]"""
    chosen = indices.clamp_min(0).long()
    logits = torch.einsum("shd,std->sht", q, k[chosen]) * q.shape[-1] ** -0.5  # [S, H, topk]
    weights = logits.masked_fill((indices < 0)[:, None], -torch.inf).softmax(-1)
    return torch.einsum("sht,std->shd", weights, v[chosen])


def main(S: int = 512, topk: int = 64, H: int = 8, D: int = 64) -> tuple[float, float]:
    """Run it; returns how far it is off from dense attention, with topk tokens and with all of them."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    k, v = torch.randn(2, S, D, device=device)
    # Queries that know what they look for: a few keys weigh more than the rest, for all heads of a token.
    q = 4 * (torch.randn(S, 1, D, device=device) + 0.2 * torch.randn(S, H, D, device=device))
    # An indexer that has learned its task: the attention logits themselves.
    scores = index_scores(q, k, torch.ones(S, H, device=device))
    dense = torch.einsum("shd,td->sht", q, k) * D**-0.5
    later = torch.ones(S, S, dtype=torch.bool, device=device).triu(1)
    dense = torch.einsum("sht,td->shd", dense.masked_fill(later[:, None], -torch.inf).softmax(-1), v)

    errors = []
    for n in (topk, S):
        indices = select(scores, n)
        errors.append(float((attend(q, k, v, indices) - dense).norm() / dense.norm()))
        print(f"{n:4d} of {S} tokens on {device}: {int((indices >= 0).sum())} keys read, off by {errors[-1]:.2g}")
    return errors[0], errors[1]


if __name__ == "__main__":
    main()
