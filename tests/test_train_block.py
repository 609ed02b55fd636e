"""examples/train_block.py: a short training with tle_ops follows plain PyTorch step by step."""

import train_block

SMALL = ["--batch", "4", "--length", "32", "--width", "32", "--heads", "2"]


def test_loss_curves_agree(tmp_path):
    picture = tmp_path / "chart.png"
    tle, plain, other = train_block.main([*SMALL, "--steps", "30", "--chart", str(picture)]).values()
    assert len(tle) == 30
    assert sum(tle[-5:]) < sum(tle[:5]) - 5  # it learns
    noise = sum(abs(a - b) for a, b in zip(plain, other, strict=True))
    assert sum(abs(a - b) for a, b in zip(tle, plain, strict=True)) < 0.1 * noise
    assert picture.stat().st_size > 10_000
