"""Pages that MkDocs does not find as files: one per operator, from its docstring, and the catalogue of errors, from the
snapshots that the tests hold the messages to."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FAMILIES = {
    "elementwise": "Elementwise",
    "swiglu": "Gated activations",
    "norm": "Norms",
    "rope": "Rotary embedding",
    "scan": "Scans",
    "topk": "Selection",
    "moe": "Routing",
    "quant": "FP8 quantization",
    "fused": "Fused quantization",
    "tile": "Tiles",
}
log = logging.getLogger("mkdocs.plugins.tle_ops")


def operators() -> dict[str, list[str]]:
    """family -> its operators, as the package imports them."""
    tree = ast.parse((ROOT / "tle_ops" / "__init__.py").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tle_ops.ops."):
            found[node.module.rsplit(".", 1)[1]] = sorted(a.name for a in node.names)
    return dict(sorted(found.items(), key=lambda f: list(FAMILIES).index(f[0]) if f[0] in FAMILIES else len(FAMILIES)))


def title(family: str) -> str:
    return FAMILIES.get(family, family.capitalize())


def summary(family: str, op: str) -> str:
    """First sentence of the docstring."""
    tree = ast.parse((ROOT / "tle_ops" / "ops" / f"{family}.py").read_text(encoding="utf-8"))
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == op)
    return " ".join((ast.get_docstring(function) or "").split("\n\n")[0].split())


def index() -> str:
    lines = [
        "# Operators",
        "",
        "Each is `tle_ops.<name>`, and `torch.ops.tle.<name>` with the same arguments by position.",
    ]
    for family, ops in operators().items():
        module = ast.parse((ROOT / "tle_ops" / "ops" / f"{family}.py").read_text(encoding="utf-8"))
        lines += ["", f"## {title(family)}", "", ast.get_docstring(module) or "", "", "| operator | |", "| --- | --- |"]
        lines += [f"| [`{op}`]({op}.md) | {summary(family, op)} |" for op in ops]
    return "\n".join(lines) + "\n"


def control() -> str:
    return "# Which kernel runs\n\n" + "\n".join(f"::: tle_ops.{name}\n" for name in ("backend", "backends", "explain"))


def messages() -> list[str]:
    """The snapshots of tests/test_snapshots.py that show errors, sorted by operator."""
    lines: set[str] = set()
    tree = ast.parse((ROOT / "tests" / "test_snapshots.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_errors"):
            for constant in ast.walk(node):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str) and ": " in constant.value:
                    lines |= set(constant.value.splitlines())
    return sorted(lines, key=lambda line: (line.split(": ")[1], line))


def errors(written: str) -> str:
    """The written page, and below it the messages, operator by operator."""
    lines = [written.rstrip()]
    last = None
    for line in messages():
        kind, op, text = line.split(": ", 2)
        if op != last:
            lines += ["", f"### {op}", ""]
            last = op
        lines.append(f"- `{kind}`: {text}" if "`" in text else f"- `{kind}`: `{text}`")
    return "\n".join(lines) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "ops/index.md", content=index()))
    files.append(File.generated(config, "ops/control.md", content=control()))
    for ops in operators().values():
        for op in ops:
            files.append(
                File.generated(
                    config, f"ops/{op}.md", content=f"::: tle_ops.{op}\n    options:\n      heading_level: 1\n"
                )
            )
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The entry `ops/` of the navigation becomes the families and their operators."""
    for entry in config.nav or []:
        if entry.get("Operators") == "ops/":
            entry["Operators"] = [
                "ops/index.md",
                *({title(f): [{op: f"ops/{op}.md"} for op in ops]} for f, ops in operators().items()),
                {"Which kernel runs": "ops/control.md"},
            ]
    return config


def linked(text: str) -> str:
    text = re.sub(r"\[`(\w+)`\]\(\.\./tle_ops/ops/\w+\.py\)", r"[`\1`](ops/\1.md)", text)
    text = text.replace("](../tle_ops/ops)", "](ops/index.md)")
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of docs/, which are right where the sources are read: an operator's source becomes its page, and other
    files of the project are named, not linked."""
    if "/" in page.file.src_uri:  # a page of an operator
        return markdown
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)  # every second one is code
    markdown = "".join(part if i % 2 else linked(part) for i, part in enumerate(parts))
    return errors(markdown) if page.file.src_uri == "errors.md" else markdown


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    if not any(page.file.src_uri.startswith("ops/") for page in nav.pages):
        log.warning("no operator has a page")
    return nav
