"""The documentation is true: its code runs, its links lead somewhere, and the recipe adds an operator."""

import html.parser
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse

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


def prose(page: pathlib.Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


LINKED = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"))]


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """In the sources, as they are read on a code host."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(ROOT), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{page.name}: {target}"


def test_links_to_operators_lead_to_their_source():
    """The site makes pages of operators of them, by their text."""
    import tle_ops

    found = set()
    for page in PAGES:
        for name, path in re.findall(r"\[`(\w+)`\]\(\.\./(tle_ops/ops/\w+\.py)\)", prose(page)):
            assert (ROOT / path).samefile(sys.modules[getattr(tle_ops, name).__module__].__file__), (
                f"{page.name}: {name}"
            )
            found.add(name)
    assert {"rms_norm", "topk", "fake_quant_fp8"} <= found


class Html(html.parser.HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.ids: set[str] = {"", "__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.targets.add(value)
            elif name in ("id", "name") and value:
                self.ids.add(value)


def test_links_of_the_site(tmp_path):
    """Every link of every page that MkDocs makes: the file is there, and the heading in it."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: Html(path) for path in tmp_path.rglob("*.html")}
    assert tmp_path / "ops" / "topk" / "index.html" in pages
    followed = 0
    for path, page in pages.items():
        if path.name == "404.html":  # it may stand for any address, so its links are absolute
            continue
        for target in page.targets:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{path.relative_to(tmp_path)}: {target}"
            anchor = urllib.parse.unquote(url.fragment)
            assert not anchor or anchor in pages[file].ids, f"{path.relative_to(tmp_path)}: {target}"
            followed += 1
    assert followed > 1000


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
    """A block of the recipe: a new file, or lines added to and taken from one, each below the line that stands before
    it."""
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
            start = 0 if at is None else at + 1
            assert line[1:] in lines[start:], f"{name} has no line {line[1:]!r}"
            at = lines.index(line[1:], start)
            if line.startswith("-"):
                del lines[at]
                at -= 1
    file.write_text("\n".join(lines), encoding="utf-8")


def test_recipe_adds_an_operator(tmp_path):
    root = tmp_path / "copy"
    for folder in ("tle_ops", "tests", "bench", "docs", "examples"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    for pattern in ("*.md", "*.toml", "*.txt", "*.py", "*.yml", "LICENSE", "Makefile"):
        for file in ROOT.glob(pattern):
            shutil.copy(file, root)
    commands = []
    for language, title, text in blocks(RECIPE):
        if language == "sh":
            commands += text.strip().splitlines() if title == "run" else []
        else:
            apply(root, language, title, text)
    assert len(commands) == 7
    # and what the new operator could break in the documentation itself
    pages = "page_is or offered or links_lead"
    commands.append(f'.venv/bin/python -m pytest tests/test_support.py tests/test_docs.py -k "{pages}"')
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in commands:
        python, *arguments = shlex.split(command)
        assert python == ".venv/bin/python"
        if "pytest" in arguments:
            arguments += ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        done = subprocess.run(
            [sys.executable, *arguments], cwd=root, env=env, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, command + done.stdout[-4000:] + done.stderr[-2000:]
        assert "pytest" not in arguments or " passed" in done.stdout
