"""A transformer block, compiled whole, with these operators and with plain PyTorch: milliseconds and tokens per second.

    python -m bench.block --out bench/results/h200/block.json

The block is that of examples/train_block.py, in bfloat16 on a GPU. The two take turns, so that a drift of the clocks
hits both. Wall clock: what the CPU takes counts, which decides about few tokens.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import tle_ops
from tle_ops import _dispatch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

from train_block import Block, Plain

# name -> width, heads, sequences, tokens of each, calls in a sample
SIZES = {"large": (4096, 32, 2, 4096, 4), "small": (2048, 16, 1, 512, 40), "tiny": (64, 2, 1, 16, 2)}
# The two modes of torch.compile; the second makes CUDA graphs of the block.
MODES = {"default": None, "reduce-overhead": "reduce-overhead"}


def steps(block: Block, inputs: list, gradients: list, ops: Any, mode: str | None) -> dict[str, Callable]:
    """Forward, and forward with backward, of one compiled block."""
    leaves = [*inputs[:2], *block.parameters()]

    def region(x, residual, cos, sin):
        return block(ops, x, residual, cos, sin)

    compiled = torch.compile(region, fullgraph=True, mode=mode)

    def forward():
        with torch.no_grad():
            return compiled(*inputs)

    def both():
        torch.compiler.cudagraph_mark_step_begin()
        torch.autograd.backward(compiled(*inputs), gradients)
        found = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return found

    # Graphs of one kind only: PyTorch records them anew when kinds take turns.
    return {"forward and backward": both} if mode else {"forward": forward, "forward and backward": both}


def wall_ms(calls: dict[str, Callable], count: int, rounds: int, wait: Callable) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(count):
                call()
            wait()
            samples[name].append((time.perf_counter() - start) / count * 1e3)
    return {name: round(statistics.median(times), 4) for name, times in samples.items()}


def measure(size: str, mode: str, device: str, rounds: int) -> list[dict[str, Any]]:
    D, H, B, T, count = SIZES[size]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    block = Block(D, H, 8 * D // 3 // 8 * 8).to(device, dtype)
    angles = torch.arange(T)[:, None] * 10000 ** (-torch.arange(0, D // H, 2) * H / D)
    tensors = functools.partial(torch.randn, B, T, D, device=device, dtype=dtype)
    inputs = [
        tensors(requires_grad=True),
        tensors(requires_grad=True),
        angles.cos().to(device),
        angles.sin().to(device),
    ]
    gradients = [tensors(), tensors()]
    torch._dynamo.reset()
    calls = {
        name: steps(block, inputs, gradients, ops, MODES[mode])
        for name, ops in (("tle_ops", tle_ops), ("plain", Plain))
    }
    for kinds in calls.values():
        for call in kinds.values():
            for _ in range(4):  # compiles, and records graphs
                call()
    ours, plain = (calls[name]["forward and backward"] for name in calls)
    for a, b in zip([t.clone() for t in ours()], plain(), strict=True):
        if not (a - b).float().norm() <= 0.02 * b.float().norm():
            raise RuntimeError(f"{size}, {mode}: a gradient is off")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    rows = []
    for kind in calls["plain"]:
        ms = wall_ms({name: kinds[kind] for name, kinds in calls.items()}, count, rounds, wait)
        rate = {name: round(B * T / t * 1e3) for name, t in ms.items()}
        rows.append(
            {"size": f"{D} wide, {B}x{T} tokens", "mode": mode, "what": kind, "ms": ms, "tokens_per_second": rate}
        )
        print(f"{rows[-1]['size']}, {mode}, {kind}: {ms} ms, {rate} tokens/s", flush=True)
    return rows


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="small,large", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--modes", default="default,reduce-overhead", help="for the first size; others take the first")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=pathlib.Path, help="where to write JSON")
    o = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    modes = o.modes.split(",")
    rows = []
    for i, size in enumerate(o.sizes.split(",")):
        for mode in modes if i == 0 else modes[:1]:
            rows += measure(size, mode, device, o.rounds)
    if o.out:
        card = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        result = {
            "card": card,
            "torch": torch.__version__,
            "tle_ops": f"{tle_ops.__version__}+{_dispatch.source_hash()}",
            "date": datetime.date.today().isoformat(),
            "rows": rows,
        }
        o.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
