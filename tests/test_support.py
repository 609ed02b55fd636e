"""The support matrix: the checks run here on every push, the page is what runs of `python -m tests.support` saw.

Checks that take seconds per op run for a few ops that differ in kind; test_ops.py compiles every op."""

import json

import pytest

from tests import support
from tests.support_checks import AT_ONCE, COLUMNS, CONSTANT, EACH, INDUCTOR, LEFT_OUT, PUBLIC, Call

CALLED = ("CUDA graph", "reduce-overhead", "other device")  # on a GPU only
ELSEWHERE = ("eager", "inference_mode", "vmap", "fake, meta", "jvp")  # for every sample, in test_ops.py
FEW = ("rms_norm", "per_token_cast_fp8", "topk", "scale_cast")


def checks(device: str) -> list:
    found = []
    for column, check in EACH.items():
        if column in (*ELSEWHERE, *INDUCTOR, *(CALLED if device == "cpu" else ())):
            continue
        for op in PUBLIC:
            found.append(pytest.param(op, check, id=f"{op}-{column}"))
    return found


@pytest.mark.parametrize("op, check", checks("cpu"))
def test_every_op(op, check):
    seen = check(Call(PUBLIC[op], "cpu"))
    assert seen is None or seen == CONSTANT or seen.startswith("NotImplementedError"), seen


@pytest.mark.parametrize("column", INDUCTOR[:3])
@pytest.mark.parametrize("op", FEW[:2])
def test_inductor(op, column):
    assert EACH[column](Call(PUBLIC[op], "cpu")) is None


@pytest.mark.parametrize("column", AT_ONCE)
def test_fresh_processes(column, tmp_path):
    calls = [Call(PUBLIC[op], "cpu") for op in FEW]
    able = [c for c in calls if column not in LEFT_OUT or LEFT_OUT[column](c) is None]
    assert len(able) >= 2
    assert AT_ONCE[column](able, tmp_path) is None  # or it raises what went wrong


@pytest.mark.gpu
@pytest.mark.parametrize("op, check", checks("cuda"))
def test_every_op_on_gpu(op, check):
    seen = check(Call(PUBLIC[op], "cuda"))
    assert seen is None or seen in (CONSTANT, "not run: needs two GPUs") or seen.startswith("NotImpl"), seen


def test_page_is_what_was_seen():
    runs = support.kept()
    assert support.PAGE.read_text(encoding="utf-8") == support.render(runs), "run `python -m tests.support table`"
    for run in runs:
        assert [op for op in PUBLIC if op in run["cells"]] == list(run["cells"]), "an operator is gone, run it again"
        for op, row in run["cells"].items():
            assert list(row) == list(COLUMNS), op
            assert not any(seen.startswith("FAILS") for seen in row.values()), f"{op}: {row}"


def test_a_failure_is_shown():
    def broken(call):
        raise AssertionError("1 of 4 differ")

    assert support.cell(broken, None) == "FAILS: AssertionError: 1 of 4 differ"
    run = {"device": "x", "torch": "2", "date": "d", "cells": {"add": {"eager": "yes", "jvp": "FAILS: words"}}}
    page = support.render([run])
    assert "| `add` | ✓ | a |" in page
    assert "- **a**: FAILS: words" in page
    assert "| `topk` | b | b |" in page
    assert "- **b**: not run yet: the operator is newer" in page


def test_a_run_with_a_failure_fails(tmp_path, monkeypatch, capsys):
    def broken(call):
        raise AssertionError("1 of 4 differ")

    monkeypatch.setitem(EACH, "eager", broken)
    with pytest.raises(SystemExit, match="1"):
        support.main(
            ["run", "--device", "cpu", "--only", "add", "--columns", "eager", "--out", str(tmp_path / "x.json")]
        )
    assert "add, eager: FAILS: AssertionError: 1 of 4 differ" in capsys.readouterr().out


def test_a_run_can_be_made_in_parts(tmp_path):
    """In two processes, which share the operators; then one cell again, into what was kept."""
    out = tmp_path / "cpu.json"
    arguments = ["run", "--device", "cpu", "--out", str(out)]
    support.main([*arguments, "--only", "topk,add", "--columns", "inference_mode;fake, meta", "--processes", "2"])
    seen = json.loads(out.read_text(encoding="utf-8"))
    row = {"inference_mode": "yes", "fake, meta": "yes"}
    assert list(seen["cells"].items()) == [("add", row), ("topk", row)]
    seen["cells"]["topk"]["inference_mode"] = "FAILS"
    out.write_text(json.dumps(seen), encoding="utf-8")
    support.main([*arguments, "--only", "topk", "--columns", "inference_mode"])
    assert json.loads(out.read_text(encoding="utf-8"))["cells"] == {"add": row, "topk": row}
    with pytest.raises(ValueError, match="no parts of one run"):
        support.merge([seen, {**seen, "torch": "1.0"}])
