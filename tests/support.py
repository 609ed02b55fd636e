"""Writes the support matrix, docs/support.md: every operator under everything that PyTorch does to one.

    python -m tests.support run --device cuda --processes 6 --out docs/support/cuda.json
    python -m tests.support table

The first command checks (a few minutes) and keeps what it saw; with `--only` or `--columns` it replaces these cells of
what was kept before. The second makes the page of what was kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch

from tests.support_checks import AT_ONCE, COLUMNS, EACH, LEFT_OUT, PUBLIC, Call

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "support.md"
YES = "yes"
MEANING = {
    "eager": "right, and the same bits twice",
    "inference_mode": "the same bits under `torch.inference_mode()`",
    "compile, static": "`torch.compile(fullgraph=True, dynamic=False)` by Inductor, three calls: the same bits (within "
    "1e-5 for `swiglu` and `geglu`, which Inductor fuses with their neighbours)",
    "compile, dynamic": "the same with `dynamic=True`",
    "compile, training": "forward and backward of a region with the op in it, compiled as one graph; an op that is not "
    "differentiable does not break it",
    "reduce-overhead": '`torch.compile(mode="reduce-overhead")`: CUDA graphs by PyTorch',
    "CUDA graph": "captured; the outputs are overwritten; replayed: the same bits",
    "export": "`torch.export`, saved, loaded: the same bits",
    "vmap": "as the calls of the samples one by one",
    "jvp": "`torch.func.jvp`: the tangent that the gradient gives",
    "jvp, compiled": "the same inside `torch.compile(fullgraph=True)`",
    "autocast": "the same bits under bfloat16 autocast: no argument is cast behind your back",
    "checkpoint": "non-reentrant activation checkpointing: the same gradients",
    "saved-tensor hooks": "what backward saves goes to the CPU and comes back: the same gradients",
    "subclass": "a wrapper subclass (`TwoTensor`) gets the op twice and gives a subclass",
    "DTensor": "sharded by its first dimension, on a mesh of one process; on meshes of several, "
    "`tests/test_distributed.py` holds the op to the whole tensors for every placement",
    "fake, meta": "shape, strides and dtype of the real result, by fake and by meta tensors",
    "deepcopy, pickle": "a module that uses the op, copied both ways",
    "8 threads": "at once, on CUDA each with a stream of its own",
    "deterministic": "`torch.use_deterministic_algorithms(True)`, which also fills fresh memory with NaN",
    "other device": "tensors of a GPU that is not the current one, which stays the current one",
    "AOTInductor": "a package of all ops, loaded in a fresh process that has imported `tle_ops`",
    "fork, spawn": "a process that has used the ops on the CPU starts another, either way, which uses them",
}


def cell(check: Any, *args: Any) -> str:
    try:
        return check(*args) or YES
    except Exception as e:
        traceback.print_exc()
        return f"FAILS: {type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}"


def at_once(column: str, calls: list[Call]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return cell(AT_ONCE[column], calls, Path(folder))


def run(device: str, ops: list[str], columns: list[str]) -> dict[str, Any]:
    cells: dict[str, dict[str, str]] = {op: {} for op in ops}
    calls = [Call(PUBLIC[op], device) for op in ops]
    for column in columns:
        if column in EACH:
            for c in calls:
                cells[c.spec.name][column] = cell(EACH[column], c)
            continue
        left_out = {c.spec.name: LEFT_OUT.get(column, lambda c: None)(c) for c in calls}
        together = [c for c in calls if not left_out[c.spec.name]]
        seen = at_once(column, together)
        for c in calls:  # if it fails: which of them?
            name = c.spec.name
            cells[name][column] = left_out[name] or (YES if seen == YES else at_once(column, [c]))
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "cells": cells,
    }


def merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One run of several, in the order of the page. A later one's cells count, and its date."""
    for part in parts:
        if (part["device"], part["torch"]) != (parts[0]["device"], parts[0]["torch"]):
            raise ValueError(f"these are no parts of one run: {parts[0]['torch']}, {part['torch']}")
    cells: dict[str, dict[str, str]] = {}
    for part in parts:
        for op, row in part["cells"].items():
            cells.setdefault(op, {}).update(row)
    ordered = {op: {c: cells[op][c] for c in COLUMNS if c in cells[op]} for op in PUBLIC if op in cells}
    return {**parts[-1], "cells": ordered}


def run_in_processes(device: str, ops: list[str], columns: list[str], processes: int) -> dict[str, Any]:
    """As `run`: a share of the operators each, and one process for what takes all operators at once."""
    shares = [(ops[i::processes], [c for c in columns if c in EACH]) for i in range(processes)]
    shares.append((ops, [c for c in columns if c in AT_ONCE]))
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for i, (some, of) in enumerate(shares):
            if some and of:
                out = Path(folder) / f"{i}.json"
                options = ["--device", device, "--out", str(out), "--only", ",".join(some), "--columns", ";".join(of)]
                command = [sys.executable, "-m", "tests.support", "run", *options]
                started.append((out, subprocess.Popen(command, cwd=DOCS.parent)))
        for _, process in started:
            if process.wait():
                raise RuntimeError(f"a process ended with status {process.returncode}")
        return merge([json.loads(out.read_text(encoding="utf-8")) for out, _ in started])


def render(runs: list[dict[str, Any]]) -> str:
    lines = [
        "# Support matrix",
        "",
        "Every operator under everything that PyTorch does to one. The page is written by "
        "`python -m tests.support run` and `table` from what these runs saw; nothing in it is typed by hand. Each cell "
        "is one call with float32 inputs; more shapes, types and layouts are in the tests.",
        "",
        "✓: right. A letter: see the notes below each table.",
        "",
        "| column | what is checked |",
        "| --- | --- |",
        *(f"| {c} | {MEANING[c]} |" for c in COLUMNS),
    ]
    for seen in runs:
        notes: dict[str, str] = {}
        columns = [c for c in COLUMNS if any(c in row for row in seen["cells"].values())]
        lines += ["", f"## {seen['device']}", "", f"torch {seen['torch']}, {seen['date']}.", ""]
        lines += ["| op | " + " | ".join(columns) + " |", "| --- |" + " :-: |" * len(columns)]
        for op in PUBLIC:  # an operator may be newer than the run
            row = seen["cells"].get(op) or dict.fromkeys(columns, "not run yet: the operator is newer")
            marks = ["✓" if row[c] == YES else notes.setdefault(row[c], chr(97 + len(notes))) for c in columns]
            lines.append(f"| `{op}` | " + " | ".join(marks) + " |")
        if notes:
            lines += ["", *(f"- **{letter}**: {text}" for text, letter in notes.items())]
    return "\n".join(lines) + "\n"


def kept() -> list[dict[str, Any]]:
    return [json.loads((DOCS / "support" / f"{d}.json").read_text(encoding="utf-8")) for d in ("cuda", "cpu")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="check, and write what was seen as JSON")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--only", default="", help="ops, separated by commas")
    command.add_argument("--columns", default="", help="columns, separated by semicolons")
    command.add_argument("--processes", type=int, default=1, help="that share the operators")
    commands.add_parser("table", help="docs/support.md from docs/support/*.json")
    o = parser.parse_args(arguments)
    if o.command == "table":
        PAGE.write_text(render(kept()), encoding="utf-8")
        return
    ops = [op for op in PUBLIC if not o.only or op in o.only.split(",")]
    columns = [c for c in COLUMNS if not o.columns or c in o.columns.split(";")]
    seen = run_in_processes(o.device, ops, columns, o.processes) if o.processes > 1 else run(o.device, ops, columns)
    if (o.only or o.columns) and o.out.exists():
        seen = merge([json.loads(o.out.read_text(encoding="utf-8")), seen])
    o.out.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    bad = [(op, c, text) for op, row in seen["cells"].items() for c, text in row.items() if text.startswith("FAILS")]
    for op, c, text in bad:
        print(f"{op}, {c}: {text}")
    print(f"{len(ops)} ops, {sum(map(len, seen['cells'].values()))} cells, {len(bad)} fail")
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    main()
