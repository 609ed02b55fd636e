"""TLE-Lite for kernel authors, on stock Triton.

    import tle_ops.language as tle

Meshes and shardings are plain Python, contexts plain PyTorch. The device functions, for use inside `@triton.jit`
kernels, compile for the GPU and run in Triton's interpreter; Triton is imported with the first of them. Where there is
no Triton, `from tle_ops.language import *` gives the rest.
"""

import importlib
import importlib.util
from typing import Any

from tle_ops.language.mesh import device_mesh
from tle_ops.language.sharding import B, P, S, ShardedTensor, ShardingSpec, make_sharded_tensor, sharding

# Name -> the module that has it. No module here may have the name of a function: the import system would put the module
# in the function's place.
_LAZY = {
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
if importlib.util.find_spec("triton") is None:
    __all__ = [name for name in __all__ if _LAZY.get(name, "_context") == "_context"]


def _with_docstring(function: Any) -> Any:
    """For `help`: in Triton's interpreter a device function has none of its own."""
    source = getattr(function, "fn", None)
    if function.__doc__ is None and source is not None:
        function.__doc__ = source.__doc__
        function.__wrapped__ = source  # whose signature it has
    return function


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    except ModuleNotFoundError as e:
        if e.name != "triton":
            raise
        raise ImportError(f"{__name__}.{name} needs Triton, which is not installed: pip install triton") from e
    found = module if _LAZY[name] == name else _with_docstring(getattr(module, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
