"""Cases: exclusive sums, compaction, histograms. Of small whole numbers, whose sums are exact in any order."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.harness import Case

SQUARE = (4096, 4096)


def whole(shape, device, *settings):
    return (torch.randint(-8, 9, shape, device=device).float(), *settings)


def masked(shape, device):
    return torch.randn(shape, device=device), torch.rand(shape, device=device) < 0.5


def labels(shape, device):
    return torch.randint(0, 256, shape, dtype=torch.int32, device=device), 256


def eager_cumsum(x):
    inclusive = torch.cumsum(x, -1)
    return torch.cat((torch.zeros_like(x[..., :1]), inclusive[..., :-1]), -1), inclusive[..., -1]


def flaggems_cumsum(flaggems, x):
    return flaggems.ops.cumsum(x, -1)


def inclusive(args, result):
    """What exclusive sums and the total say, and what libraries that have inclusive sums alone return."""
    return (result,) if isinstance(result, Tensor) else (result[0] + args[0],)


def eager_histogram(x, bins):
    counts = torch.zeros((*x.shape[:-1], bins), dtype=torch.int32, device=x.device)
    return counts.scatter_add_(-1, x.long(), torch.ones((), dtype=torch.int32, device=x.device).expand(x.shape))


CASES = [
    *(
        Case(
            "cumsum",
            name,
            shape,
            whole,
            eager_cumsum,
            {"FlagGems": flaggems_cumsum},  # inclusive
            target_us=us,
            earlier=earlier,
            quick=name == "4096x4096",
            canonical=inclusive,
        )
        for name, shape, us, earlier in (
            ("4096x4096", SQUARE, 37.5, {}),
            ("65536x1024", (65536, 1024), 132, {}),
            ("16x2^20", (16, 1 << 20), 42, {}),
            ("1x2^27", (1, 1 << 27), 300, {"CUB DeviceScan": 363}),
            ("1x2^20", (1, 1 << 20), 9, {"CUB DeviceScan": 10.6}),
        )
    ),
    Case("compact", "half of 4096x4096", SQUARE, masked, quick=True),
    Case(
        "histogram",
        "256 bins, 4096x4096",
        SQUARE,
        labels,
        eager_histogram,
        quick=True,
    ),
]
