"""add and scale_cast: what the layers of test_ops.py cannot say."""

import itertools

import pytest
import torch

import tle_ops
from tests.table import BF16, E4M3, E5M2, F16, F32, F64, assert_same_bits, randn

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, F16, BF16, F32, F64]


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    x = randn(*shape, seed=seed, scale=100)
    return x > 0 if dtype == torch.bool else x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)


@pytest.mark.parametrize("a, b", list(itertools.product(DTYPES, DTYPES)), ids=lambda d: str(d)[6:])
def test_add_promotes_as_torch_does(a, b, device):
    """Every pair of dtypes, with a 0-D tensor on either side too, which promotes by category only."""
    for x_shape, y_shape in (((3, 50), (3, 50)), ((3, 50), ()), ((), (50,)), ((), ())):
        x, y = values(a, *x_shape), values(b, *y_shape, seed=1)
        assert_same_bits(tle_ops.add(x.to(device), y.to(device)), x + y, f"{x_shape} {y_shape}")


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_add_broadcasts_a_size_that_only_the_data_tell():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda a, m, c: tle_ops.add(a[m.nonzero().squeeze(1)], c), fullgraph=True, backend="aot_eager"
    )
    a, c = randn(8, 3), randn(3)
    for rows in (8, 1, 0, 5):
        assert_same_bits(compiled(a, torch.arange(8) < rows, c), a[:rows] + c)


def test_add_refuses_what_it_does_not_list():
    for dtype in (torch.uint16, torch.uint64, E4M3):
        with pytest.raises(TypeError, match="add: y must be float32"):
            tle_ops.add(torch.ones(3), torch.ones(3).to(dtype))


def test_add_wraps_integers(device):
    x = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32, device=device)
    assert tle_ops.add(x, x).tolist() == [-2, 0]


def test_add_specials(device):
    inf = torch.inf
    z = tle_ops.add(torch.tensor([-0.0, inf, inf], device=device), torch.tensor([-0.0, -inf, 1.0], device=device)).cpu()
    assert z[0].signbit()
    assert z[1].isnan()
    assert z[2] == inf


def test_add_reads_rows_that_are_2_31_elements_apart(device):
    base = torch.empty(2**31 + 64, dtype=torch.int8, device=device)  # few of its pages are touched
    x = base.as_strided((2, 64), (2**31, 1))
    x.copy_(values(torch.int8, 2, 64))
    y = values(torch.int8, 2, 64, seed=1)
    assert_same_bits(tle_ops.add(x, y.to(device)), values(torch.int8, 2, 64) + y)


def test_scale_cast_saturates(device):
    x = torch.tensor([500.0, -500.0, 1e6, 464.0, 465.0, 479.0, -1e30, 448.0, 0.0, torch.nan, torch.inf, -torch.inf])
    got = tle_ops.scale_cast(x.to(device), 1.0, E4M3).cpu().float()
    want = [448.0, -448.0, 448.0, 448.0, 448.0, 448.0, -448.0, 448.0, 0.0, torch.nan, 448.0, -448.0]
    torch.testing.assert_close(got, torch.tensor(want), rtol=0, atol=0, equal_nan=True)
    got = tle_ops.scale_cast(x.to(device), 1e3, E5M2).cpu().float()
    assert got[[0, 1, 10, 11]].tolist() == [57344.0, -57344.0, 57344.0, -57344.0]
    negative_nan = torch.tensor([-torch.nan], device=device)
    for code in (E4M3, E5M2):
        assert tle_ops.scale_cast(negative_nan, 1.0, code).view(torch.uint8).item() == 0x7F


def test_scale_cast_rounds_once_to_even(device):
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8), 65520.0, 1e6], device=device)
    assert tle_ops.scale_cast(x, 1.0, BF16).float().tolist()[:3] == [1.0, 1 + 2.0**-6, -1.0]
    assert tle_ops.scale_cast(x, 1.0, F16).float().tolist()[3:] == [torch.inf, torch.inf]
    ones = torch.ones(4, dtype=BF16, device=device)
    assert tle_ops.scale_cast(ones, 1.00390625, F32).tolist() == [1.00390625] * 4  # alpha is not rounded to bfloat16


@pytest.mark.parametrize("code", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_scale_cast_from_every_code(code, device):
    q = torch.arange(256).to(torch.uint8).view(code)
    got = tle_ops.scale_cast(q.to(device), 0.37, F32)
    assert_same_bits(got, q.float() * torch.tensor(0.37))


@pytest.mark.gpu
def test_a_new_alpha_builds_no_kernel():
    from tle_ops.kernels import elementwise_triton

    x = randn(100, dtype=BF16).cuda()
    with tle_ops.backend("triton"):
        tle_ops.scale_cast(x, 0.5, F16)
        before = len(elementwise_triton._scale_cast_kernel.variants)
        for alpha in (0.25, 1.0, 3.0):
            assert_same_bits(tle_ops.scale_cast(x, alpha, F16), (x.cpu().float() * alpha).to(F16))
    assert len(elementwise_triton._scale_cast_kernel.variants) == before


@pytest.mark.gpu
def test_add_more_than_2_31_elements():
    n = 2**31 + 4096
    x = torch.ones(n, dtype=torch.int8, device="cuda")
    x[-1] = 5
    for backend in ("triton", "tilelang"):
        with tle_ops.backend(backend):
            z = tle_ops.add(x, x)
        assert z[-1] == 10
        assert int((z != 2).sum()) == 1
        del z
