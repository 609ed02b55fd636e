"""The benchmark of a compiled block runs, and refuses a wrong gradient."""

import pytest

from bench import block


def test_a_tiny_block(tmp_path, monkeypatch):
    out = tmp_path / "block.json"
    rows = block.main(["--sizes", "tiny", "--modes", "default", "--rounds", "1", "--out", str(out)])
    assert [row["what"] for row in rows] == ["forward", "forward and backward"]
    assert all(row["ms"][name] > 0 for row in rows for name in ("tle_ops", "plain"))
    assert out.exists()
    monkeypatch.setattr(block.Plain, "swiglu_packed", lambda x: x[..., : x.shape[-1] // 2] * 1.0)
    with pytest.raises(RuntimeError, match="tiny, default: a gradient is off"):
        block.measure("tiny", "default", "cpu", 1)
