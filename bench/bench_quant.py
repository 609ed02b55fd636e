"""Cases: FP8 quantization by token, block and channel, and back."""

from __future__ import annotations

import torch

from bench.check import Tolerance
from bench.harness import Case

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
G = 128
WRONG = "tutorial's kernel (3 % of the codes wrong)"


def activations(*settings):
    """bf16 normal numbers, then the op's other arguments."""
    return lambda shape, device: (torch.randn(shape, dtype=BF16, device=device), *settings)


def quantized(cast):
    """Codes and scales, as `cast` makes them, for the ops back."""
    return lambda shape, device: (*cast(torch.randn(shape, dtype=BF16, device=device), G), G, BF16)


# --- plain PyTorch ---------------------------------------------------------------------------------------------------
def quantize(groups, dim, ue8m0=False):
    amax = groups.abs().amax(dim, keepdim=True).clamp_min(1e-4)
    scales = amax / torch.full_like(amax, 448.0)  # by a Python number, CUDA would multiply with the reciprocal
    if ue8m0:  # up to a power of two, by the exponent's bits
        scales = ((scales.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return (groups / scales).clamp(-448.0, 448.0).to(FP8), scales


def eager_token(x, group_size=G, dtype=FP8, ue8m0=False, column_major=False):
    groups = x.float().unflatten(-1, (-1, x.shape[-1] if group_size == -1 else group_size))  # [M, G, g]
    q, scales = quantize(groups, -1, ue8m0)
    scales = scales.squeeze(-1)  # [M, G]
    return q.flatten(-2), scales.t().contiguous().t() if column_major else scales


def eager_block(x, block_size=G, dtype=FP8, ue8m0=False):
    M, N = x.shape
    q, scales = quantize(x.float().view(M // block_size, block_size, N // block_size, block_size), (1, 3), ue8m0)
    return q.view(M, N), scales[:, 0, :, 0]


def eager_channel(x, group_size=G):
    q, scales = quantize(x.float().unflatten(0, (-1, group_size)), 1)  # [G, g, N]
    return q.view(x.shape), scales[:, 0]


def eager_token_back(q, scales, group_size, dtype):
    return (q.float().unflatten(-1, (-1, group_size)) * scales[..., None]).flatten(-2).to(dtype)


def eager_block_back(q, scales, b, dtype):
    M, N = q.shape
    return (q.float().view(M // b, b, N // b, b) * scales[:, None, :, None]).view(M, N).to(dtype)


def eager_channel_back(q, scales, group_size, dtype):
    return (q.float().unflatten(0, (-1, group_size)) * scales[:, None]).view(q.shape).to(dtype)


def eager_fake(x, group_size=G):
    return eager_token_back(*eager_token(x, group_size), group_size, x.dtype)


# --- cases -----------------------------------------------------------------------------------------------------------
TOKEN = {
    "torchao": lambda m, x, g: m.fp8_blockwise_act_quant(x, g),
    "TileKernels": lambda m, x, g: m.quant.per_token_cast(x, "e4m3", g),
    "FlagGems": lambda m, x, g: m.per_token_group_quant_fp8(x, g, eps=1e-4),
}
UE8M0 = {"TileKernels": lambda m, x, g, *_: m.quant.per_token_cast(x, "e4m3", g, round_sf=True)}
COLUMNS = {
    "TileKernels": lambda m, x, g, *_: m.quant.per_token_cast(x, "e4m3", g, use_tma_aligned_col_major_sf=True),
    "FlagGems": lambda m, x, g, *_: m.per_token_group_quant_fp8(x, g, eps=1e-4, column_major_scales=True),
}
BLOCK = {
    "torchao": lambda m, x, b: m.fp8_blockwise_weight_quant(x, b),
    "TileKernels": lambda m, x, b: m.quant.per_block_cast(x, "e4m3", (b, b)),
}
CHANNEL = {"TileKernels": lambda m, x, g: m.quant.per_channel_cast(x, "e4m3", g)}
BACK = {
    op: {"TileKernels": lambda m, q, s, g, dtype, size=size: m.quant.cast_back((q, s), "bf16", size)}
    for op, size in (("token", (1, G)), ("block", (G, G)), ("channel", (G, 1)))
}
BLOCKS = quantized(eager_block)
# A code that is one step off, in a dequantized output.
FAKE = Tolerance(ulps=4, elements=2e-3)


def case(op, label, M, N, inputs, eager, peers=None, target_us=None, earlier=None, **more):
    return Case(op, f"{label}, {M}x{N}", (M, N), inputs, eager, peers or {}, {}, target_us, earlier or {}, **more)


CASES = [
    *(
        case(
            "per_token_cast_fp8", "group 128", M, N, activations(G), eager_token, TOKEN, target, earlier, quick=M == 128
        )
        for M, N, target, earlier in (
            (128, 7168, 5.9, {"SGLang v1": 5.9, "vLLM": 7.3}),
            (4096, 4096, 18.2, {"SGLang v2": 18.4, "vLLM": 27.0, WRONG: 21.2}),
            (4096, 7168, 27.5, {"SGLang v2": 27.6, "vLLM": 43}),
            (16384, 7168, 88, {"SGLang v2": 89.2, "vLLM": 150, WRONG: 113}),
            (65536, 7168, 330, {"SGLang v2": 333, "vLLM": 579}),
        )
    ),
    *(
        case("per_token_cast_fp8", "whole row", M, 7168, activations(-1), eager_token, {}, target, earlier)
        for M, target, earlier in (
            (4096, 27.5, {"vLLM": 35.5, "SGLang": 43}),
            (16384, 88, {"vLLM": 112, "SGLang": 146}),
        )
    ),
    *(
        case("per_token_cast_fp8", label, M, 7168, activations(G, FP8, *flags), eager_token, peers)
        for label, flags, peers in (
            ("group 128 ue8m0", (True, False), UE8M0),
            ("group 128 column-major scales", (False, True), COLUMNS),
        )
        for M in (4096, 16384)
    ),
    case("per_block_cast_fp8", "block 128", 4096, 4096, activations(G), eager_block, BLOCK, 18.2, quick=True),
    case("per_block_cast_fp8", "block 128", 7168, 18432, activations(G), eager_block, BLOCK, 101),
    case("per_block_cast_fp8", "block 128 ue8m0", 7168, 18432, activations(G, FP8, True), eager_block),
    *(
        case(op, "group 128", M, 7168, inputs, eager, peers, quick=M == 4096, peer_tolerance=tolerance)
        for op, inputs, eager, peers, tolerance in (
            ("per_channel_cast_fp8", activations(G), eager_channel, CHANNEL, Tolerance(codes=2e-3, ulps=4)),
            ("fake_quant_fp8", activations(G), eager_fake, {}, FAKE),
            ("per_token_cast_back", quantized(eager_token), eager_token_back, BACK["token"], Tolerance(ulps=4)),
            ("per_channel_cast_back", quantized(eager_channel), eager_channel_back, BACK["channel"], Tolerance(ulps=4)),
        )
        for M in (4096, 16384)
    ),
    *(
        case("per_block_cast_back", "block 128", M, N, BLOCKS, eager_block_back, BACK["block"], quick=M == 4096)
        for M, N in ((4096, 4096), (7168, 18432))
    ),
]
