"""The benchmark itself: what it lists, counts, refuses and writes. Its figures need a GPU; its code does not."""

import contextlib
import json
import subprocess
import sys
import time
import types
from unittest.mock import ANY

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

import tle_ops
from bench import check, harness, peers, report, timing
from bench.__main__ import families, main, parse, select
from bench.check import PEER, Tolerance, judge, truths
from bench.harness import Case, run_case, shrink, tensor_bytes
from tle_ops import _dispatch, _meta
from tle_ops.kernels import _cluster_plan

FP8 = torch.float8_e4m3fn
CPU = torch.device("cpu")
# Ops whose time is that of another op's case.
MEASURED_AS: dict[str, str] = {}


def every_case():
    return [case for cases in families().values() for case in cases]


# --- the cases -------------------------------------------------------------------------------------------------------
def test_every_op_has_a_case():
    measured = {case.op for case in every_case()} | set(MEASURED_AS)
    missing = {op for op in _meta.CONTRACTS if not op.endswith("_bwd")} - measured
    assert not missing, f"no case in bench/bench_<family>.py for {sorted(missing)}"
    assert set(MEASURED_AS.values()) <= {case.op for case in every_case()}


def test_every_op_has_a_quick_case():
    quick = {case.op for case in every_case() if case.quick}
    assert quick == {case.op for case in every_case()}


@pytest.mark.parametrize("case", every_case(), ids=str)
def test_case(case):
    assert case.op in _meta.CONTRACTS
    assert set(case.peers) <= set(peers.LIBRARIES)
    assert case.target_us is None or case.target_us > 0
    args = case.inputs(shrink(case.shape), CPU)
    want = getattr(torch.ops.tle, case.op)(*args)
    if case.eager is not None:
        got, want = (harness.canonical(case, args, result) for result in (case.eager(*args), want))
        # PyTorch's gelu has lost the digits of gates below -3: it is judged as in a run, by the truth.
        truth = truths(case.wide, args) if case.op.startswith("geglu") else None
        assert judge(got, want, case.peer_tolerance, truth) == (True, ANY, "")


def serving(case, args):
    """The backends that have a kernel for such a call, not only for the op."""
    found = [tle_ops.explain(case.op, *args, device="cuda").backend]
    for name in tle_ops.backends(case.op):
        with tle_ops.backend(name):
            found.append(tle_ops.explain(case.op, *args, device="cuda").backend)
    return {name for name in found if name != "ref"} or {"ref"}


def test_kernels_by_shape():
    """The default is the kernel of the shape, and no backend is timed under another's name."""
    case = next(c for c in families()["topk"] if c.op == "topk")

    def names(N, k):
        args = (torch.empty(1, N, device="meta"), k, -1, True, False)
        return [(v.name, v.default) for v in harness.variants(case, args, {}, [], torch.device("cuda"))]

    assert not _cluster_plan.takes("topk", (torch.empty(1, 1 << 24, device="meta"), 1000, -1, True, False))
    assert names(1 << 24, 1000) == [("tle triton", True)]
    expected = "tle triton" if _dispatch.missing_toolchain() else "tle tilelang"
    assert [name for name, default in names(131072, 50) if default] == [expected]


@pytest.mark.parametrize("case", every_case(), ids=str)
def test_kernels_of_a_case(case):
    """Nothing is launched: which variants a GPU would time."""
    args = case.inputs(shrink(case.shape), CPU)
    found = harness.variants(case, args, {"TileKernels": None}, ["eager"], torch.device("cuda"))
    ours = [v for v in found if v.ours]
    assert [v.name for v in ours if v.default] == [f"tle {tle_ops.explain(case.op, *args, device='cuda').backend}"]
    assert {v.name for v in ours} - {f"tle {name}" for name in case.extra} == {
        f"tle {name}" for name in serving(case, args)
    }
    assert {v.name for v in found} - {v.name for v in ours} == {"eager"} | ({"TileKernels"} & set(case.peers))


def test_names_are_distinct():
    names = [str(case) for case in every_case()]
    assert len(names) == len(set(names))


def test_list(capsys):
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == len(every_case())


@pytest.mark.parametrize("pattern", ["PER_BLOCK_cast", "per_block_cast_*: block*"])
def test_only(pattern):
    chosen = select(parse(["--only", pattern]))
    assert {case.op for case in chosen["quant"]} == {"per_block_cast_fp8", "per_block_cast_back"}
    assert set(chosen) == {"quant"}


def test_unknown_peer(capsys):
    with pytest.raises(SystemExit):
        parse(["--peers", "eager,nobody"])
    assert "got nobody" in capsys.readouterr().err


# --- bytes -----------------------------------------------------------------------------------------------------------
def test_bytes():
    x = torch.zeros(6, 8, dtype=torch.bfloat16)
    assert tensor_bytes((x, 0.5, torch.float32)) == 96
    assert tensor_bytes(x.t()) == 96
    assert tensor_bytes(x[:1].expand(6, 8)) == 16  # one row in memory
    assert tensor_bytes((x[:0], x.to(FP8))) == 48
    q, scales = torch.ops.tle.per_token_cast_fp8(torch.zeros(3, 256), 128, FP8, False, True)
    assert tensor_bytes((q, scales)) == 3 * 256 + 3 * 2 * 4  # the pitch of the column-major scales is not traffic


# --- right and wrong -------------------------------------------------------------------------------------------------
def quantized():
    return torch.ops.tle.per_token_cast_fp8(torch.randn(64, 256))


def test_judge_exact():
    q, scales = quantized()
    assert judge((q.clone(), scales.clone()), (q, scales)) == (True, 0.0, "")
    off = scales.clone()
    off[3, 1] = torch.nextafter(off[3, 1], torch.tensor(9.0))
    assert judge((q, off), (q, scales)).why == "output 1: 1 of 128 elements differ"
    assert "strides" in judge((q, scales.t().contiguous().t()), (q, scales)).why
    assert "instead of" in judge((q, scales.double()), (q, scales)).why
    assert judge(q, (q, scales)).why == "1 outputs instead of 2"


def test_judge_codes():
    q, scales = quantized()
    bits = q.view(torch.uint8)
    # The lowest bit of the mantissa is one step, up or down; 448 would become NaN.
    step = torch.where((bits & 0x7F) == 0x7E, bits, bits ^ 1)

    def first(rows, source):
        changed = bits.clone()
        changed[:rows, 0] = source[:rows, 0]
        return changed.view(FP8), scales

    assert not judge(first(1, step), (q, scales)).ok
    verdict = judge(first(1, step), (q, scales), PEER)
    assert verdict.ok
    assert verdict.different == 1 / q.numel()
    assert "of the codes differ, by up to 1 step" in judge(first(64, step), (q, scales), PEER).why
    assert "steps" in judge(first(1, bits ^ 0x80), (q, scales), PEER).why  # the sign
    # 0x7F is next to 448 as a code, and not a number.
    assert "NaN" in judge(first(1, torch.full_like(bits, 0x7F)), (q, scales), PEER).why


def test_codes_in_order():
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    codes = codes[~codes.isnan()]
    by_value = codes[codes.float().argsort(stable=True)]
    steps = check._ordered(by_value).diff()
    assert steps.eq(0).sum() == 1  # -0 and 0
    assert steps.sort().values[1:].eq(1).all()


def test_judge_against_the_truth():
    """Two right results that rounded a tie in different ways pass; an error of the float32 arithmetic's size in a sum
    that cancels, too; a wrong element does not."""

    def wide(dtype, x, y):
        return x.to(dtype) * x.to(dtype) + y.to(dtype)

    x = torch.randn(1000)
    y = torch.randn(1000) * 1e-3 - x * x  # cancels: float32 leaves 1e-7 of what is about 1e-3
    truth = truths(wide, (x, y))
    assert 0 < truth[0].slack < 2e-6
    want = wide(torch.float32, x, y).bfloat16()
    other = (wide(torch.float64, x, y) + truth[0].slack / 2).bfloat16()
    assert not torch.equal(want, other)
    assert judge(other, want, Tolerance(ulps=1), truth).ok
    wrong = other.clone()
    wrong[7] *= 1.02
    assert not judge(wrong, want, Tolerance(ulps=1), truth).ok
    q, scales = quantized()
    truth = truths(lambda dtype: (q, scales.to(dtype)), ())
    assert judge((q, scales), (q.roll(1, 0), scales), Tolerance(ulps=1), truth).ok  # codes, too, are the truth's


def test_judge_floats():
    y = torch.randn(1000, dtype=torch.bfloat16).clamp_min(0.01)
    y[0] = 0.01
    near = (y.float() * (1 + 2**-8)).bfloat16()
    assert judge(near, y, Tolerance(ulps=4)).ok
    assert not judge(y * 1.1, y, Tolerance(ulps=4)).ok
    step = y.clone()
    step[0] *= 1.1
    assert judge(step, y, Tolerance(ulps=4, elements=1e-3)).ok
    step[0] *= 2
    assert not judge(step, y, Tolerance(ulps=4, elements=1e-3)).ok
    assert judge(step, y, Tolerance(ulps=4, sums=True)).ok  # 0.01 is the rest of a long sum of numbers near 1
    inf = torch.tensor([torch.inf, 1.0, torch.nan])
    assert judge(inf.clone(), inf, PEER).ok
    assert not judge(torch.tensor([torch.inf, 1.0, 2.0]), inf, PEER).ok


def a_case(**more):
    return Case("add", "tiny", (4, 8), lambda shape, device: (torch.ones(shape), torch.ones(shape)), **more)


def test_a_wrong_output_gets_no_time():
    timed = []

    class Timer(timing.CpuTimer):
        def flushed(self, calls, reps):
            timed.extend(calls)
            return {name: [1.0] * reps for name in calls}

    case = a_case(eager=lambda x, y: x - y, peers={"Liger": lambda m, x, y: m(x, y)})
    row = run_case(case, Timer(), CPU, {"Liger": torch.add}, ["eager"], 3)
    assert timed == ["copy", "tle ref", "Liger"]
    assert row["variants"]["eager"]["status"] == "wrong"
    assert "us" not in row["variants"]["eager"]
    assert row["variants"]["Liger"]["us"] == row["variants"]["tle ref"]["us"] == 1.0
    assert row["bytes"] == 3 * 4 * 8 * 4


def test_wrong_after_timing_loses_its_time():
    calls = []

    def race(x, y):
        calls.append(1)
        return x + y if len(calls) < 3 else x

    row = run_case(a_case(eager=race), timing.CpuTimer(), CPU, {}, ["eager"], 2)
    assert row["variants"]["eager"]["status"] == "wrong"
    assert not {"us", "copy_ratio", "gb_per_s"} & set(row["variants"]["eager"])


def test_a_peer_that_fails_is_named():
    def fail(m, x, y):
        raise AssertionError("hidden must be divisible by 64\nmore")

    row = run_case(a_case(peers={"Liger": fail}), timing.CpuTimer(), CPU, {"Liger": None}, [], 2)
    assert row["variants"]["Liger"]["detail"] == "AssertionError: hidden must be divisible by 64"
    assert row["variants"]["tle ref"]["status"] == "ok"


def test_what_cannot_be_captured_is_called():
    class Timer(timing.CpuTimer):
        def capture(self, call, times=1):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    row = run_case(a_case(eager=torch.add), Timer(), CPU, {}, ["eager"], 2)
    eager = row["variants"]["eager"]
    assert (eager["status"], eager["method"]) == ("ok", "call")
    assert eager["us"] > 0
    result = made_up() | {"cases": [row]}
    assert "eager: no CUDA graph: operation not permitted" in "".join(report.problems(result))


# --- the GPU timer, on a made-up clock -------------------------------------------------------------------------------
@pytest.fixture
def gpu(monkeypatch):
    """The part of torch.cuda that the timer uses, executing at once."""
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")
            self.at = time.perf_counter_ns()

        def elapsed_time(self, end):
            return (end.at - self.at) / 1e6

    class Graph:
        def replay(self):
            log.append("replay")

    monkeypatch.setattr(timing, "FLUSH_BYTES", 16)
    for name, fake in {
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": lambda g: contextlib.nullcontext(),
        "synchronize": lambda: log.append("synchronize"),
        "_sleep": lambda cycles: log.append("sleep"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    timer = timing.CudaTimer(CPU)
    monkeypatch.setattr(timer, "_flush", type("Flush", (), {"zero_": lambda self: log.append("flush")})())
    return timer, log


def test_order_of_a_sample(gpu):
    timer, log = gpu
    samples = timer.flushed({"a": lambda: log.append("a"), "b": lambda: time.sleep(1e-3)}, 2)
    rounds = ["sleep", "flush", "event", "a", "event", "sleep", "flush", "event", "event", "synchronize"]
    assert log[-len(rounds) :] == rounds  # variants take turns, and nothing stands between the events but the call
    assert len(samples["a"]) == len(samples["b"]) == 2
    assert min(samples["b"]) >= 1000 > max(samples["a"])


def test_replay_counts_one_call(gpu):
    timer, log = gpu
    samples = timer.replayed({"a": timer.capture(lambda: log.append("a"), timing.GRAPH_CALLS)}, 3)
    assert log.count("a") == timing.GRAPH_CALLS
    assert "flush" not in log
    assert len(samples["a"]) == 3


def test_host(gpu):
    timer, log = gpu
    samples = timer.host({"a": lambda: log.append("a"), "b": lambda: None}, batches=3, per_batch=5)
    assert log.count("a") == 3 * 6  # one ahead of each batch
    assert len(samples["b"]) == 3


# --- reports ---------------------------------------------------------------------------------------------------------
def variant(us, ours=False, default=False, **more):
    figures = {"us": us, "us_p20": us, "us_p80": us, "gb_per_s": 50 / us, "copy_ratio": 10 / us}
    return {"ours": ours, "default": default, "method": "call", "status": "ok", "detail": ""} | figures | more


def made_up(us=11.0):
    wrong = {"ours": False, "default": False, "method": "call", "status": "wrong", "detail": "3 % of the codes differ"}
    row = {
        "op": "per_token_cast_fp8",
        "case": "group 128, 8x128",
        "shape": [8, 128],
        "bytes": 50,
        "target_us": 12.0,
        "earlier": {"SGLang v2": 11.5},
        "copy_us": 10.0,
        "copy_graph_us": 2.0,
        "variants": {
            "tle triton": variant(us, True, True, graph_us=2.5, host_us=9.0),
            "tle tilelang": variant(12.5, True),
            "torchao": variant(20.0, different_codes=1e-4),
            "FlagGems": wrong,
        },
    }
    env = {
        "card": "NVIDIA H200",
        "driver": "580",
        "python": "3.12",
        "torch": "2.11",
        "triton": "3.6",
        "tilelang": "0.1.15",
    }
    env |= {"tle_ops": "0", "peers": {"torchao": "0.18", "Liger": "not installed"}, "date": "2026-01-01", "reps": 3}
    return {"family": "quant", "environment": env, "cases": [row]}


def test_markdown():
    text = report.markdown(made_up())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    times, graph = cells[:3], cells[3:]
    assert dict(zip(times[0], times[2], strict=True)) == {
        "case": "per_token_cast_fp8: group 128, 8x128",
        "copy": "10.0",
        "tle triton": "11.0*",
        "tle tilelang": "12.5",
        "torchao": "20.0",
        "FlagGems": "wrong",
        "target": "12 met",
        "copy ratio*": "0.91",
        "GB/s*": "5",
        "earlier runs, same card": "SGLang v2 11.5",
    }
    found = dict(zip(graph[0], graph[2], strict=True))
    assert (found["copy"], found["tle triton"], found["host, tle triton"]) == ("2.0", "2.5*", "9.0*")
    assert "FlagGems wrong: 3 % of the codes differ" in text
    assert "torchao: 1.0e-04 of the codes are a step off" in text
    assert "Liger not installed" in text


def test_written_files(tmp_path):
    result = made_up()
    paths = report.write(result, tmp_path / report.slug("NVIDIA H200"))
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == [f"h200/quant.{s}" for s in ("json", "md", "png")]
    assert json.loads(paths[0].read_text()) == result
    assert paths[2].read_bytes().startswith(b"\x89PNG")


def test_regressions():
    before = made_up()
    assert report.regressions(made_up(11.4), before) == []
    (line,) = report.regressions(made_up(11.8), before)
    assert line == "per_token_cast_fp8: group 128, 8x128: tle triton: copy ratio 0.85, was 0.91"
    broken = made_up()
    broken["cases"][0]["variants"]["tle triton"] = {"ours": True, "status": "wrong", "detail": "all of it"}
    assert "was right" in report.regressions(broken, before)[0]
    assert "all of it" in report.failures(broken)[0]


def test_run_on_the_cpu(tmp_path):
    """The whole way, as a user starts it; in its own process, because it defines probe ops."""
    command = [sys.executable, "-m", "bench", "--device", "cpu", "--quick", "--reps", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mean nothing for the targets" in done.stdout
    for family in (*families(), "host"):
        result = json.loads((tmp_path / "cpu" / f"{family}.json").read_text())
        assert result["environment"]["torch"] == torch.__version__
        assert "mean nothing" in (tmp_path / "cpu" / f"{family}.md").read_text()
        assert (tmp_path / "cpu" / f"{family}.png").exists()
        for row in result.get("cases", ()):
            assert row["target_us"] is None  # it is one of another shape
            assert all(v["copy_ratio"] > 0 for v in row["variants"].values())
    pieces = {row["what"]: row["us"] for row in result["rows"]}
    assert pieces["contract: checks and allocates"] < pieces["torch.ops.tle.per_token_cast_fp8, whole"]
    assert {case.op for case in every_case()} <= set(pieces)


# --- a peer in a process of its own ----------------------------------------------------------------------------------
def test_cases_of_quack():
    from bench import quack

    found = quack.cases()
    assert {case.op for case in found} == set(quack.CALLS)
    assert {str(case) for case in found} <= {str(case) for case in every_case()}
    assert all(case.shape[-1] <= 4096 for case in found if case.op == "topk")


def fake_rmsnorm_fwd(
    x,
    weight=None,
    bias=None,
    residual=None,
    out_dtype=None,
    residual_dtype=None,
    eps=1e-6,
    store_rstd=False,
    weight_offset=0.0,
):
    wide = x.float() if residual is None else x.float() + residual.float()
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    summed = x if residual is None else wide.to(x.dtype)
    return (wide * rstd[:, None] * weight.float()).to(x.dtype), summed, rstd if store_rstd else None


def fake_rmsnorm_bwd(x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False, weight_offset=0.0):
    op = torch.ops.tle.add_rms_norm_bwd
    assert rstd.shape == x.shape[:1]
    assert rstd.dtype == torch.float32
    dx, dweight = op(dout, dresidual_out, x, weight, 1e-6, weight_offset, weight.dtype)
    return dx, dweight, None, None


def fake_topk_fwd(x, k, softmax=False):
    """The column takes the place of a score's last bits; among equal ones the first wins."""
    mask = x.shape[1] - 1
    columns = torch.arange(x.shape[1], dtype=torch.int32)
    tagged = (x.view(torch.int32) & ~mask) | torch.where(x >= 0, ~columns & mask, columns)
    top = tagged.view(torch.float32).topk(k).values
    found = top.view(torch.int32) & mask
    values = (top.view(torch.int32) & ~mask).view(torch.float32)
    return values, torch.where(top >= 0, ~found & mask, found)


@pytest.fixture
def fake_quack(monkeypatch):
    """A package whose function `rmsnorm` stands where one looks for its submodule."""
    package = types.ModuleType("quack")
    package.__path__ = []
    package.rmsnorm = lambda x, weight: None
    rmsnorm, topk = types.ModuleType("quack.rmsnorm"), types.ModuleType("quack.topk")
    rmsnorm.rmsnorm_fwd, rmsnorm.rmsnorm_bwd, topk.topk_fwd = fake_rmsnorm_fwd, fake_rmsnorm_bwd, fake_topk_fwd
    for module in (package, rmsnorm, topk):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return types.SimpleNamespace(rmsnorm=rmsnorm, topk=topk)


def quack_cases():
    from bench import quack

    return quack.cases()


@pytest.mark.parametrize("case", quack_cases(), ids=str)
def test_quack_is_called_and_judged(fake_quack, case):
    from bench import quack

    row = quack.run_case(case, timing.CpuTimer(), CPU, 2)
    variant = row["variants"]["quack"]
    assert (variant["status"], variant["detail"]) == ("ok", "")
    assert variant["us"] > 0
    assert variant.get("note", "").startswith("rounds values: their last") == (case.op == "topk")


def test_a_wrong_column_of_quack_is_not_rounding(fake_quack):
    from bench import quack

    def off_by_one(x, k, softmax=False):
        values, indices = fake_topk_fwd(x, k, softmax)
        return values, (indices + 1) % x.shape[1]

    fake_quack.topk.topk_fwd = off_by_one
    case = next(case for case in quack.cases() if case.op == "topk")
    row = quack.run_case(case, timing.CpuTimer(), CPU, 2)
    assert row["variants"]["quack"]["status"] == "wrong"
    assert "us" not in row["variants"]["quack"]


def test_a_case_of_quack_that_fails_costs_the_others_nothing(fake_quack, monkeypatch, tmp_path):
    from rich.console import Console

    from bench import quack

    def run_case(case, *args):
        if case.op == "add_rms_norm":
            raise RuntimeError("cannot be built")
        return run_one(case, *args)

    run_one = quack.run_case
    monkeypatch.setattr(quack, "run_case", run_case)
    assert quack.run(tmp_path, 1, CPU, timing.CpuTimer(), Console(quiet=True)) == 1
    (path,) = tmp_path.glob("*/quack.json")
    kept = [row["op"] for row in json.loads(path.read_text())["cases"]]
    assert kept == [case.op for case in quack.cases() if case.op != "add_rms_norm"]


def test_figures_of_a_process_apart_join_the_table(tmp_path):
    case = next(c for c in families()["norm"] if c.op == "add_rms_norm" and c.earlier)
    row = run_case(case, timing.CpuTimer(), CPU, {}, [], 3) | {"earlier": {"quack": 1.0, "other": 2.0}}
    environment = {"peers": {"quack": "0.6.5"}, "date": "today"}
    apart = {"status": "ok", "us": 5.0, "ours": False, "default": False, "copy_ratio": 1.1, "gb_per_s": 1.0}
    apart["note"] = "rounds values"
    other = row | {"copy_us": 5.5, "variants": {"quack": apart}}
    (tmp_path / "quack.json").write_text(json.dumps({"environment": environment, "cases": [other]}))
    result = {"family": "norm", "environment": {"peers": {}}, "cases": [row]}
    report.add_apart(result, tmp_path, "quack")
    assert row["variants"]["quack"]["us"] == 5.0
    assert row["earlier"] == {"other": 2.0}
    assert row["variants"]["quack"]["apart"] == {"copy_us": 5.5, "ours_us": None}
    assert result["environment"] == {"peers": {}, "apart": {"quack": "0.6.5, today"}}
    assert any("rounds values; in a process of its own, today, copy 5.5" in note for note in report.problems(result))
    before = json.dumps(result)
    report.add_apart(result, tmp_path, "nobody")
    assert json.dumps(result) == before
