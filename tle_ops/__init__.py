"""tle_ops: the memory-bound operators of a transformer, as PyTorch operators under torch.ops.tle.

Importing the package registers the operators. It imports neither Triton nor TileLang and touches no GPU.
"""

from tle_ops import _register
from tle_ops._dispatch import backend, backends, explain
from tle_ops.ops.distributed import (
    all_gather_fp8,
    distributed_barrier,
    reduce_scatter_fp8,
    remote,
    remote_put,
    ring_exchange,
)
from tle_ops.ops.elementwise import add, scale_cast
from tle_ops.ops.fused import add_rms_norm_per_token_cast_fp8, rms_norm_per_token_cast_fp8, swiglu_per_token_cast_fp8
from tle_ops.ops.moe import moe_align
from tle_ops.ops.norm import add_rms_norm, layer_norm, rms_norm
from tle_ops.ops.quant import (
    fake_quant_fp8,
    per_block_cast_back,
    per_block_cast_fp8,
    per_channel_cast_back,
    per_channel_cast_fp8,
    per_token_cast_back,
    per_token_cast_fp8,
)
from tle_ops.ops.rope import rope
from tle_ops.ops.scan import compact, cumsum, histogram
from tle_ops.ops.swiglu import geglu, geglu_packed, swiglu, swiglu_packed
from tle_ops.ops.tile import extract_tile, insert_tile
from tle_ops.ops.topk import topk, topk_gate, topk_selector

__version__ = "0.1.0"
__all__ = [
    "add",
    "add_rms_norm",
    "add_rms_norm_per_token_cast_fp8",
    "all_gather_fp8",
    "backend",
    "backends",
    "compact",
    "cumsum",
    "distributed_barrier",
    "explain",
    "extract_tile",
    "fake_quant_fp8",
    "geglu",
    "geglu_packed",
    "histogram",
    "insert_tile",
    "layer_norm",
    "moe_align",
    "per_block_cast_back",
    "per_block_cast_fp8",
    "per_channel_cast_back",
    "per_channel_cast_fp8",
    "per_token_cast_back",
    "per_token_cast_fp8",
    "reduce_scatter_fp8",
    "remote",
    "remote_put",
    "ring_exchange",
    "rms_norm",
    "rms_norm_per_token_cast_fp8",
    "rope",
    "scale_cast",
    "swiglu",
    "swiglu_packed",
    "swiglu_per_token_cast_fp8",
    "topk",
    "topk_gate",
    "topk_selector",
]

_register.register_all()
