"""The tables of README.md and docs/performance.md are those of the results."""

import json

import pytest

from bench import pages


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_tables_of_times_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- bench: " in text
    assert text == pages.written(text, pages.RESULTS), "run `python -m bench.pages`"


def results_of_a_card(folder):
    def variant(us, **more):
        return {"ours": False, "default": False, "status": "ok", "us": us, "copy_ratio": 2.0 / us, **more}

    variants = {
        "tle triton": variant(2.0, ours=True, default=True),
        "tle tilelang": variant(1.0, ours=True),
        "eager": variant(9.0),
        "torchao": variant(1.5),
        "FlagGems": {"ours": False, "default": False, "status": "wrong"},
    }
    environment = {
        "card": "Card",
        "date": "2026-01-02T03:04",
        "torch": "2",
        "triton": "3",
        "tilelang": "0",
        "peers": {"torchao": "1"},
        "apart": {"quack": "3, today"},
    }
    case = {"op": "add", "case": "small", "copy_us": 2.04, "variants": variants, "earlier": {}, "target_us": None}
    late = case | {"case": "late", "target_us": 1.9, "earlier": {"CUB": 1.2}}
    quack = variant(1.9, apart={"copy_us": 1.8, "ours_us": 1.7})
    early = case | {"case": "early", "target_us": 2, "variants": {"tle triton": variants["tle triton"], "quack": quack}}
    result = {"environment": environment, "cases": [case, late, early]}
    (folder / "quant.json").write_text(json.dumps(result))
    return pages.Results(folder)


def test_tables_of_the_pages(tmp_path):
    results = results_of_a_card(tmp_path)
    card = "Card, 2026-01-02, torch 2, Triton 3, TileLang 0; peers torchao 1"
    lines = pages.summary(results)
    assert lines[0].startswith(f"{card}. ")
    assert [line for line in lines if "add" in line] == [
        "| `add` late | 2.0 | **2.0** | 1.00 | CUB\\* 1.2 | 9 | triton |",
        "| `add` early | 2.0 | **2.0** | 1.00 | quack† 1.9 |  | triton |",
    ]
    assert pages.family(results, "quant") == [
        f"{card}:",
        "",
        "| case | ours | kernel | copy | ratio | eager | torchao | quack† | earlier\\* | target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| `add` small | 2.0 | triton | 2.0 | 1.00 | 9.0 | 1.5 |  |  |  |",
        "| `add` late | 2.0 | triton | 2.0 | 1.00 | 9.0 | 1.5 |  | CUB 1.2 | 1.9 missed |",
        "| `add` early | 2.0 | triton | 2.0 | 1.00 |  |  | 1.9 |  | 2 met |",
        "",
        "†: quack 3, today, in a process of its own.",
        "\\*: of an earlier run on a card of the same kind.",
    ]
    assert pages.missed(results)[0] == "1 of 2 targets are met. Not met:"
    assert [line for line in pages.missed(results) if "add" in line] == [
        "| `add` late | 2.0 | 1.9 | 2.0 | CUB\\* 1.2 |"
    ]
    assert [line for line in pages.losses(results) if "add" in line] == [  # quack lost in its own process
        "| `add` small | 2.0 | torchao 1.5 | 2.0 |",
        "| `add` late | 2.0 | torchao 1.5 | 2.0 |",
    ]
    assert [line for line in pages.others(results) if "add" in line] == [
        "| `add` small | triton 2.0 | tilelang 1.0 | 2.0 |",
        "| `add` late | triton 2.0 | tilelang 1.0 | 2.0 |",
    ]


def test_pages_are_written_where_they_are_marked(tmp_path):
    results_of_a_card(tmp_path)
    page = "a\n<!-- bench: missed -->\nold\n<!-- bench end -->\nb\n<!-- bench: losses -->\n<!-- bench end -->\n"
    new = pages.written(page, tmp_path)
    assert new.startswith("a\n<!-- bench: missed -->\n1 of 2 targets")
    assert "old" not in new
    assert new.count("<!-- bench end -->") == 2
    assert pages.written(new, tmp_path) == new
