"""tle.cumsum against its definition: what is summed in which type, in both directions."""

import pytest
import torch
import triton
import triton.language as tl

import tle_ops.language as tle
from tests.conftest import CUDA

DEVICE = "cuda" if CUDA else "cpu"  # where there is no GPU, Triton interprets
OF_TRITON = {
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@triton.jit
def cumsum_kernel(x_ptr, exclusive_ptr, total_ptr, N: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr):
    at = tl.arange(0, N)
    exclusive, total = tle.cumsum(tl.load(x_ptr + at), 0, REVERSE, DTYPE)
    tl.static_assert(exclusive.dtype == DTYPE)
    tl.static_assert(total.dtype == DTYPE)
    # Widened first: a store would hide what is beyond the type.
    tl.store(exclusive_ptr + at, exclusive.to(exclusive_ptr.dtype.element_ty))
    tl.store(total_ptr, total.to(total_ptr.dtype.element_ty))


def values(N: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randint(-100, 101, (N,), generator=torch.Generator().manual_seed(N))
    if dtype.is_floating_point:
        return (x / 8).to(dtype)
    return (x.abs() if dtype is torch.uint8 else x).to(dtype)


def sums(x: torch.Tensor, want: torch.dtype, reverse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """In the type that is asked for: integers wrap there, floats are rounded once."""
    wide = x.float().to(want).to(torch.float64 if want.is_floating_point else torch.int64)
    wide = wide.flip(0) if reverse else wide
    inclusive = wide.cumsum(0)
    exclusive, total = (inclusive - wide).to(want), inclusive[-1].to(want)
    return (exclusive.flip(0) if reverse else exclusive), total


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("want", OF_TRITON, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str
)
@pytest.mark.parametrize("N", [1, 64, 512])
def test_dtype_of_the_sums(N, dtype, want, reverse):
    x = values(N, dtype)
    if want is torch.uint8 and dtype.is_floating_point:
        x = x.float().abs().to(dtype)  # a negative float has no unsigned integer
    out = torch.int64 if not want.is_floating_point else want if want is torch.float64 else torch.float32
    exclusive, total = torch.empty(N, dtype=out, device=DEVICE), torch.empty(1, dtype=out, device=DEVICE)
    cumsum_kernel[(1,)](x.to(DEVICE), exclusive, total, N, reverse, OF_TRITON[want])
    # Multiples of 1/8 below 2^11: exact in float32, and in float16 where they are few enough.
    exact, whole = sums(x, want, reverse)
    rounding = 2.0**-11 * (N if want is torch.float16 else 0)
    torch.testing.assert_close(
        exclusive.cpu(), exact.to(out), rtol=0, atol=rounding * exact.double().abs().max().item()
    )
    torch.testing.assert_close(total.cpu()[0], whole.to(out), rtol=0, atol=rounding * exact.double().abs().max().item())


def test_a_sum_can_be_carried_in_its_type():
    @triton.jit
    def loop_kernel(x_ptr, out_ptr):
        carry = tl.zeros((), tl.int16)
        for _ in range(3):
            _, total = tle.cumsum(tl.load(x_ptr + tl.arange(0, 8)), dtype=tl.int16)
            carry += total
        tl.store(out_ptr, carry)

    out = torch.empty(1, dtype=torch.int16, device=DEVICE)
    loop_kernel[(1,)](torch.full((8,), 2000, dtype=torch.int32, device=DEVICE), out)
    assert out.item() == 3 * 8 * 2000 - (1 << 16)
