"""TLE-Lite for kernel authors, on stock Triton.

    import tle_ops.language as tle

Meshes and shardings are plain Python. The device functions, for use inside `@triton.jit` kernels, compile for the GPU
and run in Triton's interpreter; Triton is imported with the first of them.
"""

import importlib
from typing import Any

from tle_ops.language.mesh import device_mesh
from tle_ops.language.sharding import B, P, S, ShardedTensor, ShardingSpec, make_sharded_tensor, sharding

# Name -> the module that has it. No module here may have the name of a function: the import system would put the module
# in the function's place.
_DEVICE = {
    "bind_methods": "tiles",
    "compact": "ranking",
    "cumsum": "scan",
    "device_context": "_context",
    "digit_histogram": "ranking",
    "distributed_barrier": "_remote",
    "extract_tile": "tiles",
    "insert_tile": "tiles",
    "gpu": "gpu",  # the module itself
    "load": "memory",
    "pipe": "_pipe",
    "rank": "ranking",
    "remote": "_remote",
    "shard_id": "_remote",
    "signal_count": "_context",
}
__all__ = [
    "B",
    "P",
    "S",
    "ShardedTensor",
    "ShardingSpec",
    "bind_methods",
    "compact",
    "cumsum",
    "device_context",
    "device_mesh",
    "digit_histogram",
    "distributed_barrier",
    "extract_tile",
    "gpu",
    "insert_tile",
    "load",
    "make_sharded_tensor",
    "pipe",
    "rank",
    "remote",
    "shard_id",
    "sharding",
    "signal_count",
]


def __getattr__(name: str) -> Any:
    if name not in _DEVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_DEVICE[name]}")
    found = module if _DEVICE[name] == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
