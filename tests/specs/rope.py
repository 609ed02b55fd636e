"""Specs of rope and its backward."""

import torch
from torch import Tensor

from tests.table import BF16, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def tables(*shape: int, dtype: torch.dtype = F32) -> tuple[Tensor, Tensor]:
    """cos and sin of random angles, [.., S, R/2]"""
    angle = randn(*shape, seed=5, scale=3, dtype=F64)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rope(dtype):
    wide = F64 if dtype == F64 else F32
    for layout, x in layouts(randn(2, 5, 3, 16, dtype=dtype)):
        yield Sample(f"2x5x3x16-{layout}", (x, *tables(5, 8, dtype=wide)))
    x = randn(2, 5, 3, 16, dtype=dtype)
    yield Sample("interleaved", (x, *tables(5, 8, dtype=wide), True))
    yield Sample("partial", (x, *tables(5, 3, dtype=wide)))
    yield Sample("partial-interleaved", (x, *tables(5, 3, dtype=wide), True))
    yield Sample("no-rotation", (x, *tables(5, 0, dtype=wide)))
    yield Sample("tables-per-batch", (x, *tables(2, 5, 8, dtype=wide)))
    yield Sample("tables-of-x-dtype", (x, *tables(5, 8, dtype=dtype)))
    yield Sample("tables-strided", (x, *(t.t().contiguous().t() for t in tables(5, 8, dtype=wide))))
    yield Sample("tables-expanded", (x, *(t[:1].expand(5, 8) for t in tables(5, 8, dtype=wide))))
    yield Sample("heads-first", (randn(2, 3, 5, 16, dtype=dtype).transpose(1, 2), *tables(5, 8, dtype=wide)))
    qkv = randn(2, 5, 6 * 16, dtype=dtype)
    yield Sample("heads-of-qkv", (qkv[..., 16:64].unflatten(-1, (3, 16)), *tables(5, 8, dtype=wide)))
    yield Sample("no-batch", (randn(7, 1, 6, dtype=dtype), *tables(7, 3, dtype=wide)))
    yield Sample("two-batch-dims", (randn(2, 2, 3, 2, 8, dtype=dtype), *tables(2, 2, 3, 4, dtype=wide), True))
    yield Sample("odd-head", (randn(3, 2, 7, dtype=dtype), *tables(3, 3, dtype=wide)))
    yield Sample("2-wide", (randn(1, 3, 2, 2, dtype=dtype), *tables(3, 1, dtype=wide)))
    yield Sample("no-positions", (randn(2, 0, 3, 8, dtype=dtype), *tables(0, 4, dtype=wide)))


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    R = 2 * cos.shape[-1]
    head, rest = x[..., :R], x[..., R:]
    pairs = head.unflatten(-1, (R // 2, 2) if interleaved else (2, R // 2))
    a, b = pairs.unbind(-1 if interleaved else -2)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1 if interleaved else -2)
    return torch.cat([turned.flatten(-2), rest], -1)


def _few(dtype):
    for sample in _rope(dtype):
        if sample.id.endswith(("contiguous", "interleaved", "per-batch", "heads-first", "no-positions")):
            yield sample


def _scale(args, cotangent):
    tops = [float(t.detach().double().abs().max()) for t in (args[0], cotangent) if t.numel()]
    return 2 * max([1.0, *tops]) ** 2


_X = randn(2, 6, 3, 16)
_ERRORS = (
    ("2d", (randn(6, 16), *tables(6, 8))),
    ("int", (torch.ones(2, 6, 3, 16, dtype=torch.int32), *tables(6, 8))),
    ("table-int", (_X, torch.ones(6, 8, dtype=torch.int32), torch.ones(6, 8))),
    ("positions", (_X, *tables(5, 8))),
    ("too-wide", (_X, *tables(6, 9))),
    ("batch", (_X, *tables(3, 6, 8))),
    ("table-rank", (_X, randn(8), randn(8))),
    ("sin", (_X, randn(6, 8), randn(6, 7))),
)
_COMMON = {
    "rows": {0: 0},
    "vmap": ((0, None, None), (1, None, None), (0, 0, 0), (None, 1, 1), (4, None, 0)),
    "jvp": True,
    "double_backward": True,
    "errors": _ERRORS,
    "scale": _scale,
    "value_scale": lambda args: _scale(args, args[0]),
}
SPECS = [
    OpSpec("rope", _rope, FLOATS, _turned, (0, 1, 2), **_COMMON),
    OpSpec("rope_bwd", _few, FLOATS, lambda dy, cos, sin, *i: _turned(dy, cos, -sin, *i), (0, 1, 2), **_COMMON),
]
