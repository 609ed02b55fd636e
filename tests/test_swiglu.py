"""Gated activations: the kernels' normal distribution against the truth, and ends of flat tensors."""

import pytest
import torch

import tle_ops
from tests.conftest import CUDA
from tests.table import BF16, F32, assert_same_bits, randn
from tle_ops.kernels import swiglu_triton

DEVICE = "cuda" if CUDA else "cpu"  # the interpreter where there is no GPU


def gelu(x: torch.Tensor) -> torch.Tensor:
    """In float64, with the digits that 1 + erf(x) has not got for x below 0."""
    return x.double() * torch.erfc(x.double() * -(0.5**0.5)) / 2


@pytest.mark.parametrize("packed", [False, True])
def test_gelu_has_its_digits_where_it_is_small(packed):
    """Down to -13, where float32 ends. 1 + erf is off by 3 % at -4.5, and 0 below -5.6."""
    x = torch.cat((torch.linspace(-13, 13, 20001), torch.tensor([-0.0, 1e-20, -1e-30])))
    one = torch.ones_like(x)
    if packed:
        y = swiglu_triton.geglu_packed(torch.stack((x, one), -1).to(DEVICE)).squeeze(-1)
    else:
        y = swiglu_triton.geglu(x.to(DEVICE), one.to(DEVICE))
    error = (y.cpu().double() - gelu(x)).abs()
    assert (error <= gelu(x).abs() * (16 + x.double().square()) * 2**-24).all()


def test_gelu_of_every_bfloat16():
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
    y = swiglu_triton.geglu(x.to(DEVICE), torch.ones_like(x).to(DEVICE)).cpu()
    check_bfloat16(x, y)
    check_bfloat16(x, tle_ops.geglu(x, torch.ones_like(x)))  # of the CPU


def check_bfloat16(x: torch.Tensor, y: torch.Tensor) -> None:
    assert torch.equal(y.isnan(), x.isnan() | (x == -torch.inf))  # -inf * 0
    assert y[x == torch.inf] == torch.inf
    x, y = x[x.isfinite()], y[x.isfinite()]
    truth = gelu(x)
    normal = truth.abs() > 1e-37
    off = (y.double() - truth).abs()
    assert (off[~normal] <= 1e-37).all()
    step = torch.ldexp(torch.ones_like(truth), torch.frexp(truth).exponent - 8)  # of bfloat16, at the truth
    assert (off[normal] <= (step * 0.502)[normal]).all()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 2047, 2048, 2064, 4096 + 31])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_the_last_elements(n, dtype):
    """The last n % 16 are of another program than their neighbours: the same bits, and nothing beyond them."""
    gate, up, dy = (randn(n + 40, seed=s, dtype=dtype).to(DEVICE) for s in range(3))
    for approximate in ("none", "tanh"):
        whole = swiglu_triton.geglu(gate, up, approximate)
        assert_same_bits(swiglu_triton.geglu(gate[:n], up[:n], approximate), whole[:n])
        wholes = swiglu_triton.geglu_bwd(dy, gate, up, approximate)
        for part, all_of_it in zip(swiglu_triton.geglu_bwd(dy[:n], gate[:n], up[:n], approximate), wholes, strict=True):
            assert_same_bits(part, all_of_it[:n])
