"""Specs of cumsum, compact and histogram. Integers, NaN and infinity: test_scan.py."""

import torch

from tests.table import BF16, E4M3, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def _cumsum(dtype):
    for layout, x in layouts(randn(5, 70, dtype=dtype)):
        yield Sample(f"5x70-{layout}", (x, -1, False, None))
    yield Sample("reverse", (randn(5, 70, dtype=dtype), -1, True, None))
    yield Sample("beyond-one-block", (randn(3, 5000, dtype=dtype), -1, False, None))
    yield Sample("beyond-one-block-reverse", (randn(3, 5000, dtype=dtype), -1, True, None))
    yield Sample("power-of-two", (randn(2, 1024, dtype=dtype), -1, False, None))
    yield Sample("dim-0", (randn(33, 9, dtype=dtype), 0, False, None))
    yield Sample("dim-1-of-3-reverse", (randn(3, 40, 5, dtype=dtype), 1, True, None))
    yield Sample("permuted", (randn(3, 4, 40, dtype=dtype).permute(1, 2, 0), 1, False, None))
    if dtype != F64:  # gradcheck does not perturb elements that share memory
        yield Sample("expanded", (randn(1, 40, dtype=dtype).expand(3, 40), -1, False, None))
    yield Sample("to-f32", (randn(3, 70, dtype=dtype), -1, False, F32))
    yield Sample("to-f16", (randn(3, 70, dtype=dtype), -1, True, F16))
    yield Sample("to-bf16", (randn(3, 70, dtype=dtype), 0, False, BF16))
    yield Sample("1d", (randn(300, dtype=dtype), 0, False, None))
    yield Sample("0-d", (randn(dtype=dtype), -1, False, None))
    yield Sample("no-rows", (randn(0, 64, dtype=dtype), -1, False, None))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype), -1, False, None))
    yield Sample("1x1", (randn(1, 1, dtype=dtype), -1, False, None))


def _exclusive(x, dim, reverse, dtype):
    if x.dim() == 0:
        return x * 0
    x = x.flip(dim) if reverse else x
    zero = x.narrow(dim, 0, min(1, x.shape[dim])) * 0
    out = torch.cat([zero, x.cumsum(dim).narrow(dim, 0, max(x.shape[dim] - 1, 0))], dim)
    return out.flip(dim) if reverse else out


def _sums_are_close(got, want, args):
    """The reference sums in float64 on the CPU. A kernel's float32 sums may be off by a few roundings of the terms."""
    x, dim, reverse, _ = args
    for g, w, truth, terms in zip(
        got,
        want,
        (_exclusive(x.double(), dim, reverse, None), x.double().sum(dim)),
        (_exclusive(x.double().abs(), dim, reverse, None), x.double().abs().sum(dim)),
        strict=True,
    ):
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
        error = (g.cpu().double() - truth).abs()
        assert (error <= 4 * 2**-24 * terms + torch.finfo(g.dtype).eps * truth.abs()).all()


def _terms(args, cotangent):
    """A sum's noise follows its longest run of terms."""
    return float(cotangent.double().abs().sum(args[1]).max()) if cotangent.numel() and cotangent.dim() else 0.0


def _mask(*shape, share=0.5):
    return randn(*shape, seed=7) > {0.0: 9.0, 0.5: 0.0, 1.0: -9.0}[share]


def _compact(dtype):
    for layout, x in layouts(randn(5, 70, dtype=dtype)):
        yield Sample(f"5x70-{layout}", (x, _mask(5, 70)))
    yield Sample("mask-transposed", (randn(5, 70, dtype=dtype), _mask(70, 5).t()))
    yield Sample("mask-expanded", (randn(5, 70, dtype=dtype), _mask(70).expand(5, 70)))
    yield Sample("keep-all", (randn(3, 40, dtype=dtype), _mask(3, 40, share=1.0)))
    yield Sample("keep-none", (randn(3, 40, dtype=dtype), _mask(3, 40, share=0.0)))
    yield Sample("beyond-one-block", (randn(2, 5000, dtype=dtype), _mask(2, 5000)))
    yield Sample("1d", (randn(300, dtype=dtype), _mask(300)))
    yield Sample("3d", (randn(2, 3, 40, dtype=dtype), _mask(2, 3, 40)))
    yield Sample("no-rows", (randn(0, 64, dtype=dtype), _mask(0, 64)))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype), _mask(3, 0)))
    yield Sample("1x1", (randn(1, 1, dtype=dtype), _mask(1, 1)))


def _packed(x, mask):
    order = (~mask).byte().sort(dim=-1, stable=True).indices
    return torch.where(mask.gather(-1, order), x.gather(-1, order), 0)


def ints(*shape, low=0, high=10, dtype=torch.int32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=g).to(dtype)


def _histogram(_):
    for layout, x in layouts(ints(5, 70, low=-2, high=12)):
        yield Sample(f"5x70-{layout}", (x, 10))
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64):
        yield Sample(f"{dtype}"[6:], (ints(3, 40, high=2 if dtype == torch.bool else 100, dtype=dtype), 64))
    yield Sample("one-bin", (ints(3, 40), 1))
    yield Sample("many-bins", (ints(3, 40, high=5000), 4097))
    yield Sample("beyond-one-block", (ints(2, 5000, high=300), 256))
    yield Sample("all-in-one-bin", (ints(2, 3000, low=7, high=8), 16))
    yield Sample("beyond-32-bits", (ints(3, 40, dtype=torch.int64) + 2**32, 16))
    yield Sample("1d", (ints(300), 10))
    yield Sample("no-rows", (ints(0, 64), 10))
    yield Sample("no-columns", (ints(3, 0), 10))


SPECS = [
    OpSpec(
        "cumsum",
        _cumsum,
        FLOATS,
        plain=_exclusive,
        diff=(0,),
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        scale=_terms,
        compare=_sums_are_close,
        errors=(
            ("float8-input", (randn(4, 8).to(E4M3), -1, False, None)),
            ("complex-input", (torch.zeros(3, dtype=torch.complex64), -1, False, None)),
            ("bool-output", (randn(4, 8), -1, False, torch.bool)),
            ("float8-output", (randn(4, 8), -1, False, E4M3)),
            ("dim", (randn(4, 8), 2, False, None)),
            ("negative-dim", (randn(4, 8), -3, False, None)),
        ),
    ),
    OpSpec(
        "compact",
        _compact,
        FLOATS,
        plain=_packed,
        diff=(0,),
        exact=True,
        rows={0: 0, 1: 0},
        vmap=((0, 0), (1, 1), (0, None), (None, 0)),
        jvp=True,
        double_backward=True,
        errors=(
            ("float8-input", (randn(4, 8).to(E4M3), _mask(4, 8))),
            ("mask-dtype", (randn(4, 8), _mask(4, 8).int())),
            ("mask-shape", (randn(4, 8), _mask(4, 7))),
            ("mask-rank", (randn(4, 8), _mask(8))),
            ("0-d", (randn(), _mask())),
        ),
    ),
    OpSpec(
        "histogram",
        _histogram,
        (F32,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        errors=(
            ("float-input", (randn(4, 8), 10)),
            ("no-bins", (ints(4, 8), 0)),
            ("0-d", (ints(), 10)),
        ),
    ),
]
