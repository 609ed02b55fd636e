"""FP8 quantization in TileLang: argument checks and outputs by the contracts, then one launch of a kernel of
_tilelang_quant.py on [M, N] views. A layout that has no such view is copied once."""

import torch
from torch import Tensor

from tle_ops import _meta
from tle_ops.kernels._replay import replayed
from tle_ops.kernels._tilelang import Kernel, vector_width
from tle_ops.kernels._tilelang_quant import (
    Tiling,
    back_kernel,
    block_kernel,
    channel_kernel,
    fake_quant_kernel,
    token_kernel,
)

VECTOR = 8  # elements; 16 bytes of a 16-bit type
MANY = 1 << 23  # elements; from here on there is work for every multiprocessor, and a thread takes more


@replayed
def per_token_cast_fp8(
    x: Tensor,
    group_size: int = 128,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale_ue8m0: bool = False,
    column_major_scales: bool = False,
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.per_token_cast_fp8(x, group_size, dtype, scale_ue8m0, column_major_scales)
    if not x.numel():
        return q, _of_nothing(scales, dtype, scale_ue8m0)
    _token(token_kernel, x, group_size, dtype, scale_ue8m0, q, scales)
    return q, scales


@replayed
def fake_quant_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> Tensor:
    y = _meta.fake_quant_fp8(x, group_size, dtype, scale_ue8m0)
    if y.numel():
        _token(fake_quant_kernel, x, group_size, dtype, scale_ue8m0, y, None)
    return y


def _token(
    kernel: Kernel, x: Tensor, group_size: int, dtype: torch.dtype, ue8m0: bool, y: Tensor, scales: Tensor | None
) -> None:
    """Launch `kernel` on x with the outputs y and, unless None, scales."""
    N = x.shape[-1]
    x, y = _rows(x), _flat(y)
    length = N if group_size == -1 or group_size > N else group_size
    G = -(-N // length)
    if scales is not None:
        if G == 1:  # contiguous whatever the last stride is, but the kernels want to see 1
            scales = scales.as_strided((x.shape[0], 1), (1, 1))
        elif scales.dim() != 2:
            scales = scales.view(-1, G)
    outputs = (y,) if scales is None else (y, scales)
    many = x.shape[0] * N >= MANY
    if N % length == 0 and x.is_contiguous() and (scales is None or scales.is_contiguous()):
        width = vector_width(VECTOR, length, x.data_ptr() // x.element_size())
        kernel(x.device, x.dtype, dtype, length, None, 1, width, ue8m0, many)(x, *outputs)
        return
    width = vector_width(VECTOR, length if G > 1 else N, N, x.stride(0), x.data_ptr() // x.element_size())
    across = _groups_across(length, G, width, x.element_size(), many)
    kernel(x.device, x.dtype, dtype, length, N, across, width, ue8m0, many)(x, *outputs)


def _groups_across(length: int, G: int, width: int, itemsize: int, many: bool) -> int:
    """Groups of one row that a block reads side by side: enough for whole cache lines. The other groups are of the next
    rows, which is what column-major scales want."""
    tiling = Tiling(length, width, many)
    across = 1
    while across * 2 <= min(tiling.subs, G) and across * tiling.lanes * width * itemsize < 128:
        across *= 2
    return across


@replayed
def per_block_cast_fp8(
    x: Tensor, block_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.per_block_cast_fp8(x, block_size, dtype, scale_ue8m0)
    if not x.numel():
        return q, scales
    M, N = x.shape[-2:]
    block = _block(block_size, M, N)
    x = _rows(x)
    width = vector_width(VECTOR, block if block < N else N, N, x.stride(0), x.data_ptr() // x.element_size())
    launch = block_kernel(x.device, x.dtype, dtype, block, width, scale_ue8m0, x.shape[0] != M)
    launch(x, _flat(q), _flat(scales), M)
    return q, scales


@replayed
def per_channel_cast_fp8(
    x: Tensor, group_size: int = 128, dtype: torch.dtype = torch.float8_e4m3fn, scale_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    q, scales = _meta.per_channel_cast_fp8(x, group_size, dtype, scale_ue8m0)
    if not x.numel():
        return q, _of_nothing(scales, dtype, scale_ue8m0)
    x = _rows(x)
    M, N = x.shape
    group = None if group_size == -1 or group_size > max(M, 1024) else group_size
    width = vector_width(VECTOR, N, x.stride(0), x.data_ptr() // x.element_size())
    channel_kernel(x.device, x.dtype, dtype, group, width, scale_ue8m0)(x, _flat(q), scales)
    return q, scales


@replayed
def per_token_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    y = _meta.per_token_cast_back(q, scales, group_size, dtype)
    if y.numel():
        N = q.shape[-1]
        along = None if group_size == -1 or group_size >= N else group_size
        _back(q, _flat(scales), y, 1, along, 0)
    return y


@replayed
def per_block_cast_back(
    q: Tensor, scales: Tensor, block_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    y = _meta.per_block_cast_back(q, scales, block_size, dtype)
    if y.numel():
        M, N = q.shape[-2:]
        block = _block(block_size, M, N)
        _back(q, _flat(scales), y, block, block, M)
    return y


@replayed
def per_channel_cast_back(
    q: Tensor, scales: Tensor, group_size: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    y = _meta.per_channel_cast_back(q, scales, group_size, dtype)
    if y.numel():
        _back(q, scales, y, None if group_size == -1 else group_size, 1, 0)
    return y


def _back(q: Tensor, scales: Tensor, y: Tensor, down: int | None, along: int | None, M: int) -> None:
    N = q.shape[-1]
    q, y = _flat(q.contiguous()), _flat(y)
    width = vector_width(VECTOR, N, *(() if along in (None, 1) else (along,)), q.data_ptr())
    back_kernel(q.device, q.dtype, y.dtype, down, along, width, M not in (0, q.shape[0]))(q, scales, y, M)


def _block(block_size: int, M: int, N: int) -> int:
    """The block size for the kernels: one and the same number for all that are large and span the matrix."""
    return block_size if block_size <= 4096 or block_size < max(M, N) else 1 << 40


def _flat(t: Tensor) -> Tensor:
    """[.., n] as [m, n]; the tensor itself if it has two dimensions, for a call that can be replayed."""
    return t if t.dim() == 2 else t.reshape(-1, t.shape[-1])


def _rows(x: Tensor) -> Tensor:
    """x [.., N] as [M, N] whose last stride is 1: a view, or one copy if it must be."""
    N = x.shape[-1]
    if x.dim() != 2:
        x = x.reshape(-1, N)
    if N == 1:  # any stride is contiguous then, but the kernels want to see 1
        return x.contiguous().as_strided(x.shape, (1, 1))
    return x if x.stride(1) == 1 else x.contiguous()


def _of_nothing(scales: Tensor, dtype: torch.dtype, ue8m0: bool) -> Tensor:
    """The scales of groups without elements: there are some if one group spans a dimension of size 0."""
    return scales.fill_(_meta.scale_of_nothing(dtype, ue8m0))
