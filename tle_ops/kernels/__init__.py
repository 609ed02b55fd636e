"""Which kernel serves which op: two literal tables, op -> module of this package.

A module exports its ops under their names, with the signatures of the contracts. The second word of a module's name is
its backend (ref, triton, tilelang, gluon); an op may exist in several modules of one family, and `tle_ops.backend(...)`
forces one of them. The reference serves the CPU, and float64 everywhere.
"""

CPU = {
    "add": "elementwise_ref",
    "scale_cast": "elementwise_ref",
    "swiglu": "swiglu_ref",
    "swiglu_bwd": "swiglu_ref",
    "swiglu_packed": "swiglu_ref",
    "swiglu_packed_bwd": "swiglu_ref",
    "geglu": "swiglu_ref",
    "geglu_bwd": "swiglu_ref",
    "geglu_packed": "swiglu_ref",
    "geglu_packed_bwd": "swiglu_ref",
    "rms_norm": "norm_ref",
    "rms_norm_bwd": "norm_ref",
    "add_rms_norm": "norm_ref",
    "add_rms_norm_bwd": "norm_ref",
    "layer_norm": "norm_ref",
    "layer_norm_bwd": "norm_ref",
    "rope": "rope_ref",
    "rope_bwd": "rope_ref",
    "swiglu_per_token_cast_fp8": "fused_ref",
    "rms_norm_per_token_cast_fp8": "fused_ref",
    "add_rms_norm_per_token_cast_fp8": "fused_ref",
    "per_token_cast_fp8": "quant_ref",
    "per_token_cast_back": "quant_ref",
    "per_block_cast_fp8": "quant_ref",
    "per_block_cast_back": "quant_ref",
    "per_channel_cast_fp8": "quant_ref",
    "per_channel_cast_back": "quant_ref",
    "fake_quant_fp8": "quant_ref",
    "cumsum": "scan_ref",
    "compact": "scan_ref",
    "histogram": "scan_ref",
    "topk": "topk_ref",
    "topk_selector": "topk_ref",
    "topk_gate": "topk_ref",
    "topk_gate_bwd": "topk_ref",
    "moe_align": "moe_ref",
    "extract_tile": "tile_ref",
    "insert_tile": "tile_ref",
    "remote": "distributed_ref",
    "remote_bwd": "distributed_ref",
    "remote_put": "distributed_ref",
    "ring_exchange": "distributed_ref",
    "distributed_barrier": "distributed_ref",
    "all_gather_fp8": "distributed_ref",
    "reduce_scatter_fp8": "distributed_ref",
}

# The default of each op, chosen by measurement (bench/results); the other backend stays selectable.
CUDA = {
    "add": "elementwise_triton",
    "scale_cast": "elementwise_triton",
    "swiglu": "swiglu_triton",
    "swiglu_bwd": "swiglu_triton",
    "swiglu_packed": "swiglu_triton",
    "swiglu_packed_bwd": "swiglu_triton",
    "geglu": "swiglu_triton",
    "geglu_bwd": "swiglu_triton",
    "geglu_packed": "swiglu_triton",
    "geglu_packed_bwd": "swiglu_triton",
    "rms_norm": "norm_triton",
    "rms_norm_bwd": "norm_triton",
    "add_rms_norm": "norm_triton",
    "add_rms_norm_bwd": "norm_triton",
    "layer_norm": "norm_triton",
    "layer_norm_bwd": "norm_triton",
    "rope": "rope_triton",
    "rope_bwd": "rope_triton",
    "swiglu_per_token_cast_fp8": "fused_triton",
    "rms_norm_per_token_cast_fp8": "fused_triton",
    "add_rms_norm_per_token_cast_fp8": "fused_triton",
    "per_token_cast_fp8": "quant_triton",
    "per_token_cast_back": "quant_triton",
    "per_block_cast_fp8": "quant_tilelang",
    "per_block_cast_back": "quant_triton",
    "per_channel_cast_fp8": "quant_tilelang",
    "per_channel_cast_back": "quant_tilelang",
    "fake_quant_fp8": "quant_triton",
    "cumsum": "scan_triton",
    "compact": "scan_triton",
    "histogram": "scan_tilelang",
    "topk": "topk_triton",
    "topk_selector": "topk_triton",
    "topk_gate": "topk_triton",
    "topk_gate_bwd": "topk_triton",
    "moe_align": "moe_triton",
    "extract_tile": "tile_triton",
    "insert_tile": "tile_triton",
    "remote": "distributed_triton",
    "remote_bwd": "distributed_triton",
    "remote_put": "distributed_triton",
    "ring_exchange": "distributed_triton",
    "distributed_barrier": "distributed_triton",
    "all_gather_fp8": "distributed_triton",
    "reduce_scatter_fp8": "distributed_triton",
}

# Kernels for some calls of an op only, and sooner there than the default: `_cluster_plan` says which, by shapes.
BY_SHAPE = {"topk": "topk_tilelang", "topk_selector": "topk_tilelang"}

# Inductor gets the reference of these in place of the op, and fuses it with what stands around it. On the H200 a chain
# of pointwise operations around an opaque kernel took 2.6 times as long; between matrix products the two tie. Packed
# forms stay opaque: their gradient is one packed tensor, and a block trains 1.5 % faster with the kernel. So do the
# casts back: their reference pads, so that another size would mean another graph.
INLINED = frozenset(("add", "scale_cast", "swiglu", "swiglu_bwd", "geglu", "geglu_bwd"))
