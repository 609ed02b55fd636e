"""FP8 quantization in plain PyTorch: the definition of each op to the last bit, and its CPU kernel.

Every op cuts x into groups, and per group

    amax   = max |x|                          NaN if any element is
    scale  = max(amax, 1e-4) / fp8_max        with scale_ue8m0: rounded up to a power of two
    q      = cast(clamp(x / scale))           nearest even, NaN stays NaN

in float32, with IEEE division (torch on CUDA multiplies by the reciprocal when it divides by a Python number: divide by
a tensor). float64 input is computed in float64.
"""

import torch
from torch import Tensor

from tle_ops._groups import join, join_blocks, rows, split, split_blocks
from tle_ops._meta import AMAX_FLOOR, FP8_MAX, column_major_strides, compute_dtype
from tle_ops.kernels.elementwise_ref import saturating_cast


def per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
) -> tuple[Tensor, Tensor]:
    N = x.shape[-1]
    groups = split(x, -1, group_size)  # [.., G, g]
    q, scales = _quantize(groups, (-1,), dtype, scale_ue8m0)
    q = join(q, -1, N)  # [.., N]
    scales = scales.squeeze(-1)  # [.., G]
    if column_major_scales:
        strides = column_major_strides(scales.shape[:-1])
        scales = torch.empty_strided(scales.shape, strides, device=x.device).copy_(scales)
    else:
        scales = scales.contiguous()
    return q, scales


def per_token_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return join(_dequantize(split(q, -1, group_size), scales[..., None], dtype), -1, q.shape[-1])


def per_block_cast_fp8(
    x: Tensor, block_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    q, scales = _quantize(split_blocks(x, block_size), (-3, -1), dtype, scale_ue8m0)
    return join_blocks(q, x.shape), scales[..., 0, :, 0].contiguous()


def per_block_cast_back(
    q: Tensor, scales: Tensor, block_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return join_blocks(_dequantize(split_blocks(q, block_size), scales[..., :, None, :, None], dtype), q.shape)


def per_channel_cast_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    x2 = rows(x)  # [M, N]
    q, scales = _quantize(split(x2, 0, group_size), (1,), dtype, scale_ue8m0)
    return join(q, 0, x2.shape[0]).view(x.shape), scales[:, 0].contiguous()


def per_channel_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    q2 = rows(q)  # [M, N]
    return join(_dequantize(split(q2, 0, group_size), scales[:, None], dtype), 0, q2.shape[0]).view(q.shape)


def fake_quant_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> Tensor:
    q, scales = per_token_cast_fp8(x, group_size, dtype, scale_ue8m0)
    return per_token_cast_back(q, scales, group_size, x.dtype)


def _quantize(groups: Tensor, dims: tuple[int, ...], dtype: torch.dtype, ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Quantize with one scale per slice along `dims`, which stay in the scales with size 1."""
    wide = groups.to(compute_dtype(groups))
    amax = wide.abs().amax(dims, keepdim=True).clamp_min(AMAX_FLOOR)
    # Dividing by a tensor: the true quotient, on CUDA too.
    scales = (amax / torch.full_like(amax, FP8_MAX[dtype])).float()
    if ue8m0:
        scales = _round_up_to_power_of_two(scales)
    scales = scales.masked_fill(scales.isnan(), torch.nan)  # one NaN of the many, so that devices agree in its bits too
    return saturating_cast(wide / scales, dtype), scales


def _round_up_to_power_of_two(s: Tensor) -> Tensor:
    """By the exponent's bits: exact powers of two stay, and so do inf and NaN."""
    bits = s.view(torch.int32)
    up = ((bits >> 23) + ((bits & 0x7FFFFF) != 0).int()) << 23
    return torch.where(s.isfinite(), up.view(torch.float32), s)


def _dequantize(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (q.to(wide) * scales.to(wide)).to(dtype)
