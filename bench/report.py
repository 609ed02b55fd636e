"""Results as JSON, as a Markdown table, as a chart, and against an earlier result."""

from __future__ import annotations

import datetime
import io
import json
import pathlib
import platform
import subprocess
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import tle_ops
from bench.peers import package_version
from tle_ops import _dispatch

REGRESSION = 0.05
COLORS = {
    "eager": "#bab0ac",
    "compile": "#9c755f",
    "torchao": "#f28e2b",
    "TileKernels": "#e15759",
    "FlagGems": "#b07aa1",
    "Liger": "#edc948",
    "quack": "#ff9da7",
}
OURS = ("#1f5fa8", "#59a1cf", "#76b7b2", "#59a14f", "#8cd17d")


def environment(device: torch.device, peers: dict[str, str], reps: int) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "card": torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()})",
        "driver": _driver() if cuda else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": package_version("triton"),
        "tilelang": package_version("tilelang"),
        "tle_ops": f"{tle_ops.__version__}+{_dispatch.source_hash()}",
        "peers": peers,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "reps": reps,
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def slug(card: str) -> str:
    """The folder of a card: "NVIDIA H200" -> "h200"."""
    return card.lower().removeprefix("nvidia ").split(" (")[0].replace(" ", "-")


def write(result: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """The JSON, the Markdown and the chart of one family."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / result["family"]
    paths = [stem.with_suffix(s) for s in (".json", ".md", ".png")]
    paths[0].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(markdown(result), encoding="utf-8")
    chart(result, paths[2])
    return paths


def add_apart(result: dict[str, Any], folder: pathlib.Path, name: str) -> None:
    """Put the figures of a peer that cannot share a process with this package (see quack.py) beside those of `result`,
    if they were taken on the same kind of card."""
    path = folder / f"{name}.json"
    if not path.exists():
        return
    other = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["op"], row["case"]): row for row in other["cases"]}
    for row in result.get("cases", ()):
        there = rows.get((row["op"], row["case"]))
        if there is not None and name in there["variants"]:
            when = f"in a process of its own, {other['environment']['date']}, copy {there['copy_us']:.1f}"
            variant = there["variants"][name]
            note = "; ".join(filter(None, (variant.get("note"), when)))
            ours = default_of(there)
            apart = {"copy_us": there["copy_us"], "ours_us": ours[1]["us"] if ours else None}
            row["variants"][name] = {**variant, "note": note, "apart": apart}
            row["earlier"] = {peer: us for peer, us in row["earlier"].items() if peer != name}
            version = f"{other['environment']['peers'][name]}, {other['environment']['date'][:10]}"
            result["environment"].setdefault("apart", {})[name] = version


# --- tables ----------------------------------------------------------------------------------------------------------
def tables(result: dict[str, Any], style: box.Box = box.SIMPLE_HEAD) -> list[Table]:
    if result["family"] == "host":
        return [_host_table(result, style)]
    found = [_time_table(result, style)]
    if any("copy_graph_us" in row for row in result["cases"]):
        found.append(_graph_table(result, style))
    return found


def _names(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for row in result["cases"] for name in row["variants"]))


def _table(title: str, style: box.Box, columns: list[str]) -> Table:
    table = Table(title=title if style is not box.MARKDOWN else None, box=style)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i and not column.startswith("earlier") else "left")
    return table


def _figure(variant: dict[str, Any] | None, key: str) -> str:
    if variant is None:
        return ""
    if variant["status"] != "ok":
        return variant["status"]
    return f"{variant[key]:.1f}{'*' if variant['default'] else ''}" if key in variant else ""


def default_of(row: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Name and figures of the variant that a call takes by default; if it is wrong there is none."""
    return next(((name, v) for name, v in row["variants"].items() if v["default"] and v["status"] == "ok"), None)


def verdict(row: dict[str, Any]) -> str:
    """The target, if there is one, and whether the default meets it."""
    target, default = row["target_us"], default_of(row)
    if target is None:
        return ""
    return f"{target:g}" + (f" {'met' if default[1]['us'] <= target else 'missed'}" if default else "")


def _time_table(result: dict[str, Any], style: box.Box) -> Table:
    names = _names(result)
    columns = ["case", "copy", *names, "target", "copy ratio*", "GB/s*", "earlier runs, same card"]
    table = _table(f"{result['family']}: median microseconds, L2 flushed", style, columns)
    for row in result["cases"]:
        _, default = default_of(row) or (None, None)
        table.add_row(
            f"{row['op']}: {row['case']}",
            f"{row['copy_us']:.1f}",
            *(_figure(row["variants"].get(name), "us") for name in names),
            verdict(row),
            f"{default['copy_ratio']:.2f}" if default else "",
            f"{default['gb_per_s']:.0f}" if default else "",
            ", ".join(f"{name} {us:g}" for name, us in row["earlier"].items()),
        )
    return table


def _graph_table(result: dict[str, Any], style: box.Box) -> Table:
    names = _names(result)
    columns = ["case", "copy", *names, *(f"host, {name}" for name in names)]
    table = _table(f"{result['family']}: microseconds in a replayed graph, L2 warm; host microseconds", style, columns)
    for row in result["cases"]:
        if "copy_graph_us" in row:
            variants = [row["variants"].get(name) for name in names]
            table.add_row(
                f"{row['op']}: {row['case']}",
                f"{row['copy_graph_us']:.1f}",
                *(_figure(v, "graph_us") for v in variants),
                *(_figure(v, "host_us") for v in variants),
            )
    keep = [c for c in table.columns if any(c._cells)]
    table.columns = keep
    return table


def _host_table(result: dict[str, Any], style: box.Box) -> Table:
    table = _table("host microseconds per eager call", style, ["call", "median", "least", "target"])
    for row in result["rows"]:
        target = "" if row["target_us"] is None else f"{row['target_us']:g}"
        table.add_row(row["what"], f"{row['us']:.1f}", f"{row['us_least']:.1f}", target)
    return table


NOTES = """Median microseconds; `*` marks the backend that a call takes by default. copy = `dst.copy_(src)` of half the
bytes that the op reads and writes, timed in turn with it; copy ratio = copy time / op time; GB/s counts every input and
output once. eager is a captured CUDA graph, so that the gaps between its launches do not count; everything else is a
plain call. wrong = the output is not the reference's, so it has no time. Earlier runs: libraries that cannot be loaded
beside this package, measured on a card of the same kind. More: bench/README.md."""


def markdown(result: dict[str, Any]) -> str:
    env = result["environment"]
    peers = ", ".join(f"{name} {state}" for name, state in env["peers"].items()) or "none"
    peers += "".join(f"; in a process of its own: {name} {version}" for name, version in env.get("apart", {}).items())
    lines = [
        f"# {result['family']}: {env['card']}",
        "",
        f"{env['date']}. Driver {env['driver']}, Python {env['python']}, torch {env['torch']}, triton {env['triton']}, "
        f"tilelang {env['tilelang']}, tle_ops {env['tle_ops']}. Peers: {peers}.",
        "",
    ]
    if not env["card"].startswith("NVIDIA"):
        lines += ["Figures of a CPU: they show that the benchmark runs, and mean nothing for the targets.", ""]
    for i, table in enumerate(tables(result, box.MARKDOWN)):
        if i:
            lines += ["In a replayed CUDA graph, L2 warm; then host microseconds per eager call:", ""]
        out = Console(file=io.StringIO(), width=2000, color_system=None)
        out.print(table)
        lines += [*(line.strip() for line in out.file.getvalue().splitlines() if line.strip()), ""]
    if notes := problems(result):
        lines += [*(f"- {note}" for note in notes), ""]
    if result["family"] != "host":
        lines.append(NOTES)
    return "\n".join(lines).rstrip() + "\n"


def problems(result: dict[str, Any]) -> list[str]:
    """Every variant without a time, and every peer whose codes are not all the reference's."""
    notes = []
    for row in result.get("cases", ()):
        for name, v in row["variants"].items():
            if v["status"] != "ok":
                notes.append(f"{row['op']}: {row['case']}: {name} {v['status']}: {v['detail']}")
            elif "note" in v:
                notes.append(f"{row['op']}: {row['case']}: {name}: {v['note']}")
            elif v.get("different_codes"):
                notes.append(
                    f"{row['op']}: {row['case']}: {name}: {v['different_codes']:.1e} of the codes are a step off"
                )
    return notes


# --- chart -----------------------------------------------------------------------------------------------------------
def chart(result: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if result["family"] == "host":
        groups = [(row["what"], {"us": row["us"]}, None) for row in result["rows"]]
        label = "host microseconds per call"
    else:
        groups = [
            (
                f"{row['op']}\n{row['case']}",
                {name: v["copy_ratio"] for name, v in row["variants"].items() if "copy_ratio" in v},
                row["target_us"] and row["copy_us"] / row["target_us"],
            )
            for row in result["cases"]
        ]
        label = "copy ratio = time of a copy of the same bytes / time of the op; longer is better, the line is the copy"
    columns = _columns(groups)
    height = max(map(_bars, columns))
    size = (7 * len(columns), 0.19 * height + 1.5)
    figure, panels = plt.subplots(1, len(columns), figsize=size, squeeze=False, layout="constrained")
    ours = [name for name in dict.fromkeys(n for _, values, _ in groups for n in values) if name not in COLORS]
    colors = COLORS | dict(zip(ours, OURS * (len(ours) // len(OURS) + 1), strict=False))
    for axes, column in zip(panels[0], columns, strict=True):
        _panel(axes, column, colors)
        axes.set_ylim(height - 1, -1)  # downwards, and bars of one size in all columns
        if result["family"] != "host":
            axes.axvline(1.0, color="black", lw=1)
    figure.suptitle(f"{result['family']}, {result['environment']['card']}\n{label}", fontsize=10)
    if result["family"] != "host":
        labelled = {n: h for axes in panels[0] for h, n in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(labelled.values(), labelled.keys(), fontsize=8, loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(groups: list[tuple]) -> int:
    return sum(len(values) + 1 for _, values, _ in groups)  # and a gap


def _columns(groups: list[tuple], most: int = 70) -> list[list[tuple]]:
    """The groups in columns of about equal length, of `most` bars or a little more."""
    total = _bars(groups)
    count = -(-total // most)
    columns: list[list[tuple]] = [[] for _ in range(count)]
    before = 0
    for group in groups:
        columns[before * count // total].append(group)
        before += _bars([group])
    return columns


def _panel(axes: Any, groups: list[tuple], colors: dict[str, str]) -> None:
    y, ticks = 0, []
    for name, values, target in groups:
        top = y
        for variant, value in values.items():
            axes.barh(y, value, color=colors[variant], label=variant)
            axes.text(value, y, f" {value:.2f}", va="center", fontsize=6)
            y += 1
        if target:
            axes.plot([target] * 2, [top - 0.5, y - 0.5], color="black", lw=1, ls=":", label="target")
        ticks.append(((top + y - 1) / 2, name))
        y += 1
    axes.set_yticks([t for t, _ in ticks], [name for _, name in ticks], fontsize=7)
    axes.tick_params(axis="x", labelsize=7)


# --- against an earlier result ---------------------------------------------------------------------------------------
def failures(result: dict[str, Any]) -> list[str]:
    """Kernels of this package that are wrong or do not run."""
    return [
        f"{row['op']}: {row['case']}: {name} {v['status']}: {v['detail']}"
        for row in result.get("cases", ())
        for name, v in row["variants"].items()
        if v["ours"] and v["status"] != "ok"
    ]


def regressions(result: dict[str, Any], baseline: dict[str, Any]) -> list[str]:
    """Kernels of this package that became slower by more than 5 % relative to the copy of the same run, or wrong."""
    before = {(r["op"], r["case"]): r["variants"] for r in baseline.get("cases", ())}
    found = []
    for row in result.get("cases", ()):
        for name, old in before.get((row["op"], row["case"]), {}).items():
            new = row["variants"].get(name)
            if not old["ours"] or "copy_ratio" not in old or new is None:
                continue
            what = f"{row['op']}: {row['case']}: {name}"
            if "copy_ratio" not in new:
                found.append(f"{what}: {new['status']}, was right")
            elif new["copy_ratio"] < old["copy_ratio"] * (1 - REGRESSION):
                found.append(f"{what}: copy ratio {new['copy_ratio']:.2f}, was {old['copy_ratio']:.2f}")
    return found
