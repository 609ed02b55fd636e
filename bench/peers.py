"""Other people's kernels: how each library is imported. What does not import is left out, and named."""

from __future__ import annotations

import importlib
from importlib import metadata
from types import ModuleType

# name in the tables -> (distribution, module). A case calls `peers[name](module, *args)`.
LIBRARIES = {
    "torchao": ("torchao", "torchao.kernel.blockwise_quantization"),
    "TileKernels": ("tile-kernels", "tile_kernels"),
    "FlagGems": ("flag-gems", "flag_gems"),
    "Liger": ("liger-kernel", "liger_kernel.ops"),
}
BUILT_IN = ("eager", "compile")  # plain PyTorch, and torch.compile of the same composition
NAMES = (*BUILT_IN, *LIBRARIES)


def load(names: list[str]) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """The modules of those of `names` that import, and for every library of `names` its version or what is wrong."""
    modules, state = {}, {}
    for name in names:
        if name in BUILT_IN:
            continue
        distribution, module = LIBRARIES[name]
        version = package_version(distribution)
        if version is None:
            state[name] = "not installed"
            continue
        try:
            modules[name] = importlib.import_module(module)
            state[name] = version
        except Exception as e:  # a library may fail in any way on a foreign torch; the table says so
            state[name] = f"{version} does not import: {type(e).__name__}: {e}"
    return modules, state


def package_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
