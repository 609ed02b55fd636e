"""Host microseconds of eager calls on small tensors: one op taken to pieces, then every op."""

from __future__ import annotations

import functools
import importlib
import statistics
from collections.abc import Callable
from typing import Any

import torch

import tle_ops
from bench.harness import Case, shrink
from bench.timing import CpuTimer, CudaTimer
from tle_ops import _meta, _register
from tle_ops.kernels import CPU, CUDA

OP = "per_token_cast_fp8"  # two outputs, no gradient
TARGET_US = 15.0  # of any op; 12 without a gradient
_probe_library: torch.library.Library | None = None


def pieces(device: torch.device) -> dict[str, Callable[[], Any]]:
    """What a call of per_token_cast_fp8 is made of, beside two of PyTorch's own."""
    x = torch.randn(8, 1024, dtype=torch.bfloat16, device=device)
    contract = _meta.CONTRACTS[OP]
    result = contract.fn(x)
    op = getattr(torch.ops.tle, OP)
    plain, probe = _empty_ops(contract, result)
    parts = {
        "torch.empty": lambda: torch.empty(8, 1024, dtype=torch.bfloat16, device=device),
        "torch.add": lambda: torch.add(x, x),
        "two torch.empty (the outputs)": lambda: (
            torch.empty(8, 1024, dtype=torch.float8_e4m3fn, device=device),
            torch.empty(8, 8, dtype=torch.float32, device=device),
        ),
        "contract: checks and allocates": lambda: contract.fn(x),
        "dispatcher: an op with an empty body": lambda: plain(x),
        "dispatcher and autograd key, empty body": lambda: probe(x),
    }
    if device.type == "cuda":
        modules = {b: f"{CUDA[OP].rsplit('_', 1)[0]}_{b}" for b in tle_ops.backends(OP) if b != "ref"}
    else:
        modules = {"ref": CPU[OP]}
    for backend, module in modules.items():
        kernel = getattr(importlib.import_module(f"tle_ops.kernels.{module}"), OP)
        parts[f"launcher, contract included: {backend}"] = functools.partial(kernel, x)
    return parts | {
        f"torch.ops.tle.{OP}, whole": lambda: op(x),
        f"tle_ops.{OP}, whole": lambda: tle_ops.per_token_cast_fp8(x),
    }


def _empty_ops(contract: _meta.Contract, result: Any) -> tuple[Callable, Callable]:
    """Two ops of the contract's schema that only return `result`: registered plainly, and as this package does it."""
    global _probe_library
    _probe_library = torch.library.Library("tle_bench", "FRAGMENT")
    arguments = contract.schema.removeprefix(OP)
    plain_name = f"plain{len(dir(torch.ops.tle_bench))}"  # a second call needs another name
    _probe_library.define(plain_name + arguments)

    def body(*args):
        return result

    for key in ("CPU", "CUDA"):
        _probe_library.impl(plain_name, body, key)
    plain = getattr(torch.ops.tle_bench, plain_name)

    name = f"_bench_{plain_name}"
    op = _register._define(name, name + arguments)
    bodies = {"CPU": body, "CUDA": body}
    for key in bodies:
        _register.LIB.impl(name, body, key)
    _register._register_autograd(name, op, None, bodies, _register._parameters(name, contract, op._schema))
    return plain, getattr(torch.ops.tle, name)


def every_op(cases: list[Case], device: torch.device) -> dict[str, Callable[[], Any]]:
    """A call of each op that has a case, at a small shape."""
    calls = {}
    for case in cases:
        if case.op not in calls:
            args = case.inputs(shrink(case.shape, 128), device)
            calls[case.op] = functools.partial(getattr(torch.ops.tle, case.op), *args)
    return calls


def run(timer: CudaTimer | CpuTimer, device: torch.device, cases: list[Case]) -> list[dict[str, Any]]:
    rows = []
    with torch.no_grad():
        for group, calls in (("pieces", pieces(device)), ("ops", every_op(cases, device))):
            for call in calls.values():  # builds the kernels
                call()
            for what, samples in timer.host(calls).items():
                us = sorted(samples)
                rows.append(
                    {
                        "group": group,
                        "what": what,
                        "us": round(statistics.median(us), 2),
                        "us_least": round(us[0], 2),
                        "target_us": TARGET_US if group == "ops" else None,
                    }
                )
    return rows
