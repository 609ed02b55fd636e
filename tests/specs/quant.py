"""Specs of the FP8 quantizers. Their values are held to the definition by test_quant.py."""

import torch
from torch import Tensor

from tests.table import BF16, E4M3, E5M2, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def _per_token(dtype):
    for layout, x in layouts(randn(5, 256, dtype=dtype)):
        yield Sample(f"5x256-{layout}", (x,))
    yield Sample("short-last-group", (randn(3, 200, dtype=dtype),))
    yield Sample("group-32", (randn(3, 96, dtype=dtype), 32))
    yield Sample("group-48-odd-width", (randn(3, 101, dtype=dtype), 48))
    yield Sample("group-1", (randn(3, 7, dtype=dtype), 1))
    yield Sample("group-longer-than-row", (randn(3, 70, dtype=dtype), 1000))
    yield Sample("whole-row", (randn(4, 320, dtype=dtype), -1))
    yield Sample("e5m2", (randn(4, 256, dtype=dtype), 128, E5M2))
    yield Sample("ue8m0", (randn(4, 256, dtype=dtype), 128, E4M3, True))
    yield Sample("column-major", (randn(5, 384, dtype=dtype), 128, E4M3, False, True))
    yield Sample("column-major-3d", (randn(2, 3, 200, dtype=dtype), 64, E5M2, True, True))
    yield Sample("column-major-no-rows", (randn(0, 256, dtype=dtype), 128, E4M3, False, True))
    yield Sample("column-major-1d", (randn(256, dtype=dtype), 128, E4M3, False, True))
    yield Sample("1d", (randn(300, dtype=dtype),))
    yield Sample("3d-permuted", (randn(3, 4, 130, dtype=dtype).permute(1, 0, 2),))
    yield Sample("4d", (randn(2, 1, 3, 128, dtype=dtype),))
    yield Sample("expanded", (randn(1, 128, dtype=dtype).expand(4, 128),))
    yield Sample("no-rows", (randn(0, 384, dtype=dtype),))
    yield Sample("no-columns", (randn(3, 0, dtype=dtype),))
    yield Sample("no-columns-whole-row", (randn(3, 0, dtype=dtype), -1))
    yield Sample("1x1", (randn(1, 1, dtype=dtype),))


def _per_block(dtype):
    for layout, x in layouts(randn(130, 140, dtype=dtype)):
        yield Sample(f"130x140-{layout}", (x,))
    yield Sample("exact", (randn(128, 256, dtype=dtype),))
    yield Sample("block-16", (randn(40, 50, dtype=dtype), 16))
    yield Sample("block-20", (randn(40, 50, dtype=dtype), 20))
    yield Sample("block-200", (randn(210, 90, dtype=dtype), 200))
    yield Sample("block-1", (randn(3, 5, dtype=dtype), 1))
    yield Sample("e5m2-ue8m0", (randn(64, 64, dtype=dtype), 32, E5M2, True))
    yield Sample("batched", (randn(2, 3, 33, 65, dtype=dtype), 32))
    yield Sample("no-rows", (randn(0, 256, dtype=dtype),))
    yield Sample("no-columns", (randn(4, 0, dtype=dtype),))
    yield Sample("1x1", (randn(1, 1, dtype=dtype),))


def _per_channel(dtype):
    for layout, x in layouts(randn(130, 40, dtype=dtype)):
        yield Sample(f"130x40-{layout}", (x,))
    yield Sample("exact", (randn(256, 64, dtype=dtype),))  # cast in bands of rows, as the next two
    yield Sample("short-band", (randn(200, 64, dtype=dtype),))
    yield Sample("group-64", (randn(70, 64, dtype=dtype), 64))
    yield Sample("group-16", (randn(40, 33, dtype=dtype), 16))
    yield Sample("group-5", (randn(12, 33, dtype=dtype), 5))
    yield Sample("whole-column", (randn(300, 33, dtype=dtype), -1))
    yield Sample("group-300", (randn(310, 20, dtype=dtype), 300))
    yield Sample("e5m2-ue8m0", (randn(64, 64, dtype=dtype), 32, E5M2, True))
    yield Sample("rows-in-two-dims", (randn(3, 50, 16, dtype=dtype), 64))
    yield Sample("1d", (randn(70, dtype=dtype),))
    yield Sample("no-rows", (randn(0, 64, dtype=dtype),))
    yield Sample("no-rows-whole-column", (randn(0, 64, dtype=dtype), -1))
    yield Sample("no-columns", (randn(4, 0, dtype=dtype),))


def _fake_quant(dtype):
    for layout, x in layouts(randn(5, 256, dtype=dtype)):
        yield Sample(f"5x256-{layout}", (x,))
    yield Sample("short-last-group", (randn(3, 200, dtype=dtype), 48))
    yield Sample("whole-row-e5m2-ue8m0", (randn(3, 200, dtype=dtype), -1, E5M2, True))
    yield Sample("3d", (randn(2, 3, 64, dtype=dtype), 32))
    yield Sample("no-rows", (randn(0, 128, dtype=dtype),))


def codes(*shape: int, dtype: torch.dtype = E4M3) -> Tensor:
    """Random finite codes of every magnitude."""
    top = {E4M3: 0x7F, E5M2: 0x7C}[dtype]
    g = torch.Generator().manual_seed(sum(shape))
    magnitude = torch.randint(0, top, shape, generator=g)
    return (magnitude + 128 * torch.randint(0, 2, shape, generator=g)).to(torch.uint8).view(dtype)


def _scales(*shape: int) -> Tensor:
    return randn(*shape, seed=3).abs() + 0.01


def _per_token_back(dtype):
    q, s = codes(5, 256), _scales(5, 2)
    yield Sample("contiguous", (q, s, 128, dtype))
    yield Sample("column-major-scales", (q, s.t().contiguous().t(), 128, dtype))
    yield Sample("expanded-scales", (q, s[:1].expand(5, 2), 128, dtype))
    yield Sample("transposed", (codes(256, 5).t(), s, 128, dtype))
    yield Sample("row-strided", (torch.cat([q, q], 1)[:, :256], s, 128, dtype))
    yield Sample("unaligned", (codes(1 + 5 * 256)[1:].view(5, 256), s, 128, dtype))
    yield Sample("short-last-group", (codes(3, 101), _scales(3, 3), 48, dtype))
    yield Sample("whole-row-e5m2", (codes(3, 101, dtype=E5M2), _scales(3, 1), -1, dtype))
    yield Sample("3d", (codes(2, 3, 64), _scales(2, 3, 2), 32, dtype))
    yield Sample("1d", (codes(100), _scales(4), 32, dtype))
    yield Sample("no-rows", (codes(0, 128), _scales(0, 1), 128, dtype))


def _per_block_back(dtype):
    yield Sample("edges", (codes(130, 140), _scales(2, 2), 128, dtype))
    yield Sample("transposed", (codes(140, 130).t(), _scales(2, 2).t(), 128, dtype))
    yield Sample("batched-e5m2", (codes(2, 40, 50, dtype=E5M2), _scales(2, 3, 4), 16, dtype))
    yield Sample("block-200", (codes(210, 90), _scales(2, 1), 200, dtype))
    yield Sample("no-rows", (codes(0, 128), _scales(0, 1), 128, dtype))


def _per_channel_back(dtype):
    yield Sample("edges", (codes(130, 40), _scales(2, 40), 128, dtype))
    yield Sample("transposed", (codes(40, 130).t(), _scales(40, 2).t(), 128, dtype))
    yield Sample("rows-in-two-dims-e5m2", (codes(3, 50, 16, dtype=E5M2), _scales(3, 16), 64, dtype))
    yield Sample("whole-column", (codes(70, 33), _scales(1, 33), -1, dtype))
    yield Sample("no-rows", (codes(0, 64), _scales(0, 64), 128, dtype))


_INT = torch.ones(4, 128, dtype=torch.int32)
_QUANTIZER_ERRORS = (
    ("int-input", (_INT,)),
    ("float8-input", (codes(4, 128),)),
    ("zero-size", (randn(4, 128), 0)),
    ("negative-size", (randn(4, 128), -2)),
    ("dtype", (randn(4, 128), 128, torch.int8)),
    ("0-d", (randn(),)),
)


def _back_errors(good_scales: Tensor, bad_scales: Tensor):
    q = codes(6, 512)
    return (
        ("codes-dtype", (randn(6, 512), good_scales)),
        ("scales-dtype", (q, good_scales.half())),
        ("scales-rank", (q, good_scales[0])),
        ("scales-shape", (q, bad_scales)),
        ("zero-size", (q, good_scales, 0)),
        ("dtype", (q, good_scales, 128, torch.int32)),
    )


def _token_plain(q, scales, size, dtype):
    N = q.shape[-1]
    return q.to(scales.dtype) * scales.repeat_interleave(N if size == -1 else size, -1)[..., :N]


def _block_plain(q, scales, size, dtype):
    return (
        q.to(scales.dtype)
        * scales.repeat_interleave(size, -2).repeat_interleave(size, -1)[..., : q.shape[-2], : q.shape[-1]]
    )


def _channel_plain(q, scales, size, dtype):
    rows = q.reshape(-1, q.shape[-1]) if q.numel() else q
    M = rows.shape[0]
    return (rows.to(scales.dtype) * scales.repeat_interleave(M if size == -1 else size, 0)[:M]).view(q.shape)


SPECS = [
    OpSpec(
        "per_token_cast_fp8", _per_token, FLOATS, exact=True, rows={0: 0}, vmap=((0,), (1,)), errors=_QUANTIZER_ERRORS
    ),
    OpSpec(
        "per_block_cast_fp8",
        _per_block,
        FLOATS,
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,), (2,)),
        errors=_QUANTIZER_ERRORS,
    ),
    OpSpec(
        "per_channel_cast_fp8",
        _per_channel,
        FLOATS,
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,), (2,)),
        errors=_QUANTIZER_ERRORS,
    ),
    OpSpec(
        "fake_quant_fp8",
        _fake_quant,
        FLOATS,
        exact=True,
        rows={0: 0},
        vmap=((0,), (1,)),
        jvp=True,
        errors=_QUANTIZER_ERRORS,
    ),
    OpSpec(
        "per_token_cast_back",
        _per_token_back,
        FLOATS,
        plain=_token_plain,
        diff=(1,),
        exact=True,
        rows={0: 0, 1: 0},
        vmap=((0, 0), (1, 1), (0, None)),
        jvp=True,
        double_backward=True,
        errors=_back_errors(_scales(6, 4), _scales(4, 6)),
    ),
    OpSpec(
        "per_block_cast_back",
        _per_block_back,
        FLOATS,
        plain=_block_plain,
        diff=(1,),
        exact=True,
        vmap=((0, 0), (1, 1), (None, 0)),
        jvp=True,
        double_backward=True,
        errors=_back_errors(_scales(1, 4), _scales(4, 1)),
    ),
    OpSpec(
        "per_channel_cast_back",
        _per_channel_back,
        FLOATS,
        plain=_channel_plain,
        diff=(1,),
        exact=True,
        vmap=((0, 0), (1, 1), (None, 2)),
        jvp=True,
        double_backward=True,
        errors=_back_errors(_scales(1, 512), _scales(512, 1)),
    ),
]
