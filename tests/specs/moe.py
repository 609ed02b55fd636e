"""Specs of moe_align. Its layout is held to the definition by test_moe.py."""

import torch

from tests.specs.scan import ints
from tests.table import F32, OpSpec, Sample, layouts, randn


def _align(_):
    for layout, ids in layouts(ints(33, 6, high=16)):
        yield Sample(f"33x6-{layout}", (ids, 16, 8))
    yield Sample("int64", (ints(20, 2, high=8, dtype=torch.int64), 8, 16))
    yield Sample("nowhere", (ints(40, 2, low=-3, high=20), 8, 4))
    yield Sample("all-nowhere", (ints(5, 2, low=-3, high=0), 8, 4))
    yield Sample("one-expert", (ints(50, 1, high=1), 1, 16))
    yield Sample("all-to-one-of-many", (ints(300, 2, low=5, high=6), 256, 16))
    yield Sample("experts-300", (ints(33, 4, high=300), 300, 8))  # four of a program
    yield Sample("block-1", (ints(33, 2, high=8), 8, 1))
    yield Sample("block-3", (ints(33, 2, high=8), 8, 3))
    yield Sample("many", (ints(1500, 4, high=64), 64, 16))
    yield Sample("1d", (ints(70, high=8), 8, 16))
    yield Sample("no-tokens", (ints(0, 4), 8, 16))
    yield Sample("one-token", (ints(1, 1, high=8), 8, 16))


_IDS = ints(4, 2, high=8)
SPECS = [
    OpSpec(
        "moe_align",
        _align,
        (F32,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        errors=(
            ("float-ids", (randn(4, 2), 8, 16)),
            ("int16-ids", (_IDS.short(), 8, 16)),
            ("no-experts", (_IDS, 0, 16)),
            ("no-block", (_IDS, 8, 0)),
        ),
    ),
]
