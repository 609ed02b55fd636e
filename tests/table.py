"""The table that the tests of every op walk: one OpSpec per op, in tests/specs/<family>.py.

The layers are in test_ops.py. A spec says what its op is in plain PyTorch, which inputs matter and why, and which
inputs are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class Sample:
    """One call. The id names the branch that it covers."""

    id: str
    args: tuple


@dataclass(frozen=True)
class OpSpec:
    """
    name: of the op under torch.ops.tle.
    samples: dtype -> calls, at most a few thousand elements each.
    dtypes: of the main input.
    plain: the op as a composition of differentiable torch functions; its float64 result is the truth for values and
        gradients. None: the family's own tests hold the op to its definition.
    diff: positions of the arguments that get a gradient.
    output: index of the output that `plain` describes and gradients flow from.
    exact: CPU, CUDA and every kernel agree bit for bit. Otherwise a kernel may be off twice as far as the reference.
    rows: argument position -> its dimension that counts rows: it may vary without a recompilation.
    vmap: in_dims of calls of `samples` to check, for the tensor arguments only.
    jvp: forward-mode AD gives tangents (else it must raise).
    double_backward: the backward is made of differentiable ops (else a second backward must raise).
    errors: (id, arguments); the messages are snapshots.
    compare: (got, want, args), asserts that a kernel's outputs are as good as the reference's; only where `exact` and
        `plain` do not say it.
    scale: (args, cotangent) -> size of the terms that cancel in a gradient; tolerances grow with it.
    value_scale: args -> the same for the value.
    """

    name: str
    samples: Callable[[torch.dtype], Iterator[Sample]]
    dtypes: tuple[torch.dtype, ...]
    plain: Callable[..., Tensor] | None = None
    diff: tuple[int, ...] = ()
    output: int = 0
    exact: bool = False
    rows: dict[int, int] | None = None
    vmap: tuple[tuple[int | None, ...], ...] = ()
    jvp: bool = False
    double_backward: bool = False
    errors: tuple[tuple[str, tuple], ...] = ()
    compare: Callable[[tuple, tuple, tuple], None] | None = None
    scale: Callable[[tuple, Tensor], float] = lambda args, cotangent: 0.0
    value_scale: Callable[[tuple], float] = lambda args: 0.0

    @property
    def op(self) -> Any:
        return getattr(torch.ops.tle, self.name).default

    def __str__(self) -> str:
        return self.name


def randn(*shape: int, dtype: torch.dtype = F32, seed: int = 0, scale: float = 1.0) -> Tensor:
    g = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    return (torch.randn(shape, generator=g, dtype=F64) * scale).to(dtype)


def layouts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """x in every memory layout that a kernel may meet, the values unchanged."""
    yield "contiguous", x
    if x.dim() == 0:
        return
    flat = torch.cat([x.new_zeros(1), x.flatten()])
    yield "unaligned", flat[1:].view(x.shape)  # an element past a 16-byte boundary
    if x.dim() >= 2:
        yield "transposed", x.transpose(-1, -2).contiguous().transpose(-1, -2)
        yield "row-strided", torch.cat([x, x], -1)[..., : x.shape[-1]]
        yield "sliced", torch.cat([x, x], 0)[x.shape[0] :]
    yield "every-second", torch.stack([x, x], -1).flatten(-2)[..., ::2]


def bits(t: Tensor) -> Tensor:
    """For comparisons bit for bit: -0.0 == 0.0 and NaN != NaN as floats."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.contiguous().view(kinds[t.dtype.itemsize]) if t.dtype.is_floating_point else t


def assert_same_bits(got: Tensor, want: Tensor, what: str = "") -> None:
    """Equal bit for bit; of a NaN wider than 8 bits, only that it is one (its payload differs between processors)."""
    assert got.dtype == want.dtype, f"{what}: got {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{what}: got {list(got.shape)}, want {list(want.shape)}"
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.dtype.is_floating_point and got.dtype.itemsize > 1:
        got, want = (t.masked_fill(t.isnan(), torch.nan) for t in (got, want))
    a, b = bits(got), bits(want)
    if torch.equal(a, b):
        return
    bad = (a != b).nonzero()
    at = tuple(bad[0].tolist())
    raise AssertionError(f"{what}: {len(bad)} of {a.numel()} differ, first at {at}: got {got[at]}, want {want[at]}")


def outputs(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def to_device(args: tuple, device: str) -> tuple:
    """The arguments on `device`, strides and storage offsets kept."""

    def move(a):
        if not isinstance(a, Tensor):
            return a
        extent = 1 + sum((n - 1) * s for n, s in zip(a.shape, a.stride(), strict=True)) if a.numel() else 0
        storage = torch.empty(a.storage_offset() + extent, dtype=a.dtype, device=device)
        moved = storage.as_strided(a.shape, a.stride(), a.storage_offset())
        if a.numel():
            source = a.detach().as_strided((a.storage_offset() + extent,), (1,), 0)
            storage.copy_(source)
        return moved.requires_grad_(a.requires_grad)

    moved = {id(a): move(a) for a in args if isinstance(a, Tensor)}  # one tensor given twice stays one
    return tuple(moved.get(id(a), a) for a in args)
