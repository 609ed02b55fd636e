"""vmap of the routing ops; none has a gradient."""

from tle_ops.autograd._formula import Formula
from tle_ops.autograd._vmap import loop

FORMULAS: dict[str, Formula] = {}
VMAP = {"moe_align": loop("moe_align", 3)}
