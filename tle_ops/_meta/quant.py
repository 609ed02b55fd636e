"""Contracts: FP8 quantization by token, block and channel, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    AMAX_FLOOR,
    FLOAT_NAMES,
    FLOATS,
    FP8_MAX,
    contract,
    dtype_name,
    require_dim,
    require_float,
    require_fp8,
    require_same_device,
    require_shape,
)


def num_groups(N: int | torch.SymInt, group_size: int) -> int | torch.SymInt:
    """Groups that cover N elements; the last one may be short. -1 is one group whatever N is."""
    return 1 if group_size == -1 else (N + group_size - 1) // group_size


def scale_of_nothing(dtype: torch.dtype, scale_ue8m0: bool) -> float:
    """The scale of a group without elements, which -1 makes of a row without columns: that of zeros."""
    amax, top = (torch.tensor(value, dtype=torch.float32, device="cpu") for value in (AMAX_FLOOR, FP8_MAX[dtype]))
    scale = (amax / top).item()
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - (mantissa == 0.5)) if scale_ue8m0 else scale


def _require_group_size(op: str, group_size: int) -> None:
    if group_size < 1 and group_size != -1:
        raise ValueError(f"{op}: group_size must be a positive int or -1, got {group_size}")


def _require_block_size(op: str, block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"{op}: block_size must be a positive int, got {block_size}")


def _require_cast_back(op: str, q: Tensor, scales: Tensor, dtype: torch.dtype, least_dim: int) -> None:
    require_fp8(op, "q", q.dtype)
    if scales.dtype is not torch.float32:
        raise TypeError(f"{op}: scales must be float32, got {dtype_name(scales.dtype)}")
    if dtype not in FLOATS:
        raise TypeError(f"{op}: dtype must be {FLOAT_NAMES}, got {dtype_name(dtype)}")
    require_same_device(op, "q", q, "scales", scales)
    require_dim(op, "q", q, least_dim)


def _scales(x: Tensor, shape: Sequence[int | torch.SymInt]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


@contract(
    "per_token_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=float8_e4m3fn, bool scale_ue8m0=False, "
    "bool column_major_scales=False) -> (Tensor q, Tensor scales)"
)
def per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
) -> tuple[Tensor, Tensor]:
    require_float("per_token_cast_fp8", "x", x)
    require_dim("per_token_cast_fp8", "x", x, 1)
    return token_codes("per_token_cast_fp8", x.shape, x.device, group_size, dtype, column_major_scales)


def token_codes(
    op: str,
    shape: Sequence[int | torch.SymInt],
    device: torch.device,
    group_size: int,
    dtype: torch.dtype,
    column_major_scales: bool,
) -> tuple[Tensor, Tensor]:
    """Codes and scales for x of `shape`, alone or behind another op."""
    require_fp8(op, "dtype", dtype)
    _require_group_size(op, group_size)
    q = torch.empty(shape, dtype=dtype, device=device)
    scales_shape = (*shape[:-1], num_groups(shape[-1], group_size))
    if not column_major_scales:
        return q, torch.empty(scales_shape, dtype=torch.float32, device=device)
    return q, torch.empty_strided(scales_shape, column_major_strides(shape[:-1]), dtype=torch.float32, device=device)


def column_major_strides(rows: Sequence[int | torch.SymInt]) -> list[int | torch.SymInt]:
    """Strides of scales [*rows, G] stored column by column: the rows are contiguous, the pitch of a column is M rounded
    up to 4 floats (16 bytes), as cuBLAS and TMA want it."""
    strides: list[int | torch.SymInt] = [1]
    for size in reversed(rows):
        strides.insert(0, strides[0] * size)
    M = strides.pop(0)
    return [*strides, (M + 3) // 4 * 4]


@contract("per_token_cast_back(Tensor q, Tensor scales, int group_size=128, ScalarType dtype=bfloat16) -> Tensor")
def per_token_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    _require_cast_back("per_token_cast_back", q, scales, dtype, 1)
    _require_group_size("per_token_cast_back", group_size)
    require_shape("per_token_cast_back", "scales", scales, (*q.shape[:-1], num_groups(q.shape[-1], group_size)))
    return torch.empty(q.shape, dtype=dtype, device=q.device)


@contract(
    "per_block_cast_fp8(Tensor x, int block_size=128, ScalarType dtype=float8_e4m3fn, bool scale_ue8m0=False) "
    "-> (Tensor q, Tensor scales)"
)
def per_block_cast_fp8(
    x: Tensor, block_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    require_float("per_block_cast_fp8", "x", x)
    require_fp8("per_block_cast_fp8", "dtype", dtype)
    _require_block_size("per_block_cast_fp8", block_size)
    require_dim("per_block_cast_fp8", "x", x, 2)
    return torch.empty(x.shape, dtype=dtype, device=x.device), _scales(x, block_grid(x.shape, block_size))


def block_grid(shape: Sequence[int | torch.SymInt], block_size: int) -> tuple[int | torch.SymInt, ...]:
    """[.., M, N] -> [.., ceil(M / block_size), ceil(N / block_size)]"""
    return (*shape[:-2], num_groups(shape[-2], block_size), num_groups(shape[-1], block_size))


@contract("per_block_cast_back(Tensor q, Tensor scales, int block_size=128, ScalarType dtype=bfloat16) -> Tensor")
def per_block_cast_back(
    q: Tensor, scales: Tensor, block_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    _require_cast_back("per_block_cast_back", q, scales, dtype, 2)
    _require_block_size("per_block_cast_back", block_size)
    require_shape("per_block_cast_back", "scales", scales, block_grid(q.shape, block_size))
    return torch.empty(q.shape, dtype=dtype, device=q.device)


@contract(
    "per_channel_cast_fp8(Tensor x, int group_size=128, ScalarType dtype=float8_e4m3fn, bool scale_ue8m0=False) "
    "-> (Tensor q, Tensor scales)"
)
def per_channel_cast_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    require_float("per_channel_cast_fp8", "x", x)
    require_fp8("per_channel_cast_fp8", "dtype", dtype)
    _require_group_size("per_channel_cast_fp8", group_size)
    require_dim("per_channel_cast_fp8", "x", x, 1)
    return torch.empty(x.shape, dtype=dtype, device=x.device), _scales(x, channel_grid(x.shape, group_size))


def channel_grid(shape: Sequence[int | torch.SymInt], group_size: int) -> tuple[int | torch.SymInt, int | torch.SymInt]:
    """[.., N] with M rows in all -> [ceil(M / group_size), N]"""
    M = 1
    for size in shape[:-1]:
        M = M * size
    return num_groups(M, group_size), shape[-1]


@contract("per_channel_cast_back(Tensor q, Tensor scales, int group_size=128, ScalarType dtype=bfloat16) -> Tensor")
def per_channel_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    _require_cast_back("per_channel_cast_back", q, scales, dtype, 1)
    _require_group_size("per_channel_cast_back", group_size)
    require_shape("per_channel_cast_back", "scales", scales, channel_grid(q.shape, group_size))
    return torch.empty(q.shape, dtype=dtype, device=q.device)


@contract(
    "fake_quant_fp8(Tensor x, int group_size=128, ScalarType dtype=float8_e4m3fn, bool scale_ue8m0=False) -> Tensor"
)
def fake_quant_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> Tensor:
    require_float("fake_quant_fp8", "x", x)
    require_fp8("fake_quant_fp8", "dtype", dtype)
    _require_group_size("fake_quant_fp8", group_size)
    require_dim("fake_quant_fp8", "x", x, 1)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
