"""Which kernel serves which op: two literal tables, op -> module of this package.

A module exports its ops under their names, with the signatures of the contracts. The second word of a module's name is
its backend (ref, triton, tilelang, gluon); an op may exist in several modules of one family, and `tle_ops.backend(...)`
forces one of them. The reference serves the CPU, and float64 everywhere.
"""

CPU = {
    "add": "elementwise_ref",
    "scale_cast": "elementwise_ref",
    "per_token_cast_fp8": "quant_ref",
    "per_token_cast_back": "quant_ref",
    "per_block_cast_fp8": "quant_ref",
    "per_block_cast_back": "quant_ref",
    "per_channel_cast_fp8": "quant_ref",
    "per_channel_cast_back": "quant_ref",
    "fake_quant_fp8": "quant_ref",
}

# The default of each op, chosen by measurement (bench/results); the other backend stays selectable.
CUDA = {
    "add": "elementwise_triton",
    "scale_cast": "elementwise_triton",
    "per_token_cast_fp8": "quant_triton",
    "per_token_cast_back": "quant_triton",
    "per_block_cast_fp8": "quant_triton",
    "per_block_cast_back": "quant_triton",
    "per_channel_cast_fp8": "quant_triton",
    "per_channel_cast_back": "quant_triton",
    "fake_quant_fp8": "quant_triton",
}
