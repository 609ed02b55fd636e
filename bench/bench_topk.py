"""Cases: the greatest k of a row, as a set; the MoE router."""

from __future__ import annotations

import torch

from bench.check import Tolerance
from bench.harness import Case


def scores(k, *settings):
    return lambda shape, device: (torch.randn(shape, device=device), min(k, shape[-1]), *settings)


def as_set(args, result):
    """Values and indices in any order, and ties broken in any way: the values, those that the indices point to, and
    whether the indices are distinct. Libraries may return the indices alone."""
    values, indices = result if isinstance(result, tuple) else (args[0].gather(-1, result), result)
    return (*(v.sort(-1).values for v in (values, args[0].gather(-1, indices))), distinct(indices))


def selected(args, columns):
    return args[0].gather(-1, columns.long()).sort(-1).values, distinct(columns)


def routed(args, result):
    weights, indices = result
    return weights.sort(-1).values, indices.sort(-1).values


def distinct(indices):
    return indices.sort(-1).values.diff().ne(0).all().reshape(1)


def eager_topk(x, k, dim, largest, in_order):
    return torch.topk(x, k, dim, largest, in_order)


def eager_selector(x, k):
    return torch.topk(x, k, -1, True, False).indices.int()


def eager_gate(logits, k):
    chosen, indices = logits.topk(k)
    return chosen.softmax(-1), indices.int()


def flaggems_topk(flaggems, x, k, dim, largest, in_order):
    return flaggems.ops.topk(x, k, dim, largest, in_order)


def flaggems_selector(flaggems, x, k):
    first = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    return flaggems.fused.bucket_sort_topk(x, first, first + x.shape[1], k)


def flaggems_gate(flaggems, logits, k):
    tokens = logits.shape[0]
    weights = torch.empty((tokens, k), device=logits.device)
    indices, rows = (torch.empty((tokens, k), dtype=torch.int32, device=logits.device) for _ in range(2))
    flaggems.fused.topk_softmax(weights, indices, rows, logits, True)
    return weights, indices


def tilekernels_topk(tilekernels, x, k, dim, largest, in_order):  # the indices alone, and at most 32
    return tilekernels.moe.topk_gate(x, k)


CASES = [
    *(
        Case(
            "topk_selector",
            f"k=2048, {B}x{N}",
            (B, N),
            scores(2048),
            eager_selector,
            {} if N == 262144 else {"FlagGems": flaggems_selector},  # there its lists overflow into other memory
            target_us=us,
            earlier=earlier,
            quick=N == 32768,
            canonical=selected,
        )
        for B, N, us, earlier in (
            (64, 131072, 30, {"vLLM": 39.2, "FlashInfer": 50.8, "CUB": 63.8}),
            (64, 262144, 45, {"vLLM": 59.7, "FlashInfer": 83.8, "CUB": 99.7}),
            (32, 32768, 16, {"CUB": 19.7, "vLLM": 23.5}),
            (1, 65536, 14, {"vLLM": 14.7, "FlashInfer": 16.1}),
            (1, 131072, None, {}),
        )
    ),
    *(
        Case(
            "topk",
            f"k={k} unsorted, {B}x{N}",
            (B, N),
            scores(k, -1, True, False),
            eager_topk,
            # FlagGems sorts k of every 1024 columns at once: for longer rows that compiles for minutes or is refused.
            ({"FlagGems": flaggems_topk} if N <= 4096 else {}) | ({"TileKernels": tilekernels_topk} if k == 8 else {}),
            target_us=us,
            earlier=earlier,
            quick=N == 4096,
            canonical=as_set,
        )
        for B, N, k, us, earlier in (
            (1, 131072, 50, 14, {"FlashInfer": 17.4, "CUB": 22.5}),
            (64, 131072, 50, 25, {"FlashInfer": 48.9, "CUB": 50}),
            (1, 1 << 24, 1000, 45, {"CUB": 71.3}),
            (4096, 4096, 64, 45, {"quack": 66.8, "FlashInfer": 106}),
            (4096, 256, 8, 7, {"quack": 7.1, "vLLM": 14.8}),
            (16384, 128, 8, 9, {"quack": 9.6, "vLLM": 31.5}),
        )
    ),
    Case(
        "topk_gate",
        "softmax, 8 of 256, 4096 tokens",
        (4096, 256),
        scores(8),
        eager_gate,
        {"FlagGems": flaggems_gate},
        quick=True,
        tolerance=Tolerance(ulps=16),
        peer_tolerance=Tolerance(ulps=16),
        canonical=routed,
    ),
]
