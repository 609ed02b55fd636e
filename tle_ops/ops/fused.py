"""An activation or a norm fused with FP8 quantization by token groups: the row is read once and only codes and scales
are written.

The two ops in sequence, except that the intermediate stays in float32 and is not rounded to x's dtype. Sums,
exponentials and roots differ in the last bits between devices, so scales may differ by 2 ulp and a few codes (under 1
in 10^4) by one step, at rounding ties. Codes and scales are not differentiable.
"""

import torch
from torch import Tensor


def swiglu_per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    limit: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`swiglu_packed`, then `per_token_cast_fp8`.

    Args:
        x: [.., 2H], the gate in the first H columns, up in the last; any strides;
            float32, bfloat16, float16 or float64.
        group_size, dtype, scale_ue8m0, column_major_scales: as in `per_token_cast_fp8`.
        limit: as in `swiglu`.

    Returns:
        q: [.., H] codes, contiguous.
        scales: [.., ceil(H / group_size)] float32.

    Raises:
        As `swiglu_packed` and `per_token_cast_fp8`.

    Not differentiable. Plain PyTorch:
    `gate, up = x.float().chunk(2, -1); per_token_cast_fp8(F.silu(gate) * up, group_size)`.
    """
    return torch.ops.tle.swiglu_per_token_cast_fp8(x, group_size, dtype, scale_ue8m0, column_major_scales, limit)


def rms_norm_per_token_cast_fp8(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`rms_norm`, then `per_token_cast_fp8`.

    Args:
        x, weight, eps, weight_offset: as in `rms_norm`.
        group_size, dtype, scale_ue8m0, column_major_scales: as in `per_token_cast_fp8`.

    Returns:
        q: [.., N] codes, contiguous.
        scales: [.., ceil(N / group_size)] float32.

    Raises:
        As `rms_norm` and `per_token_cast_fp8`.

    Not differentiable. Plain PyTorch:
    `per_token_cast_fp8(F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps), group_size)`.
    """
    return torch.ops.tle.rms_norm_per_token_cast_fp8(
        x, weight, eps, group_size, dtype, scale_ue8m0, column_major_scales, weight_offset
    )


def add_rms_norm_per_token_cast_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm`, then `per_token_cast_fp8`.

    Args:
        x, residual, weight, eps, weight_offset: as in `add_rms_norm`.
        group_size, dtype, scale_ue8m0, column_major_scales: as in `per_token_cast_fp8`.

    Returns:
        q: [.., N] codes of rms_norm(new_residual), contiguous.
        scales: [.., ceil(N / group_size)] float32.
        new_residual: [.., N] contiguous: x + residual, rounded to x's dtype. Differentiable in x and residual.

    Raises:
        As `add_rms_norm` and `per_token_cast_fp8`.

    Plain PyTorch: `new_residual = x + residual`, then `rms_norm_per_token_cast_fp8` of it.
    """
    return torch.ops.tle.add_rms_norm_per_token_cast_fp8(
        x, residual, weight, eps, group_size, dtype, scale_ue8m0, column_major_scales, weight_offset
    )
