"""The documentation is true: its code runs, its links lead somewhere, and the recipe adds an operator."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RECIPE = DOCS / "adding-an-op.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


def blocks(page: pathlib.Path) -> list[tuple[str, str, str]]:
    """(language, title, text) of each block of code."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [p for p in PAGES if p not in (RECIPE, DOCS / "tle-lite.md")], ids=lambda p: p.name)
def test_code_runs(page):
    """All Python of a page in one namespace, as a reader would type it."""
    names = {}
    for language, _, text in blocks(page):
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
    assert names or "```python" not in page.read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    import tle_ops

    generated = {f"ops/{name}.md" for name in (*tle_ops.__all__, "index", "control")}
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target or target in generated:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{page.name}: {target}"


def test_every_operator_is_offered():
    """The page that leads from a task to an operator leaves none out."""
    from tle_ops import _meta

    text = (DOCS / "choose.md").read_text(encoding="utf-8")
    public = [
        op
        for op in _meta.CONTRACTS
        if not op.endswith("_bwd") and _meta.CONTRACTS[op].fn.__module__ != "tle_ops._meta.distributed"
    ]
    assert [op for op in public if f"`{op}`" not in text] == []


def apply(root: pathlib.Path, language: str, name: str, text: str) -> None:
    """A block of the recipe: a new file, or lines added below the line that stands before them."""
    file = root / name
    if language == "python":
        assert not file.exists(), f"{name} exists already"
        file.write_text(text, encoding="utf-8")
        return
    lines = file.read_text(encoding="utf-8").split("\n")
    at = None
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("+"):
            assert at is not None, f"{name}: a block must begin with a line that is there"
            at += 1
            lines.insert(at, line[1:])
        else:
            assert line[1:] in lines, f"{name} has no line {line[1:]!r}"
            at = lines.index(line[1:])
    file.write_text("\n".join(lines), encoding="utf-8")


def test_recipe_adds_an_operator(tmp_path):
    root = tmp_path / "copy"
    aside = (".*", "site", "build", "dist", "results", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*aside))
    commands = []
    for language, title, text in blocks(RECIPE):
        if language == "sh":
            commands += text.strip().splitlines()
        else:
            apply(root, language, title, text)
    assert len(commands) == 1
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in commands:
        _, *arguments = command.split()
        done = subprocess.run(
            [sys.executable, *arguments, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
            cwd=root,
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
