"""The seam to TileLang and the elementwise kernels. On the CPU the generated CUDA runs in tests/emulator.py, in three
thread orders; on a GPU the same tests run for real. The quantizers are in test_tilelang_fp8.py."""

import contextlib
import threading

import pytest
import torch

pytest.importorskip("tilelang")

import tilelang
import tilelang.language as T

from tests import cubin, emulator
from tests.table import BF16, E4M3, E5M2, F16, F32, assert_same_bits, layouts, to_device
from tle_ops.kernels import _tilelang, elementwise_ref, elementwise_tilelang
from tle_ops.kernels._tilelang import Kernel

kernels = emulator.kernels  # the fixture


def specials(n, dtype):
    values = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 1e-45, -1e-40, 1e-38, 3e38, -3e38, 65504, 448]
    return torch.tensor(values).repeat(-(-n // len(values)))[:n].to(dtype)


# --- the seam --------------------------------------------------------------------------------------------------------
def copy_factory(n):
    @T.prim_func
    def copy(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            i = T.get_thread_binding()
            Y[i] = X[i]

    return copy


def test_a_kernel_is_built_once_by_eight_threads(monkeypatch):
    built = []

    def compile_prim_func(prim_func, device, pass_configs):
        built.append(prim_func)
        return lambda *args: prim_func

    monkeypatch.setattr(_tilelang, "compile_prim_func", compile_prim_func)
    kernel = Kernel(copy_factory)
    barrier, found = threading.Barrier(8), [None] * 8

    def ask(i):
        barrier.wait()
        found[i] = kernel(torch.device("cpu"), 32 + i % 2)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(built) == 2
    assert len({id(f) for f in found[::2]}) == len({id(f) for f in found[1::2]}) == 1
    assert found[0] is not found[1]


def test_launch_of_a_compiled_and_of_a_cached_kernel(monkeypatch, tmp_path):
    """Built for real, for a pretended device 0, which must be current during the launch and not after it. The host code
    refuses the CPU tensors."""
    entered = []

    @contextlib.contextmanager
    def guard(index):
        entered.append(index)
        try:
            yield
        finally:
            entered.append("left")

    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", guard)
    x, prim_func = torch.zeros(32), copy_factory(32)
    for kind in ("compiled", "from the disk"):
        tilelang.cache._dispatch_map["tvm_ffi"]._memory_cache.clear()
        _tilelang._entry.cache_clear()
        for current in (0, 1):
            monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
            launch = _tilelang.compile_prim_func(prim_func, torch.device("cuda", 0))
            with pytest.raises(RuntimeError, match="device_type"):
                launch(x, torch.empty_like(x))
            assert entered == [0, "left"] * current, kind
            entered.clear()
    assert list(tmp_path.rglob("*.so"))


def test_arch():
    assert [_tilelang.arch(c) for c in ((8, 0), (8, 9), (9, 0), (10, 0))] == ["sm_80", "sm_89", "sm_90a", "sm_100a"]


def test_vector_width():
    assert _tilelang.vector_width(8) == 8
    assert _tilelang.vector_width(8, 128, 24, 4096) == 8
    assert _tilelang.vector_width(8, 128, 12) == 4
    assert _tilelang.vector_width(8, 7, 128) == 1
    assert _tilelang.vector_width(8, 0) == 8


# --- the emulator itself ---------------------------------------------------------------------------------------------
def reverse(sync):
    @T.prim_func
    def reverse(X: T.Tensor((256,), "int32"), Y: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((256,), "int32")
            t = T.get_thread_binding()
            s[t] = X[t]
            if sync:
                T.sync_threads()
            Y[t] = s[255 - t]

    return reverse


def test_emulator_notices_a_missing_barrier():
    x = torch.arange(256, dtype=torch.int32)
    right = {}
    for sync in (True, False):
        kernel = emulator.EmulatedKernel(reverse(sync), {"tl.disable_thread_storage_sync": True})
        for order in emulator.ORDERS:
            y = torch.zeros_like(x)
            kernel(x, y, order=order)
            right[sync, order] = torch.equal(y, x.flip(0))
    assert all(right[True, order] for order in emulator.ORDERS)
    assert not any(right[False, order] for order in emulator.ORDERS)


def test_emulator_notices_a_write_past_the_end():
    @T.prim_func
    def past_the_end(X: T.Tensor((31,), "int32")):
        with T.Kernel(1, threads=32):
            X[T.get_thread_binding()] = 1

    kernel = emulator.EmulatedKernel(past_the_end, _tilelang.PASS_CONFIGS)
    with pytest.raises(MemoryError, match="outside of X"):
        kernel(torch.zeros(31, dtype=torch.int32))


def test_emulator_notices_a_write_past_the_end_of_shared_memory():
    @T.prim_func
    def past_the_end(X: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((63,), "int32")
            t = T.get_thread_binding()
            s[t] = X[t]
            T.sync_threads()
            X[t] = s[t // 2]

    kernel = emulator.EmulatedKernel(past_the_end, _tilelang.PASS_CONFIGS)
    with pytest.raises(MemoryError, match="past its 252 bytes of shared memory"):
        kernel(torch.zeros(64, dtype=torch.int32))


# --- add -------------------------------------------------------------------------------------------------------------
# Fewer elements than a vector; a block and its tail; whole blocks only.
SIZES = (3, 5001, 8192)


@pytest.mark.parametrize("variant", ("add_flat", "add_thread_vec", "add_register_vec"))
@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_add_variants(kernels, variant, dtype):
    for n in SIZES:
        x, y = torch.randn(n).to(dtype), torch.randn(n).to(dtype)
        x[: min(n, 500)] = specials(min(n, 500), dtype)
        got = getattr(elementwise_tilelang, variant)(x.to(kernels), y.to(kernels))
        assert_same_bits(got, elementwise_ref.add(x, y), f"{n} elements")


@pytest.mark.parametrize("dtype", (torch.bool, torch.uint8, torch.int64), ids=str)
def test_add_integers_wrap_and_bools_or(kernels, dtype):
    top = 1 << 62 if dtype is torch.int64 else 255
    for n in SIZES:
        x, y = torch.randint(0, top, (n,)).to(dtype), torch.randint(0, top, (n,)).to(dtype)
        assert_same_bits(elementwise_tilelang.add((x * 2).to(kernels), y.to(kernels)), x * 2 + y, f"{n} elements")


def test_add_any_layout(kernels):
    y = torch.randn(6, 40)
    for name, x in layouts(torch.randn(6, 40)):
        (moved,) = to_device((x,), kernels)
        assert_same_bits(elementwise_tilelang.add(moved, y.to(kernels)), x + y, name)


@pytest.mark.parametrize(
    "x, y",
    [
        (torch.randn(3, 1, 5), torch.randn(4, 1)),
        (torch.randn(7), torch.arange(7, dtype=torch.int32)),
        (torch.randn(7).bfloat16(), torch.tensor(2.5)),
        (torch.tensor(1.5), torch.tensor(2.5)),
        (torch.randn(0, 3), torch.randn(3)),
    ],
    ids=("broadcast", "mixed", "scalar", "0-d", "empty"),
)
def test_add_broadcasts_and_promotes(kernels, x, y):
    assert_same_bits(elementwise_tilelang.add(x.to(kernels), y.to(kernels)), elementwise_ref.add(x, y))


# --- scale_cast ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype, out_dtype",
    [(F32, F16), (F32, E4M3), (BF16, F16), (BF16, E5M2), (F16, BF16), (E4M3, BF16), (E5M2, E4M3)],
    ids=lambda d: str(d)[6:],
)
def test_scale_cast(kernels, dtype, out_dtype):
    for n in SIZES:
        x = torch.randn(n) * torch.randn(n).mul(4).exp()
        x[: n // 2] = specials(n // 2, F32)
        x = elementwise_ref.saturating_cast(x, dtype)
        for alpha in (0.37, -1.0, 1e-3):  # one build for all
            got = elementwise_tilelang.scale_cast(x.to(kernels), alpha, out_dtype)
            assert_same_bits(got, elementwise_ref.scale_cast(x, alpha, out_dtype), f"{n} elements, alpha {alpha}")


def test_scale_cast_rounds_ties_to_even(kernels):
    """Every number halfway between two codes, and its neighbours"""
    for out_dtype in (E4M3, E5M2):
        codes = torch.arange(256, dtype=torch.uint8).view(out_dtype).float()
        codes = codes[codes.isfinite()].sort().values
        middle = (codes[1:] + codes[:-1]) / 2
        up, down = (middle.nextafter(torch.full_like(middle, end)) for end in (torch.inf, -torch.inf))
        x = torch.cat([middle, up, down])
        got = elementwise_tilelang.scale_cast(x.to(kernels), 1.0, out_dtype)
        assert_same_bits(got, elementwise_ref.scale_cast(x, 1.0, out_dtype))


def test_scale_cast_unaligned_strided_and_empty(kernels):
    base = torch.randn(2, 34).bfloat16().to(kernels)
    for x in (base.flatten()[1:], base.t(), base[:, ::2], base[:0], base[0, 0]):
        got = elementwise_tilelang.scale_cast(x, 3.0, E4M3)
        assert_same_bits(got, elementwise_ref.scale_cast(x.cpu(), 3.0, E4M3), str(x.stride()))


# --- what the compiler makes of them ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kernel, key, loads, stores",
    [
        (elementwise_tilelang.add_thread_vec_kernel, (F32, 4), "v4.f32", "v4.f32"),
        (elementwise_tilelang.add_thread_vec_kernel, (BF16, 8), "v4.u32", "v4.u32"),
        (elementwise_tilelang.add_register_vec_kernel, (BF16, 8), "v4.u32", "v4.u32"),
        (elementwise_tilelang.scale_cast_kernel, (BF16, E4M3, 8), "v4.u32", "v4.u16"),
        (elementwise_tilelang.scale_cast_kernel, (F32, F16, 8), "v4.f32", "v4.u32"),
    ],
    ids=("add-f32", "add-bf16", "add-register", "bf16-e4m3", "f32-f16"),
)
def test_ptx(kernel, key, loads, stores):
    """16-byte loads and at least 8-byte stores, no spills, saturating FP8 conversions"""
    built = cubin.build(kernel.factory(*key), _tilelang.PASS_CONFIGS)
    assert built.spill_bytes == built.stack_bytes == 0
    assert built.count("ld.global.nc.v4")[f"ld.global.nc.{loads}"] >= 2
    assert built.count("st.global.v4")[f"st.global.{stores}"] >= 2
    if E4M3 in key:
        assert built.count("cvt.rn.satfinite.e4m3x2.f32")


def test_names_in_a_profile():
    assert cubin.lower(elementwise_tilelang.add_flat_kernel.factory(F32, 4)).name == "add_flat_kernel"
    assert tilelang.__version__ == "0.1.15", "PASS_CONFIGS and `.jit().main` are of this version: check them"


# --- on a GPU only ---------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_more_than_2_31_elements():
    n = (1 << 31) + 77
    x = torch.arange(251, dtype=torch.uint8, device="cuda").repeat(-(-n // 251))[:n]
    assert torch.equal(elementwise_tilelang.add(x, x), x * 2)
    del x
    x = torch.randn(1 << 20, device="cuda").bfloat16().repeat(2049)
    got = elementwise_tilelang.scale_cast(x, 3.0, E4M3)
    want = elementwise_ref.scale_cast(x[: 1 << 20].cpu(), 3.0, E4M3).view(torch.uint8)
    for at in (0, 1 << 30, 1 << 31):
        assert torch.equal(got[at : at + (1 << 20)].view(torch.uint8).cpu(), want)


@pytest.mark.gpu
def test_current_stream():
    x = torch.randn(1 << 24, device="cuda")
    side = torch.cuda.Stream()
    elementwise_tilelang.add(x, x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        y = x.clone()
        got = elementwise_tilelang.add(y, y)
    side.synchronize()
    assert torch.equal(got, x + x)


@pytest.mark.gpu
def test_cuda_graph():
    x = torch.randn(1 << 16, device="cuda")
    elementwise_tilelang.add(x, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = elementwise_tilelang.add(x, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, x + x)


@pytest.mark.gpu
def test_other_device_is_left_current():
    last = torch.cuda.device_count() - 1  # another one, where there are several
    x = torch.randn(1000, device=f"cuda:{last}")
    with torch.cuda.device(0):
        assert torch.equal(elementwise_tilelang.add(x, x), x + x)
        assert torch.cuda.current_device() == 0
