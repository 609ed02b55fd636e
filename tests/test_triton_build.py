"""The Triton kernels built for sm_90 without a GPU: 128-bit accesses, saturating casts, no spills, no division left.

In a process of its own, where the kernels are compiled and not interpreted. Triton's wheel carries ptxas.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
import torch

TYPES = {
    torch.int8: "*i8",
    torch.int64: "*i64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int32: "*i32",
}


def build(kernel, pointers, constants, num_warps=4, maxnreg=None) -> tuple[str, str]:
    """PTX, and what ptxas says of registers and spills."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    fn = kernel.fn
    scalars = len(fn.do_not_specialize)
    signature, values, attributes = {}, {}, {}
    for i, (name, parameter) in enumerate(zip(fn.arg_names, fn.params, strict=True)):
        if i < len(pointers):
            signature[name] = TYPES[pointers[i]]
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif i < len(pointers) + scalars:
            signature[name] = parameter.annotation_type
        else:
            signature[name] = "constexpr"
            values[(i,)] = constants[i - len(pointers) - scalars]
    options = {"num_warps": num_warps, **({"maxnreg": maxnreg} if maxnreg else {})}
    source = ASTSource(fn=fn, signature=signature, constexprs=values, attrs=attributes)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    ptxas = get_ptxas(90).path  # Triton 3.9 has two, and assembles this with the newer one
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [ptxas, "-v", "-arch=sm_90a", path, "-o", path.with_suffix(".cubin")]
        return ptx, subprocess.run(command, capture_output=True, text=True, check=True).stderr


def registers(log: str) -> int:
    return int(re.search(r"Used (\d+) registers", log).group(1))


def accesses(ptx: str, kind: str) -> set[int]:
    """Bits of the global loads ("ld") or stores ("st")."""
    found = re.findall(rf"\b{kind}\.global[\w.:]*?(?:\.v(\d))?\.b(\d+)", ptx)
    return {int(width) * int(lanes or 1) for lanes, width in found}


def cast(axis, size, shape, dtype=torch.bfloat16, code=torch.float8_e4m3fn, scales=None):
    from tle_ops.kernels import quant_triton as q

    plan = q._plan(axis, size, shape, (shape[-1], 1), scales)
    constants = (*plan.constants, q._CODE[code], q.FP8_MAX[code], False, False, plan.pieces, False)
    return build(q._cast_kernel, (dtype, code, torch.float32, torch.float32), constants, plan.num_warps, plan.maxnreg)


def check_casts() -> None:
    from tle_ops.kernels import quant_triton as q

    for name, built in {
        "token": cast(q._TOKEN, 128, (4096, 7168), scales=(0, 56, 1)),
        "token, e5m2": cast(q._TOKEN, 128, (4096, 7168), code=torch.float8_e5m2, scales=(0, 56, 1)),
        "token, float32": cast(q._TOKEN, 128, (4096, 7168), dtype=torch.float32, scales=(0, 56, 1)),
        "token, column-major": cast(q._TOKEN, 128, (4096, 7168), scales=(0, 1, 4096)),
        "token, odd rows": cast(q._TOKEN, 128, (5, 7168), scales=(0, 56, 1)),
        "row": cast(q._TOKEN, -1, (4096, 7168), scales=(0, 1, 1)),
        "block": cast(q._BLOCK, 128, (4096, 4096), scales=(0, 32, 1)),
        "channel": cast(q._CHANNEL, 128, (4096, 4096), scales=(0, 4096, 1)),
    }.items():
        ptx, log = built
        assert 128 in accesses(ptx, "ld"), f"{name}: {accesses(ptx, 'ld')}"
        assert max(accesses(ptx, "st")) >= 64, f"{name}: {accesses(ptx, 'st')}"
        assert re.search(r"cvt\.rn\.satfinite\.e[45]m[23]x2\.f32", ptx), name
        assert "div.rn" not in ptx, name
        spilled = int(re.search(r"(\d+) bytes spill stores", log).group(1))
        assert spilled <= (32 if name == "block" else 0), f"{name}: {spilled} bytes spilled"


def check_elementwise() -> None:
    from tle_ops.kernels import elementwise_triton as e

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64):
        ptx, log = build(e._add_kernel, (dtype,) * 3, (False, e._ADD[dtype.itemsize]), e._ADD_WARPS)
        assert 128 in accesses(ptx, "ld") & accesses(ptx, "st"), dtype
        assert registers(log) <= 40, dtype  # a branch with scalar accesses takes 64
        assert " 0 bytes spill stores" in log
    for dtype, out in (
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
    ):
        block, warps = e._SCALE_CAST
        ptx, log = build(e._scale_cast_kernel, (dtype, out), (block,), warps)
        assert registers(log) <= 32
        assert 128 in accesses(ptx, "ld") & accesses(ptx, "st"), (dtype, out)


@pytest.mark.parametrize("check", [check_casts, check_elementwise], ids=lambda f: f.__name__)
def test_build(check):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"from tests.test_triton_build import {check.__name__} as check; check()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
