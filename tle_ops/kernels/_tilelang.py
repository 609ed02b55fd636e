"""The seam to TileLang: `Kernel` builds a prim_func once per device and argument set and hands out a launcher.

A kernel module writes a factory (static arguments -> prim_func) and asks `factory(device, *key)` for the launcher in
every call; finding a built one is one dictionary lookup. The outputs are arguments, allocated by the contract.

Modules with prim_funcs cannot use `from __future__ import annotations`: TileLang reads the annotations as objects.
"""

import functools
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

import torch

from tle_ops.kernels._cuda_home import nvcc
from tle_ops.kernels._replay import Launch, record


def _set_cuda_home() -> None:
    """TileLang looks at CUDA_HOME when it is imported; it need not know where nvidia's wheels put nvcc."""
    found = nvcc()
    if found is not None and not (os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or shutil.which("nvcc")):
        os.environ["CUDA_HOME"] = str(found.parent.parent)


_set_cuda_home()

import tilelang  # noqa: E402

# The kernels guard every access themselves. TileLang's own guards test single elements, which ends vector accesses.
PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}

# Names of the types in TileLang.
DTYPE = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    torch.bool: "uint8",  # as bytes
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
}

_lock = threading.RLock()  # TileLang's registries are not safe to build in from several threads


class Kernel:
    """Decorates a factory of prim_funcs; called with a device and the factory's arguments, it returns the launcher."""

    def __init__(self, factory: Callable, pass_configs: dict[str, Any] | None = None) -> None:
        functools.update_wrapper(self, factory)
        self.factory = functools.cache(factory)
        self.pass_configs = PASS_CONFIGS if pass_configs is None else pass_configs
        self.built: dict[tuple, Callable[..., None]] = {}

    def __call__(self, device: torch.device, *key: Any) -> Callable[..., None]:
        launch = self.built.get((device, key))
        return launch if launch is not None else self._build(device, key)

    def _build(self, device: torch.device, key: tuple) -> Callable[..., None]:
        with _lock:
            launch = self.built.get((device, key))
            if launch is None:
                launch = self.built[device, key] = compile_prim_func(self.factory(*key), device, self.pass_configs)
            return launch


def compile_prim_func(
    prim_func: Any, device: torch.device, pass_configs: dict[str, Any] = PASS_CONFIGS
) -> Callable[..., None]:
    """The launcher of one kernel on one device: takes the arguments of the prim_func, runs on torch's current stream of
    the device, and leaves the current device as it was (TileLang's host code does not)."""
    run = _entry(prim_func, arch(torch.cuda.get_device_capability(device)), tuple(pass_configs.items()))
    index = device.index

    def launch(*args: Any) -> None:
        if torch.cuda.current_device() == index:
            run(*args)
        else:
            with torch.cuda.device(index):
                run(*args)
        record(Launch(run, args, by_pointer=False))

    return launch


@functools.cache  # devices of one architecture share it
def _entry(
    prim_func: Any, arch: str, pass_configs: tuple[tuple[str, Any], ...] = tuple(PASS_CONFIGS.items())
) -> Callable[..., None]:
    target = {"kind": "cuda", "arch": arch}
    kernel = tilelang.compile(prim_func, target=target, execution_backend="tvm_ffi", pass_configs=dict(pass_configs))
    # Past JITKernel.__call__, which walks over the arguments in Python.
    executable = kernel.adapter.get_exportable_executable()
    module = executable.jit() if hasattr(executable, "jit") else executable  # the second comes from the disk cache
    return module.main


def arch(capability: tuple[int, int]) -> str:
    """The target's name; sm_90 and later with the features of exactly that architecture."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def vector_width(most: int, *multiples: int) -> int:
    """The greatest power of two up to `most` that divides all of `multiples`."""
    width = most
    for n in multiples:
        while n % width:
            width //= 2
    return width
