"""Specs of topk, topk_selector and topk_gate. Ties, NaN and integers: test_topk.py."""

import torch

from tests.table import BF16, E4M3, F16, F32, F64, OpSpec, Sample, assert_same_bits, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def _topk(dtype):
    for layout, x in layouts(randn(5, 70, dtype=dtype)):
        yield Sample(f"5x70-{layout}", (x, 8, -1, True, True))
    yield Sample("least", (randn(5, 70, dtype=dtype), 8, -1, False, True))
    yield Sample("by-index", (randn(5, 70, dtype=dtype), 8, -1, True, False))
    yield Sample("least-by-index", (randn(5, 70, dtype=dtype), 9, -1, False, False))
    yield Sample("none", (randn(5, 70, dtype=dtype), 0, -1, True, True))
    yield Sample("one", (randn(5, 70, dtype=dtype), 1, -1, True, True))
    yield Sample("all", (randn(3, 70, dtype=dtype), 70, -1, True, True))
    yield Sample("all-of-256", (randn(2, 256, dtype=dtype), 256, -1, False, True))
    yield Sample("experts", (randn(9, 128, dtype=dtype), 8, -1, True, True))
    yield Sample("small-row", (randn(40, 16, dtype=dtype), 3, -1, True, True))
    yield Sample("wide", (randn(3, 5000, dtype=dtype), 64, -1, True, True))
    yield Sample("wide-many", (randn(2, 5000, dtype=dtype), 300, -1, True, True))
    yield Sample("wide-by-index", (randn(2, 5000, dtype=dtype), 700, -1, False, False))
    yield Sample("dim-0", (randn(33, 9, dtype=dtype), 4, 0, True, True))
    yield Sample("dim-1-of-3", (randn(3, 40, 5, dtype=dtype), 4, 1, False, True))
    yield Sample("permuted", (randn(3, 4, 40, dtype=dtype).permute(1, 2, 0), 4, 1, True, True))
    if dtype != F64:  # gradcheck does not perturb elements that share memory
        yield Sample("expanded", (randn(1, 40, dtype=dtype).expand(3, 40), 4, -1, True, True))
    yield Sample("1d", (randn(300, dtype=dtype), 20, 0, True, True))
    yield Sample("no-rows", (randn(0, 64, dtype=dtype), 5, -1, True, True))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype), 0, -1, True, True))
    yield Sample("1x1", (randn(1, 1, dtype=dtype), 1, -1, True, True))


def _chosen(x, k, dim, largest, sorted):
    indices = x.sort(dim=dim, descending=largest, stable=True).indices.narrow(dim, 0, k)
    return x.gather(dim, indices if sorted else indices.sort(dim).values)


def window(*bounds, dtype=torch.int32):
    return torch.tensor(bounds, dtype=dtype)


def _selector(dtype):
    for layout, x in layouts(randn(5, 70, dtype=dtype)):
        yield Sample(f"5x70-{layout}", (x, 8, None, None))
    x = randn(6, 100, dtype=dtype)
    starts, ends = window(0, 10, 50, -5, 99, 70), window(100, 90, 50, 300, 100, 20)
    yield Sample("windows", (x, 12, starts, ends))
    yield Sample("windows-int64-strided", (x, 12, starts.long().repeat_interleave(2)[::2], ends.long()))
    yield Sample("starts-alone", (x, 12, starts, None))
    yield Sample("ends-alone", (x, 12, None, ends))
    yield Sample("beyond-the-row", (x, 130, starts, ends))
    yield Sample("none", (x, 0, starts, ends))
    yield Sample("wide", (randn(3, 5000, dtype=dtype), 512, window(0, 17, 4000), window(5000, 4003, 4400)))
    yield Sample("1d", (randn(300, dtype=dtype), 20, torch.tensor(10), torch.tensor(200)))
    yield Sample("3d", (randn(2, 3, 40, dtype=dtype), 5, None, window(40, 3, 20, 0, 4, 5).view(2, 3)))
    yield Sample("no-rows", (randn(0, 64, dtype=dtype), 5, None, None))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype), 4, None, None))


def _gate(dtype):
    for layout, x in layouts(randn(5, 64, dtype=dtype)):
        yield Sample(f"5x64-{layout}", (x, 8, "softmax", None, 1, 1, True, 1.0))
    x, bias = randn(6, 64, dtype=dtype), randn(64, seed=2)
    yield Sample("sigmoid", (x, 6, "sigmoid", None, 1, 1, True, 1.0))
    yield Sample("raw-weights", (x, 6, "softmax", None, 1, 1, False, 2.5))
    yield Sample("raw-weights-sigmoid", (x, 6, "sigmoid", None, 1, 1, False, 2.5))
    yield Sample("bias", (x, 6, "sigmoid", bias, 1, 1, True, 1.5))
    yield Sample("bias-strided", (x, 6, "softmax", randn(64, 2, seed=2)[:, 0], 1, 1, True, 1.5))
    yield Sample("groups", (x, 6, "sigmoid", None, 8, 3, True, 1.0))
    yield Sample("groups-with-bias", (x, 8, "sigmoid", bias, 8, 4, True, 2.5))
    yield Sample("groups-all-open", (x, 8, "softmax", bias, 4, 4, True, 1.0))
    yield Sample("groups-of-one", (x, 5, "softmax", None, 64, 7, True, 1.0))
    yield Sample("experts-100", (randn(3, 100, dtype=dtype), 7, "softmax", None, 5, 2, True, 1.0))
    yield Sample("experts-512", (randn(4, 512, dtype=dtype), 10, "softmax", None, 1, 1, True, 1.0))
    yield Sample("one", (x, 1, "softmax", None, 1, 1, True, 1.0))
    yield Sample("all", (randn(3, 20, dtype=dtype), 20, "sigmoid", None, 1, 1, True, 1.0))
    yield Sample("1d", (randn(64, dtype=dtype), 4, "softmax", None, 1, 1, True, 1.0))
    yield Sample("3d", (randn(2, 3, 32, dtype=dtype), 4, "softmax", None, 1, 1, True, 1.0))
    yield Sample("no-rows", (randn(0, 64, dtype=dtype), 4, "softmax", None, 1, 1, True, 1.0))


def _gate_weights(logits, k, scoring, bias, num_groups, topk_groups, renormalize, scale):
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias
    groups = choice.unflatten(-1, (num_groups, -1))
    worth = groups.topk(min(2, groups.shape[-1]), -1).values.sum(-1)  # [.., groups]
    kept = worth.sort(dim=-1, descending=True, stable=True).indices[..., :topk_groups]
    closed = torch.ones_like(worth, dtype=torch.bool).scatter(-1, kept, False)
    choice = groups.masked_fill(closed[..., None], -torch.inf).flatten(-2)
    weights = scores.gather(-1, choice.sort(dim=-1, descending=True, stable=True).indices[..., :k])
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale


def _same_experts(got, want, args):
    """The experts are exact, the weights off by a few units in the last place: exponentials differ between devices."""
    assert_same_bits(got[1], want[1], "indices")
    assert_same_weights(got[0], want[0])


def assert_same_weights(got, want):
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    torch.testing.assert_close(got.cpu(), want, rtol=16 * torch.finfo(want.dtype).eps, atol=0.0, equal_nan=True)


def _same_gradient(got, want, args):
    """A gradient is a difference of terms of the size of the cotangent over the sum of the weights."""
    g, w = got[0], want[0]
    assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
    torch.testing.assert_close(g.cpu(), w, rtol=4 * torch.finfo(w.dtype).eps, atol=2e-6)


def _gate_terms(args, cotangent):
    """The gradient of a normalised weight is a difference of terms of this size."""
    return float(cotangent.double().abs().sum(-1).max()) * args[7] if cotangent.numel() else 0.0


def _gate_bwd(dtype):
    indices = torch.stack([torch.arange(8), torch.arange(8, 0, -1), torch.arange(0, 64, 8)]).int()  # [3, 8]
    logits, dweights = randn(3, 64, dtype=dtype), randn(3, 8, seed=3)
    for scoring in ("softmax", "sigmoid"):
        for renormalize in (True, False):
            yield Sample(f"{scoring}-{renormalize}", (dweights, logits, indices, scoring, renormalize, 1.5))
    yield Sample("transposed", (randn(8, 3).t(), randn(64, 3, dtype=dtype).t(), indices, "softmax", True, 1.0))
    yield Sample("expanded", (torch.ones(1).expand(3, 8), logits, indices, "softmax", True, 1.0))
    yield Sample("experts-100", (randn(2, 8), randn(2, 100, dtype=dtype), indices[:2], "sigmoid", True, 1.0))
    yield Sample("1d", (dweights[0], logits[0], indices[0], "softmax", True, 1.0))
    yield Sample("no-rows", (dweights[:0], logits[:0], indices[:0], "softmax", True, 1.0))


_X = randn(4, 16)
_PICKED = window(0, 1).expand(4, 2)
SPECS = [
    OpSpec(
        "topk",
        _topk,
        FLOATS,
        plain=_chosen,
        diff=(0,),
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        double_backward=True,
        errors=(
            ("float8-input", (_X.to(E4M3), 3, -1, True, True)),
            ("k-above-n", (_X, 17, -1, True, True)),
            ("k-above-n-of-dim-0", (_X, 5, 0, True, True)),
            ("negative-k", (_X, -1, -1, True, True)),
            ("dim", (_X, 3, 2, True, True)),
            ("0-d", (randn(), 1, -1, True, True)),
        ),
    ),
    OpSpec(
        "topk_selector",
        _selector,
        FLOATS,
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,), (0, 0), (None, 0)),
        errors=(
            ("float8-input", (_X.to(E4M3), 3, None, None)),
            ("negative-k", (_X, -1, None, None)),
            ("starts-dtype", (_X, 3, torch.zeros(4), None)),
            ("ends-dtype", (_X, 3, None, torch.zeros(4, dtype=torch.int16))),
            ("ends-shape", (_X, 3, None, window(1, 2, 3))),
            ("ends-rank", (_X, 3, None, torch.tensor(3))),
            ("0-d", (randn(), 1, None, None)),
        ),
    ),
    OpSpec(
        "topk_gate",
        _gate,
        FLOATS,
        plain=_gate_weights,
        diff=(0,),
        rows={0: 0},
        vmap=((0,), (1,), (0, None), (1, 0)),
        scale=_gate_terms,
        compare=_same_experts,
        errors=(
            ("int-input", (torch.ones(4, 16, dtype=torch.int32), 2)),
            ("no-k", (_X, 0)),
            ("k-above-experts", (_X, 17)),
            ("k-above-open-experts", (_X, 5, "softmax", None, 4, 1)),
            ("scoring", (_X, 2, "relu")),
            ("bias-shape", (_X, 2, "softmax", randn(15))),
            ("bias-dtype", (_X, 2, "softmax", torch.ones(16, dtype=torch.int64))),
            ("no-groups", (_X, 2, "softmax", None, 0, 1)),
            ("groups-do-not-divide", (_X, 2, "softmax", None, 3, 1)),
            ("topk-groups", (_X, 2, "softmax", None, 4, 5)),
            ("0-d", (randn(), 1)),
        ),
    ),
    OpSpec(
        "topk_gate_bwd",
        _gate_bwd,
        FLOATS,
        rows={0: 0, 1: 0, 2: 0},
        compare=_same_gradient,
        vmap=((0, 0, 0), (1, 1, 1), (0, 0, None)),
        errors=(
            (
                "dweights-dtype",
                (torch.ones(4, 2, dtype=torch.int32), _X, window(0, 1).expand(4, 2), "softmax", True, 1.0),
            ),
            ("indices-dtype", (randn(4, 2), _X, torch.zeros(4, 2, dtype=torch.int64), "softmax", True, 1.0)),
            ("indices-shape", (randn(4, 2), _X, window(0, 1), "softmax", True, 1.0)),
            ("dweights-shape", (randn(4, 3), _X, window(0, 1).expand(4, 2), "softmax", True, 1.0)),
        ),
    ),
]
