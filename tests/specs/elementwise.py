"""Specs of add and scale_cast."""

import torch

from tests.table import BF16, E4M3, E5M2, F16, F32, F64, OpSpec, Sample, layouts, randn


def _add(dtype):
    for layout, x in layouts(randn(4, 33, dtype=dtype)):
        yield Sample(f"4x33-{layout}", (x, randn(4, 33, dtype=dtype, seed=1)))
    a = randn(2, 3, 40, dtype=dtype)
    yield Sample("both-transposed", (a.transpose(0, 2), randn(2, 3, 40, dtype=dtype, seed=1).transpose(0, 2)))
    yield Sample("row", (a, randn(40, dtype=dtype, seed=1)))
    yield Sample("column", (a, randn(3, 1, dtype=dtype, seed=1)))
    yield Sample("outer", (randn(4, 1, 6, dtype=dtype), randn(5, 1, dtype=dtype, seed=1)))
    yield Sample("0-d", (randn(dtype=dtype), randn(dtype=dtype, seed=1)))
    yield Sample("tensor-and-0-d", (randn(7, dtype=dtype), randn(dtype=dtype, seed=1)))
    yield Sample("empty", (randn(0, 8, dtype=dtype), randn(0, 8, dtype=dtype)))
    yield Sample("1x1", (randn(1, 1, dtype=dtype), randn(1, 1, dtype=dtype, seed=1)))
    yield Sample("beyond-one-block", (randn(3, 5000, dtype=dtype), randn(3, 5000, dtype=dtype, seed=1)))
    yield Sample("promotes", (randn(5, 16, dtype=dtype), randn(5, 16, dtype=BF16, seed=1)))
    yield Sample("with-int", (randn(5, 16, dtype=dtype), torch.arange(16, dtype=torch.int32)))
    yield Sample("six-dims", (randn(2, 1, 3, 1, 2, 3, dtype=dtype), randn(1, 4, 1, 2, 1, 1, dtype=dtype, seed=1)))
    yield Sample("same-tensor", (a, a))


def _scale_cast(dtype):
    for layout, x in layouts(randn(4, 33, dtype=dtype)):
        yield Sample(f"4x33-{layout}", (x, 0.37, dtype))
    yield Sample("to-bf16", (randn(5, 64, dtype=dtype), -2.5, BF16))
    yield Sample("to-f16", (randn(5, 64, dtype=dtype), 1e-3, F16))
    yield Sample("to-f32", (randn(5, 64, dtype=dtype), 1.00390625, F32))
    yield Sample("to-e4m3", (randn(5, 64, dtype=dtype, scale=300), 1.0, E4M3))
    yield Sample("to-e5m2", (randn(5, 64, dtype=dtype, scale=3e4), 1.7, E5M2))
    yield Sample("no-op", (randn(3, 16, dtype=dtype), 1.0, dtype))
    yield Sample("0-d", (randn(dtype=dtype), 2.0, F32))
    yield Sample("empty", (randn(2, 0, dtype=dtype), 2.0, F32))
    yield Sample("beyond-one-block", (randn(3, 5000, dtype=dtype), 0.1, BF16))


SPECS = [
    OpSpec(
        "add",
        _add,
        (F32, BF16, F16, F64),
        plain=lambda x, y: x + y,
        diff=(0, 1),
        exact=True,
        rows={0: 0, 1: 0},
        vmap=((0, 0), (1, 1), (0, None), (None, 1)),
        jvp=True,
        double_backward=True,
        errors=(
            ("shapes", (randn(4, 6), randn(4, 5))),
            ("float8", (randn(4, 6).to(E4M3), randn(4, 6))),
        ),
    ),
    OpSpec(
        "scale_cast",
        _scale_cast,
        (F32, BF16, F16, F64),
        plain=lambda x, alpha, dtype: x * alpha,
        diff=(0,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=(
            ("int-input", (torch.ones(3, dtype=torch.int32), 1.0, F32)),
            ("int-output", (randn(3), 1.0, torch.int8)),
        ),
    ),
]
