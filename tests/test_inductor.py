"""What Inductor makes of the operators that stay whole: one call each, and no copies around it."""

import pytest
import torch

import tle_ops
from tests.table import BF16, assert_same_bits, outputs, randn
from tle_ops import _meta


def test_operators_ask_for_an_order_of_strides_only():
    """By default Inductor keeps a custom operator's inputs to the very strides of the traced program: it copies what it
    has padded itself, such as a product of matrices before a gated activation."""
    for op in _meta.CONTRACTS:
        assert torch.Tag.needs_fixed_stride_order in getattr(torch.ops.tle, op).default.tags, op


def copies(code: list[str]) -> list[str]:
    """The kernels of Inductor's own that compiled code launches."""
    return [line.strip() for text in code for line in text.splitlines() if ".run(" in line]


@pytest.mark.gpu
def test_no_copy_of_what_inductor_pads():
    """10 912 columns of 16 bits are no multiple of 128 bytes, so Inductor gives the product wider rows."""
    from torch._inductor.utils import run_and_get_code

    x, w = randn(64, 256, dtype=BF16).cuda(), randn(256, 10912, dtype=BF16).cuda()
    x.requires_grad_()
    want = tle_ops.swiglu_packed(x @ w)
    (dx,) = torch.autograd.grad(want.sum(), x)
    compiled = torch.compile(lambda x: tle_ops.swiglu_packed(x @ w), fullgraph=True)

    def step():
        y = compiled(x)
        return y, torch.autograd.grad(y, x, torch.ones_like(y))[0]

    (y, got), code = run_and_get_code(step)
    assert len(code) == 2
    assert copies(code) == []
    assert (y - want).norm() <= 0.01 * want.norm()  # a product with padded rows may be summed in another order
    assert (got - dx).norm() <= 0.01 * dx.norm()


@pytest.mark.gpu
def test_backwards_of_norms_are_replayed():
    from tle_ops.kernels import norm_triton

    x, dy, dnew = (randn(64, 512, dtype=BF16, seed=i).cuda() for i in range(3))
    w = randn(512, dtype=BF16).cuda()
    for op, args in (
        ("rms_norm_bwd", (dy, x, w, 1e-6, 0.0, BF16)),
        ("add_rms_norm_bwd", (dy, dnew, x, w, 1e-6, 0.0, BF16)),
        ("layer_norm_bwd", (dy, x, w, 1e-6, BF16, BF16)),
    ):
        call = getattr(torch.ops.tle, op)
        known = getattr(norm_triton, op).replays
        known.clear()
        first = outputs(call(*args))
        assert len(known) == 1, op
        for got, want in zip(outputs(call(*args)), first, strict=True):
            assert_same_bits(got, want, op)
