"""tle.pipe: compiled for sm_90 everywhere, and run on a GPU. (Its protocol on the host: test_language_pipe_protocol.py;
its errors: test_language_gpu.py.)"""

import pytest
import torch

from tests import gluon_build
from tests.conftest import CUDA
from tests.table import assert_same_bits

if CUDA:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from tests import pipe_kernels as kernels

CAPACITIES = (1, 2, 3, 4, 5, 7, 8)


def unset(x):
    return torch.full_like(x, torch.nan)


# --- compiled ---------------------------------------------------------------------------------------------------------
def test_kernels_compile_for_sm_90():
    """Every form of a pipe. No spills, no division of a run-time iteration, and before each arrival of one thread for
    its role a barrier of the role."""
    lines = gluon_build.built("pipes")
    assert len(lines) > 15
    for name, line in lines.items():
        assert "error" not in line, f"{name}: {line['error']}"
        assert line["cubin"] > 0, name
        assert line["waits"] > 0, name
        assert line["arrivals"] > 0, name
        assert line["spilled"] == line["divisions"] == line["unordered"] == 0, f"{name}: {line}"
        assert (line["tma"] > 0) == name.startswith(("tma", "mixed")), name
        assert (line["cp_async_arrivals"] > 0) == name.startswith(("cp.async", "mixed")), name
        assert (line["roles"] > 0) == name.startswith(("two", "tma", "cp.async", "mixed", "close", "cursor")), name


# --- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_one_role(capacity):
    for ahead in {0, 1, capacity // 2, capacity - 1} - {-1}:
        if ahead >= capacity:
            continue
        for n in (0, 1, capacity, 4 * capacity + 1, 200):
            x = torch.randn(n * 256, device="cuda")
            out = unset(x)
            kernels.one_role[(1,)](x, out, n, 256, capacity, ahead)
            assert_same_bits(out, x * 2, f"{capacity} {ahead} {n}")


@pytest.mark.gpu
@pytest.mark.parametrize("cursor", [False, True])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_two_readers(capacity, cursor):
    for n in (0, 1, capacity, 4 * capacity + 1, 1000):
        x, scale = (torch.randn(n * 512, device="cuda") for _ in range(2))
        mul, copy = unset(x), unset(x)
        kernels.two_readers[(1,)](x, scale, mul, copy, n, 512, capacity, cursor)
        assert_same_bits(mul, x * scale)
        assert_same_bits(copy, x)


@pytest.mark.gpu
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_closing(capacity):
    for n in (0, 1, capacity, 4 * capacity + 1, 1000):
        x = torch.randn(n * 256, device="cuda")
        out = unset(x)
        kernels.closing[(1,)](x, torch.tensor([n], dtype=torch.int32, device="cuda"), out, 256, capacity)
        assert_same_bits(out, x)


@pytest.mark.gpu
def test_one_shot():
    x = torch.randn(512, device="cuda")
    out = unset(x)
    kernels.broadcast_once[(1,)](x, out, 512)
    assert_same_bits(out, x)


def tiles(n):
    x = torch.randn(max(n, 1) * 32, 32, device="cuda")
    layout = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
    return x, TensorDescriptor.from_tensor(x, [32, 32], layout)


@pytest.mark.gpu
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_tma(capacity):
    for n in (1, capacity, 4 * capacity + 1, 1000):
        x, descriptor = tiles(n)
        out = unset(x)
        kernels.by_tma[(1,)](descriptor, out, n, 32, 32, capacity)
        assert_same_bits(out, x)


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_cp_async(capacity, warps):
    for n in (1, capacity, 4 * capacity + 1, 1000):
        x = torch.randn(n * 32, 32, device="cuda")
        out = unset(x)
        kernels.by_cp_async[(1,)](x, out, n, x.numel() - 40, 32, 32, capacity, warps)
        x.view(-1)[-40:] = 0  # masked out
        assert_same_bits(out, x)


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_three_transports_in_one_slot(capacity, warps):
    for n in (1, capacity, 4 * capacity + 1, 500):
        x, descriptor = tiles(n)
        c, scale = torch.randn_like(x), torch.randn(n * 32, device="cuda")
        out = unset(x)
        kernels.mixed[(1,)](descriptor, c, scale, out, n, 32, 32, capacity, warps)
        torch.testing.assert_close(out, x * scale[:, None] + c, rtol=1e-6, atol=1e-6)
