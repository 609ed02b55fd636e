"""The kernels of the tests of tle_ops.language, and one that shows what tiles cost, built for sm_90 without a GPU.

In a process of its own, where they are compiled and not interpreted. Triton's wheel carries ptxas.
"""

import os
import re
import subprocess
import sys

import pytest


def build(fn, types: dict, constants: dict, **options):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = fn.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=fn, signature=signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def count(ptx: str, instruction: str) -> int:
    return len(re.findall(rf"^\s*(?:@%p\d+ )?{instruction}", ptx, re.MULTILINE))


def check_barriers() -> None:
    import tests.test_language_remote as t
    import tle_ops.language as tle

    words, context = "*i32", "*i64"
    devices, both = tle.device_mesh({"device": 2}), tle.device_mesh({"device": 2, "block": 8})
    for mesh in (devices, both):
        types = {"x_ptr": words, "context": context, "out_ptr": words, "rounds": "i32"}
        cooperative = {"launch_cooperative_grid": True} if mesh is both else {}
        built = build(t._exchange_kernel, types, {"mesh": mesh, "N": 256}, **cooperative)
        ptx = built.asm["ptx"]
        assert built.metadata.launch_cooperative_grid == (mesh is both)
        assert count(ptx, r"(?:atom|red)\.global\.sys\.release\.add\.u32") == 2
        assert count(ptx, r"atom\.global\.sys\.acquire\.add\.u32") == 2
        # Blocks meet before and after each of two meetings of the processes.
        assert count(ptx, r"atom\.global\.gpu\.acq_rel\.add\.u32") == (4 if mesh is both else 0)
        assert count(ptx, r"ld\.global\.gpu\.acquire\.b32") == (4 if mesh is both else 0)
    types = {"x_ptr": words, "counters": words, "out_ptr": words}
    build(t._grid_kernel, {**types, "rounds": "i32"}, {"mesh": t.GRID}, launch_cooperative_grid=True)
    build(t._half_grid_kernel, types, {"mesh": t.GRID}, launch_cooperative_grid=True)
    many = tle.device_mesh({"node": 9, "device": 8})[:, 2]
    for mesh, index, polls in ((many, None, 3), (t.MESH, None, None), (t.MESH[1, :2], 3, None)):
        build(
            t._barrier_kernel,
            {"context": context, "out_ptr": words},
            {"mesh": mesh, "INDEX": index, "POLLS": polls},
            debug=True,
        )


def check_remote() -> None:
    import tests.test_language_remote as t
    import tle_ops.language as tle

    floats, context = "*fp32", "*i64"
    types = {"x_ptr": floats, "context": context, "out_ptr": floats}
    run_time = {**types, "node": "i32", "device": "i32"}
    for form in range(11):
        for debug in (False, True):
            built = build(t._remote_kernel, run_time, {"mesh": t.MESH, "FORM": form, "N": 512}, debug=debug)
        ptx = build(t._remote_kernel, run_time, {"mesh": t.MESH, "FORM": form, "N": 512}).asm["ptx"]
        assert "ld.global.v4.b32" in ptx, f"form {form}: not as wide as through a pointer of its own"
        assert built.asm["cubin"]
    mesh = tle.device_mesh({"node": 2, "device": 3, "block_cluster": [("cluster_x", 2)], "block": 4})
    build(t._shard_id_kernel, {"out_ptr": "*i32", "context": context}, {"mesh": mesh})
    build(t._parts_kernel, types, {"mesh": t.MESH})
    build(t._write_kernel, {**types, "h_ptr": "*fp16", "peer": "i32"}, {"N": 64})
    spec = tle.sharding(t.MESH, split=["device", tle.B], partial=["node"])
    build(t._sharded_kernel, types, {"spec": spec, "mesh": t.MESH})
    for case, text in enumerate(t.ERRORS):
        got = t.error_of(
            lambda case=case: build(
                t._bad_kernel, {"x_ptr": floats, "context": context, "i": "i32"}, {"mesh": t.MESH, "CASE": case}
            )
        )
        assert text in got, f"{text}\n{got}"


def check_sums() -> None:
    """The kernel asserts that both results have the type that was asked for."""
    import tests.test_language_scan as t

    for dtype in ("i8", "i32", "fp32", "bf16", "fp8e4nv"):
        for i, want in enumerate(t.OF_TRITON.values()):
            out = "*fp64" if want.is_floating() else "*i64"
            types = {"x_ptr": f"*{dtype}", "exclusive_ptr": out, "total_ptr": out}
            build(t.cumsum_kernel, types, {"N": 64 if i % 2 else 512, "REVERSE": bool(i % 3), "DTYPE": want})


def check_tiles() -> None:
    import tests.test_language_tiles as t

    for dtype in ("*fp32", "*bf16"):
        for place in (1, "i"):
            known = {} if place == "i" else {"i": place}
            types = {"x_ptr": dtype, "y_ptr": dtype, "i": "i32"} if place == "i" else {"x_ptr": dtype, "y_ptr": dtype}
            built = build(t._bands_kernel, types, {**known, "M": 128, "N": 64})
            assert built.metadata.shared == 0  # a band of rows never leaves the registers
            assert count(built.asm["ptx"], r"(?:shfl|bar)\.") == 0
    build(t._fused_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32"}, {})
    build(
        t._every_tile_kernel,
        {"x_ptr": "*bf16", "out_ptr": "*bf16", "i": "i32"},
        {"SHAPE": (2, 16, 4), "TILE": (1, 2, 4), "AT": (1, 7, 0)},
    )
    for form in range(3):
        for debug in (False, True):
            ir = build(t._outside_kernel, {"x_ptr": "*fp32", "i": "i32"}, {"FORM": form}, debug=debug).asm["ttir"]
            assert ("tt.assert" in ir) == debug
    for case, text in t.TILE_ERRORS:
        got = t.error_of(lambda case=case: build(t._bad_extract_kernel, {"x_ptr": "*fp32"}, {"CASE": case}))
        assert text in got, f"{text}\n{got}"


@pytest.mark.parametrize("check", [check_barriers, check_remote, check_sums, check_tiles], ids=lambda f: f.__name__)
def test_build(check):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"""if True:
        import torch
        torch.cuda.is_available = lambda: True  # the tests' kernels are compiled then
        from tests.test_language_build import {check.__name__} as check
        check()"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
