"""Gated activations: swiglu and geglu, with gate and up apart or packed in one tensor."""

import torch
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor, *, limit: float | None = None) -> Tensor:
    """`silu(gate) * up`, the product in float32, rounded once.

    Args:
        gate, up: one shape, any strides; float32, bfloat16, float16 or float64, also mixed.
        limit: clamp first, gate from above to `limit` and up to [-limit, limit].

    Returns:
        Contiguous tensor of that shape, of the promoted dtype of gate and up.

    Raises:
        ValueError: the shapes or devices differ, or limit is not positive.
        TypeError: an input of another type.

    Differentiable in gate and up, forward mode and twice; vmap. The gradient is zero where a clamp cuts;
    a number that equals the limit is not cut.
    Plain PyTorch: `F.silu(gate.float()) * up.float()`, with a limit
    `F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)`.

    SwiGLU: Shazeer, arXiv 2002.05202. The clamp: the gpt-oss model card, arXiv 2508.10925.
    """
    return torch.ops.tle.swiglu(gate, up, limit)


def swiglu_packed(x: Tensor, *, limit: float | None = None) -> Tensor:
    """`swiglu` of the two halves of a row, as one product with the joint weight of gate and up gives them.

    Args:
        x: [.., 2H], the gate in the first H columns, up in the last; any strides;
            float32, bfloat16, float16 or float64.
        limit: as in `swiglu`.

    Returns:
        [.., H] contiguous, of x's dtype.

    Raises:
        ValueError: the last dimension is odd or missing, or limit is not positive.
        TypeError: x is of another type.

    Differentiable in x (one packed gradient), forward mode and twice; vmap.
    Plain PyTorch: `gate, up = x.float().chunk(2, -1); F.silu(gate) * up`, to x's dtype.
    """
    return torch.ops.tle.swiglu_packed(x, limit)


def geglu(gate: Tensor, up: Tensor, *, approximate: str = "none") -> Tensor:
    """`gelu(gate) * up`, the product in float32, rounded once.

    Args:
        gate, up: one shape, any strides; float32, bfloat16, float16 or float64, also mixed.
        approximate: "none" (by the normal distribution) or "tanh", as in `torch.nn.functional.gelu`.

    Returns:
        Contiguous tensor of that shape, of the promoted dtype of gate and up.

    Raises:
        ValueError: the shapes or devices differ, or another `approximate`.
        TypeError: an input of another type.

    Differentiable in gate and up, forward mode and twice; vmap.
    Plain PyTorch: `F.gelu(gate.float(), approximate=approximate) * up.float()`, which for "none" loses the digits of
    gates below -3 (1 + erf). Shazeer, arXiv 2002.05202.
    """
    return torch.ops.tle.geglu(gate, up, approximate)


def geglu_packed(x: Tensor, *, approximate: str = "none") -> Tensor:
    """`geglu` of the two halves of a row.

    Args:
        x: [.., 2H], the gate in the first H columns, up in the last; any strides;
            float32, bfloat16, float16 or float64.
        approximate: as in `geglu`.

    Returns:
        [.., H] contiguous, of x's dtype.

    Raises:
        ValueError: the last dimension is odd or missing, or another `approximate`.
        TypeError: x is of another type.

    Differentiable in x (one packed gradient), forward mode and twice; vmap.
    Plain PyTorch: `gate, up = x.float().chunk(2, -1); F.gelu(gate, approximate=approximate) * up`, to x's dtype; as in
    `geglu`.
    """
    return torch.ops.tle.geglu_packed(x, approximate)
