"""Contracts: swiglu, swiglu_packed, geglu, geglu_packed and their backwards."""

from __future__ import annotations

import torch
from torch import Tensor

from tle_ops._meta._contract import (
    contract,
    require,
    require_dim,
    require_float,
    require_same_device,
    require_shape,
    shape_text,
)


def _require_pair(op: str, gate: Tensor, up: Tensor) -> None:
    require_float(op, "gate", gate)
    require_float(op, "up", up)
    require_same_device(op, "gate", gate, "up", up)
    require_shape(op, "up", up, gate.shape)


def require_packed(op: str, x: Tensor) -> None:
    require_float(op, "x", x)
    require_dim(op, "x", x, 1)
    require(
        x.shape[-1] % 2 == 0,
        lambda: f"{op}: x must have an even last dimension, gate beside up, got shape {shape_text(x.shape)}",
    )


def packed_shape(x: Tensor) -> tuple[int | torch.SymInt, ...]:
    """[.., 2H] -> [.., H]"""
    return (*x.shape[:-1], x.shape[-1] // 2)


def require_limit(op: str, limit: float | None) -> None:
    if limit is not None:
        require(limit > 0, lambda: f"{op}: limit must be a positive number or None, got {limit}")


def _require_approximate(op: str, approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"{op}: approximate must be 'none' or 'tanh', got {approximate!r}")


def _require_cotangent(op: str, dy: Tensor, like_name: str, like: Tensor, shape: tuple) -> None:
    require_float(op, "dy", dy)
    require_same_device(op, like_name, like, "dy", dy)
    require_shape(op, "dy", dy, shape)


def _like_pair(gate: Tensor, up: Tensor) -> Tensor:
    return torch.empty(gate.shape, dtype=torch.promote_types(gate.dtype, up.dtype), device=gate.device)


def _gradients_of_pair(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(gate.shape, dtype=gate.dtype, device=gate.device),
        torch.empty(up.shape, dtype=up.dtype, device=up.device),
    )


# --- swiglu -----------------------------------------------------------------------------------------------------------
@contract("swiglu(Tensor gate, Tensor up, float? limit=None) -> Tensor")
def swiglu(gate: Tensor, up: Tensor, limit: float | None = None) -> Tensor:
    _require_pair("swiglu", gate, up)
    require_limit("swiglu", limit)
    return _like_pair(gate, up)


@contract("swiglu_bwd(Tensor dy, Tensor gate, Tensor up, float? limit=None) -> (Tensor dgate, Tensor dup)")
def swiglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, limit: float | None = None) -> tuple[Tensor, Tensor]:
    _require_pair("swiglu_bwd", gate, up)
    _require_cotangent("swiglu_bwd", dy, "gate", gate, gate.shape)
    require_limit("swiglu_bwd", limit)
    return _gradients_of_pair(gate, up)


@contract("swiglu_packed(Tensor x, float? limit=None) -> Tensor")
def swiglu_packed(x: Tensor, limit: float | None = None) -> Tensor:
    require_packed("swiglu_packed", x)
    require_limit("swiglu_packed", limit)
    return torch.empty(packed_shape(x), dtype=x.dtype, device=x.device)


@contract("swiglu_packed_bwd(Tensor dy, Tensor x, float? limit=None) -> Tensor")
def swiglu_packed_bwd(dy: Tensor, x: Tensor, limit: float | None = None) -> Tensor:
    require_packed("swiglu_packed_bwd", x)
    _require_cotangent("swiglu_packed_bwd", dy, "x", x, packed_shape(x))
    require_limit("swiglu_packed_bwd", limit)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


# --- geglu ------------------------------------------------------------------------------------------------------------
@contract('geglu(Tensor gate, Tensor up, str approximate="none") -> Tensor')
def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    _require_pair("geglu", gate, up)
    _require_approximate("geglu", approximate)
    return _like_pair(gate, up)


@contract('geglu_bwd(Tensor dy, Tensor gate, Tensor up, str approximate="none") -> (Tensor dgate, Tensor dup)')
def geglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, approximate: str = "none") -> tuple[Tensor, Tensor]:
    _require_pair("geglu_bwd", gate, up)
    _require_cotangent("geglu_bwd", dy, "gate", gate, gate.shape)
    _require_approximate("geglu_bwd", approximate)
    return _gradients_of_pair(gate, up)


@contract('geglu_packed(Tensor x, str approximate="none") -> Tensor')
def geglu_packed(x: Tensor, approximate: str = "none") -> Tensor:
    require_packed("geglu_packed", x)
    _require_approximate("geglu_packed", approximate)
    return torch.empty(packed_shape(x), dtype=x.dtype, device=x.device)


@contract('geglu_packed_bwd(Tensor dy, Tensor x, str approximate="none") -> Tensor')
def geglu_packed_bwd(dy: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    require_packed("geglu_packed_bwd", x)
    _require_cotangent("geglu_packed_bwd", dy, "x", x, packed_shape(x))
    _require_approximate("geglu_packed_bwd", approximate)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
