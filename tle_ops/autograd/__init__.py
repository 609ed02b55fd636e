"""Gradients and vmap rules. An op without a Formula is not differentiable, and its outputs say so to autograd."""

from __future__ import annotations

from collections.abc import Callable

from tle_ops.autograd import elementwise, quant
from tle_ops.autograd._formula import Formula

FORMULAS: dict[str, Formula] = {**elementwise.FORMULAS, **quant.FORMULAS}
# op -> (info, in_dims, *args) -> (outputs, out_dims)
VMAP: dict[str, Callable] = {**elementwise.VMAP, **quant.VMAP}
