"""Contracts: cumsum, compact, histogram."""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    FLOATS,
    INTEGER_NAMES,
    INTEGERS,
    NUMBER_NAMES,
    contract,
    dtype_name,
    require,
    require_dim,
    require_number,
    require_same_device,
    require_shape,
    wrap_dim,
)

INT32_MAX = 2**31 - 1


@contract(
    "cumsum(Tensor x, int dim=-1, bool reverse=False, ScalarType? dtype=None) -> (Tensor exclusive, Tensor total)"
)
def cumsum(x: Tensor, dim: int = -1, reverse: bool = False, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    require_number("cumsum", "x", x)
    if dtype is not None and (dtype == torch.bool or (dtype not in FLOATS and dtype not in INTEGERS)):
        raise TypeError(f"cumsum: dtype must be {NUMBER_NAMES.replace('bool, ', '')}, got {dtype_name(dtype)}")
    dim = wrap_dim("cumsum", x, dim)
    dtype = cumsum_dtype(x.dtype, dtype)
    exclusive = torch.empty(x.shape, dtype=dtype, device=x.device)
    return exclusive, torch.empty((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=dtype, device=x.device)


def cumsum_dtype(x: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """Of the result: `dtype`, else int32 for bool and integers below 32 bits, float32 for bfloat16, else x's own."""
    if dtype is not None:
        return dtype
    if x in INTEGERS:
        return torch.int32 if x.itemsize < 4 else x
    return torch.float32 if x == torch.bfloat16 else x


@contract("compact(Tensor x, Tensor mask) -> (Tensor packed, Tensor indices, Tensor count)")
def compact(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    require_number("compact", "x", x)
    if mask.dtype != torch.bool:
        raise TypeError(f"compact: mask must be bool, got {dtype_name(mask.dtype)}")
    require_same_device("compact", "x", x, "mask", mask)
    require_dim("compact", "x", x, 1)
    require_shape("compact", "mask", mask, x.shape)
    _require_int32_count("compact", x)
    packed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    indices = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    return packed, indices, torch.empty(x.shape[:-1], dtype=torch.int32, device=x.device)


@contract("histogram(Tensor x, int bins) -> Tensor")
def histogram(x: Tensor, bins: int) -> Tensor:
    if x.dtype not in INTEGERS:
        raise TypeError(f"histogram: x must be {INTEGER_NAMES}, got {dtype_name(x.dtype)}")
    require_dim("histogram", "x", x, 1)
    if bins < 1:
        raise ValueError(f"histogram: bins must be a positive int, got {bins}")
    _require_int32_count("histogram", x)
    return torch.empty((*x.shape[:-1], bins), dtype=torch.int32, device=x.device)


def _require_int32_count(op: str, x: Tensor) -> None:
    N = x.shape[-1]
    require(N <= INT32_MAX, lambda: f"{op}: the last dimension of x must be at most 2**31 - 1, got {N}")
