"""Writes measured times into the pages that show them, README.md and docs/performance.md, from the results of one card.

    python -m bench.pages [bench/results/h200]

Between `<!-- bench: NAME -->` and `<!-- bench end -->` stands the table NAME of `table`; a test holds the pages to it.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

from bench.report import default_of, verdict

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "h200"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
PART = re.compile(r"(?<=<!-- bench: )(\w+)( -->\n).*?(?=<!-- bench end -->)", re.DOTALL)
FAMILIES = ("quant", "elementwise", "fused", "norm", "rope", "swiglu", "scan", "moe", "topk", "tile")
AHEAD = 1.01  # a peer within 1 % is as fast

Case = dict[str, Any]


def peers_of(case: Case) -> dict[str, float]:
    """Their microseconds in this run; with a dagger, in a process of its own."""
    found = {n: v for n, v in case["variants"].items() if not v["ours"] and v["status"] == "ok"}
    return {f"{n}†" if "apart" in v else n: v["us"] for n, v in found.items()}


def earlier(case: Case) -> dict[str, float]:
    """Those of earlier runs on a card of the same kind, of what was not run beside; marked with a star."""
    return {f"{n}\\*": us for n, us in case.get("earlier", {}).items()}


def footnotes(lines: list[str], *found: dict[str, Any]) -> list[str]:
    """What the marks in the lines mean. found: the results that they are of."""
    text, notes = "\n".join(lines), []
    if "†" in text:
        apart = {f"{name} {v}" for result in found for name, v in result["environment"].get("apart", {}).items()}
        notes.append(f"†: {', '.join(sorted(apart))}, in a process of its own.")
    if "\\*" in text:
        notes.append("\\*: of an earlier run on a card of the same kind.")
    return ["", *notes] if notes else []


def best(times: dict[str, float]) -> str:
    return "{} {:.1f}".format(*min(times.items(), key=lambda item: item[1])) if times else ""


class Results:
    """What is kept of one card."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def family(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

    def families(self) -> list[str]:
        return [name for name in FAMILIES if (self.folder / f"{name}.json").exists()]

    def cases(self, *names: str) -> Iterable[Case]:
        """Those with a time of ours, of all families or of some."""
        for name in names or self.families():
            yield from (case for case in self.family(name)["cases"] if default_of(case))

    def targeted(self) -> list[Case]:
        return [case for case in self.cases() if case["target_us"] is not None]


def row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def head(*columns: str) -> list[str]:
    return [row(*columns), row(*["---"] * len(columns))]


def environment(found: dict[str, Any]) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    return (
        f"{found['card']}, {found['date'][:10]}, torch {found['torch']}, Triton {found['triton']}, TileLang "
        f"{found['tilelang']}" + (f"; peers {peers}" if peers else "")
    )


def title(case: Case) -> str:
    return f"`{case['op']}` {case['case']}"


# --- the tables ------------------------------------------------------------------------------------------------------
def summary(results: Results) -> list[str]:
    """What has a target, in short."""
    lines = [
        environment(results.family(FAMILIES[0])["environment"])
        + ". Median microseconds with a flushed L2; *copy* is a plain copy of the same number of bytes in the same run,"
        " *ratio* is copy / ours (1.0 is the limit of large ones in practice).",
        "",
        *head(
            "case, bfloat16 unless said, sums and selections float32",
            "copy",
            "ours",
            "ratio",
            "best peer",
            "eager",
            "kernel",
        ),
    ]
    for case in results.targeted():
        name, ours = default_of(case)
        eager = case["variants"].get("eager", {})
        eager_us = f"{eager['us']:.0f}" if eager.get("status") == "ok" else ""
        times = f"{case['copy_us']:.1f}", f"**{ours['us']:.1f}**", f"{ours['copy_ratio']:.2f}"
        peer = best(peers_of(case) | earlier(case))
        lines.append(row(title(case), *times, peer, eager_us, name.removeprefix("tle ")))
    where = f"bench/results/{results.folder.name}"
    marks = footnotes(lines, *map(results.family, results.families()))
    return [*lines, *marks, "", f"All ops, variants, charts and host times: [{where}]({where})."]


def family(results: Results, name: str) -> list[str]:
    """Every case beside the copy and every peer that has a time; of ours, what a call takes."""
    cases = list(results.cases(name))
    peers = list(dict.fromkeys(peer for case in cases for peer in peers_of(case)))
    starred = any(map(earlier, cases))
    lines = [
        environment(results.family(name)["environment"]) + ":",
        "",
        *head("case", "ours", "kernel", "copy", "ratio", *peers, *["earlier\\*"] * starred, "target"),
    ]
    for case in cases:
        kernel, ours = default_of(case)
        times = peers_of(case)
        cells = [
            f"{ours['us']:.1f}",
            kernel.removeprefix("tle "),
            f"{case['copy_us']:.1f}",
            f"{ours['copy_ratio']:.2f}",
        ]
        beside = [f"{times[peer]:.1f}" if peer in times else "" for peer in peers]
        if starred:
            beside.append(", ".join(f"{n} {us:g}" for n, us in case["earlier"].items()))
        lines.append(row(title(case), *cells, *beside, verdict(case)))
    return [*lines, *footnotes(lines, results.family(name))]


def block(results: Results) -> list[str]:
    found = results.family("block")
    lines = [f"{found['card']}, {found['date']}, torch {found['torch']}:", ""]
    lines += head("block", "mode", "what", "tle_ops, ms", "plain, ms", "tle_ops, tokens/s", "plain, tokens/s")
    for r in found["rows"]:
        ms, tokens = r["ms"], r["tokens_per_second"]
        times = [f"{ms[who]:.3f}" for who in ("tle_ops", "plain")]
        lines.append(row(r["size"], r["mode"], r["what"], *times, tokens["tle_ops"], tokens["plain"]))
    return lines


def missed(results: Results) -> list[str]:
    """The targets: how many are met, and which are not."""
    cases, lines = results.targeted(), []
    for case in cases:
        ours = default_of(case)[1]
        if ours["us"] > case["target_us"]:
            times = f"{ours['us']:.1f}", f"{case['target_us']:g}", f"{case['copy_us']:.1f}"
            lines.append(row(title(case), *times, best(peers_of(case) | earlier(case))))
    met = f"{len(cases) - len(lines)} of {len(cases)} targets are met."
    if not lines:
        return [met]
    marks = footnotes(lines, *map(results.family, results.families()))
    return [f"{met} Not met:", "", *head("case", "ours", "target", "copy", "best peer"), *lines, *marks]


def losses(results: Results) -> list[str]:
    """Where a peer is faster by more than 1 % in the same process."""
    lines = []
    for case in results.cases():
        ours = default_of(case)[1]["us"]
        ahead = []
        for name, v in case["variants"].items():
            if not v["ours"] and v["status"] == "ok":
                us, copy = (v["apart"]["ours_us"], v["apart"]["copy_us"]) if "apart" in v else (ours, case["copy_us"])
                if us is not None and v["us"] * AHEAD < us:
                    mark = "†" if "apart" in v else ""
                    ahead.append((v["us"] / us, f"{us:.1f}{mark}", f"{name}{mark} {v['us']:.1f}", f"{copy:.1f}{mark}"))
        if ahead:
            lines.append(row(title(case), *min(ahead)[1:]))
    if not lines:
        return ["No case."]
    return [
        *head("case", "ours", "faster", "copy"),
        *lines,
        *footnotes(lines, *map(results.family, results.families())),
    ]


def others(results: Results) -> list[str]:
    """Where another kernel of ours is sooner than the default by more than 1 %."""
    lines = []
    for case in results.cases():
        name, ours = default_of(case)
        times = {n: v["us"] for n, v in case["variants"].items() if v["ours"] and v["status"] == "ok" and n != name}
        if min(times.values(), default=ours["us"]) * AHEAD < ours["us"]:
            default = f"{name} {ours['us']:.1f}".removeprefix("tle ")
            lines.append(row(title(case), default, best(times).removeprefix("tle "), f"{case['copy_us']:.1f}"))
    return [*head("case", "default", "sooner", "copy"), *lines] if lines else ["No case."]


TABLES = {"summary": summary, "block": block, "missed": missed, "losses": losses, "others": others}


def table(name: str, results: Results) -> str:
    lines = TABLES[name](results) if name in TABLES else family(results, name)
    return "\n".join(lines) + "\n"


def written(text: str, folder: pathlib.Path) -> str:
    """The text of a page with the tables of this folder's results in place of those in it."""
    return PART.sub(lambda part: f"{part[1]}{part[2]}{table(part[1], Results(folder))}", text)


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main()
