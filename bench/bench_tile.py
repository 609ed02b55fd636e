"""Cases: a tile out of a matrix, and into one. The reference is the kernel: slices copy at the speed of memory."""

from __future__ import annotations

import torch

from bench.harness import Case, tensor_bytes


def out_of(shape, device):
    return torch.randn(shape, device=device), [1, 1], [n // 2 for n in shape]


def into(shape, device):
    return torch.randn(shape, device=device), torch.randn([n // 2 for n in shape], device=device), [1, 1]


CASES = [
    Case(
        "extract_tile",
        "a quarter of 8192x8192",
        (8192, 8192),
        out_of,
        quick=True,
        rowwise=False,
        nbytes=lambda args, tile: 2 * tensor_bytes(tile),
    ),
    Case("insert_tile", "a quarter of 8192x8192", (8192, 8192), into, quick=True, rowwise=False),
]
