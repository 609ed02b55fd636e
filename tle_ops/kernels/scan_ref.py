"""Scans in plain PyTorch: the definition of each op, and its CPU kernel. No step waits for the device."""

import torch
from torch import Tensor

from tle_ops._meta import cumsum_dtype


def dense(t: Tensor) -> Tensor:
    """t with the strides that `torch.empty` gives: `contiguous()` lets those of dimensions of size 1 be anything."""
    if t.stride() == t.new_empty(t.shape, device="meta").stride():
        return t
    return t.clone(memory_format=torch.contiguous_format)


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x: Tensor) -> Tensor:
    """x, a float as integers: on the CPU, gather and scatter rewrite the NaNs of bfloat16."""
    return x.contiguous().view(_BITS[x.dtype.itemsize]) if x.dtype.is_floating_point else x


def cumsum(x: Tensor, dim: int = -1, reverse: bool = False, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    dtype = cumsum_dtype(x.dtype, dtype)
    wide = _accumulator(x.dtype, dtype)
    if x.dim() == 0:
        return torch.zeros((), dtype=dtype, device=x.device), x.to(wide).to(dtype, copy=True)
    x = x.to(wide)
    n = x.shape[dim]
    if n == 0:
        return dense(x.to(dtype, copy=True)), dense(x.sum(dim, dtype=dtype))
    inclusive = torch.cumsum(x.flip(dim) if reverse else x, dim, dtype=wide)
    # Shifted, not `inclusive - x`: inf - inf would be NaN.
    zero = torch.zeros_like(inclusive.narrow(dim, 0, 1))
    exclusive = torch.cat([zero, inclusive.narrow(dim, 0, n - 1)], dim)
    exclusive = exclusive.flip(dim) if reverse else exclusive
    return dense(exclusive.to(dtype)), dense(inclusive.select(dim, n - 1).to(dtype, copy=True))


def _accumulator(x: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """The type that sums are made in: wider than 16-bit floats, and of the result's kind."""
    if not dtype.is_floating_point:
        return torch.int64 if dtype == torch.int64 else torch.int32  # narrower results wrap, as they would themselves
    return torch.float64 if torch.float64 in (x, dtype) else torch.float32


def compact(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    N = x.shape[-1]
    rank = torch.cumsum(mask, -1)  # [.., N] int64, inclusive
    count = rank[..., -1].int() if N else torch.zeros(x.shape[:-1], dtype=torch.int32, device=x.device)
    target = torch.where(mask, rank - 1, N)  # what is not wanted goes to one slot past the end
    columns = torch.arange(N, device=x.device).expand(x.shape)
    source = bits(x)
    packed = source.new_zeros((*x.shape[:-1], N + 1)).scatter_(-1, target, source).view(x.dtype)
    indices = target.new_full((*x.shape[:-1], N + 1), -1).scatter_(-1, target, columns)
    return dense(packed[..., :N]), dense(indices[..., :N]), dense(count)


def histogram(x: Tensor, bins: int) -> Tensor:
    x = x.long()
    target = torch.where((x >= 0) & (x < bins), x, bins)  # what lies outside goes to one bin past the end
    counts = torch.zeros((*x.shape[:-1], bins + 1), dtype=torch.int32, device=x.device)
    ones = torch.ones((), dtype=torch.int32, device=x.device).expand(x.shape)
    return dense(counts.scatter_add_(-1, target, ones)[..., :bins])
