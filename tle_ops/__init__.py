"""tle_ops: the memory-bound operators of a transformer, as PyTorch operators under torch.ops.tle.

Importing the package registers the operators. It imports neither Triton nor TileLang and touches no GPU.
"""

from tle_ops import _register
from tle_ops._dispatch import backend, backends, explain
from tle_ops.ops.elementwise import add, scale_cast
from tle_ops.ops.quant import (
    fake_quant_fp8,
    per_block_cast_back,
    per_block_cast_fp8,
    per_channel_cast_back,
    per_channel_cast_fp8,
    per_token_cast_back,
    per_token_cast_fp8,
)

__version__ = "0.1.0"
__all__ = [
    "add",
    "backend",
    "backends",
    "explain",
    "fake_quant_fp8",
    "per_block_cast_back",
    "per_block_cast_fp8",
    "per_channel_cast_back",
    "per_channel_cast_fp8",
    "per_token_cast_back",
    "per_token_cast_fp8",
    "scale_cast",
]

_register.register_all()
