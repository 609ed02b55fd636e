"""Rows of a tensor, as the scans and selections walk them: one pitch apart, the elements side by side."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def known(n, ALIGNED: tl.constexpr):
    """A length or pitch, known to the compiler as a multiple of 16 if it is one, so that accesses are 128 bits wide
    (`tl.multiple_of` does not reach the arguments of a kernel)."""
    if ALIGNED:
        return n // 16 * 16
    else:
        return n


def lines(x: Tensor) -> tuple[Tensor, int, int, int]:
    """x, its rows, columns and pitch. x itself wherever its layout allows it, so that launches can be replayed, else a
    copy. No size may be 0."""
    N = x.shape[-1]
    if x.is_contiguous():
        return x, x.numel() // N, N, N
    if x.dim() != 2:
        x = x.reshape(-1, N)
    if x.stride(1) != 1 and N > 1:
        x = x.contiguous()
    return x, x.shape[0], N, x.stride(0)


def aligned(*sizes: int) -> bool:
    return all(n % 16 == 0 for n in sizes)
