"""quack's kernels beside this package's, in a process of their own: its runtime (tvm-ffi) and TileLang's do not go into
one. Needs quack-kernels and no TileLang:

    pip install quack-kernels==0.6.5
    python -m bench.quack

runs the cases of norms and top-k that quack has a kernel for, with the harness of the other benchmarks, and writes
quack.json into the card's folder. From then on `python -m bench` puts the figures into its tables, marked as what they
are. quack's backward wants rstd, which its forward stores when asked; here it is made before the clock starts, and the
backward's sum over partial gradients counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
from typing import Any

import torch
from rich.console import Console

from bench import bench_norm, bench_topk, harness, report
from bench.peers import package_version
from bench.timing import CudaTimer

HERE = pathlib.Path(__file__).parent
NAME = "quack"


@functools.lru_cache(4)  # of tensors, which hash by identity
def rstd_of(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.float().square().mean(-1) + eps)


def rms_norm(m, x, weight, eps):
    return m.rmsnorm.rmsnorm_fwd(x, weight, eps=eps)[0]


def add_rms_norm(m, x, residual, weight, eps):
    return m.rmsnorm.rmsnorm_fwd(x, weight, residual=residual, eps=eps)[:2]


def add_rms_norm_bwd(m, dy, dresidual, residual, weight, eps, offset, dweight_dtype):
    return m.rmsnorm.rmsnorm_bwd(residual, weight, dy, rstd_of(residual, eps), dresidual, weight_offset=offset)[:2]


def topk(m, x, k, dim, largest, in_order):
    return m.topk.topk_fwd(x, k)


CALLS = {f.__name__: f for f in (rms_norm, add_rms_norm, add_rms_norm_bwd, topk)}


def power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def cases() -> list[harness.Case]:
    """The cases of the tables, with quack as their only peer; topk takes powers of two up to 4096 and 128."""
    found = []
    for case in (*bench_norm.CASES, *bench_topk.CASES):
        if case.op == "topk":
            _, k, *_ = case.inputs((1, case.shape[-1]), torch.device("cpu"))
            if not (power_of_two(case.shape[-1]) and power_of_two(k) and case.shape[-1] <= 4096 and k <= 128):
                continue
        if case.op in CALLS:
            peers = {NAME: CALLS[case.op]}
            found.append(dataclasses.replace(case, peers=peers, earlier={}, canonical=_wider(case.canonical)))
    return found


def _wider(canonical: Any) -> Any:
    """quack's indices are int32, and those of the reference int64."""

    def call(args, result):
        return canonical(args, tuple(t.long() if t.dtype == torch.int32 else t for t in result))

    return canonical and call


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quack", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--reps", type=int, default=50, help="samples of each time")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 250)
    if options.list:
        for case in cases():
            console.print(str(case), highlight=False)
        return 0
    import quack
    import quack.rmsnorm
    import quack.topk

    device = torch.device("cuda")
    env = report.environment(device, {NAME: package_version("quack-kernels")}, options.reps)
    timer = CudaTimer(device)
    result: dict[str, Any] = {"family": NAME, "environment": env, "cases": []}
    for case in cases():
        console.print(str(case), highlight=False)
        result["cases"].append(harness.run_case(case, timer, device, {NAME: quack}, [], options.reps))
    for table in report.tables(result):
        console.print(table)
    for note in report.problems(result):
        console.print(f"  {note}", highlight=False, markup=False)
    path = options.out / report.slug(env["card"]) / f"{NAME}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(f"written: {path}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
