"""python -m bench: see README.md."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import pathlib
import sys
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import harness, host, peers, report
from bench.timing import CpuTimer, CudaTimer

HERE = pathlib.Path(__file__).parent


def families() -> dict[str, list[harness.Case]]:
    """Every bench_<family>.py beside this file."""
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    return {name: importlib.import_module(f"bench.bench_{name}").CASES for name in names}


def select(options: argparse.Namespace) -> dict[str, list[harness.Case]]:
    pattern = options.only.lower()
    if not set("*?[") & set(pattern):
        pattern = f"*{pattern}*"
    chosen = {}
    for family, cases in families().items():
        if options.family and family not in options.family.split(","):
            continue
        kept = [c for c in cases if fnmatch.fnmatch(str(c).lower(), pattern) and (c.quick or not options.quick)]
        if kept:
            chosen[family] = kept
    return chosen


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="tle_ops beside its peers, in one run")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose `op: name` matches (glob or part)")
    parser.add_argument("--family", default="", metavar="NAME,..", help="families: quant, elementwise, .., host")
    parser.add_argument("--peers", metavar="NAME,..", help=f"of {', '.join(peers.NAMES)}, or none")
    parser.add_argument("--quick", action="store_true", help="one case of an op, fewer samples")
    parser.add_argument("--reps", type=int, help="samples of each time (default 50, quick 15)")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--baseline", type=pathlib.Path, metavar="FILE", help="an earlier JSON, or a folder of them")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    default = "eager" if options.device == "cpu" else ",".join(peers.NAMES)
    asked = options.peers if options.peers is not None else default
    options.peers = [] if asked == "none" else asked.split(",")
    if unknown := set(options.peers) - set(peers.NAMES):
        parser.error(f"--peers must be of {', '.join(peers.NAMES)}, got {', '.join(sorted(unknown))}")
    options.reps = options.reps or (15 if options.quick else 50)
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 250)
    chosen = select(options)
    with_host = not options.only and (not options.family or "host" in options.family.split(","))
    if options.list:
        for family, cases in chosen.items():
            for case in cases:
                console.print(f"{family:12} {case}", highlight=False)
        return 0
    if not chosen and not with_host:
        console.print("no case matches")
        return 2
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
        console.print("[yellow]CPU: shapes are cut down, and the figures mean nothing for the targets")
    timer = CudaTimer(device) if device.type == "cuda" else CpuTimer()
    modules, state = peers.load(options.peers)
    for name, version in state.items():
        console.print(f"{name}: {version}", highlight=False)
    built_in = [name for name in options.peers if name in peers.BUILT_IN]
    env = report.environment(device, state, options.reps)
    bad: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sum(map(len, chosen.values())) + with_host)
        for family, cases in chosen.items():
            result = {"family": family, "environment": env, "cases": []}
            for case in cases:
                progress.update(task, description=str(case))
                try:
                    result["cases"].append(harness.run_case(case, timer, device, modules, built_in, options.reps))
                except Exception as e:  # the cases that are done are worth keeping
                    bad.append(f"{case}: {type(e).__name__}: {e}")
                progress.advance(task)
            bad += finish(result, options, console)
        if with_host:
            progress.update(task, description="host")
            every = [case for several in families().values() for case in several]
            result = {"family": "host", "environment": env, "rows": host.run(timer, device, every)}
            bad += finish(result, options, console)
            progress.advance(task)
    for line in bad:
        console.print(f"[red]{escape(line)}", highlight=False)
    return 1 if bad else 0


def finish(result: dict[str, Any], options: argparse.Namespace, console: Console) -> list[str]:
    """Print and write a family's result. Returns what is bad about it: kernels of this package that are wrong, fail, or
    are slower than the baseline says."""
    folder = options.out / report.slug(result["environment"]["card"])
    report.add_apart(result, folder, "quack")
    for table in report.tables(result):
        console.print(table)
    for note in report.problems(result):
        console.print(f"  {escape(note)}", highlight=False)
    console.print(f"written: {', '.join(map(str, report.write(result, folder)))}", highlight=False)
    bad = report.failures(result)
    if options.baseline:
        files = sorted(options.baseline.glob("*.json")) if options.baseline.is_dir() else [options.baseline]
        for path in files:
            old = json.loads(path.read_text(encoding="utf-8"))
            if old["family"] == result["family"]:
                bad += report.regressions(result, old)
    return bad


if __name__ == "__main__":
    sys.exit(main())
