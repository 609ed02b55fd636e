"""Two processes that build the same kernels at once, both with empty caches, and a third one that finds them built.

Without a GPU the kernels are built for one, and the host code says what it would have been called with."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

import tle_ops  # noqa: F401  (registers the operators)
from tests.specs.scan import ints
from tests.table import assert_same_bits, outputs, randn

ROOT = pathlib.Path(__file__).parents[1]
# A start for all: each says that it is ready, and begins when all are.
TOGETHER = """
    import pathlib, sys, time
    import torch

    here, me, processes = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def wait_for_all():
        (here / f"ready{processes}-{me}").touch()
        end = time.monotonic() + 120
        while len(list(here.glob(f"ready{processes}-*"))) < processes:
            if time.monotonic() > end:
                sys.exit("the other process did not come")
            time.sleep(0.001)
"""
BUILD = """
    from tests.test_triton_build import build
    from tle_ops.kernels import _tilelang, elementwise_triton, scan_tilelang

    prim_func = scan_tilelang.histogram_kernel.factory(torch.int32, 4, 256, 256)
    wait_for_all()
    launch = _tilelang._entry(prim_func, "sm_90a")
    try:
        launch(torch.zeros(4), torch.zeros(4))
    except Exception as error:
        said = str(error)
    bfloat16 = (torch.bfloat16,) * 3
    ptx, _ = build(elementwise_triton._add_kernel, bfloat16, (False, 2048))
    torch.save([said, ptx], here / f"result{processes}-{me}")
"""
CALL = """
    import tle_ops

    def move(a):
        return a.cuda() if isinstance(a, torch.Tensor) else a

    calls = [(op, [move(a) for a in args]) for op, args in torch.load(here / "calls")]
    torch.cuda.synchronize()
    wait_for_all()
    results = [getattr(torch.ops.tle, op)(*args) for op, args in calls]
    flat = [t.cpu() for r in results for t in (r if isinstance(r, tuple) else (r,))]
    torch.save(flat, here / f"result{processes}-{me}")
"""


def at_once(code: str, folder: pathlib.Path, processes: int) -> list:
    """The results of so many processes that start together and share the caches in `folder`."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env.update(PYTHONPATH=path, TRITON_CACHE_DIR=str(folder / "triton"), TILELANG_CACHE_DIR=str(folder / "tilelang"))
    source = textwrap.dedent(TOGETHER) + textwrap.dedent(code)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", source, str(folder), str(i), str(processes)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(processes)
    ]
    try:
        said = [p.communicate(timeout=300)[0] for p in started]
    finally:
        for p in started:
            p.kill()
    assert [p.returncode for p in started] == [0] * processes, "\n".join(said)[-4000:]
    return [torch.load(folder / f"result{processes}-{i}") for i in range(processes)]


def built(folder: pathlib.Path) -> dict[str, int]:
    """Compiled code of both caches, and when each file was written."""
    files = [p for kind in ("*.cubin", "*.so") for p in folder.rglob(kind)]
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in files}


def test_builds(tmp_path):
    pytest.importorskip("tilelang")
    one, other = at_once(BUILD, tmp_path, 2)
    assert one == other
    assert "ld.global" in one[1]
    found = built(tmp_path)
    assert {pathlib.Path(p).suffix for p in found} == {".cubin", ".so"}
    assert at_once(BUILD, tmp_path, 1) == [one]
    assert built(tmp_path) == found, "the third process has built again"


@pytest.mark.gpu
def test_calls_on_gpu(tmp_path):
    """The first call of each, TileLang's and Triton's, in two processes: right, and then found by a third."""
    x = randn(256, 512)
    calls = [
        ("per_block_cast_fp8", (x,)),
        ("histogram", (ints(8, 3000, low=-2, high=300), 256)),
        ("per_token_cast_fp8", (x,)),
        ("topk", (x, 20)),
        ("add", (x, x)),
    ]
    torch.save(calls, tmp_path / "calls")
    want = [t for op, args in calls for t in outputs(getattr(torch.ops.tle, op)(*args))]
    results = at_once(CALL, tmp_path, 2)
    found = built(tmp_path)
    assert {pathlib.Path(p).suffix for p in found} >= {".cubin", ".so"}
    results += at_once(CALL, tmp_path, 1)
    for got in results:
        for g, w in zip(got, want, strict=True):
            assert_same_bits(g, w)
    assert built(tmp_path) == found, "the third process has built again"
