"""FP8 quantization by token groups, blocks and channel groups, and back.

All quantizers share one rule per group, in float32 with IEEE division, the same bits on the CPU and on CUDA:

    amax  = max |x|                        (NaN if any element is NaN)
    scale = max(amax, 1e-4) / fp8_max      (448 for float8_e4m3fn, 57344 for float8_e5m2)
    q     = cast(clamp(x / scale))         (nearest even; a NaN becomes the code 0x7F)

so x is about q * scale. With `scale_ue8m0` the scale is rounded up to a power of two, by its exponent bits, and the
codes are made with the rounded one. An infinity in a group makes its scale inf, its own code NaN and the other codes
0; a NaN makes the whole group NaN. Codes and scales are not differentiable: train through `fake_quant_fp8`.
"""

import torch
from torch import Tensor


def per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quantize to FP8 with one scale per `group_size` consecutive elements of a row.

    Args:
        x: [.., N], any strides; float32, bfloat16, float16 or float64.
        group_size: elements per scale; the last group of a row may be short. -1: one group, the whole row.
        dtype: of the codes, float8_e4m3fn or float8_e5m2.
        scale_ue8m0: round the scales up to powers of two (still stored as float32).
        column_major_scales: store the scales column by column, strides (1, M rounded up to 4) for 2-D x, as cuBLAS's
            block-wise GEMM and DeepGEMM read them. The values are the same.

    Returns:
        q: [.., N] codes, contiguous.
        scales: [.., G] float32, G = ceil(N / group_size). `x ~ q * scales`.

    Raises:
        ValueError: group_size is 0 or below -1; x has no dimension.
        TypeError: x is not a float, dtype not a float8 type.

    Plain PyTorch (N a multiple of group_size):

        g = x.float().unflatten(-1, (-1, group_size))
        amax = g.abs().amax(-1, keepdim=True).clamp_min(1e-4)
        scales = amax / torch.full_like(amax, 448)
        q = (g / scales).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2)

    Not differentiable. The format is that of DeepSeek-V3 (arXiv 2412.19437, section 3.3).
    """
    return torch.ops.tle.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0, column_major_scales)


def per_token_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, *, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """The inverse of `per_token_cast_fp8`: `q * scale` in float32, rounded once.

    Args:
        q: [.., N] float8_e4m3fn or float8_e5m2, any strides.
        scales: [.., ceil(N / group_size)] float32, any strides (row or column major).
        group_size: as in the cast; -1: one scale per row.
        dtype: of the result; float32, bfloat16, float16 or float64.

    Returns:
        [.., N], contiguous.

    Raises:
        ValueError: the scales do not have the shape above, group_size is 0 or below -1, or the devices differ.
        TypeError: q, scales or dtype is of another type.

    Differentiable in the scales. Plain PyTorch (N a multiple of group_size):
    `(q.float().unflatten(-1, (-1, group_size)) * scales[..., None]).flatten(-2).to(dtype)`
    """
    return torch.ops.tle.per_token_cast_back(q, scales, group_size, dtype)


def per_block_cast_fp8(
    x: Tensor, block_size: int = 128, *, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Quantize to FP8 with one scale per square block of the last two dimensions: the format of weights.

    Args:
        x: [.., M, N], any strides; float32, bfloat16, float16 or float64.
        block_size: side of a block; blocks at the lower and right edge may be short.
        dtype: of the codes, float8_e4m3fn or float8_e5m2.
        scale_ue8m0: round the scales up to powers of two.

    Returns:
        q: [.., M, N] codes, contiguous.
        scales: [.., ceil(M / block_size), ceil(N / block_size)] float32, contiguous. To torch.compile and torch.export
            with a dynamic M or N, one block and several are two cases: two graphs, or a Dim with min=block_size + 1.

    Raises:
        ValueError: block_size is not positive; x has fewer than two dimensions.
        TypeError: x is not a float, dtype not a float8 type.

    Plain PyTorch (both sizes multiples of block_size = b):

        t = x.float().unflatten(-1, (-1, b)).unflatten(-3, (-1, b))        # [.., M/b, b, N/b, b]
        amax = t.abs().amax((-3, -1), keepdim=True).clamp_min(1e-4)
        scales = amax / torch.full_like(amax, 448)
        q = (t / scales).clamp(-448, 448).to(torch.float8_e4m3fn).view_as(x)

    Not differentiable.
    """
    return torch.ops.tle.per_block_cast_fp8(x, block_size, dtype, scale_ue8m0)


def per_block_cast_back(
    q: Tensor, scales: Tensor, block_size: int = 128, *, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """The inverse of `per_block_cast_fp8`: `q * scale` in float32, rounded once.

    Args:
        q: [.., M, N] float8_e4m3fn or float8_e5m2, any strides.
        scales: [.., ceil(M / block_size), ceil(N / block_size)] float32, any strides.
        block_size: as in the cast.
        dtype: of the result; float32, bfloat16, float16 or float64.

    Returns:
        [.., M, N], contiguous.

    Raises:
        ValueError: the scales do not have the shape above, block_size is not positive, or the devices differ.
        TypeError: q, scales or dtype is of another type.

    Differentiable in the scales. Plain PyTorch (both sizes multiples of block_size = b):
    `(q.float() * scales.repeat_interleave(b, -2).repeat_interleave(b, -1)).to(dtype)`
    """
    return torch.ops.tle.per_block_cast_back(q, scales, block_size, dtype)


def per_channel_cast_fp8(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Quantize to FP8 with one scale per `group_size` consecutive rows of a column: the format for weight gradients,
    whose product sums over tokens.

    Args:
        x: [.., N], any strides, M rows in all leading dimensions; float32, bfloat16, float16 or float64.
        group_size: rows per scale; the last group may be short. -1: one group, the whole column.
        dtype: of the codes, float8_e4m3fn or float8_e5m2.
        scale_ue8m0: round the scales up to powers of two.

    Returns:
        q: codes of x's shape, contiguous.
        scales: [ceil(M / group_size), N] float32, contiguous. Rows count through all leading dimensions. To
            torch.compile and torch.export with a dynamic M, one group and several are two cases, as for blocks.

    Raises:
        ValueError: group_size is 0 or below -1; x has no dimension.
        TypeError: x is not a float, dtype not a float8 type.

    Not differentiable. Plain PyTorch: `per_token_cast_fp8` of the transposed matrix, transposed back.
    """
    return torch.ops.tle.per_channel_cast_fp8(x, group_size, dtype, scale_ue8m0)


def per_channel_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, *, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """The inverse of `per_channel_cast_fp8`: `q * scale` in float32, rounded once.

    Args:
        q: [.., N] float8_e4m3fn or float8_e5m2, any strides, M rows in all leading dimensions.
        scales: [ceil(M / group_size), N] float32, any strides.
        group_size: as in the cast; -1: one scale per column.
        dtype: of the result; float32, bfloat16, float16 or float64.

    Returns:
        Tensor of q's shape, contiguous.

    Raises:
        ValueError: the scales do not have the shape above, group_size is 0 or below -1, or the devices differ.
        TypeError: q, scales or dtype is of another type.

    Differentiable in the scales. Plain PyTorch (2-D q):
    `(q.float() * scales.repeat_interleave(group_size, 0)[:M]).to(dtype)`
    """
    return torch.ops.tle.per_channel_cast_back(q, scales, group_size, dtype)


def fake_quant_fp8(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> Tensor:
    """Quantize by token groups and dequantize at once, for training: the values that FP8 would give, in x's dtype.

    Args:
        x, group_size, dtype, scale_ue8m0: as in `per_token_cast_fp8`.

    Returns:
        Contiguous tensor of x's shape and dtype, the same bits as
        `per_token_cast_back(*per_token_cast_fp8(x, group_size), group_size, dtype=x.dtype)`.

    Raises:
        As `per_token_cast_fp8`.

    Differentiable in x by the straight-through rule: the gradient passes unchanged (Bengio et al., arXiv 1308.3432).
    """
    return torch.ops.tle.fake_quant_fp8(x, group_size, dtype, scale_ue8m0)
