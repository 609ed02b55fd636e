"""What the registration needs to know of one op's derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Formula(NamedTuple):
    """The derivative of one op.

    backward:       (ctx, *grads) -> a gradient or None for each argument of the schema
    setup_context:  (ctx, inputs, output), called after the forward
    jvp:            (ctx, *tangents) -> tangents of the outputs; without it forward-mode AD raises NotImplementedError
    """

    backward: Callable
    setup_context: Callable | None = None
    jvp: Callable | None = None
