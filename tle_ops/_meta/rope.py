"""Contracts: rope and its backward."""

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


def _require_rope(op: str, x_name: str, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    require_float(op, x_name, x)
    require_dim(op, x_name, x, 3)
    for name, table in (("cos", cos), ("sin", sin)):
        require_float(op, name, table)
        require_same_device(op, x_name, x, name, table)
    require_dim(op, "cos", cos, 2)
    # One table for all, or one per batch: [S, R/2] or [.., S, R/2].
    batch = () if cos.dim() == 2 else x.shape[:-3]
    wanted = (*batch, x.shape[-3], cos.shape[-1])
    require_shape(op, "cos", cos, wanted, lambda: f" for {x_name} {shape_text(x.shape)}, which is [.., S, H, D]")
    require_shape(op, "sin", sin, cos.shape)
    require(
        2 * cos.shape[-1] <= x.shape[-1],
        lambda: (
            f"{op}: cos must have at most half as many columns as {x_name}, got {shape_text(cos.shape)} "
            f"for {shape_text(x.shape)}"
        ),
    )


@contract("rope(Tensor x, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor")
def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    _require_rope("rope", "x", x, cos, sin)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@contract("rope_bwd(Tensor dy, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor")
def rope_bwd(dy: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    _require_rope("rope_bwd", "dy", dy, cos, sin)
    return torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
