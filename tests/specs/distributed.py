"""Specs of the distributed ops in a world of one process, where each is what it does to its own tensor. What they do
among several is in tests/distributed_checks.py."""

import torch
import torch.distributed as dist

from tests.table import BF16, E5M2, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)

if not dist.is_initialized():  # a process of a larger world has its own
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _moved(*rest):
    def samples(dtype):
        for layout, x in layouts(randn(5, 48, dtype=dtype)):
            yield Sample(f"5x48-{layout}", (x, *rest))
        yield Sample("3d-permuted", (randn(3, 4, 5, dtype=dtype).permute(2, 0, 1), *rest))
        yield Sample("0d", (randn(dtype=dtype), *rest))
        yield Sample("odd-bytes", (randn(7, dtype=dtype), *rest))
        yield Sample("two-blocks", (randn(3, 4001, dtype=dtype), *rest))
        yield Sample("nothing", (randn(0, 4, dtype=dtype), *rest))

    return samples


def _ring(dtype):
    yield from _moved()(dtype)
    yield Sample("backwards", (randn(4, 3, dtype=dtype), -1))


def _put(dtype):
    for sample in _moved()(dtype):
        yield Sample(sample.id, (*sample.args, randn(*sample.args[0].shape, dtype=dtype, seed=1), 0))


def _parts(dtype):
    for layout, x in layouts(randn(5, 256, dtype=dtype)):
        yield Sample(f"5x256-{layout}", (x,))
    yield Sample("many-tiles", (randn(300, 128, dtype=dtype), 16))
    yield Sample("one-group-a-row", (randn(3, 512, dtype=dtype), 512))
    yield Sample("short-last-group", (randn(3, 200, dtype=dtype),))
    yield Sample("group-48", (randn(3, 96, dtype=dtype), 48))
    yield Sample("whole-row", (randn(4, 320, dtype=dtype), -1))
    yield Sample("e5m2-ue8m0", (randn(4, 256, dtype=dtype), 64, E5M2, True))
    yield Sample("3d", (randn(2, 3, 128, dtype=dtype),))
    yield Sample("no-rows", (randn(0, 256, dtype=dtype),))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype),))


def _same(x, *_):
    return x


_X = randn(4, 256)
_GROUPS = (("unknown-group", (_X, 0, "nobody")), ("negative-shard", (_X, -1)), ("shard-outside", (_X, 1)))
_QUANTIZER = (
    ("group-0", (_X, 0)),
    ("ints", (torch.ones(4, 256, dtype=torch.int32),)),
    ("code-float16", (_X, 128, F16)),
    ("1d", (randn(256),)),
    ("unknown-group", (_X, 128, E5M2, False, "nobody")),
)
SPECS = [
    OpSpec(
        "remote",
        _moved(0),
        FLOATS,
        plain=_same,
        diff=(0,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=_GROUPS,
    ),
    OpSpec(
        "remote_bwd",
        _moved(0),
        FLOATS,
        plain=_same,
        diff=(0,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=(*_GROUPS, ("ints", (torch.ones(3, dtype=torch.int32), 0))),
    ),
    OpSpec(
        "remote_put",
        _put,
        FLOATS,
        plain=lambda x, value, shard: value + 0 * x,
        diff=(0, 1),
        exact=True,
        rows={0: 0, 1: 0},
        vmap=((0, 0), (1, None)),
        jvp=True,
        double_backward=True,
        errors=(
            ("shapes", (_X, randn(4, 255), 0)),
            ("dtypes", (_X, _X.to(BF16), 0)),
            ("shard-outside", (_X, _X, 1)),
            ("unknown-group", (_X, _X, 0, "nobody")),
        ),
    ),
    OpSpec(
        "ring_exchange",
        _ring,
        FLOATS,
        plain=_same,
        diff=(0,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=(("unknown-group", (_X, 1, "nobody")),),
    ),
    OpSpec(
        "distributed_barrier",
        _moved(),
        FLOATS,
        plain=_same,
        diff=(0,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=(("unknown-group", (_X, "nobody")), ("negative-timeout", (_X, "", -1.0))),
    ),
    OpSpec("all_gather_fp8", _parts, FLOATS, exact=True, rows={0: 0}, vmap=((0,), (1,)), errors=_QUANTIZER),
    OpSpec("reduce_scatter_fp8", _parts, FLOATS, exact=True, rows={0: 0}, vmap=((0,), (1,)), errors=_QUANTIZER),
]
