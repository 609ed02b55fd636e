"""examples/train_block.py: a short training with tle_ops follows plain PyTorch step by step."""

import json

import train_block

SMALL = ["--batch", "4", "--length", "32", "--width", "32", "--heads", "2"]


def test_loss_curves_agree(tmp_path):
    picture, figures = tmp_path / "chart.png", tmp_path / "losses.json"
    options = ["--steps", "30", "--chart", str(picture), "--json", str(figures)]
    tle, plain, other = train_block.main([*SMALL, *options]).values()
    assert len(tle) == 30
    assert sum(tle[-5:]) < sum(tle[:5]) - 5  # it learns
    noise = sum(abs(a - b) for a, b in zip(plain, other, strict=True))
    assert sum(abs(a - b) for a, b in zip(tle, plain, strict=True)) < 0.1 * noise
    assert picture.stat().st_size > 10_000
    assert list(json.loads(figures.read_text())["losses"].values()) == [tle, plain, other]
