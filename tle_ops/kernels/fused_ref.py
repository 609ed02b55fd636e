"""An activation or a norm followed by per_token_cast_fp8, in plain PyTorch: the intermediate stays in float32 (float64
when given float64), it is not rounded to the input's dtype. Sums, roots and exponentials are taken in float64, so that
they are the same on every machine.
"""

import torch
from torch import Tensor

from tle_ops._meta import compute_dtype
from tle_ops.kernels.norm_ref import add_residual, rms_norm_wide
from tle_ops.kernels.quant_ref import per_token_cast_fp8
from tle_ops.kernels.swiglu_ref import halves, swiglu_wide


def swiglu_per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    limit: float | None = None,
) -> tuple[Tensor, Tensor]:
    dtype_of_y = compute_dtype(x)
    if limit is not None:  # a number of the type that is computed in, as in the plain op
        limit = float(torch.tensor(limit, dtype=dtype_of_y, device="cpu"))
    y = swiglu_wide(*halves(x.double()), limit).to(dtype_of_y)
    return per_token_cast_fp8(y, group_size, dtype, scale_ue8m0, column_major_scales)


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
    y = rms_norm_wide(x, weight, eps, weight_offset)
    return per_token_cast_fp8(y, group_size, dtype, scale_ue8m0, column_major_scales)


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
    new_residual = add_residual(x, residual)
    y = rms_norm_wide(new_residual, weight, eps, weight_offset)
    q, scales = per_token_cast_fp8(y, group_size, dtype, scale_ue8m0, column_major_scales)
    return q, scales, new_residual
