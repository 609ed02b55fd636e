"""docs/tle-lite.md: every example runs as it stands, and the table leaves nothing of the language out."""

import importlib.util
import pathlib
import re

import pytest
import triton.language as tl

import tle_ops.language as tle

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "tle-lite.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(
    r'^### ([^\n]*)\n(?:(?!^###).)*?^```python( title="needs a GPU")?\n(.*?)^```', re.DOTALL | re.MULTILINE
)
EXAMPLES = [
    pytest.param(code, id=heading, marks=[pytest.mark.gpu] if needs_gpu else [])
    for heading, needs_gpu, code in BLOCK.findall(TEXT)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code, tmp_path, monkeypatch):
    """As a file, since Triton reads the source of its kernels. Every example checks what it shows."""
    assert re.search(r"^(assert |torch\.testing\.assert_close\()", code, re.MULTILINE)
    for name in ("extract_tile", "insert_tile"):  # taken back after the test
        monkeypatch.setattr(tl.tensor, name, None, raising=False)
    file = tmp_path / "example.py"
    file.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("example", file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_every_block_is_found():
    assert len(EXAMPLES) == TEXT.count("```python") == 12


@pytest.mark.parametrize("name", [name for name in tle.__all__ if callable(getattr(tle, name))])
def test_help_says_something(name):
    """In the interpreter too, where Triton leaves device functions without a docstring."""
    assert getattr(tle, name).__doc__


def test_the_table_has_every_name():
    tables = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    named = set(re.findall(r"tle\.(\w+)", tables))
    of_the_package = {"ShardedTensor", "ShardingSpec", "device_context", "signal_count"}  # not of the document
    assert set(tle.__all__) - of_the_package <= named
