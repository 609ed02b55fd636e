"""The TileLang quantizers against the reference, bit for bit. On the CPU the generated CUDA runs in tests/emulator.py,
in three thread orders; on a GPU the same tests run for real."""

import ctypes
import subprocess

import pytest
import torch

pytest.importorskip("tilelang")

from tests import cubin, emulator
from tests.table import BF16, E4M3, E5M2, F16, F32, assert_same_bits, layouts, to_device
from tle_ops._meta import FP8_MAX
from tle_ops.kernels import _tilelang, _tilelang_quant, quant_ref, quant_tilelang

kernels = emulator.kernels  # the fixture


# --- inputs ----------------------------------------------------------------------------------------------------------
def wide(shape, dtype):
    """Magnitudes from 1e-6 to 1e6, so that groups differ"""
    return (torch.randn(shape) * (torch.randn(shape) * 3).exp()).to(dtype)


def special(shape, dtype):
    """Ordinary groups, and among them: NaN of both signs, infinities, zeros of both signs, subnormals, huge numbers."""
    x = wide(shape, dtype)
    flat = x.view(-1)
    values = [torch.nan, -torch.nan, torch.inf, -torch.inf, 3.3e38, -3.3e38, 1e-45, -1e-40, -0.0, 6e4]
    step = max(flat.numel() // len(values), 1)
    for i, v in enumerate(values[: flat.numel()]):
        flat[(i * step + i * i) % flat.numel()] = v
    bits = flat.view(torch.int32 if dtype.itemsize == 4 else torch.int16)
    bits[flat.numel() // 3] = torch.iinfo(bits.dtype).max  # a NaN with a payload
    rows = x.view(-1, shape[-1])
    rows[-1] = 0.0
    rows[-1, ::3] = -0.0
    if len(rows) > 2:
        rows[-2] = 1e-41
        rows[-3] = -9.9e-5  # just below the floor of amax
    return x


def borders(shape, dtype, qdtype, amax):
    """x / scale on the borders between codes and an ulp off, in groups of this amax"""
    codes = torch.arange(256, dtype=torch.uint8).view(qdtype).float()
    codes = codes[codes.isfinite()].sort().values
    middle = (codes[1:] + codes[:-1]) / 2
    scale = torch.tensor(amax) / FP8_MAX[qdtype]
    x = (torch.cat([middle, codes]) * scale).to(dtype)
    x = torch.cat([x, *(x.nextafter(torch.full_like(x, end)) for end in (torch.inf, -torch.inf))])
    x = x.clamp(-amax, amax)[torch.randperm(len(x))]
    count = torch.Size(shape).numel()
    x = x.repeat(-(-count // len(x)))[:count].view(-1, shape[-1])
    x[:, ::4] = amax
    if len(x) >= 4:
        x[::4] = amax
    return x.view(shape)


def inputs(shape, dtype, qdtype):
    yield "wide", wide(shape, dtype)
    yield "special", special(shape, dtype)
    yield "borders", borders(shape, dtype, qdtype, 3.5)  # the scale is a power of two
    yield "odd scale", borders(shape, dtype, qdtype, torch.tensor(0.123).to(dtype).item())


def assert_same(got, want, what):
    for name, g, w in zip(("codes", "scales"), got, want, strict=True):
        assert g.stride() == w.stride(), f"{what}, {name}: strides {g.stride()}, want {w.stride()}"
        kind = torch.int32 if name == "scales" else torch.uint8  # of the many NaNs, the reference's
        assert_same_bits(g.view(kind), w.view(kind), f"{what}, {name}")


def case(id, dtype, shape, *args):
    return pytest.param(dtype, shape, args, id=id)


# --- the arithmetic --------------------------------------------------------------------------------------------------
QUOTIENT = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
static float from(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static uint32_t bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static float quotient(float x, float s) {  // _tilelang_fp8._divide
  float r = 1.0f / s, q = x * r;
  return fmaf(fmaf(q, s, -x), -r, q);
}
// All 2^23 divisors at all borders of FP8 (up to 5 binary digits), and up to 3 ulp off: how many quotients fall on
// another side of the border than the IEEE quotient does.
extern "C" long wrong_sides() {
  long wrong = 0;
  for (uint32_t m = 0; m < 1u << 23; m++) {
    float s = from(0x3f800000u | m);
    for (int t = 16; t < 32; t++) {
      float border = t / 16.0f;
      uint32_t near = bits(s * border);
      for (int d = -3; d <= 3; d++) {
        float x = from(near + d), ours = quotient(x, s), ieee = x / s;
        wrong += (ours < border) != (ieee < border) || (ours > border) != (ieee > border) ||
                 fabsf(ours - ieee) > 2.5e-7f;
      }
    }
  }
  return wrong;
}
// All 2^23 amaxes of one binade: how many scales differ from the IEEE quotient.
extern "C" long wrong_scales(float top) {
  long wrong = 0;
  for (uint32_t m = 0; m < 1u << 23; m++) {
    float amax = from(0x3f800000u | m);
    wrong += bits(quotient(amax, top)) != bits(amax / top);
  }
  return wrong;
}
"""


def test_quotients_are_those_of_ieee_division(tmp_path):
    """Exhaustive: the result scales with powers of two, so one binade of x, divisors and borders stands for all."""
    source, library = tmp_path / "quotient.cpp", tmp_path / "quotient.so"
    source.write_text(QUOTIENT)
    flags = ["-O2", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
    lib = ctypes.CDLL(str(library))
    lib.wrong_sides.restype = lib.wrong_scales.restype = ctypes.c_long
    assert lib.wrong_sides() == 0
    for top in FP8_MAX.values():
        assert lib.wrong_scales(ctypes.c_float(top)) == 0


# --- per token -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype, shape, args",
    [
        case("whole-groups", BF16, (9, 512), 128),
        case("float32-e5m2-ue8m0", F32, (9, 512), 128, E5M2, True),
        case("float16-column-major", F16, (9, 512), 128, E4M3, False, True),
        case("short-last-group-3d", BF16, (2, 3, 1000), 128, E4M3, True, True),
        case("odd-everything", BF16, (7, 1001), 99),
        case("float32-odd", F32, (5, 35), 3),
        case("whole-row", BF16, (3, 4100), -1),
        case("whole-row-float32-read-twice", F32, (2, 40004), -1),
        case("group-longer-than-row", F32, (5, 200), 300, E5M2, False, True),
        case("tiny-groups", BF16, (50, 24), 8, E5M2, False, True),
        case("one-column", F32, (6, 1), 128),
        case("0-rows-of-a-vector", F16, (77,), 16),
    ],
)
def test_per_token_cast_fp8(kernels, dtype, shape, args):
    for name, x in inputs(shape, dtype, args[1] if len(args) > 1 else E4M3):
        assert_same(
            quant_tilelang.per_token_cast_fp8(x.to(kernels), *args), quant_ref.per_token_cast_fp8(x, *args), name
        )


@pytest.mark.parametrize("many", (True, False))
def test_tilings_cover_their_groups(many):
    for width in (1, 2, 4, 8):
        for length in range(width, 40001, width):
            t = _tilelang_quant.Tiling(length, width, many)
            assert (t.chunks - 1) * t.lanes * width < length <= t.chunks * t.lanes * width
            assert t.lanes & (t.lanes - 1) == 0
            assert t.subs * t.lanes == t.threads <= 512
            assert t.steps == 1 or t.lanes <= 32  # warps exchange their maxima once
            assert t.chunks * width * t.steps <= _tilelang_quant.REGISTER_ELEMENTS if t.resident else t.lanes == 512


TILINGS = [  # group, columns, dtype, dtype of the codes, ue8m0, column-major scales
    (8, 8, BF16, E4M3, False, False),  # one thread per group
    (128, 128, F16, E4M3, False, False),
    (128, 128, F32, E5M2, True, False),
    (256, 256, BF16, E4M3, False, False),
    (512, 512, F32, E4M3, False, False),
    (1024, 1024, BF16, E5M2, False, False),
    (2048, 2048, F32, E4M3, True, False),
    (2056, 2056, F16, E4M3, False, False),  # two warps per group, two groups per block
    (4096, 4096, BF16, E5M2, False, False),
    (4096, 4096, F32, E4M3, True, False),
    (4100, 4100, BF16, E4M3, False, False),  # four warps, one group
    (7168, 7168, BF16, E4M3, False, False),
    (8192, 8192, F32, E5M2, False, False),
    (16384, 16384, BF16, E4M3, False, False),
    (33000, 33000, F32, E4M3, False, False),  # read twice
    (128, 328, F32, E4M3, False, True),  # a short last group from here on
    (128, 1000, BF16, E4M3, True, True),
    (2049, 5001, F16, E4M3, False, True),
    (4096, 9000, BF16, E5M2, False, True),
]


@pytest.mark.parametrize("group, N, dtype, qdtype, ue8m0, column_major", TILINGS, ids=lambda v: str(v).split(".")[-1])
def test_tilings_of_large_inputs(kernels, monkeypatch, group, N, dtype, qdtype, ue8m0, column_major):
    """Every kind of tiling, with rows for one and a half blocks: groups of a block differ, the last is not full."""
    monkeypatch.setattr(quant_tilelang, "MANY", 1)
    width = _tilelang.vector_width(quant_tilelang.VECTOR, group, N)
    tiling = _tilelang_quant.Tiling(group, width, True)
    for kind in (wide, special):
        x, args = kind((tiling.steps * tiling.subs * 3 // 2 + 1, N), dtype), (group, qdtype, ue8m0)
        got = quant_tilelang.per_token_cast_fp8(x.to(kernels), *args, column_major)
        assert_same(got, quant_ref.per_token_cast_fp8(x, *args, column_major), kind.__name__)
        if dtype == F16:  # the same code otherwise
            got = quant_tilelang.fake_quant_fp8(x.to(kernels), *args)
            assert_same_bits(got, quant_ref.fake_quant_fp8(x, *args), f"{kind.__name__}, fake quantization")


def test_any_layout(kernels):
    for name, x in layouts(wide((6, 256), BF16)):
        want = x.contiguous()
        (x,) = to_device((x,), kernels)
        assert_same(quant_tilelang.per_token_cast_fp8(x), quant_ref.per_token_cast_fp8(want), name)
        assert_same(quant_tilelang.per_block_cast_fp8(x), quant_ref.per_block_cast_fp8(want), name)
        assert_same(quant_tilelang.per_channel_cast_fp8(x), quant_ref.per_channel_cast_fp8(want), name)
        assert_same_bits(quant_tilelang.fake_quant_fp8(x), quant_ref.fake_quant_fp8(want), name)


@pytest.mark.parametrize(
    "dtype, shape, args",
    [
        case("whole-groups", BF16, (9, 512), 128),
        case("short-last-group", F32, (7, 300), 128, E5M2, True),
        case("whole-row-float16", F16, (3, 4100), -1),
    ],
)
def test_fake_quant_fp8(kernels, dtype, shape, args):
    for name, x in inputs(shape, dtype, args[1] if len(args) > 1 else E4M3):
        assert_same_bits(quant_tilelang.fake_quant_fp8(x.to(kernels), *args), quant_ref.fake_quant_fp8(x, *args), name)


# --- blocks and channels ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype, shape, args",
    [
        case("edges", BF16, (200, 264), 128),
        case("float32-odd-ue8m0", F32, (130, 129), 128, E5M2, True),
        case("batch", BF16, (3, 40, 72), 16),
        case("batch-odd-float16", F16, (2, 13, 11), 5),
        case("read-twice", BF16, (310, 200), 300),
        case("larger-than-x", F32, (9, 12), 1 << 40),
    ],
)
def test_per_block_cast_fp8(kernels, dtype, shape, args):
    for name, x in inputs(shape, dtype, args[1] if len(args) > 1 else E4M3):
        assert_same(
            quant_tilelang.per_block_cast_fp8(x.to(kernels), *args), quant_ref.per_block_cast_fp8(x, *args), name
        )


@pytest.mark.parametrize(
    "dtype, shape, args",
    [
        case("short-last-group", BF16, (200, 264), 128),
        case("float32-odd-ue8m0", F32, (130, 33), 128, E5M2, True),
        case("leading-dimensions", F16, (3, 40, 72), 16),
        case("more-threads-than-rows", BF16, (60, 72), 24),
        case("tall-group", BF16, (300, 40), 256),
        case("odd", BF16, (2, 13, 11), 5),
        case("all-rows", BF16, (310, 200), -1),
        case("read-twice", F32, (70, 12), 1000),
        case("longer-than-x", F32, (70, 12), 1 << 40),
    ],
)
def test_per_channel_cast_fp8(kernels, dtype, shape, args):
    for name, x in inputs(shape, dtype, args[1] if len(args) > 1 else E4M3):
        assert_same(
            quant_tilelang.per_channel_cast_fp8(x.to(kernels), *args), quant_ref.per_channel_cast_fp8(x, *args), name
        )


# --- back ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "op, shape, size, qdtype, dtype",
    [
        ("per_token", (150, 264), 128, E4M3, BF16),
        ("per_token", (5, 7, 9), 3, E5M2, F32),
        ("per_token", (4, 100), -1, E4M3, F16),
        ("per_block", (150, 264), 128, E4M3, BF16),
        ("per_block", (3, 17, 24), 16, E5M2, F32),
        ("per_channel", (150, 264), 128, E4M3, BF16),
        ("per_channel", (5, 7, 9), 3, E5M2, F16),
        ("per_channel", (9, 40), -1, E4M3, F32),
    ],
)
def test_cast_back(kernels, op, shape, size, qdtype, dtype):
    cast, back = f"{op}_cast_fp8", f"{op}_cast_back"
    for name, x in inputs(shape, F32, qdtype):
        q, scales = getattr(quant_ref, cast)(x, size, qdtype)
        want = getattr(quant_ref, back)(q, scales, size, dtype)
        # every code, also those that no cast makes
        odd = torch.arange(q.numel()).to(torch.uint8).view(q.shape).view(qdtype)
        for layout, s in (("row-major", scales), ("column-major", scales.mT.contiguous().mT)):
            got = getattr(quant_tilelang, back)(q.to(kernels), s.to(kernels), size, dtype)
            assert_same_bits(got, want, f"{name}, {layout}")
        got = getattr(quant_tilelang, back)(odd.to(kernels), scales.to(kernels), size, dtype)
        assert_same_bits(got, getattr(quant_ref, back)(odd, scales, size, dtype), f"{name}, all codes")


def test_empty(kernels):
    """Nothing is launched; a group that spans a dimension of size 0 still has a scale."""
    for shape in ((0, 128), (3, 0), (0, 0), (0,)):
        x = torch.empty(shape)
        for args in ((128,), (-1,), (-1, E5M2, True)):
            assert_same(
                quant_tilelang.per_token_cast_fp8(x.to(kernels), *args),
                quant_ref.per_token_cast_fp8(x, *args),
                f"{shape} {args}",
            )
            assert_same(
                quant_tilelang.per_channel_cast_fp8(x.to(kernels), *args),
                quant_ref.per_channel_cast_fp8(x, *args),
                f"{shape} {args}",
            )
        assert quant_tilelang.fake_quant_fp8(x.to(kernels)).shape == x.shape
    q, scales = quant_ref.per_block_cast_fp8(torch.empty(0, 128))
    assert_same(quant_tilelang.per_block_cast_fp8(torch.empty(0, 128).to(kernels)), (q, scales), "blocks")
    assert quant_tilelang.per_block_cast_back(q.to(kernels), scales.to(kernels)).shape == (0, 128)


def test_a_new_row_count_builds_nothing(kernels):
    def calls(M):
        x = wide((M, 256), BF16).to(kernels)
        quant_tilelang.per_token_cast_back(*quant_tilelang.per_token_cast_fp8(x))
        quant_tilelang.per_block_cast_back(*quant_tilelang.per_block_cast_fp8(x))
        quant_tilelang.per_channel_cast_back(*quant_tilelang.per_channel_cast_fp8(x))
        return [len(k.built) for k in vars(_tilelang_quant).values() if isinstance(k, _tilelang.Kernel)]

    assert calls(130) == calls(131) == calls(200)


# --- what the compiler makes of them ---------------------------------------------------------------------------------
KERNELS = _tilelang_quant


@pytest.mark.parametrize(
    "kernel, key, load, store",
    [
        (KERNELS.token_kernel, (BF16, E4M3, 128, None, 1, 8, False, True), "nc.v4.u32", "v4.u16"),
        (KERNELS.token_kernel, (F32, E4M3, 128, None, 1, 8, True, False), "nc.v4.f32", "v4.u16"),
        (KERNELS.token_kernel, (BF16, E4M3, 7168, None, 1, 8, False, True), "nc.v4.u32", "v4.u16"),
        (KERNELS.token_kernel, (BF16, E4M3, 128, 1000, 1, 8, False, True), "nc.v4.u32", "v"),
        (KERNELS.block_kernel, (BF16, E4M3, 128, 8, False, False), "nc.v4.u32", "v4.u16"),
        (KERNELS.channel_kernel, (BF16, E4M3, 128, 8, False), "nc.v4.u32", "v4.u16"),
        (KERNELS.channel_kernel, (F32, E4M3, 128, 8, True), "nc.v4.f32", "v4.u16"),
        (KERNELS.channel_kernel, (BF16, E4M3, None, 8, False), "nc.v4.u32", "v4.u16"),
        (KERNELS.back_kernel, (E4M3, BF16, 1, 128, 8, False), "nc.v2.u32", "v4.u32"),
    ],
    ids=("token", "token-f32", "row", "short-group", "block", "channel", "channel-f32", "all-rows", "back"),
)
def test_ptx(kernel, key, load, store):
    """16-byte loads (8 of codes), at least 8-byte stores, no spills, no division per element."""
    built = cubin.build(kernel.factory(*key), _tilelang.PASS_CONFIGS)
    assert built.spill_bytes == built.stack_bytes == 0
    assert built.count(f"ld.global.{load}")
    assert not built.count("ld.global.nc.u16")
    assert built.count(f"st.global.{store}")
    assert not built.count("st.global.u8")
    assert not built.count("div.rn") + built.count("div.full")
    if kernel is not KERNELS.back_kernel:
        assert built.count("cvt.rn.satfinite.e4m3x2.f32")


@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
@pytest.mark.parametrize("ue8m0", (False, True))
def test_eight_blocks_of_the_channel_kernel_fit(dtype, ue8m0):
    """What its speed rests on: 1024 threads a multiprocessor without spills, and two barriers"""
    built = cubin.build(KERNELS.channel_kernel.factory(dtype, E4M3, 128, 8, ue8m0), _tilelang.PASS_CONFIGS)
    assert built.registers <= 64
    assert built.spill_bytes == built.stack_bytes == 0
    assert built.count("bar.sync").total() + built.count("barrier.sync").total() == 2


# --- on a GPU only ---------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("op, group_size", [("per_token", 128), ("per_token", -1), ("per_channel", 128)])
def test_more_than_2_31_elements(op, group_size):
    N, M, part = 1024, (1 << 21) + 3, 1 << 10
    x = wide((part, N), BF16).cuda().repeat(-(-M // part), 1)[:M]
    q, scales = getattr(quant_tilelang, f"{op}_cast_fp8")(x, group_size)
    rows = group_size if op == "per_channel" else 1  # that share scales
    for first in (0, 1 << 20, (1 << 21) - part, 1 << 21):
        want_q, want_scales = getattr(quant_ref, f"{op}_cast_fp8")(x[first : first + part].cpu(), group_size)
        assert_same_bits(q[first : first + part], want_q, f"row {first}")
        assert_same_bits(scales[first // rows : (first + part) // rows], want_scales, f"row {first}")


@pytest.mark.gpu
@pytest.mark.parametrize("op", ("per_token", "per_block", "per_channel"))
def test_large(op):
    """Every multiprocessor at work, more than 65535 rows"""
    x = wide((70000, 520), BF16)
    got = getattr(quant_tilelang, f"{op}_cast_fp8")(x.cuda())
    want = getattr(quant_ref, f"{op}_cast_fp8")(x)
    assert_same(got, want, op)
    assert_same_bits(getattr(quant_tilelang, f"{op}_cast_back")(*got), getattr(quant_ref, f"{op}_cast_back")(*want), op)


LARGE = [
    ("per_token", (4096, 4096), BF16, -1, E5M2),
    ("per_token", (4096, 4096), F32, -1, E5M2),
    ("per_token", (4096, 4096), F16, -1, E4M3),
    ("per_token", (8192, 2048), BF16, -1, E4M3),
    ("per_token", (4096, 7168), BF16, -1, E4M3),
    ("per_token", (4096, 7168), BF16, 128, E4M3),
    ("per_block", (2100, 4096), BF16, 128, E4M3),
    ("per_channel", (4096, 4096), BF16, 128, E4M3),
    ("per_channel", (4096, 4096), F32, -1, E5M2),
]


@pytest.mark.gpu
@pytest.mark.parametrize("op, shape, dtype, size, qdtype", LARGE, ids=lambda v: str(v).split(".")[-1])
def test_tilings_at_full_size(op, shape, dtype, size, qdtype):
    for kind in (wide, special):
        x = kind(shape, dtype)
        got = getattr(quant_tilelang, f"{op}_cast_fp8")(x.cuda(), size, qdtype)
        want = getattr(quant_ref, f"{op}_cast_fp8")(x, size, qdtype)
        assert_same(got, want, kind.__name__)
        got = getattr(quant_tilelang, f"{op}_cast_back")(*got, size)
        assert_same_bits(got, getattr(quant_ref, f"{op}_cast_back")(*want, size), f"{kind.__name__}, back")
