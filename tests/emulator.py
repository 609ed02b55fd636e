"""Runs the CUDA that TileLang generates on the CPU: no GPU, no driver, no nvcc. Needs g++ and the CUDA headers.

    kernel = EmulatedKernel(prim_func)      # lower to CUDA source, compile it for the host (about 3 s, then cached)
    kernel(x, y, out, order=1)              # CPU tensors and numbers, in the order of the prim_func

Blocks run one after another, those of a cluster together. Each thread is a fiber that runs until it meets a barrier or
a warp exchange, so the order in which threads get there is chosen here (0: forward, 1: backward, else: mixed), and a
missing barrier shows as a result that depends on it. Shared memory holds garbage before every block, and a write past
its end raises MemoryError. Tensors lie between guard zones of 0xFF: a read past the end finds NaN, a write raises
MemoryError.

Right results here mean that indices, tails, masks, reductions, casts and rounding of the generated source are right.
Not covered: TMA, cp.async, wgmma and mma, clusters of more than one dimension, memory ordering between blocks,
fast-math accuracy, alignment, speed. A warp exchange needs all lanes of the warp; one in a divergent branch is
reported as a deadlock.

The work folder is $TLE_EMULATOR_DIR, or one of the user's in the temporary folder.
"""

import ctypes
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest
import tilelang
import torch
from tilelang import tvm

from tests import cubin
from tle_ops.kernels import _tilelang

ORDERS = (0, 1, 3)
WORK = pathlib.Path(
    os.environ.get("TLE_EMULATOR_DIR") or pathlib.Path(tempfile.gettempdir()) / f"tle_emulator-{os.getuid()}"
)
_HERE = pathlib.Path(__file__).parent
_GUARD = 256  # bytes
_BAR_SYNC = r'asm volatile\("bar\.sync %0, %1;"\s*:\s*:\s*"r"\((\w+)\),\s*"r"\((\w+)\)\);'
_SCALARS = {"int": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}


def _publish(path, make):
    """Make `path` under a private name and move it into place: parallel test workers never see half of it."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = pathlib.Path(tempfile.mkdtemp(dir=path.parent)) / path.name
        make(private)
        try:
            os.replace(private, path)
        except OSError:
            if not path.exists():
                raise
        shutil.rmtree(private.parent, ignore_errors=True)
    return path


def _patched_templates():
    """TileLang's device headers with bar.sync as a fiber barrier; the prelude has the atomics."""

    def make(private):
        folder = private / "tl_templates" / "cuda"
        shutil.copytree(pathlib.Path(tilelang.env.TILELANG_TEMPLATE_PATH) / "tl_templates" / "cuda", folder)
        for name in ("atomic.h", "barrier.h"):
            (folder / name).write_text("#pragma once\n")
        sync = "namespace tl {\ninline void cluster_sync() { emu::cluster_barrier(); }\n}\n"
        (folder / "cluster.h").write_text(f'#pragma once\n#include "common.h"\n{sync}')
        for name in ("reduce.h", "common.h"):
            text = re.sub(_BAR_SYNC, r"emu::barrier(\1, \2);", (folder / name).read_text())
            if name == "common.h":
                text = re.sub(r"#define TL_DEVICE .*", "#define TL_DEVICE inline", text)
            (folder / name).write_text(text)

    return _publish(WORK / f"templates-{tilelang.__version__}-3", make)


class EmulatedKernel:
    """A prim_func lowered to CUDA for sm_90a and compiled for the host. Attributes: source, name."""

    def __init__(self, prim_func, pass_configs=None):
        lowered = cubin.lower(prim_func, pass_configs)
        self.prim_func, self.source, self.name = prim_func, lowered.source, lowered.name
        self.extent, self.device_params, self.shared_bytes = lowered.extent, lowered.params, lowered.shared_bytes
        self.cluster = lowered.cluster

        signature = re.search(r"__launch_bounds__\([^)]*\)\s+" + self.name + r"\((.*?)\)\s*\{", self.source, re.S)
        params = [p.strip() for p in signature.group(1).split(",")]
        self.names = [re.split(r"[\s\*]+", p)[-1] for p in params]
        self.types = [
            p[: p.rindex(n)].replace("__restrict__", "").strip() for p, n in zip(params, self.names, strict=True)
        ]
        self.launch = ctypes.CDLL(str(self._compile())).emu_launch

    def _compile(self):
        body = self.source.replace("extern __shared__", "extern")
        body = re.sub(r"extern __align__\(\d+\) (\w+) (\w+)\[\];", r"\1* \2 = (\1*)emu::shared();", body)
        args = ", ".join(f"({t})a[{i}]" if "*" in t else f"*({t}*)a[{i}]" for i, t in enumerate(self.types))
        code = "\n".join(
            [
                (_HERE / "emulator_prelude.h").read_text(),
                body,
                f"static void emu_call(void** a) {{ {self.name}({args}); }}",
                (_HERE / "emulator_runtime.h").read_text(),
            ]
        )
        include = [_patched_templates(), *cubin.cuda_include_dirs(), tilelang.env.CUTLASS_INCLUDE_DIR]
        command = ["g++", "-std=c++20", "-O1", "-w", "-fpermissive", "-ffp-contract=off", "-fPIC", "-shared"]
        command += ["-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0", *(f"-I{d}" for d in include)]
        key = hashlib.sha256("\0".join([code, *command]).encode()).hexdigest()[:16]

        def make(private):
            cpp = private.with_suffix(".cpp")
            cpp.write_text(code)
            r = subprocess.run([*command, str(cpp), "-o", str(private)], capture_output=True, text=True)
            if r.returncode:
                raise RuntimeError(f"emulator: g++ failed on {self.name}\n{r.stderr}")

        return _publish(WORK / f"{key}.so", make)

    def __call__(self, *args, order=0):
        values, tensors, buffers = {}, {}, self.prim_func.buffer_map
        for p, a in zip(self.prim_func.params, args, strict=True):
            if p not in buffers:
                values[p.name] = a
                continue
            b = buffers[p]
            _check(b, a, values)
            # A view of an argument has its own name in the source; both name the same pointer.
            tensors[b.name] = tensors[b.data.name] = _Guarded(b.name, a)

        known = {
            v: tvm.tirx.const(values[v.name], v.dtype)
            for v in self.device_params
            if v.name in values and v.name not in tensors
        }

        def value(e):
            if isinstance(e, int):
                return e
            return int(tvm.arith.Analyzer().simplify(tvm.tirx.stmt_functor.substitute(e, known)))

        axes = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]
        extent = (ctypes.c_uint * 6)(*[value(self.extent.get(axis, 1)) for axis in axes])
        if min(extent) == 0:
            raise RuntimeError(f"emulator: {self.name} launched with an empty grid")
        keep, pointers = [], (ctypes.c_void_p * len(self.names))()
        for i, (name, kind) in enumerate(zip(self.names, self.types, strict=True)):
            if "*" in kind:
                pointers[i] = tensors[name].pointer
            else:
                keep.append(_SCALARS[kind.replace("const", "").strip()](values[name]))
                pointers[i] = ctypes.addressof(keep[-1])
        failed = self.launch(pointers, extent, self.cluster, ctypes.c_size_t(self.shared_bytes), ctypes.c_int(order))
        if failed == 1:
            raise RuntimeError(f"emulator: {self.name} did not finish (deadlock)")
        if failed == 2:
            raise MemoryError(f"emulator: {self.name} wrote past its {self.shared_bytes} bytes of shared memory")
        for guarded in tensors.values():
            guarded.copy_back()


def launcher(prim_func, device, pass_configs=None):
    """In place of `_tilelang.compile_prim_func`: runs every launch in all orders and insists that they agree."""
    kernel = EmulatedKernel(prim_func, pass_configs or _tilelang.PASS_CONFIGS)

    def launch(*args):
        kernel(*args, order=ORDERS[0])
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        before = [a.clone() for a in tensors]
        for order in ORDERS[1:]:
            kernel(*args, order=order)
            for a, b in zip(tensors, before, strict=True):
                if not torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)):
                    raise RuntimeError(f"emulator: the result of {kernel.name} depends on the order of its threads")

    return launch


@pytest.fixture
def kernels(device, monkeypatch):
    """The device that the kernels run on, emulated on the CPU; memory that they leave unwritten reads as NaN."""
    if device == "cpu":
        monkeypatch.setattr(_tilelang, "compile_prim_func", launcher)
    torch.use_deterministic_algorithms(True)
    yield device
    torch.use_deterministic_algorithms(False)


def _check(b, a, values):
    """What TileLang's host code checks of an argument; binds its dynamic sizes and strides."""
    if a.device.type != "cpu":
        raise ValueError(f"{b.name} must be a CPU tensor, got {a.device}")
    if str(b.dtype) != str(a.dtype).removeprefix("torch."):
        raise ValueError(f"{b.name} must be {b.dtype}, got {a.dtype}")
    if len(b.shape) != a.dim():
        raise ValueError(f"{b.name} must have {len(b.shape)} dimensions, got {a.dim()}")
    if not len(b.strides) and not a.is_contiguous():
        raise ValueError(f"{b.name} must be contiguous, got strides {a.stride()}")
    pairs = [(want, got, True) for want, got in zip(b.shape, a.shape, strict=True)]
    # The stride of a leading dimension of size 1 may be anything.
    pairs += [(b.strides[i], a.stride(i), a.shape[i] != 1 or i == a.dim() - 1) for i in range(len(b.strides))]
    for want, got, matters in pairs:
        if isinstance(want, tvm.tirx.Var):
            if values.setdefault(want.name, got) != got and matters:
                raise ValueError(f"{b.name}: {want.name} is {values[want.name]} elsewhere, {got} here")
        elif isinstance(want, (int, tvm.tirx.IntImm)) and int(want) != got and matters:
            raise ValueError(f"{b.name}: expected size or stride {int(want)}, got {got}")


class _Guarded:
    """A copy of a tensor's memory between two guard zones, at the same address modulo 16."""

    def __init__(self, name, tensor):
        self.name = name
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
        self.bytes = tensor.as_strided((span,), (1,)).view(torch.uint8)
        self.start = _GUARD + tensor.data_ptr() % 16
        size = len(self.bytes)
        self.memory = torch.full((self.start + size + _GUARD,), 0xFF, dtype=torch.uint8)
        assert self.memory.data_ptr() % 16 == 0
        self.copy = self.memory[self.start : self.start + size]
        self.copy.copy_(self.bytes)
        self.pointer = self.copy.data_ptr()

    def copy_back(self):
        for zone in (self.memory[: self.start], self.memory[self.start + len(self.bytes) :]):
            if (zone != 0xFF).any():
                raise MemoryError(f"emulator: wrote outside of {self.name}")
        if not torch.equal(self.bytes, self.copy):
            self.bytes.copy_(self.copy)
