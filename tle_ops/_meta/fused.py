"""Contracts: an activation or a norm followed by per_token_cast_fp8, with the intermediate in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops._meta._contract import contract
from tle_ops._meta.norm import require_columns, require_eps, require_residual, require_rows
from tle_ops._meta.quant import token_codes
from tle_ops._meta.swiglu import packed_shape, require_limit, require_packed

_OPTIONS = (
    "int group_size=128, ScalarType dtype=float8_e4m3fn, bool scale_ue8m0=False, bool column_major_scales=False, "
)


@contract(f"swiglu_per_token_cast_fp8(Tensor x, {_OPTIONS}float? limit=None) -> (Tensor q, Tensor scales)")
def swiglu_per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    limit: float | None = None,
) -> tuple[Tensor, Tensor]:
    op = "swiglu_per_token_cast_fp8"
    require_packed(op, x)
    require_limit(op, limit)
    return token_codes(op, packed_shape(x), x.device, group_size, dtype, column_major_scales)


@contract(
    f"rms_norm_per_token_cast_fp8(Tensor x, Tensor? weight, float eps, {_OPTIONS}float weight_offset=0.0) "
    "-> (Tensor q, Tensor scales)"
)
def rms_norm_per_token_cast_fp8(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    op = "rms_norm_per_token_cast_fp8"
    require_rows(op, "x", x)
    require_columns(op, "weight", weight, "x", x)
    require_eps(op, eps)
    return token_codes(op, x.shape, x.device, group_size, dtype, column_major_scales)


@contract(
    "add_rms_norm_per_token_cast_fp8(Tensor x, Tensor residual, Tensor? weight, float eps, "
    f"{_OPTIONS}float weight_offset=0.0) -> (Tensor q, Tensor scales, Tensor new_residual)"
)
def add_rms_norm_per_token_cast_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "add_rms_norm_per_token_cast_fp8"
    require_rows(op, "x", x)
    require_residual(op, x, residual)
    require_columns(op, "weight", weight, "x", x)
    require_eps(op, eps)
    q, scales = token_codes(op, x.shape, x.device, group_size, dtype, column_major_scales)
    return q, scales, torch.empty(x.shape, dtype=x.dtype, device=x.device)
