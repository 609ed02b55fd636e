"""TLE-Lite for kernel authors, on stock Triton: functions for use inside `@triton.jit` kernels.

    import tle_ops.language as tle

They compile for the GPU and run in Triton's interpreter. This package imports Triton; `import tle_ops` does not.
"""

from tle_ops.language.memory import load
from tle_ops.language.scan import cumsum
from tle_ops.language.tiles import bind_methods, extract_tile, insert_tile

__all__ = ["bind_methods", "cumsum", "extract_tile", "insert_tile", "load"]
