"""A linear layer with an FP8 weight that quantizes what enters it, and what it takes to judge one."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import ScalingType, scaled_mm

import tle_ops


class Fp8Linear(nn.Module):
    """y = dequantize(quantize(x)) @ dequantize(weight).T + bias, in x's dtype.

    The weight is quantized once, in blocks of 128 x 128; x in every call, each row in groups of 128. A Hopper GPU
    multiplies the codes themselves. Elsewhere both sides are dequantized to float32 first: the same product, up to the
    rounding of its sums, without the speed.

    Args:
        linear: the layer to quantize, weight [N, K].
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        codes, scales = tle_ops.per_block_cast_fp8(linear.weight.detach())
        self.register_buffer("codes", codes)  # [N, K]
        self.register_buffer("scales", scales)  # [N / 128, K / 128]
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] -> [.., N]"""
        product = _multiply_codes if multiplies_codes(x.device, *self.codes.shape) else _multiply_dequantized
        y = product(x.flatten(0, -2), self.codes, self.scales).unflatten(0, x.shape[:-1])
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def multiplies_codes(device: torch.device, N: int, K: int) -> bool:
    """Whether PyTorch has a block-scaled FP8 product here: cuBLAS has one for Hopper only, in steps of 16 and 128."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9 and N % 16 == K % 128 == 0


def _multiply_codes(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """x [M, K], codes [N, K], scales [N / 128, K / 128] -> [M, N] float32"""
    M = x.shape[0]
    x = F.pad(x, (0, 0, 0, -M % 16))  # cuBLAS wants all sizes in steps of 16 bytes
    x_codes, x_scales = tle_ops.per_token_cast_fp8(x, column_major_scales=True)
    scales = F.pad(scales, (0, -scales.shape[1] % 4))  # and columns of scales too
    return scaled_mm(
        x_codes,
        codes.t(),
        x_scales,
        ScalingType.BlockWise1x128,
        scales.t(),
        ScalingType.BlockWise128x128,
        output_dtype=torch.float32,
    )[:M]


def _multiply_dequantized(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """x [M, K], codes [N, K], scales [ceil(N / 128), ceil(K / 128)] -> [M, N] float32"""
    x = tle_ops.per_token_cast_back(*tle_ops.per_token_cast_fp8(x), dtype=torch.float32)
    return x @ tle_ops.per_block_cast_back(codes, scales, dtype=torch.float32).t()


def quantize(model: nn.Module) -> nn.Module:
    """A copy of the model in which every nn.Linear is an Fp8Linear; everything else stays as it is."""
    model = copy.deepcopy(model)
    for name, linear in linears(model).items():
        model.set_submodule(name, Fp8Linear(linear))
    return model


def linears(model: nn.Module) -> dict[str, nn.Module]:
    """The linear layers by name, plain or quantized, in the order of the model."""
    return {name: m for name, m in model.named_modules() if isinstance(m, (nn.Linear, Fp8Linear))}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the matrices of the linear layers: weights, or codes and scales; no biases."""
    return sum(
        t.nbytes
        for layer in linears(model).values()
        for t in ((layer.codes, layer.scales) if isinstance(layer, Fp8Linear) else (layer.weight,))
    )


def checkpoint_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers: what a checkpoint of the model holds."""
    return sum(t.nbytes for t in model.state_dict().values())


def sqnr_db(exact: Tensor, rounded: Tensor) -> float:
    """Signal to quantization noise: 10 log10(sum exact^2 / sum (exact - rounded)^2). 20 dB: the noise is a tenth of the
    signal (in root mean square), 6 dB more: half of that."""
    exact, rounded = exact.double(), rounded.double()
    return (10 * (exact.square().sum() / (exact - rounded).square().sum()).log10()).item()
