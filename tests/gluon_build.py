"""Compiles the Gluon kernels of the tests for sm_90 without a GPU, and says what came out.

    python -m tests.gluon_build pipes | pointers | norms | errors      one line of JSON per kernel or case

In a process of its own: under TRITON_INTERPRET, with which the tests run, Triton's own functions are not compiled.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile

F, N, IP, C = "*fp32", "i32", "*i32", "constexpr"


def compiled(fn, signature, constants, arch=90, backend="cuda", num_warps=4, aligned=True, **options):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    attributes = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(signature.values()) if aligned and t[0] == "*"}
    source = GluonASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget(backend, arch, 32 if backend == "cuda" else 64)
    return triton.compile(source, target=target, options={"num_warps": num_warps, **options})


def facts(result) -> dict:
    ptx = result.asm["ptx"]
    return {
        "cubin": len(result.asm["cubin"]),
        "shared": result.metadata.shared,
        "spilled": spilled(ptx),
        "unordered": unordered_arrivals(ptx),
        **{name: len(re.findall(pattern, ptx)) for name, pattern in COUNTS.items()},
    }


COUNTS = {
    "waits": r"mbarrier\.try_wait",
    "arrivals": r"(?<!cp\.async\.)mbarrier\.arrive",
    "tma": r"cp\.async\.bulk\.tensor",
    "cp_async": r"cp\.async\.c[ag]",
    "cp_async_arrivals": r"cp\.async\.mbarrier\.arrive",
    "divisions": r"\b(?:rem|div)\.[us](?:32|64)",
    "atomics": r"\b(?:atom|red)\S*shared",
    "roles": r"setmaxnreg",
}
_SHARED = re.compile(r"\b(?:ld|st)\.shared|cp\.async\.c[ag]")
_BARRIER = re.compile(r"\b(?:bar|barrier|bar\.warp)\.(?:cta\.)?(?:sync|warp\.sync)")


def unordered_arrivals(ptx: str) -> int:
    """Arrivals for a whole role, by one thread, that no barrier of the role parts from the accesses before them."""
    found, dirty = 0, False
    for line in ptx.splitlines():
        if _SHARED.search(line):
            dirty = True
        elif _BARRIER.search(line):
            dirty = False
        elif re.search(r"(?<!cp\.async\.)mbarrier\.arrive", line) and dirty:
            found += 1
    return found


def spilled(ptx: str) -> int:
    """Bytes, from the assembler. Newer Tritons write PTX that only the second of theirs reads."""
    import triton

    folder = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    arch = re.search(r"\.target (\w+)", ptx)[1]
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "kernel.ptx")
        with open(path, "w") as f:
            f.write(ptx)
        for name in ("ptxas", "ptxas-blackwell"):
            command = [os.path.join(folder, name), "-v", f"-arch={arch}", path, "-o", path + ".cubin"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr))
    raise RuntimeError(done.stderr)


def pipes():
    from triton.experimental.gluon import language as gl

    from tests import gpu_kernels as g
    from tests import pipe_kernels as k

    layout = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
    D = f"tensordesc<fp32[32, 32],{layout!r}>"
    row = {"x_ptr": F, "out_ptr": F, "n": N, "BLOCK": C}
    two = {"x_ptr": F, "s_ptr": F, "mul_ptr": F, "copy_ptr": F, "n": N, "BLOCK": C, "CAPACITY": C, "CURSOR": C}
    tile = {"BM": C, "BN": C, "CAPACITY": C}
    copied = dict(x_ptr=F, out_ptr=F, n=N, n_elements=N, **tile, WARPS=C)
    mixed = dict(desc=D, c_ptr=F, s_ptr=F, out_ptr=F, n=N, **tile, WARPS=C)
    square = {"BM": 32, "BN": 32}
    yield "document", g.seed_example, row, {"BLOCK": 512}
    for capacity in (1, 3, 8):
        c = {"CAPACITY": capacity}
        yield f"one role {capacity}", k.one_role, {**row, "CAPACITY": C, "AHEAD": C}, dict(BLOCK=512, **c, AHEAD=0)
        yield f"two readers {capacity}", k.two_readers, two, dict(BLOCK=512, **c, CURSOR=False)
        yield f"tma {capacity}", k.by_tma, dict(desc=D, out_ptr=F, n=N, **tile), dict(**square, **c)
    yield "ahead", k.one_role, {**row, "CAPACITY": C, "AHEAD": C}, {"BLOCK": 512, "CAPACITY": 3, "AHEAD": 2}
    yield "cursor", k.two_readers, two, {"BLOCK": 512, "CAPACITY": 3, "CURSOR": True}
    for arch in (100, 120):
        yield (
            f"two readers, sm_{arch}",
            k.two_readers,
            two,
            {"BLOCK": 512, "CAPACITY": 3, "CURSOR": False},
            {"arch": arch},
        )
    closing = {"x_ptr": F, "n_ptr": IP, "out_ptr": F, "BLOCK": C, "CAPACITY": C}
    yield "close", k.closing, closing, {"BLOCK": 512, "CAPACITY": 3}
    yield "one shot", k.broadcast_once, {"x_ptr": F, "out_ptr": F, "BLOCK": C}, {"BLOCK": 512}
    for warps in (1, 4):
        yield f"cp.async {warps}", k.by_cp_async, copied, dict(**square, CAPACITY=3, WARPS=warps)
        yield f"mixed {warps}", k.mixed, mixed, dict(**square, CAPACITY=3, WARPS=warps)


def pointers():
    from triton.experimental.gluon import language as gl

    from tests import gpu_kernels as k
    from tle_ops.language._compat import HAS_SCATTER

    rows = {"M": 16, "N": 64}
    whole = {"x_ptr": F, "out_ptr": F, "n": N, "M": C, "N": C, "SWIZZLED": C}
    places = {"x_ptr": F, "i_ptr": IP, "j_ptr": IP, "out_ptr": F, "n": N, "M": C, "N": C, "K": C}
    for swizzled in (False, True):
        yield f"whole {swizzled}", k.whole, whole, dict(**rows, SWIZZLED=swizzled)
    for n in (32, 256):
        yield f"gather {n}", k.gather, places, dict(**rows, K=n)
        yield f"scatter {n}", k.scatter, places, dict(**rows, K=n)
    ranks = {"x_ptr": IP, "rank_ptr": IP, "count_ptr": IP, "n": N, "BLOCK": C, "BINS": C}
    yield "ranks", k.ranks, ranks, {"BLOCK": 512, "BINS": 128}
    for dtype, pointer in ((gl.int32, IP), (gl.uint32, "*u32"), (gl.int64, "*i64"), (gl.uint64, "*u64")):
        yield f"atomics {dtype}", k.atomics, {"out_ptr": pointer, "DTYPE": C, "N": C}, {"DTYPE": dtype, "N": 128}
    live = {"x_ptr": F, "sums_ptr": F, "out_ptr": F, "bad_ptr": IP, "n": N, "N": C, "CAPACITY": C, "SCATTER": C}
    yield "sentinels", k.sentinels, live, {"N": 512, "CAPACITY": 3, "SCATTER": HAS_SCATTER}
    roles = {"x_ptr": F, "left_ptr": F, "right_ptr": F, "bad_ptr": IP, "n": N, "N": C, "CAPACITY": C}
    yield "sentinels of roles", k.sentinels_of_roles, roles, {"N": 512, "CAPACITY": 3}
    yield "float add", k.float_add, {"x_ptr": F, "i_ptr": IP, "out_ptr": F, "N": C, "BINS": C}, {"N": 128, "BINS": 64}


# Columns of a row, and whether the rows are aligned, so that they go by cp.async.
ROWS = [(33, False), (7168, False), (64, True), (4096, True), (20000, True)]


def norms():
    import torch

    from tle_ops.kernels import norm_gluon as k

    scalars = {"M": "i64", "pitch": "i64", "eps": "fp32", "offset": "fp32"}
    for dtype, pointer in ((torch.bfloat16, "*bf16"), (torch.float32, F)):
        for columns, aligned in ROWS:
            tile = k.tile_of(columns, dtype.itemsize, aligned)
            flags = k.flags_of(columns, dtype.itemsize, aligned, True, tile)
            names = k._norm_kernel.arg_names[7:]
            pointers = dict.fromkeys(k._norm_kernel.arg_names[:3], pointer)
            signature = {**pointers, **scalars, **dict.fromkeys(names, C)}
            options = {"num_warps": tile.warps, "maxnreg": tile.registers}
            constants = dict(zip(names, flags, strict=True))
            yield f"{dtype} {columns} {aligned}", k._norm_kernel, signature, constants, options


def errors():
    """(name, what is said): a kernel per case, each of which must stop while it is traced."""
    from tests import language_errors

    yield from language_errors.cases()


def report(group: str) -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    if group == "errors":
        for name, fn, signature, options in errors():
            print(json.dumps({"name": name, "error": error_of(lambda: compiled(fn, signature, {}, **options))}))  # noqa: B023
        return
    for name, fn, signature, constants, *options in {"pipes": pipes, "pointers": pointers, "norms": norms}[group]():
        try:
            line = facts(compiled(fn, signature, constants, **(options[0] if options else {})))
        except Exception as e:
            line = {"error": error_chain(e)}
        print(json.dumps({"name": name, **line}), flush=True)


def error_of(call) -> list:
    try:
        call()
    except Exception as e:
        return error_chain(e)
    return []


def error_chain(e: BaseException | None) -> list[tuple[str, str]]:
    chain = []
    while e is not None:
        chain.append((type(e).__name__, str(e)))
        e = e.__cause__
    return chain


@functools.cache
def built(group: str) -> dict[str, dict]:
    """What `report` says, by name."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gluon_build", group]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("name"): line for line in lines}


if __name__ == "__main__":
    report(sys.argv[1])
