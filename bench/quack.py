"""quack's kernels beside this package's, in a process of their own: its runtime (tvm-ffi) and TileLang's do not go into
one. Needs quack-kernels and no TileLang:

    pip install quack-kernels==0.6.5
    python -m bench.quack

runs the cases of norms and top-k that quack has a kernel for, with the harness of the other benchmarks, and writes
quack.json into the card's folder. From then on `python -m bench` puts the figures into its tables, marked as what they
are. quack's backward wants rstd, which its forward stores when asked; here it is made before the clock starts, and the
backward's sum over partial gradients counts. quack's top-k keeps a column in the last bits of its score, and so returns
rounded values, and may take either of two scores that differ in these bits alone: it is judged with that tolerance, and
the table says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from bench import bench_norm, bench_topk, harness, report
from bench.check import Tolerance
from bench.peers import package_version
from bench.timing import CudaTimer

HERE = pathlib.Path(__file__).parent
NAME = "quack"


def modules() -> Any:
    """The modules that the calls use: `quack.rmsnorm` as an attribute is a function of this name."""
    return SimpleNamespace(**{name: importlib.import_module(f"quack.{name}") for name in ("rmsnorm", "topk")})


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


def rounding_of_topk(columns: int) -> Tolerance:
    """Of a score's bits, log2(columns) hold the column: less than `columns` units in the last place. Equal scores after
    that keep the order of columns, so that the i-th taken and the i-th greatest are no further apart."""
    return Tolerance(ulps=columns)


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
            case = dataclasses.replace(
                case, canonical=_wider(case.canonical), peer_tolerance=rounding_of_topk(case.shape[-1])
            )
        if case.op in CALLS:
            found.append(dataclasses.replace(case, peers={NAME: CALLS[case.op]}, earlier={}))
    return found


def _wider(canonical: Any) -> Any:
    """quack's indices are int32, and those of the reference int64."""
    return lambda args, result: canonical(args, (result[0], result[1].long()))


def run_case(case: harness.Case, timer: Any, device: torch.device, reps: int) -> dict[str, Any]:
    row = harness.run_case(case, timer, device, {NAME: modules()}, [], reps)
    if case.op == "topk":
        bits = case.shape[-1].bit_length() - 1
        row["variants"][NAME]["note"] = f"rounds values: their last {bits} bits held the column"
    return row


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
    device = torch.device("cuda")
    return run(options.out, options.reps, device, CudaTimer(device), console)


def run(out: pathlib.Path, reps: int, device: torch.device, timer: Any, console: Console) -> int:
    """All cases. A case that fails costs the others nothing, not even if it takes the process down."""
    env = report.environment(device, {NAME: package_version("quack-kernels") or "of unknown version"}, reps)
    result: dict[str, Any] = {"family": NAME, "environment": env, "cases": []}
    path = out / report.slug(env["card"]) / f"{NAME}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    bad = []
    for case in cases():
        console.print(str(case), highlight=False)
        try:
            result["cases"].append(run_case(case, timer, device, reps))
        except Exception as e:
            bad.append(f"{case}: {type(e).__name__}: {e}")
        else:
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for table in report.tables(result) if result["cases"] else ():
        console.print(table)
    for note in (*report.problems(result), *bad):
        console.print(f"  {note}", highlight=False, markup=False)
    if result["cases"]:
        console.print(f"written: {path}", highlight=False)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
