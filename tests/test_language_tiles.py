"""tle.cumsum, tle.extract_tile, tle.insert_tile and tle.load inside kernels: in Triton's interpreter without a GPU,
compiled with one."""

import dataclasses
import itertools

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

import tle_ops.language as tle
from tests.conftest import CUDA
from tests.table import BF16, F16, F32, F64, assert_same_bits

DEVICE = "cuda" if CUDA else "cpu"
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SUMS = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.uint32, BF16: F32}


# --- cumsum ----------------------------------------------------------------------------------------------------------
@triton.jit
def _cumsum_kernel(x_ptr, e_ptr, t_ptr, n, BLOCK: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr):
    at = tl.arange(0, BLOCK)
    nothing = 0.0 if x_ptr.dtype.element_ty.is_floating() else 0
    x = tle.load(x_ptr + at, mask=at < n, other=nothing, is_async=True)
    exclusive, total = tle.cumsum(x, axis=0, reverse=REVERSE, dtype=DTYPE)
    tl.store(e_ptr + at, exclusive, mask=at < n)
    tl.store(t_ptr, total)


def run_cumsum(x, block, reverse=False, dtype=None, out=None):
    out = out or SUMS.get(x.dtype, x.dtype)
    exclusive, total = torch.zeros(x.shape[0], dtype=out, device=DEVICE), torch.zeros(1, dtype=out, device=DEVICE)
    _cumsum_kernel[(1,)](x.to(DEVICE), exclusive, total, x.shape[0], block, reverse, dtype)
    return exclusive.cpu(), total.cpu()[0]


def sums(v, reverse):
    v = v.flip(0) if reverse else v
    exclusive = torch.cat([v.new_zeros(1), v.cumsum(0)[:-1]])
    return (exclusive.flip(0) if reverse else exclusive), v.sum()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n, block", [(512, 512), (257, 512), (1, 16), (127, 128), (2048, 2048)])
def test_cumsum_of_integers(n, block, reverse):
    for dtype in INTS:
        x = torch.randint(0, 100, (n,)).to(dtype)
        exclusive, total = run_cumsum(x, block, reverse)
        want, want_total = sums(x.long(), reverse)
        assert_same_bits(exclusive.long(), want)
        assert total.item() == want_total


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n, block", [(512, 512), (193, 256), (1, 16), (127, 128)])
def test_cumsum_of_floats(n, block, reverse):
    for dtype, tolerance in ((F64, 1e-12), (F32, 1e-5), (BF16, 1e-5), (F16, 0.1)):
        x = torch.randn(n).to(dtype)
        exclusive, total = run_cumsum(x, block, reverse)
        want, want_total = sums(x.double(), reverse)
        torch.testing.assert_close(exclusive.double(), want, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(total.double(), want_total, rtol=tolerance, atol=tolerance)


def test_cumsum_in_an_asked_for_dtype():
    ones = torch.ones(4096, dtype=F16)
    exclusive, total = run_cumsum(ones, 4096, dtype=tl.float32, out=F32)  # in float16 it would stall at 2048
    assert_same_bits(exclusive, torch.arange(4096.0))
    assert total == 4096
    wide, _ = run_cumsum(torch.full((4,), 2**31 - 1, dtype=torch.int32), 4, dtype=tl.int64, out=torch.int64)
    assert wide.tolist() == [i * (2**31 - 1) for i in range(4)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_of_integers_wraps(reverse, dtype):
    top = torch.iinfo(dtype).max
    x = torch.full((100,), top, dtype=dtype)
    exclusive, total = run_cumsum(x, 128, reverse)
    bits = torch.iinfo(dtype).bits
    want = [(i * top + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for i in range(101)]
    assert exclusive.tolist() == (want[99::-1] if reverse else want[:100])
    assert total.item() == want[100]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_cumsum_of_8_bit_floats_is_in_float32(dtype):
    x = torch.randn(100).to(dtype)
    exclusive, total = run_cumsum(x, 128, out=F32)
    want, want_total = sums(x.double(), False)
    torch.testing.assert_close(exclusive.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.double(), want_total, rtol=1e-5, atol=1e-5)


def test_cumsum_keeps_infinity_out_of_the_sums_before_it():
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([1.0, inf, 2.0, 3.0, -inf, 1.0, 1.0, 1.0])
    exclusive, total = run_cumsum(x, 8)
    assert_same_bits(exclusive, torch.tensor([0, 1, inf, inf, inf, nan, nan, nan]))
    assert total.isnan()
    exclusive, _ = run_cumsum(x, 8, reverse=True)
    assert_same_bits(exclusive, torch.tensor([nan, -inf, -inf, -inf, 3.0, 2.0, 1.0, 0.0]))


@triton.jit
def _scalar_cumsum_kernel(x_ptr, out_ptr):
    exclusive, total = tle.cumsum(tl.load(x_ptr))
    tl.store(out_ptr, exclusive)
    tl.store(out_ptr + 1, total)


def test_cumsum_of_a_scalar():
    out = torch.full((2,), 7.0, device=DEVICE)
    _scalar_cumsum_kernel[(1,)](torch.tensor([3.5], device=DEVICE), out)
    assert out.tolist() == [0, 3.5]


@triton.jit
def _compaction_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """What the exclusive sum is for: a place for each element that stays. Beside it a live block: scratch memory of the
    scan must not run over it."""
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    neighbour = tl.gather(x, (at + 1) % BLOCK, 0)
    keep = (x > 0) & (at < n)
    place, count = tle.cumsum(keep)
    tl.store(out_ptr + place, x, mask=keep)
    tl.store(out_ptr + BLOCK + at, tl.gather(neighbour, (at + BLOCK - 1) % BLOCK, 0))
    tl.store(out_ptr + 2 * BLOCK, count.to(tl.float32))


def test_cumsum_in_a_compaction():
    x = torch.randn(200)
    out = torch.zeros(2 * 256 + 1, device=DEVICE)
    _compaction_kernel[(1,)](x.to(DEVICE), out, 200, 256)
    kept = x[x > 0]
    assert_same_bits(out[: len(kept)], kept)
    assert out[512] == len(kept)
    assert_same_bits(out[256:456], x)


def error_of(call) -> str:
    """The messages of a CompilationError, or of the interpreter's error, and of its causes."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    messages, error = [], caught.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    return "\n".join(messages)


@triton.jit
def _two_dims_kernel(x_ptr):
    tle.cumsum(tl.load(x_ptr + tl.arange(0, 4)[:, None] + tl.arange(0, 4)[None, :]))


@triton.jit
def _axis_kernel(x_ptr):
    tle.cumsum(tl.load(x_ptr + tl.arange(0, 4)), axis=1)


@pytest.mark.parametrize("kernel, text", [(_two_dims_kernel, "one dimension"), (_axis_kernel, "axis must be 0")])
def test_cumsum_errors(kernel, text):
    assert text in error_of(lambda: kernel[(1,)](torch.zeros(16, device=DEVICE)))


# --- tiles -----------------------------------------------------------------------------------------------------------
@triton.jit
def _extract_kernel(
    x_ptr, out_ptr, i, j, M: tl.constexpr, N: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr, LINEAR: tl.constexpr
):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if LINEAR:
        y = tle.extract_tile(x, i * (N // T1) + j, shape=[T0, T1])
    else:
        y = tle.extract_tile(x, [i, j], tile_shape=[T0, T1])
    tl.store(out_ptr + tl.arange(0, T0)[:, None] * T1 + tl.arange(0, T1)[None, :], y)


@triton.jit
def _insert_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    i,
    j,
    M: tl.constexpr,
    N: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    LINEAR: tl.constexpr,
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + tl.arange(0, T0)[:, None] * T1 + tl.arange(0, T1)[None, :])
    if LINEAR:
        tl.store(out_ptr + at, tle.insert_tile(x, y, i * (N // T1) + j))
    else:
        tl.store(out_ptr + at, tle.insert_tile(x, y, [i, j]))


@triton.jit
def _static_kernel(x_ptr, out_ptr, AT0: tl.constexpr, AT1: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :])
    y = tle.extract_tile(x, [AT0, AT1], [T0, T1])
    tl.store(out_ptr + tl.arange(0, T0)[:, None] * T1 + tl.arange(0, T1)[None, :], y)


def tile_of(x, i, j, T0, T1):
    return x[i * T0 : (i + 1) * T0, j * T1 : (j + 1) * T1]


@pytest.mark.parametrize("T0, T1", [(4, 8), (16, 32), (1, 1), (8, 1), (2, 32)])
@pytest.mark.parametrize("dtype", [F32, F16, BF16, torch.int8, torch.int32, torch.int64], ids=str)
def test_tiles_at_run_time(dtype, T0, T1):
    x = (torch.randn(16, 32) * 50).to(dtype)
    y = (torch.randn(T0, T1) * 50).to(dtype)
    for i, j, linear in itertools.product((0, 16 // T0 - 1), (0, 32 // T1 - 1), (False, True)):
        out = torch.empty(T0, T1, dtype=dtype, device=DEVICE)
        _extract_kernel[(1,)](x.to(DEVICE), out, i, j, 16, 32, T0, T1, linear)
        assert_same_bits(out, tile_of(x, i, j, T0, T1))
        out = torch.empty_like(x, device=DEVICE)
        _insert_kernel[(1,)](x.to(DEVICE), y.to(DEVICE), out, i, j, 16, 32, T0, T1, linear)
        want = x.clone()
        tile_of(want, i, j, T0, T1).copy_(y)
        assert_same_bits(out, want)


@pytest.mark.parametrize("linear", [16, 17, 64, -16, -17, 2**31 - 1, -(2**31)])
def test_inserting_outside_of_the_grid_changes_nothing(linear):
    x = torch.randn(16, 32)
    out = torch.empty_like(x, device=DEVICE)
    _insert_kernel[(1,)](x.to(DEVICE), torch.zeros(4, 8, device=DEVICE), out, 0, linear, 16, 32, 4, 8, True)
    assert_same_bits(out, x)


def test_tiles_at_compile_time():
    x = torch.randn(16, 32)
    for i, j in ((0, 0), (3, 1), (1, 3)):
        out = torch.empty(4, 8, device=DEVICE)
        _static_kernel[(1,)](x.to(DEVICE), out, i, j, 4, 8)
        assert_same_bits(out, tile_of(x, i, j, 4, 8))


def test_tiles_keep_signs_of_zero_and_nan():
    x = torch.tensor([-0.0, float("nan"), float("inf"), 1.0]).repeat(4, 1)
    out = torch.empty(2, 2, device=DEVICE)
    _extract_kernel[(1,)](x.to(DEVICE), out, 1, 0, 4, 4, 2, 2, False)
    assert torch.equal(out.cpu().view(torch.int32), x[2:, :2].contiguous().view(torch.int32))


@triton.jit
def _ranks_kernel(x_ptr, one_ptr, three_ptr, i):
    x = tl.load(x_ptr + tl.arange(0, 64))
    tl.store(one_ptr + tl.arange(0, 8), tle.extract_tile(x, i, [8]))
    cube = tl.reshape(x, (4, 4, 4))
    tile = tle.extract_tile(cube, [1, i % 2, 0], [2, 2, 2])
    tl.store(three_ptr + tl.arange(0, 8), tl.reshape(tile, (8,)))
    back = tle.insert_tile(cube, tile * 2, [0, 1, i - 2])
    tl.store(three_ptr + 8 + tl.arange(0, 64), tl.reshape(back, (64,)))


def test_tiles_of_one_and_three_dimensions():
    x = torch.arange(64.0)
    one, three = torch.empty(8, device=DEVICE), torch.empty(72, device=DEVICE)
    _ranks_kernel[(1,)](x.to(DEVICE), one, three, 3)
    assert_same_bits(one, x[24:32])
    cube = x.view(4, 4, 4)
    tile = cube[2:4, 2:4, 0:2]
    assert_same_bits(three[:8].view(2, 2, 2), tile)
    want = cube.clone()
    want[0:2, 2:4, 2:4] = tile * 2
    assert_same_bits(three[8:].view(4, 4, 4), want)


@triton.jit
def _fused_kernel(x_ptr, out_ptr):
    """Tiles of different sizes in one kernel, each the input of the next."""
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + at)
    big = tle.extract_tile(x, [1, 0], [8, 8])
    small = tle.extract_tile(big, [0, 1], [4, 4])
    total, _ = tle.cumsum(tl.reshape(small, (16,)))
    big = tle.insert_tile(big, tl.reshape(total, (4, 4)), [1, 1])
    tl.store(out_ptr + at, tle.insert_tile(x, big, [0, 1]))


def test_tiles_in_a_fused_kernel():
    x = torch.randint(0, 9, (16, 16)).float()
    out = torch.empty(16, 16, device=DEVICE)
    _fused_kernel[(1,)](x.to(DEVICE), out)
    big = x[8:, :8].clone()
    big[4:, 4:] = sums(big[:4, 4:].flatten(), False)[0].view(4, 4)
    want = x.clone()
    want[:8, 8:] = big
    assert_same_bits(out, want)


@triton.jit
def _method_kernel(x_ptr, y_ptr, tile_ptr, out_ptr):
    at = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    of_tile = tl.arange(0, 2)[:, None] * 2 + tl.arange(0, 2)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(tile_ptr + of_tile, x.extract_tile(index=[0, 0], shape=[2, 2]))
    tl.store(out_ptr + at, x.insert_tile(tl.load(y_ptr + of_tile), index=[0, 0]))


def test_methods(monkeypatch):
    for name in ("extract_tile", "insert_tile"):
        assert not hasattr(tl.tensor, name)
        monkeypatch.setattr(tl.tensor, name, None, raising=False)  # taken back after the test
    tle.bind_methods()
    x, y = torch.arange(16.0).view(4, 4), -torch.ones(2, 2)
    tile, out = torch.empty(2, 2, device=DEVICE), torch.empty(4, 4, device=DEVICE)
    _method_kernel[(1,)](x.to(DEVICE), y.to(DEVICE), tile, out)
    assert_same_bits(tile, x[:2, :2])
    x[:2, :2] = y
    assert_same_bits(out, x)


@triton.jit
def _every_tile_kernel(x_ptr, out_ptr, i, SHAPE: tl.constexpr, TILE: tl.constexpr, AT: tl.constexpr):
    """One tile, by its coordinates known now, by its number known now, by its number at run time; and back into x."""
    n: tl.constexpr = SHAPE[0] * SHAPE[1] * SHAPE[2]
    m: tl.constexpr = TILE[0] * TILE[1] * TILE[2]
    x = tl.reshape(tl.load(x_ptr + tl.arange(0, n)), SHAPE)
    linear: tl.constexpr = (AT[0] * (SHAPE[1] // TILE[1]) + AT[1]) * (SHAPE[2] // TILE[2]) + AT[2]
    one = tle.extract_tile(x, AT, TILE)
    two = tle.extract_tile(x, linear, tile_shape=TILE)
    three = tle.extract_tile(x, i, TILE)
    tl.store(out_ptr + tl.arange(0, m), tl.reshape(one, (m,)))
    tl.store(out_ptr + m + tl.arange(0, m), tl.reshape(two, (m,)))
    tl.store(out_ptr + 2 * m + tl.arange(0, m), tl.reshape(three, (m,)))
    y = tle.insert_tile(x, tl.zeros_like(one), AT)
    z = tle.insert_tile(y, one, i)  # as it was
    tl.store(out_ptr + 3 * m + tl.arange(0, n), tl.reshape(y, (n,)))
    tl.store(out_ptr + 3 * m + n + tl.arange(0, n), tl.reshape(z, (n,)))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("shape, tile", [((2, 16, 4), (1, 2, 4)), ((1, 1, 64), (1, 1, 1)), ((8, 4, 2), (8, 4, 2))])
def test_every_tile_of_a_block(shape, tile, dtype):
    x = torch.randn(shape).to(dtype)
    grid = [n // t for n, t in zip(shape, tile, strict=True)]
    places = list(itertools.product(*map(range, grid)))
    m, n = x[tuple(slice(t) for t in tile)].numel(), x.numel()
    for at in places[:: max(len(places) // 8, 1)]:
        i = places.index(at)
        out = torch.zeros(3 * m + 2 * n, dtype=dtype, device=DEVICE)
        _every_tile_kernel[(1,)](x.to(DEVICE), out, i, shape, tile, at)
        slices = tuple(slice(c * t, (c + 1) * t) for c, t in zip(at, tile, strict=True))
        for part in out[: 3 * m].cpu().split(m):
            assert_same_bits(part.view(tile), x[slices])
        y = x.clone()
        y[slices] = 0
        assert_same_bits(out[3 * m : 3 * m + n].cpu().view(shape), y)
        assert_same_bits(out[3 * m + n :].cpu().view(shape), x)


@triton.jit
def _bands_kernel(x_ptr, y_ptr, i, M: tl.constexpr, N: tl.constexpr):
    """One band of rows goes to the place of another."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    band = tle.extract_tile(x, [i, 0], [M // 4, N])
    tl.store(y_ptr + at, tle.insert_tile(x, band, [3, 0]))


@pytest.mark.parametrize("i", [0, 1, 3])
def test_bands(i):
    x = torch.randn(128, 64)
    y = torch.empty_like(x, device=DEVICE)
    _bands_kernel[(1,)](x.to(DEVICE), y, i, 128, 64)
    want = x.clone()
    want[96:] = x[32 * i : 32 * (i + 1)]
    assert_same_bits(y, want)


@triton.jit
def _outside_kernel(x_ptr, i, FORM: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :])
    if FORM == 0:
        tle.extract_tile(x, [0, i], [4, 4])
    elif FORM == 1:
        tle.extract_tile(x, i, [4, 4])
    else:
        tle.insert_tile(x, tl.zeros((4, 4), tl.float32), [i, 0])


@pytest.mark.parametrize("form, inside", [(0, 2), (1, 4), (2, 2)])
def test_a_run_time_index_is_checked_in_debug_mode(form, inside, monkeypatch):
    if CUDA:  # an assertion on the GPU ends the process's context: seen in the code alone
        plain, debug = (
            _outside_kernel.warmup(torch.float32, 3, form, grid=(1,), debug=d).asm["ttir"] for d in (False, True)
        )
        assert "tt.assert" in debug
        assert "tt.assert" not in plain
        return
    x = torch.zeros(64)
    for i in (-1, inside):
        _outside_kernel[(1,)](x, i, form)  # unchecked, and harmless
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, debug=True))
    _outside_kernel[(1,)](x, inside - 1, form)
    for i in (-1, inside):
        assert "index outside the grid of tiles" in error_of(lambda i=i: _outside_kernel[(1,)](x, i, form))


@triton.jit
def _bad_extract_kernel(x_ptr, CASE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :])
    n = tl.load(x_ptr).to(tl.int32)
    if CASE == 0:
        tle.extract_tile(x, [0, 0], [8, 16])
    elif CASE == 1:
        tle.extract_tile(x, [0, 0], [8])
    elif CASE == 2:
        tle.extract_tile(x, [0], [4, 4])
    elif CASE == 3:
        tle.extract_tile(x, [0, 2], [4, 4])
    elif CASE == 4:
        tle.extract_tile(x, 4, [4, 4])
    elif CASE == 5:
        tle.extract_tile(x, [0, 0])
    elif CASE == 6:
        tle.insert_tile(x, tl.zeros((4, 4), tl.int32), [0, 0])
    elif CASE == 7:
        tle.insert_tile(x, tl.zeros((4, 4), tl.float32), [-1, 0])
    elif CASE == 8:
        tle.extract_tile(x, [0, 0], [4, 4], tile_shape=[4, 4])
    elif CASE == 9:
        tle.extract_tile(x, [0, 0], [4, n])
    elif CASE == 10:
        tle.extract_tile(x, [0, 0], [4, 2.0])
    elif CASE == 11:
        tle.extract_tile(x, [0, 0], [4, 0])
    elif CASE == 12:
        tle.extract_tile(x, [0, n + 0.5], [4, 4])
    elif CASE == 13:
        tle.extract_tile(x, [0, 0.5], [4, 4])
    elif CASE == 14:
        tle.extract_tile(x, [n, tl.arange(0, 2)], [4, 4])
    elif CASE == 15:
        tle.extract_tile(n, 0, [4, 4])
    elif CASE == 16:
        tle.insert_tile(x, n.to(tl.float32), [0, 0])
    elif CASE == 17:
        tle.insert_tile(x, 3, [0, 0])
    elif CASE == 18:
        tle.insert_tile(x, tl.zeros((4,), tl.float32), [0, 0])
    elif CASE == 19:
        tle.insert_tile(x, tl.zeros((16, 4), tl.float32), [0, 0])
    else:
        tle.insert_tile(x, tl.zeros((4, 4), tl.float32), [0, 0, n])


TILE_ERRORS = [
    *enumerate(
        [
            "extract_tile: tile must divide the block, got [8, 16] and [8, 8]",
            "extract_tile: tile must have the 2 dimensions of the block, got 1",
            "extract_tile: index must have the 2 dimensions of the block, got 1",
            "extract_tile: index must be in [0, 2), got 2",
            "extract_tile: index must be in [0, 4), got 4",
            "extract_tile: one of shape and tile_shape must be given",
            "insert_tile: tile must have the dtype of the block, fp32, got int32",
            "insert_tile: index must be in [0, 2), got -1",
            "extract_tile: one of shape and tile_shape must be given",
            "extract_tile: shape must be compile-time ints, got",
            "extract_tile: shape must be compile-time ints, got 2.0",
            "extract_tile: tile must divide the block, got [4, 0] and [8, 8]",
            "extract_tile: index must be of ints and integer scalars, got a run-time value (fp32)",
            "extract_tile: index must be of ints and integer scalars, got 0.5",
            "extract_tile: index must be of ints and integer scalars, got a run-time value (int32 [2])",
            "extract_tile: x must have dimensions, got a scalar",
            "insert_tile: tile must have dimensions, got a scalar",
            "insert_tile: tile must be a block, got 3",
            "insert_tile: tile must have the 2 dimensions of the block, got 1",
            "insert_tile: tile must divide the block, got [16, 4] and [8, 8]",
            "insert_tile: index must have the 2 dimensions of the block, got 3",
        ]
    )
]


@pytest.mark.parametrize("case, text", TILE_ERRORS)
def test_tile_errors(case, text):
    assert text in error_of(lambda: _bad_extract_kernel[(1,)](torch.zeros(64, device=DEVICE), case))
