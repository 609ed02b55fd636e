"""A case of a benchmark, and how it is run: make the inputs, check every variant, time the right ones."""

from __future__ import annotations

import functools
import gc
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import tle_ops
from bench.check import EXACT, PEER, Tolerance, Truth, judge, outputs, truths
from bench.timing import GRAPH_CALLS, CpuTimer, CudaTimer

GRAPH_BYTES = 40e6  # below, a case is also timed by graph replay: its tensors stay in the 60 MB of L2
HOST_BYTES = 8e6  # below, the GPU is faster than the host, and the host time can be seen


@dataclass(frozen=True)
class Case:
    """One row of a table. Functions get the op's arguments, as `inputs` makes them."""

    op: str
    name: str
    shape: tuple[int, ...]
    inputs: Callable[[tuple[int, ...], torch.device], tuple]  # shape, device -> the op's arguments
    eager: Callable[..., Any] | None = (
        None  # the plain PyTorch composition; None: the reference, and nothing to compile
    )
    peers: dict[str, Callable[..., Any]] = field(default_factory=dict)  # library -> f(module, *args)
    extra: dict[str, Callable[..., Any]] = field(default_factory=dict)  # further kernels of this package
    target_us: float | None = None  # to beat, on an H200
    earlier: dict[str, float] = field(default_factory=dict)  # microseconds of peers, same card, an earlier run
    quick: bool = False
    tolerance: Tolerance = EXACT  # of this package's kernels
    peer_tolerance: Tolerance = PEER
    rowwise: bool = True  # the first rows of the outputs depend on those of the inputs alone
    wide: Callable[..., Any] | None = None  # dtype, *args -> the outputs computed in it: see check.truths
    canonical: Callable[[tuple, Any], Any] | None = None  # args, outputs -> what must agree, where an order is free
    nbytes: Callable[[tuple, Any], int] | None = None  # args, outputs -> traffic, where it is not every tensor once

    def __str__(self) -> str:
        return f"{self.op}: {self.name}"


@dataclass
class Variant:
    name: str
    call: Callable[..., Any]
    ours: bool = False
    default: bool = False
    graph: bool = False  # several kernels: time a captured graph, so that launch gaps do not count
    tolerance: Tolerance = EXACT


def tensor_bytes(values: Any) -> int:
    """Bytes of the distinct elements of the tensors among `values`; an expanded dimension counts once."""
    tensors = [values] if isinstance(values, Tensor) else [v for v in values if isinstance(v, Tensor)]
    return sum(
        t.dtype.itemsize * math.prod(n for n, stride in zip(t.shape, t.stride(), strict=True) if stride or n == 0)
        for t in tensors
    )


def shrink(shape: tuple[int, ...], rows: int = 256, columns: int = 1024) -> tuple[int, ...]:
    """A shape of the same kind that a CPU can handle, or that a GPU finishes in no time."""
    limits = (*[rows] * (len(shape) - 1), columns)
    return tuple(min(n, limit) for n, limit in zip(shape, limits, strict=True))


def variants(
    case: Case, args: tuple, peers: dict[str, ModuleType], built_in: list[str], device: torch.device
) -> list[Variant]:
    op = getattr(torch.ops.tle, case.op)
    found = []
    if device.type == "cuda":
        default = tle_ops.explain(case.op, *args, device="cuda").backend
        for name in tle_ops.backends(case.op):
            if name == default or (name != "ref" and _serves(name, case.op, args)):
                call = op if name == default else _forced(op, name)
                found.append(Variant(f"tle {name}", call, True, name == default, tolerance=case.tolerance))
        found += [Variant(f"tle {name}", call, True, tolerance=case.tolerance) for name, call in case.extra.items()]
    else:
        found.append(Variant("tle ref", op, True, True, tolerance=case.tolerance))
    tolerance = case.peer_tolerance
    if "eager" in built_in:
        found.append(Variant("eager", case.eager or _forced(op, "ref"), graph=True, tolerance=tolerance))
    if case.eager is not None and "compile" in built_in:
        compiled = torch.compile(case.eager, dynamic=False, fullgraph=True)
        found.append(Variant("compile", compiled, tolerance=tolerance))
    for name, call in case.peers.items():
        if name in peers:
            found.append(Variant(name, functools.partial(call, peers[name]), tolerance=tolerance))
    return found


def _serves(backend: str, op: str, args: tuple) -> bool:
    """Whether it has a kernel for such a call; without one the default serves."""
    with tle_ops.backend(backend):
        return tle_ops.explain(op, *args, device="cuda").backend == backend


def _forced(op: Callable, backend: str) -> Callable:
    def call(*args):
        with tle_ops.backend(backend):
            return op(*args)

    return call


def reference(case: Case, args: tuple) -> Any:
    """The reference's output, on the device of the arguments; there its first rows must be what the CPU computes."""
    op = getattr(torch.ops.tle, case.op)
    with tle_ops.backend("ref"):
        want = op(*args)
    if case.rowwise and outputs(want)[0].is_cuda:
        rows = min(args[0].shape[0], 256 if args[0].dim() > 1 else 1 << 20)
        first = tuple(_head(a, args[0], rows) for a in args)
        part = outputs(op(*first))
        head = [w[: p.shape[0]].cpu().contiguous() for w, p in zip(outputs(want), part, strict=True)]
        truth = truths(case.wide, first) if case.wide else None
        verdict = judge(head, [p.contiguous() for p in part], case.tolerance, truth)
        if not verdict.ok:
            raise RuntimeError(f"{case}: the reference on {args[0].device} is not the one on the CPU: {verdict.why}")
    return want


def _head(a: Any, first: Tensor, rows: int) -> Any:
    """The first rows of `first`, and what belongs to them of another argument: of a weight [N], all."""
    if not isinstance(a, Tensor):
        return a
    return (a[: -(-a.shape[0] * rows // first.shape[0])] if a.dim() >= min(first.dim(), 2) else a).cpu()


def run_case(
    case: Case,
    timer: CudaTimer | CpuTimer,
    device: torch.device,
    peers: dict[str, ModuleType],
    built_in: list[str],
    reps: int,
) -> dict[str, Any]:
    """Everything about one case, as it goes into the JSON."""
    with torch.no_grad():
        row = _run(case, timer, device, peers, built_in, reps)
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return row


def _run(case, timer, device, peers, built_in, reps) -> dict[str, Any]:
    shape = case.shape if device.type == "cuda" else shrink(case.shape)
    torch.manual_seed(0)
    args = case.inputs(shape, device)
    want = reference(case, args)
    row: dict[str, Any] = {
        "op": case.op,
        "case": case.name,
        "shape": list(shape),
        "bytes": case.nbytes(args, want) if case.nbytes else tensor_bytes(args) + tensor_bytes(outputs(want)),
        "target_us": case.target_us if device.type == "cuda" else None,
        "earlier": case.earlier if device.type == "cuda" else {},
        "variants": {},
    }
    want = canonical(case, args, want)
    truth = truths(case.wide, args) if case.wide else None
    ready = {}
    for v in variants(case, args, peers, built_in, device):
        result = {"ours": v.ours, "default": v.default, "method": "graph" if v.graph else "call"}
        row["variants"][v.name] = result
        call = functools.partial(v.call, *args)
        if _check(case, args, call, want, truth, v, result):
            ready[v.name] = (v, call)
    _time(row, ready, timer, device, reps)
    for name, (v, call) in ready.items():  # again: a race may show only now
        _check(case, args, call, want, truth, v, row["variants"][name])
    return row


def canonical(case: Case, args: tuple, result: Any) -> Any:
    return case.canonical(args, result) if case.canonical else result


def wide_op(op: str) -> Callable[..., Any]:
    """For `Case.wide`: the op itself, given its tensors in dtype."""

    def call(dtype: torch.dtype, *args: Any) -> Any:
        with tle_ops.backend("ref"):
            return getattr(torch.ops.tle, op)(*(a.to(dtype) if isinstance(a, Tensor) else a for a in args))

    return call


def _check(
    case: Case,
    args: tuple,
    call: Callable,
    want: Any,
    truth: tuple[Truth, ...] | None,
    v: Variant,
    result: dict[str, Any],
) -> bool:
    """Note in `result` whether the variant is right. Where it is not, no time may stay there."""
    try:
        verdict = judge(canonical(case, args, call()), want, v.tolerance, truth)
    except Exception as e:  # a peer may refuse a shape, a kernel may be missing: the table says so
        result.update(status="error", detail=f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e) else ''}")
    else:
        result.update(status="ok" if verdict.ok else "wrong", detail=verdict.why, different_codes=verdict.different)
    if result["status"] != "ok":
        for figure in ("us", "us_p20", "us_p80", "gb_per_s", "copy_ratio", "graph_us", "graph_copy_ratio", "host_us"):
            result.pop(figure, None)
    return result["status"] == "ok"


def _time(row, ready, timer, device, reps) -> None:
    nbytes, results = row["bytes"], row["variants"]
    source = torch.randint(0, 256, (nbytes // 32 * 16,), dtype=torch.uint8, device=device)
    copy = functools.partial(torch.empty_like(source).copy_, source)
    calls = {"copy": copy}
    for name, (v, call) in ready.items():
        calls[name] = (_capture(timer, call, 1, results[name]) if v.graph else None) or call
    cold = timer.flushed(calls, reps)
    row["copy_us"] = _median(cold.pop("copy"))
    for name, samples in cold.items():
        us = _median(samples)
        fifths = statistics.quantiles(samples, n=5) if len(samples) > 1 else [us] * 4
        results[name].update(
            us=us,
            us_p20=round(fifths[0], 3),
            us_p80=round(fifths[-1], 3),
            gb_per_s=round(nbytes / us / 1e3, 1),
            copy_ratio=round(row["copy_us"] / us, 3),
        )
    raw = {name: call for name, (_, call) in ready.items()}
    if nbytes < GRAPH_BYTES:
        graphs = {n: _capture(timer, c, GRAPH_CALLS, results.get(n, {})) for n, c in ({"copy": copy} | raw).items()}
        warm = timer.replayed({n: graph for n, graph in graphs.items() if graph}, max(reps // 2, 3))
        if warm:
            row["copy_graph_us"] = _median(warm.pop("copy"))
        for name, samples in warm.items():
            us = _median(samples)
            results[name].update(graph_us=us, graph_copy_ratio=round(row["copy_graph_us"] / us, 3))
    if nbytes < HOST_BYTES and device.type == "cuda":
        for name, samples in timer.host(raw).items():
            results[name]["host_us"] = _median(samples)


def _capture(timer: CudaTimer | CpuTimer, call: Callable, times: int, result: dict[str, Any]) -> Callable | None:
    try:
        return timer.capture(call, times)
    except RuntimeError as e:  # a call that synchronises cannot be captured
        result.update(method="call", note=f"no CUDA graph: {str(e).strip().splitlines()[0]}")
        return None


def _median(samples: list[float]) -> float:
    return round(statistics.median(samples), 3)
