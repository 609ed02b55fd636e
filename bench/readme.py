"""Writes the table of measured times into README.md, from the results of one card.

    python -m bench.readme [bench/results/h200]

A test holds the README to what this writes.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
RESULTS = pathlib.Path(__file__).parent / "results" / "h200"
README = pathlib.Path(__file__).parent.parent / "README.md"
FAMILIES = ("quant", "elementwise", "swiglu", "norm")


def default_of(case: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Name and figures of the kernel that a call takes, if it has a time."""
    found = [(n, v) for n, v in case["variants"].items() if v.get("default") and v["status"] == "ok"]
    return found[0] if found else None


def best_peer(case: dict[str, Any]) -> str:
    times = {
        name: v["us"]
        for name, v in case["variants"].items()
        if not v["ours"] and name != "copy" and v["status"] == "ok"
    }
    if not times:
        return ""
    name = min(times, key=times.__getitem__)
    return f"{name} {times[name]:.1f}"


def rows(result: dict[str, Any]) -> list[str]:
    lines = []
    for case in result["cases"]:
        ours = default_of(case)
        if ours is None:
            continue
        name, figures = ours
        eager = case["variants"].get("eager", {})
        eager_us = f"{eager['us']:.0f}" if eager.get("status") == "ok" else ""
        lines.append(
            f"| `{case['op']}` {case['case']} | {case['copy_us']:.1f} | **{figures['us']:.1f}** "
            f"| {figures['copy_ratio']:.2f} | {best_peer(case)} | {eager_us} | {name.removeprefix('tle ')} |"
        )
    return lines


def table(folder: pathlib.Path) -> str:
    results = [json.loads((folder / f"{f}.json").read_text()) for f in FAMILIES if (folder / f"{f}.json").exists()]
    environment = results[0]["environment"]
    peers = ", ".join(f"{name} {version}" for name, version in environment["peers"].items())
    lines = [
        f"{environment['card']}, {environment['date'][:10]}, torch {environment['torch']}, "
        f"Triton {environment['triton']}, TileLang {environment['tilelang']}; peers {peers}. Median microseconds with "
        "a flushed L2; *copy* is a plain copy of the same number of bytes in the same run, *ratio* is copy / ours (1.0 "
        "is the physical limit in practice).",
        "",
        "| case, bfloat16 unless said | copy | ours | ratio | best peer | eager | kernel |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(line for result in results for line in rows(result)),
        "",
        f"All ops, variants, charts and host times: [bench/results/{folder.name}](bench/results/{folder.name}).",
    ]
    return "\n".join(lines)


def written(text: str, folder: pathlib.Path) -> str:
    """The text of the README with the table of this folder's results in place of the one in it."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(folder)}\n{END}{after}"


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    README.write_text(written(README.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main()
