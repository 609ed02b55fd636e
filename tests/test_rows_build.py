"""The Triton kernels over rows (norms, gated activations, rope, fused quantizers) built for sm_90 without a GPU:
128-bit accesses, no spills at the widths of models, and no more shared memory than a multiprocessor has."""

import importlib
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from tests.test_triton_build import accesses, build, registers

SHARED = 232_448  # bytes that one program may have


class Built(NamedTuple):
    name: str  # of the kernel
    ptx: str
    log: str  # of ptxas
    shared: int  # bytes of shared memory


def built(family: str, op: str, *args) -> list[Built]:
    """Each launch of one call, whose tensors are on the CPU."""
    import triton

    from tle_ops.kernels import _norm_wide_triton, norm_triton
    from tle_ops.kernels._triton import Kernel

    found, compiled, compile = [], [], triton.compile

    def remember(*args, **options):
        compiled.append(compile(*args, **options))
        return compiled[-1]

    def launch(self, grid, tensors, scalars, constants, num_warps=4, maxnreg=None, pdl=False):
        assert grid > 0
        ptx, log = build(self, [t.dtype for t in tensors], constants, num_warps, maxnreg)
        found.append(Built(self.fn.__name__, ptx, log, compiled[-1].metadata.shared))

    Kernel.__call__ = launch
    for module in (norm_triton, _norm_wide_triton):
        module.num_multiprocessors = lambda device: 132
    norm_triton.has_dependent_launch = lambda device: True
    call = getattr(importlib.import_module(f"tle_ops.kernels.{family}_triton"), op)
    triton.compile = remember
    try:
        getattr(call, "__wrapped__", call)(*args)
    finally:
        triton.compile = compile
    assert found
    return found


def assert_lean(kernels: list[Built], narrow: tuple[str, ...] = ()) -> None:
    """narrow: kernels that store a few numbers per row."""
    for name, ptx, log, _ in kernels:
        assert " 0 bytes spill stores" in log, f"{name}: {log}"
        assert 128 in accesses(ptx, "ld") or "cp.async.cg" in ptx, f"{name}: {accesses(ptx, 'ld')}"
        assert name in narrow or 128 in accesses(ptx, "st"), f"{name}: {accesses(ptx, 'st')}"


def rows(N: int, dtype=torch.bfloat16, M: int = 300) -> torch.Tensor:
    return torch.empty(M, N, dtype=dtype)


def check_norms() -> None:
    for N in (2048, 5120, 7168, 8192):
        for dtype in (torch.bfloat16, torch.float32):
            x, w = rows(N, dtype), torch.empty(N, dtype=dtype)
            assert_lean(built("norm", "rms_norm", x, w, 1e-6))
            assert_lean(built("norm", "add_rms_norm", x, x, w, 1e-6))
            assert_lean(built("norm", "layer_norm", x, w, w, 1e-6))
            sums = ("column_sum_kernel",)
            assert_lean(built("norm", "rms_norm_bwd", x, x, w, 1e-6, 0.0, dtype), sums)
            assert_lean(built("norm", "add_rms_norm_bwd", x, x, x, w, 1e-6, 0.0, dtype), sums)
            assert_lean(built("norm", "layer_norm_bwd", x, x, w, 1e-6, dtype, dtype), sums)


def check_gradients_of_long_rows() -> None:
    """Up to the longest that are held in registers: no spills, but for layer_norm beyond 12288 columns."""
    sums = ("column_sum_kernel",)
    for N in (10240, 12288, 16384):
        x, w = rows(N), torch.empty(N, dtype=torch.bfloat16)
        assert_lean(built("norm", "rms_norm_bwd", x, x, w, 1e-6, 0.0, torch.bfloat16), sums)
        assert_lean(built("norm", "add_rms_norm_bwd", x, x, x, w, 1e-6, 0.0, torch.bfloat16), sums)
        if N < 16384:
            assert_lean(built("norm", "layer_norm_bwd", x, x, w, 1e-6, torch.bfloat16, torch.bfloat16), sums)
    x, w = rows(16384, torch.float32), torch.empty(16384)
    for name, *_ in built("norm", "layer_norm_bwd", x, x, w, 1e-6, torch.float32, torch.float32):
        assert name != "row_bwd_kernel", "its registers hold a row and the sums of 16-bit inputs"


def check_long_rows() -> None:
    statistics = ("column_sum_kernel", "_statistics_kernel", "_statistics_bwd_kernel")
    for M in (4, 600):
        x, w = rows(65536, M=M), torch.empty(65536, dtype=torch.bfloat16)
        assert_lean(built("norm", "add_rms_norm", x, x, w, 1e-6), statistics)
        assert_lean(built("norm", "layer_norm", x, w, w, 1e-6), statistics)
        assert_lean(built("norm", "add_rms_norm_bwd", x, x, x, w, 1e-6, 0.0, torch.bfloat16), statistics)
        assert_lean(built("norm", "layer_norm_bwd", x, x, w, 1e-6, torch.bfloat16, torch.bfloat16), statistics)


def check_shared_memory() -> None:
    for N in (1, 33, 1000, 4096, 8192, 12288, 16384):
        for dtype in (torch.bfloat16, torch.float32):
            x, w = rows(N, dtype), torch.empty(N)
            for kernel in (
                *built("norm", "add_rms_norm_bwd", x, x, x, w, 1e-6, 0.0, torch.float32),
                *built("norm", "layer_norm_bwd", x, x, w, 1e-6, torch.float32, torch.float32),
                *built("norm", "layer_norm", x, w, w, 1e-6),
                *built("fused", "add_rms_norm_per_token_cast_fp8", x, x, w, 1e-6),
            ):
                assert kernel.shared <= SHARED, f"{kernel.name}: {kernel.shared} bytes at N = {N}, {dtype}"


def check_few_columns() -> None:
    """So few that a thread holds one element of the weight, where two go together otherwise."""
    for N in (1, 3, 40):
        x, w = rows(N), torch.empty(N, dtype=torch.bfloat16)
        built("norm", "add_rms_norm", x, x, w, 1e-6)
        built("norm", "layer_norm", x, w, w, 1e-6)
        built("norm", "add_rms_norm_bwd", x, x, x, w, 1e-6, 0.0, torch.bfloat16)
        built("fused", "swiglu_per_token_cast_fp8", rows(2 * N))
        built("fused", "add_rms_norm_per_token_cast_fp8", x, x, w, 1e-6)


def check_activations() -> None:
    for op in ("swiglu", "geglu"):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x = rows(4096, dtype)
            for kernel in (*built("swiglu", op, x, x), *built("swiglu", f"{op}_bwd", x, x, x)):
                assert registers(kernel.log) <= 64  # a branch with scalar accesses takes up to 96
            assert_lean(built("swiglu", op, x, x))
            assert_lean(built("swiglu", op, *x.chunk(2, -1)))
            assert_lean(built("swiglu", f"{op}_bwd", x, x, x))
            assert_lean(built("swiglu", f"{op}_packed", x))
            assert_lean(built("swiglu", f"{op}_packed_bwd", x[:, :2048].contiguous(), x))
    assert_lean(built("swiglu", "swiglu_packed_bwd", rows(2048), rows(4096), 7.0))


def check_rope() -> None:
    for interleaved in (False, True):
        for half in (64, 32):
            tables = torch.empty(128, half), torch.empty(128, half)
            assert_lean(built("rope", "rope", torch.empty(2, 128, 40, 128, dtype=torch.bfloat16), *tables, interleaved))
            qkv = torch.empty(2, 128, 48 * 128, dtype=torch.bfloat16)
            assert_lean(built("rope", "rope_bwd", qkv[..., : 40 * 128].unflatten(-1, (40, 128)), *tables, interleaved))


def check_fused() -> None:
    options = ((128, torch.float8_e4m3fn), (32, torch.float8_e5m2, True), (-1, torch.float8_e4m3fn))
    for N in (2048, 7168, 8192):
        x, w = rows(N), torch.empty(N, dtype=torch.bfloat16)
        for how in options:
            kernels = [
                *built("fused", "swiglu_per_token_cast_fp8", x, *how),
                *built("fused", "rms_norm_per_token_cast_fp8", x, w, 1e-6, *how),
                *built("fused", "add_rms_norm_per_token_cast_fp8", x, x, w, 1e-6, *how),
            ]
            # 8 codes per thread are 64 bits: so no lanes are beyond a row of 7168, and fewer registers taken
            assert_lean(kernels, ("_long_row_cast_kernel",))
            assert all(re.search(r"cvt\.rn\.satfinite\.e[45]m[23]x2\.f32", ptx) for _, ptx, *_ in kernels)


CHECKS = [
    check_norms,
    check_gradients_of_long_rows,
    check_long_rows,
    check_shared_memory,
    check_few_columns,
    check_activations,
    check_rope,
    check_fused,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_build(check):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"from tests.test_rows_build import {check.__name__} as check; check()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
