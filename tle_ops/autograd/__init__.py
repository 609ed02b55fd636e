"""Gradients and vmap rules. An op without a Formula is not differentiable, and its outputs say so to autograd."""

from __future__ import annotations

from collections.abc import Callable

from tle_ops.autograd import distributed, elementwise, fused, moe, norm, quant, rope, scan, swiglu, tile, topk
from tle_ops.autograd._formula import Formula

FORMULAS: dict[str, Formula] = {
    **distributed.FORMULAS,
    **elementwise.FORMULAS,
    **fused.FORMULAS,
    **moe.FORMULAS,
    **norm.FORMULAS,
    **quant.FORMULAS,
    **rope.FORMULAS,
    **scan.FORMULAS,
    **swiglu.FORMULAS,
    **tile.FORMULAS,
    **topk.FORMULAS,
}
# op -> (info, in_dims, *args) -> (outputs, out_dims)
VMAP: dict[str, Callable] = {
    **distributed.VMAP,
    **elementwise.VMAP,
    **fused.VMAP,
    **moe.VMAP,
    **norm.VMAP,
    **quant.VMAP,
    **rope.VMAP,
    **scan.VMAP,
    **swiglu.VMAP,
    **tile.VMAP,
    **topk.VMAP,
}
