"""What only a GPU can show: streams, graphs, devices, threads, builds, and the launch that is replayed. The results
themselves are in test_kernels.py and the families' files, with their CPU twins."""

import threading

import pytest
import torch

import tle_ops
from tests.table import BF16, E4M3, F16, F32, assert_same_bits, outputs, randn
from tle_ops.kernels import CUDA

pytestmark = pytest.mark.gpu
BACKENDS = pytest.mark.parametrize("backend", ["triton", "tilelang"])


def calls(x):
    """One call of every plain op of the quant and elementwise families, x [M, 256] bfloat16 -> name, results."""
    q, scales = torch.ops.tle.per_token_cast_fp8(x)
    qb, sb = torch.ops.tle.per_block_cast_fp8(x)
    qc, sc = torch.ops.tle.per_channel_cast_fp8(x)
    return {
        "per_token_cast_fp8": (q, scales),
        "per_token_cast_back": torch.ops.tle.per_token_cast_back(q, scales),
        "per_block_cast_fp8": (qb, sb),
        "per_block_cast_back": torch.ops.tle.per_block_cast_back(qb, sb),
        "per_channel_cast_fp8": (qc, sc),
        "per_channel_cast_back": torch.ops.tle.per_channel_cast_back(qc, sc),
        "fake_quant_fp8": torch.ops.tle.fake_quant_fp8(x),
        "add": torch.ops.tle.add(x, x),
        "scale_cast": torch.ops.tle.scale_cast(x, 0.5, F16),
    }


def assert_calls(got: dict, x: torch.Tensor) -> None:
    want = calls(x.cpu())
    for name in want:
        for g, w in zip(outputs(got[name]), outputs(want[name]), strict=True):
            assert_same_bits(g, w, name)


@BACKENDS
def test_graph_replays_with_new_data(backend):
    x = randn(33, 256, dtype=BF16).cuda()
    with tle_ops.backend(backend):
        calls(x)  # builds and loads
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = calls(x)
    x.copy_(randn(33, 256, dtype=BF16, seed=7))
    graph.replay()
    assert_calls(got, x)


@BACKENDS
def test_current_stream(backend):
    with tle_ops.backend(backend):
        calls(torch.zeros(4, 256, dtype=BF16, device="cuda"))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.zeros(4, 256, dtype=BF16, device="cuda")
            torch.cuda._sleep(100_000_000)  # on another stream the ops would overtake it
            x += randn(4, 256, dtype=BF16).cuda()
            got = calls(x)
        stream.synchronize()
    assert_calls(got, randn(4, 256, dtype=BF16))


@BACKENDS
def test_eight_threads_on_eight_streams(backend):
    failures = []

    def work(seed):
        x = randn(50 + seed, 256, dtype=BF16, seed=seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                got = calls(x.cuda())
                torch.cuda.current_stream().synchronize()
                try:
                    assert_calls(got, x)
                except AssertionError as e:
                    failures.append(e)

    with tle_ops.backend(backend):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not failures


def test_no_build_for_a_new_row_count():
    from tle_ops.kernels import elementwise_triton, quant_triton

    kernels = [quant_triton._cast_kernel, quant_triton._cast_back_kernel]
    kernels += [elementwise_triton._add_kernel, elementwise_triton._scale_cast_kernel]
    with tle_ops.backend("triton"):
        calls(randn(100, 256, dtype=BF16).cuda())
        before = [len(k.variants) for k in kernels]
        for M in (1, 2, 16, 17, 128, 1000, 4096):
            x = randn(M, 256, dtype=BF16)
            assert_calls(calls(x.cuda()), x)
    assert [len(k.variants) for k in kernels] == before


def test_no_tilelang_build_for_a_new_row_count():
    from tle_ops.kernels import _tilelang_quant, elementwise_tilelang
    from tle_ops.kernels._tilelang import Kernel

    def builds():
        members = [*vars(_tilelang_quant).values(), *vars(elementwise_tilelang).values()]
        return {k.__name__: len(k.built) for k in members if isinstance(k, Kernel)}

    with tle_ops.backend("tilelang"):
        calls(randn(100, 256, dtype=BF16).cuda())
        before = builds()
        for M in (1, 2, 16, 17, 128, 1000, 4096):
            x = randn(M, 256, dtype=BF16)
            assert_calls(calls(x.cuda()), x)
    assert builds() == before


def test_replayed_calls_allocate_afresh_and_heed_their_arguments():
    """The second call with the same metadata is replayed: new outputs, right for new data, and told apart by every
    argument, by alignment and by strides."""
    from tle_ops.kernels import quant_triton

    with tle_ops.backend("triton"):
        x = randn(40, 256, dtype=BF16).cuda()
        first = torch.ops.tle.per_token_cast_fp8(x)
        recorded = len(quant_triton.per_token_cast_fp8.replays)
        second = torch.ops.tle.per_token_cast_fp8(x + 1)
        assert len(quant_triton.per_token_cast_fp8.replays) == recorded
        assert {t.data_ptr() for t in first}.isdisjoint(t.data_ptr() for t in second)
        base = randn(41 * 512, dtype=BF16).cuda()
        for y in (
            x,
            x[:39],
            x[:, :128],
            x.t(),
            x.float(),
            base[1 : 1 + 40 * 256].view(40, 256),
            base[: 40 * 512].view(40, 512)[:, :256],
        ):
            for args in ((128,), (64,), (-1,), (128, torch.float8_e5m2), (128, E4M3, True), (128, E4M3, False, True)):
                for _ in range(2):
                    got = torch.ops.tle.per_token_cast_fp8(y, *args)
                    for g, w in zip(got, torch.ops.tle.per_token_cast_fp8(y.cpu(), *args), strict=True):
                        assert_same_bits(g, w, f"{tuple(y.shape)} {y.stride()} {args}")
                        assert g.stride() == w.stride()
        for _ in range(3):  # one tensor given twice, then two: not the same call
            assert_same_bits(torch.ops.tle.add(x, x), x.cpu() + x.cpu())
            assert_same_bits(torch.ops.tle.add(x, x.clone() + 1), x.cpu() + (x.cpu() + 1))


def test_outputs_of_non_differentiable_ops_ask_for_no_gradient():
    x = randn(4, 256).cuda().requires_grad_()
    for backend in ("triton", "tilelang", "ref"):
        with tle_ops.backend(backend):
            for y in (x, x.t(), x.double(), (x * 2)[:, ::2]):
                for op in ("per_token_cast_fp8", "per_block_cast_fp8", "per_channel_cast_fp8"):
                    assert not any(t.requires_grad for t in getattr(torch.ops.tle, op)(y))


def test_mixed_devices_are_named():
    x = randn(4, 256)
    q, scales = tle_ops.per_token_cast_fp8(x.cuda())
    with pytest.raises(ValueError, match="add: y must be on the device of x, cuda:0, got cpu"):
        tle_ops.add(x.cuda(), x)
    with pytest.raises(ValueError, match="add: y must be on the device of x, cpu, got cuda:0"):
        tle_ops.add(x, x.cuda())
    with pytest.raises(ValueError, match="per_token_cast_back: scales must be on the device of q, cuda:0, got cpu"):
        tle_ops.per_token_cast_back(q, scales.cpu())


def test_explain_is_what_runs():
    x = randn(4, 256).cuda()
    for op in ("per_token_cast_fp8", "per_block_cast_fp8", "fake_quant_fp8"):
        assert tle_ops.explain(op, x).module == CUDA[op]


def test_compiled_and_captured():
    """torch.compile, reduce-overhead (CUDA graphs) and eager agree bit for bit, forward and backward."""

    def step(x):
        y = tle_ops.fake_quant_fp8(tle_ops.add(x, x))
        return tle_ops.per_token_cast_fp8(tle_ops.scale_cast(y, 0.5, F32)), y

    x = randn(32, 256).cuda().requires_grad_()
    (q, s), y = step(x)
    want = torch.autograd.grad(y.sum(), x)[0]
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(step, fullgraph=True, mode=mode)
        for _ in range(3):
            (cq, cs), cy = compiled(x)
            assert_same_bits(cq, q)
            assert_same_bits(cs, s)
            assert_same_bits(torch.autograd.grad(cy.sum(), x)[0], want)


def test_device_is_left_as_it_was():
    if torch.cuda.device_count() < 2:
        assert torch.cuda.current_device() == 0
        calls(randn(4, 256, dtype=BF16).cuda())
        assert torch.cuda.current_device() == 0
        return
    x = randn(6, 256, dtype=BF16)
    for backend in ("triton", "tilelang", "ref"):
        with tle_ops.backend(backend):
            for _ in range(2):
                got = calls(x.to("cuda:1"))
                assert torch.cuda.current_device() == 0
                assert all(t.device.index == 1 for r in got.values() for t in outputs(r))
                assert_calls(got, x)
