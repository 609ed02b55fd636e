"""Gated activations in plain PyTorch: the definition of each op and of its gradient, and the CPU kernels.

    y = silu(gate) * up        with a limit L: silu(min(gate, L)) * clamp(up, -L, L)
    y = gelu(gate) * up        exact or by tanh

in float32 (float64 when given float64), rounded once. Where a clamp cuts, the gradient is zero.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tle_ops._meta import compute_dtype
from tle_ops._normal import cdf, density


def swiglu(gate: Tensor, up: Tensor, limit: float | None = None) -> Tensor:
    return _rounded(swiglu_wide(gate, up, limit), torch.promote_types(gate.dtype, up.dtype))


def swiglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, limit: float | None = None) -> tuple[Tensor, Tensor]:
    dgate, dup = _swiglu_gradients(dy, gate, up, limit)
    return _rounded(dgate, gate.dtype), _rounded(dup, up.dtype)


def swiglu_packed(x: Tensor, limit: float | None = None) -> Tensor:
    return _rounded(swiglu_wide(*halves(x), limit), x.dtype)


def swiglu_packed_bwd(dy: Tensor, x: Tensor, limit: float | None = None) -> Tensor:
    return _rounded(torch.cat(_swiglu_gradients(dy, *halves(x), limit), -1), x.dtype)


def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    return _rounded(_geglu(gate, up, approximate), torch.promote_types(gate.dtype, up.dtype))


def geglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, approximate: str = "none") -> tuple[Tensor, Tensor]:
    dgate, dup = _geglu_gradients(dy, gate, up, approximate)
    return _rounded(dgate, gate.dtype), _rounded(dup, up.dtype)


def geglu_packed(x: Tensor, approximate: str = "none") -> Tensor:
    return _rounded(_geglu(*halves(x), approximate), x.dtype)


def geglu_packed_bwd(dy: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    return _rounded(torch.cat(_geglu_gradients(dy, *halves(x), approximate), -1), x.dtype)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """[.., 2H] -> gate [.., H], up [.., H]; chunk gives one piece of an empty tensor"""
    H = x.shape[-1] // 2
    return x[..., :H], x[..., H:]


def swiglu_wide(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """Before the rounding."""
    gate, up = _wide(gate, up)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(gate) * up


def _swiglu_gradients(dy: Tensor, gate: Tensor, up: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
    dy, gate, up = _wide(dy, gate, up)
    if limit is None:
        return _silu_products(dy, gate, up)
    dgate, dup = _silu_products(dy, gate.clamp(max=limit), up.clamp(-limit, limit))
    return torch.where(gate <= limit, dgate, 0), torch.where(up.abs() <= limit, dup, 0)


def _silu_products(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(gate)
    return dy * up * (s * (1 + gate * (1 - s))), dy * (gate * s)


def _geglu(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
    gate, up = _wide(gate, up)
    if approximate == "none":
        return cdf(gate).mul_(gate).mul_(up)
    return F.gelu(gate, approximate=approximate) * up


def _geglu_gradients(dy: Tensor, gate: Tensor, up: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    dy, gate, up = _wide(dy, gate, up)
    if approximate == "none":
        below = cdf(gate)
        slope = below + gate * density(gate)
    else:
        k = math.sqrt(2 / math.pi)
        t = torch.tanh(k * gate * (1 + 0.044715 * gate * gate))
        below = 0.5 * (1 + t)
        slope = below + 0.5 * gate * (1 - t * t) * (k * (1 + 3 * 0.044715 * gate * gate))
    return dy * up * slope, dy * (gate * below)


def _wide(*tensors: Tensor) -> list[Tensor]:
    dtype = compute_dtype(*tensors)
    return [t.to(dtype) for t in tensors]


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    return y.to(dtype).contiguous()
