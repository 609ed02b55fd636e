"""Compiles the CUDA that TileLang generates for sm_90a and reports what came out: PTX, registers, spills, shared
memory.

nvcc and the headers are those of a toolkit ($CUDA_HOME, nvcc on the PATH, /usr/local/cuda) or of nvidia's wheels.
"""

import collections
import dataclasses
import functools
import pathlib
import re
import subprocess
import sysconfig
import tempfile

import tilelang
from tilelang import tvm

from tle_ops.kernels._cuda_home import nvcc

ARCH = "sm_90a"


@dataclasses.dataclass
class Lowered:
    """A prim_func as CUDA source. extent: of the grid and the block; params: of the device function; shared_bytes: of
    dynamic shared memory; cluster: its blocks, in one dimension."""

    name: str
    source: str
    extent: dict
    params: list
    shared_bytes: int
    cluster: int


def lower(prim_func, pass_configs=None) -> Lowered:
    target = tvm.target.Target({"kind": "cuda", "arch": ARCH})
    with target, tvm.transform.PassContext(opt_level=3, config=pass_configs or {}):
        artifact = tilelang.lower(prim_func, target=target)
    ((_, f),) = artifact.device_mod.functions.items()
    return Lowered(
        name=str(f.attrs["global_symbol"]),
        source=artifact.kernel_source,
        extent=dict(f.attrs["thread_extent"].items()),
        params=list(f.params),
        shared_bytes=int(f.attrs.get("dyn_shared_memory_buf", 0)),
        cluster=int(f.attrs["cluster_dims"][0]) if "cluster_dims" in f.attrs else 1,
    )


@functools.cache
def cuda_include_dirs() -> tuple[str, ...]:
    found = nvcc()
    roots = [] if found is None else [found.parent.parent, found.resolve().parent.parent]
    roots += [pathlib.Path("/usr/local/cuda")]
    candidates = [root / "include" for root in roots]
    candidates += sorted((pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia").glob("*/include"))
    for folder in candidates:
        if (folder / "cuda_fp8.h").exists() and (folder / "cuda_runtime.h").exists():
            return str(folder), str(folder / "cccl")
    raise RuntimeError("no CUDA headers (cuda_runtime.h, cuda_fp8.h): set CUDA_HOME")


@dataclasses.dataclass
class Cubin:
    ptx: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int

    def count(self, prefix: str) -> collections.Counter:
        """The PTX instructions that begin with `prefix`, by name."""
        return collections.Counter(re.findall(rf"^[\s{{]*(?:@%p\d+ )?({re.escape(prefix)}[\w.:]*)", self.ptx, re.M))


def build(prim_func, pass_configs=None) -> Cubin:
    """Compile with the flags that TileLang uses."""
    source = lower(prim_func, pass_configs).source
    options = ["-std=c++20", "-w", f"-arch={ARCH}", "-I", tilelang.env.TILELANG_TEMPLATE_PATH]
    options += ["-I", tilelang.env.CUTLASS_INCLUDE_DIR]
    with tempfile.TemporaryDirectory() as folder:
        cu, ptx = pathlib.Path(folder) / "kernel.cu", pathlib.Path(folder) / "kernel.ptx"
        cu.write_text(source)
        _run([str(nvcc()), *options, "--ptx", str(cu), "-o", str(ptx)])
        # nvcc assembles the PTX: wheels and toolkits keep ptxas in different places
        log = _run([str(nvcc()), f"-arch={ARCH}", "-cubin", "-Xptxas", "-v", str(ptx), "-o", f"{folder}/kernel.cubin"])
        text = ptx.read_text()

    def number(pattern):
        return sum(map(int, re.findall(pattern, log)))

    return Cubin(
        ptx=text,
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
    )


def _run(command: list[str]) -> str:
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{r.stdout}{r.stderr}")
    return r.stdout + r.stderr
