"""Finds nvcc: a toolkit on the machine, or the compiler that the nvidia wheels carry."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import sysconfig


@functools.cache
def nvcc() -> pathlib.Path | None:
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    found = [pathlib.Path(root) / "bin" / "nvcc" for root in roots if root]
    on_path = shutil.which("nvcc")
    found += [pathlib.Path(on_path)] if on_path else []
    found += [pathlib.Path("/usr/local/cuda/bin/nvcc")]
    found += sorted((pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia").glob("cu*/bin/nvcc"))
    return next((path for path in found if path.exists()), None)
