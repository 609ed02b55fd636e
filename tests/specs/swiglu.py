"""Specs of swiglu, geglu, their packed forms and backwards."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.specs.derivative import gradient_of
from tests.table import BF16, E4M3, F16, F32, F64, OpSpec, Sample, layouts, randn

FLOATS = (F32, BF16, F16, F64)


def _pairs(dtype):
    """(id, gate, up) without options"""
    both = (layouts(randn(4, 33, seed=seed, dtype=dtype)) for seed in (0, 1))
    for (layout, gate), (_, up) in zip(*both, strict=True):
        yield f"4x33-{layout}", gate, up
    x = randn(5, 34, dtype=dtype)
    yield "halves-of-one-tensor", x[:, :17], x[:, 17:]
    yield "contiguous-and-transposed", randn(6, 40, dtype=dtype), randn(40, 6, seed=1, dtype=dtype).t()
    yield "1d", randn(70, dtype=dtype), randn(70, seed=1, dtype=dtype)
    yield "0-d", randn(dtype=dtype), randn(dtype=dtype, seed=1)
    yield "1x1", randn(1, 1, dtype=dtype), randn(1, 1, seed=1, dtype=dtype)
    yield "4d-permuted", *(randn(2, 3, 4, 10, seed=s, dtype=dtype).permute(2, 0, 1, 3) for s in (0, 1))
    yield "expanded", randn(1, 24, dtype=dtype).expand(5, 24), randn(5, 24, seed=1, dtype=dtype)
    yield "no-rows", randn(0, 8, dtype=dtype), randn(0, 8, dtype=dtype)
    yield "no-columns", randn(3, 0, dtype=dtype), randn(3, 0, dtype=dtype)
    yield "beyond-one-block", randn(2, 5000, dtype=dtype), randn(2, 5000, seed=1, dtype=dtype)
    yield "large-gates", randn(3, 40, dtype=dtype, scale=15), randn(3, 40, seed=1, dtype=dtype)
    yield "up-in-bf16", randn(5, 16, dtype=dtype), randn(5, 16, seed=1, dtype=BF16)
    if dtype in (F32, F64):  # its gradient is the sum of two rounded ones
        yield "same-tensor", x, x


def _packed(dtype):
    for layout, x in layouts(randn(4, 66, dtype=dtype)):
        yield f"4x66-{layout}", x
    yield "16-byte-rows", randn(5, 256, dtype=dtype)
    yield "1d", randn(70, dtype=dtype)
    yield "3d-permuted", randn(3, 4, 20, dtype=dtype).permute(1, 0, 2)
    yield "one-column-each", randn(3, 2, dtype=dtype)
    yield "expanded", randn(1, 24, dtype=dtype).expand(5, 24)
    yield "no-rows", randn(0, 8, dtype=dtype)
    yield "no-columns", randn(3, 0, dtype=dtype)
    yield "beyond-one-block", randn(2, 10000, dtype=dtype)


def _with(cases, *options):
    """Every case without an option; the options with the first case and a wide one."""

    def samples(dtype):
        for name, *tensors in cases(dtype):
            yield Sample(name, tuple(tensors))
            if name.endswith(("-contiguous", "permuted")):
                for option in options:
                    yield Sample(f"{name}-{option}", (*tensors, option))

    return samples


def _backward(cases, *options, keep=("contiguous", "transposed", "permuted", "no-rows", "bf16", "beyond-one-block")):
    """The same inputs behind a cotangent, whose layout differs from theirs; fewer of them."""

    def samples(dtype):
        for name, *tensors in cases(dtype):
            if not name.endswith(keep):
                continue
            x = tensors[0]
            shape = x.shape if len(tensors) == 2 else (*x.shape[:-1], x.shape[-1] // 2)
            dy = randn(*shape, seed=2, dtype=dtype)
            if name.endswith("permuted"):
                dy = dy[..., :1].expand(shape)
            yield Sample(name, (dy, *tensors))
            if name.endswith(("-contiguous", "permuted")):
                for option in options:
                    yield Sample(f"{name}-{option}", (dy, *tensors, option))

    return samples


def _swiglu(gate: Tensor, up: Tensor, limit: float | None = None) -> Tensor:
    if limit is not None:
        # The gradient of clamp at the limit itself is 1 up to PyTorch 2.13, and 0 in 2.14.
        gate, up = torch.where(gate > limit, limit, gate), torch.where(up > limit, limit, up)
        up = torch.where(up < -limit, -limit, up)
    return F.silu(gate) * up


def _geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(gate, approximate=approximate) * up


def _on_halves(fn):
    return lambda x, *option: fn(*x.tensor_split(2, -1), *option)


def _scale(args, cotangent):
    sizes = [float(a.detach().double().abs().max()) for a in args if isinstance(a, Tensor) and a.numel()]
    return float(cotangent.detach().double().abs().max()) * max([1.0, *sizes]) ** 2 if cotangent.numel() else 0.0


def _value_scale(args):
    return _scale(args, torch.ones(1))


_PAIR_ERRORS = (
    ("shapes", (randn(4, 6), randn(4, 5))),
    ("would-broadcast", (randn(4, 6), randn(6))),
    ("float8", (randn(4, 6).to(E4M3), randn(4, 6))),
    ("int", (randn(4, 6), torch.ones(4, 6, dtype=torch.int32))),
)
_PACKED_ERRORS = (
    ("odd", (randn(4, 7),)),
    ("0-d", (randn(),)),
    ("int", (torch.ones(4, 6, dtype=torch.int32),)),
)
_LIMIT = (("limit", (randn(4, 6), randn(4, 6), -1.0)), ("limit-0", (randn(4, 6), randn(4, 6), 0.0)))
_APPROXIMATE = (("approximate", (randn(4, 6), randn(4, 6), "erf")),)
_SMOOTH = {"jvp": True, "double_backward": True}


def _specs(name: str, plain, options, option_errors):
    """The four ops of one activation."""
    packed_option = tuple((f"packed-{n}", (a[0], *a[2:])) for n, a in option_errors)
    dy = randn(4, 6)
    yield OpSpec(
        name,
        _with(_pairs, *options),
        FLOATS,
        plain,
        (0, 1),
        rows={0: 0, 1: 0},
        vmap=((0, 0), (1, 1), (0, None), (None, 1)),
        errors=_PAIR_ERRORS + option_errors,
        scale=_scale,
        value_scale=_value_scale,
        **_SMOOTH,
    )
    yield OpSpec(
        f"{name}_bwd",
        _backward(_pairs, *options),
        FLOATS,
        gradient_of(plain, 0),
        (0, 1, 2),
        rows={0: 0, 1: 0, 2: 0},
        vmap=((0, 0, 0), (1, 1, 1), (0, None, 1)),
        double_backward=True,
        errors=(("dy", (randn(4, 5), dy, dy)), *((n, (dy, *a)) for n, a in option_errors)),
        scale=_scale,
        value_scale=_value_scale,
    )
    yield OpSpec(
        f"{name}_packed",
        _with(_packed, *options),
        FLOATS,
        _on_halves(plain),
        (0,),
        rows={0: 0},
        vmap=((0,), (1,)),
        errors=_PACKED_ERRORS + packed_option,
        scale=_scale,
        value_scale=_value_scale,
        **_SMOOTH,
    )
    yield OpSpec(
        f"{name}_packed_bwd",
        _backward(_packed, *options),
        FLOATS,
        gradient_of(_on_halves(plain), 0),
        (0, 1),
        rows={0: 0, 1: 0},
        vmap=((0, 0), (1, 1), (0, None)),
        double_backward=True,
        errors=(("dy", (dy, dy)), ("odd", (dy, randn(4, 7))), *((n, (randn(4, 3), *a)) for n, a in packed_option)),
        scale=_scale,
        value_scale=_value_scale,
    )


SPECS = [*_specs("swiglu", _swiglu, (0.75,), _LIMIT), *_specs("geglu", _geglu, ("tanh",), _APPROXIMATE)]
