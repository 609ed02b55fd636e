"""The contract of every operator: one plain function per op that checks its arguments and returns fresh outputs.

PyTorch calls it with fake tensors (it is the fake implementation), the CUDA launchers call it with real ones to check
and to allocate, the CPU kernel calls it to check. A shape, dtype or stride is never written twice.

Shapes: M rows (all leading dimensions), N columns, G groups. Errors: ValueError for shapes and values, TypeError for
dtypes, worded `op: argument must be this, got that`, raised before anything is launched.
"""

from tle_ops._meta._contract import AMAX_FLOOR, CONTRACTS, FLOATS, FP8_MAX, Contract, compute_dtype
from tle_ops._meta.distributed import (
    all_gather_fp8,
    distributed_barrier,
    process_group,
    reduce_scatter_fp8,
    remote,
    remote_bwd,
    remote_put,
    require_seconds,
    ring_exchange,
)
from tle_ops._meta.elementwise import add, broadcast_shape, scale_cast
from tle_ops._meta.fused import add_rms_norm_per_token_cast_fp8, rms_norm_per_token_cast_fp8, swiglu_per_token_cast_fp8
from tle_ops._meta.moe import moe_align, moe_slots
from tle_ops._meta.norm import add_rms_norm, add_rms_norm_bwd, layer_norm, layer_norm_bwd, rms_norm, rms_norm_bwd
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
    scale_of_nothing,
)
from tle_ops._meta.rope import rope, rope_bwd
from tle_ops._meta.scan import compact, cumsum, cumsum_dtype, histogram
from tle_ops._meta.swiglu import (
    geglu,
    geglu_bwd,
    geglu_packed,
    geglu_packed_bwd,
    packed_shape,
    swiglu,
    swiglu_bwd,
    swiglu_packed,
    swiglu_packed_bwd,
)
from tle_ops._meta.tile import extract_tile, insert_tile, tile_slices
from tle_ops._meta.topk import topk, topk_gate, topk_gate_bwd, topk_selector

__all__ = [
    "AMAX_FLOOR",
    "CONTRACTS",
    "FLOATS",
    "FP8_MAX",
    "Contract",
    "add",
    "add_rms_norm",
    "add_rms_norm_bwd",
    "add_rms_norm_per_token_cast_fp8",
    "all_gather_fp8",
    "block_grid",
    "broadcast_shape",
    "channel_grid",
    "column_major_strides",
    "compact",
    "compute_dtype",
    "cumsum",
    "cumsum_dtype",
    "distributed_barrier",
    "extract_tile",
    "fake_quant_fp8",
    "geglu",
    "geglu_bwd",
    "geglu_packed",
    "geglu_packed_bwd",
    "histogram",
    "insert_tile",
    "layer_norm",
    "layer_norm_bwd",
    "moe_align",
    "moe_slots",
    "num_groups",
    "packed_shape",
    "per_block_cast_back",
    "per_block_cast_fp8",
    "per_channel_cast_back",
    "per_channel_cast_fp8",
    "per_token_cast_back",
    "per_token_cast_fp8",
    "process_group",
    "reduce_scatter_fp8",
    "remote",
    "remote_bwd",
    "remote_put",
    "require_seconds",
    "ring_exchange",
    "rms_norm",
    "rms_norm_bwd",
    "rms_norm_per_token_cast_fp8",
    "rope",
    "rope_bwd",
    "scale_cast",
    "scale_of_nothing",
    "swiglu",
    "swiglu_bwd",
    "swiglu_packed",
    "swiglu_packed_bwd",
    "swiglu_per_token_cast_fp8",
    "tile_slices",
    "topk",
    "topk_gate",
    "topk_gate_bwd",
    "topk_selector",
]
