"""The contract of every operator: one plain function per op that checks its arguments and returns fresh outputs.

PyTorch calls it with fake tensors (it is the fake implementation), the CUDA launchers call it with real ones to check and
to allocate, the CPU kernel calls it to check. A shape, dtype or stride is never written twice.

Shapes: M rows (all leading dimensions), N columns, G groups. Errors: ValueError for shapes and values, TypeError for
dtypes, worded `op: argument must be this, got that`, raised before anything is launched.
"""

from tle_ops._meta._contract import AMAX_FLOOR, CONTRACTS, FLOATS, FP8_MAX, Contract
from tle_ops._meta.elementwise import add, broadcast_shape, scale_cast
from tle_ops._meta.quant import (
    block_grid,
    channel_grid,
    column_major_strides,
    fake_quant_fp8,
    num_groups,
    per_block_cast_back,
    per_block_cast_fp8,
    per_channel_cast_back,
    per_channel_cast_fp8,
    per_token_cast_back,
    per_token_cast_fp8,
)

__all__ = [
    "AMAX_FLOOR",
    "CONTRACTS",
    "FLOATS",
    "FP8_MAX",
    "Contract",
    "add",
    "block_grid",
    "broadcast_shape",
    "channel_grid",
    "column_major_strides",
    "fake_quant_fp8",
    "num_groups",
    "per_block_cast_back",
    "per_block_cast_fp8",
    "per_channel_cast_back",
    "per_channel_cast_fp8",
    "per_token_cast_back",
    "per_token_cast_fp8",
    "scale_cast",
]
