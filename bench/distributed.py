"""The distributed ops beside what users would take, on the GPUs of one host:

    torchrun --nproc-per-node 2 -m bench.distributed

Times are of CUDA events around calls back to back, over tensors that take turns so that none is in the L2 cache; of
several rounds the median, of the processes the slowest. Every result is compared with the plain composition before
it is timed. NVLink multicast stays off, for NCCL as well.

`--rehearse` goes through all of it on the CPU, over gloo. Those times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import tle_ops
import tle_ops.distributed as td
from bench import report

MiB = 1 << 20
TURNS = 4  # tensors that take turns
BF16 = torch.bfloat16
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def timed_us(calls: list[Callable[[], Any]], rounds: int, per_round: int, device: torch.device) -> float:
    """Of one call, on the slowest process."""

    def go() -> None:
        for i in range(per_round):
            calls[i % len(calls)]()

    cuda = device.type == "cuda"
    for call in calls:
        call()
    start = time.perf_counter()
    go()
    host_us = _slowest((time.perf_counter() - start) * 1e6, device)
    together = torch.zeros(1, device=device)
    samples = []
    for _ in range(rounds):
        if cuda:
            torch.cuda.synchronize()
            dist.barrier()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(min(2 * host_us, 20_000) * 2000))  # cycles, at 2 GHz: the host runs ahead
            dist.all_reduce(together)  # the GPUs start together
            begin.record()
            go()
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3 / per_round)
        else:
            dist.barrier()
            start = time.perf_counter()
            go()
            samples.append((time.perf_counter() - start) * 1e6 / per_round)
    return _slowest(statistics.median(samples), device)


def _slowest(us: float, device: torch.device) -> float:
    t = torch.tensor(us, device=device)
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item()


def replayed_us(calls: list[Callable[[], Any]], rounds: int, device: torch.device, times: int = 20) -> float:
    """In a CUDA graph: what the GPU needs, without the host."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(times):
            calls[i % len(calls)]()
    return timed_us([graph.replay], rounds, 3, device) / times


class Bench:
    def __init__(self, rounds: int, device: torch.device) -> None:
        self.rank, self.world, self.rounds = dist.get_rank(), dist.get_world_size(), rounds
        self.device = device
        self.by = dist.get_backend().upper()  # what the peers use
        self.rows: list[dict[str, Any]] = []

    def row(self, op: str, case: str, times: dict[str, float], note: str = "", gigabytes: float | None = None) -> None:
        row = {"op": op, "case": case, "us": times, "note": note}
        if gigabytes is not None:
            row["gb_per_s"] = {name: gigabytes * 1e6 / us for name, us in times.items()}
        self.rows.append(row)
        if self.rank == 0:
            print(f"{op:20s} {case:24s} {'  '.join(f'{n} {us:.1f}' for n, us in times.items())}  {note}", flush=True)

    def tensors(self, *shape: int, dtype: torch.dtype = BF16) -> list[Tensor]:
        return [torch.randn(shape, device=self.device, dtype=dtype) for _ in range(TURNS)]

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=dtype)

    def _timed(self, calls: list[Callable[[], Any]], megabytes: int) -> float:
        return timed_us(calls, self.rounds, 8 if megabytes >= 256 else 20, self.device)

    def _replayed(self, name: str, calls: list[Callable[[], Any]], megabytes: int) -> dict[str, float]:
        """Where the host is what one waits for."""
        small = megabytes <= 16 and self.device.type == "cuda"
        return {name: replayed_us(calls, self.rounds, self.device)} if small else {}

    def all_gather(self, megabytes: int) -> None:
        M, N = megabytes * MiB // 2 // 4096, 4096
        xs = self.tensors(M, N)
        whole = self.empty(M * self.world, N, dtype=BF16)
        _gather(whole, xs[0])
        for got, want in zip(tle_ops.all_gather_fp8(xs[0]), tle_ops.per_token_cast_fp8(whole), strict=True):
            assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), "all_gather_fp8 is wrong"
        q_all = self.empty(M * self.world, N, dtype=torch.uint8)
        s_all = self.empty(M * self.world, N // 128)

        def by_collectives(x: Tensor) -> None:
            q, scales = tle_ops.per_token_cast_fp8(x)
            _gather(q_all, q.view(torch.uint8))
            _gather(s_all, scales)

        ours, plain = [lambda x=x: tle_ops.all_gather_fp8(x) for x in xs], [lambda x=x: _gather(whole, x) for x in xs]
        times = {
            "all_gather_fp8": self._timed(ours, megabytes),
            "bf16 all_gather_into_tensor": self._timed(plain, megabytes),
            f"cast + {self.by}": self._timed([lambda x=x: by_collectives(x) for x in xs], megabytes),
            **self._replayed("all_gather_fp8 in a graph", ours, megabytes),
            **self._replayed("bf16 in a graph", plain, megabytes),
        }
        effective = times["bf16 all_gather_into_tensor"] / times["all_gather_fp8"]
        self.row("all_gather_fp8", f"{megabytes} MiB of bf16 a rank", times, f"{effective:.2f} times bf16")

    def reduce_scatter(self, megabytes: int) -> None:
        M, N = megabytes * MiB // 2 // 4096, 4096
        xs = self.tensors(M, N)
        part = self.empty(M // self.world, N, dtype=BF16)
        everyone = self.empty(M * self.world, N, dtype=BF16)
        _gather(everyone, xs[0])
        theirs = everyone.view(self.world, self.world, -1, N)[:, self.rank]  # the summands of this process's part
        q, scales = tle_ops.per_token_cast_fp8(theirs)
        want = tle_ops.per_token_cast_back(q, scales, dtype=torch.float32)
        want = functools.reduce(torch.add, want.unbind(0)).to(BF16)
        assert torch.equal(tle_ops.reduce_scatter_fp8(xs[0]), want), "reduce_scatter_fp8 is wrong"
        del everyone, theirs, q, scales, want
        ours, plain = (
            [lambda x=x: tle_ops.reduce_scatter_fp8(x) for x in xs],
            [lambda x=x: _scatter(part, x) for x in xs],
        )
        times = {
            "reduce_scatter_fp8": self._timed(ours, megabytes),
            "bf16 reduce_scatter_tensor": self._timed(plain, megabytes),
            **self._replayed("reduce_scatter_fp8 in a graph", ours, megabytes),
            **self._replayed("bf16 in a graph", plain, megabytes),
        }
        effective = times["bf16 reduce_scatter_tensor"] / times["reduce_scatter_fp8"]
        self.row("reduce_scatter_fp8", f"{megabytes} MiB of bf16 a rank", times, f"{effective:.2f} times bf16")

    def remote(self, megabytes: int) -> None:
        n, peer = megabytes * MiB // 4, (self.rank + 1) % self.world
        x = td.empty_symmetric((n,), torch.float32).to(self.device).normal_()
        y = x.clone()
        exchange, received = self._send_and_receive(y)
        exchange()
        for got in (tle_ops.remote(x, peer), tle_ops.remote(y, peer), tle_ops.ring_exchange(y)):
            assert torch.equal(got, received), "remote is wrong"
        calls = {
            "remote, symmetric x": lambda: tle_ops.remote(x, peer),
            "remote, any x": lambda: tle_ops.remote(y, peer),
            **self._copy_from_peer(n),
            f"{self.by} send and receive": exchange,
        }
        times = {name: self._timed([call], megabytes) for name, call in calls.items()}
        self.row("remote", f"{megabytes} MiB", times, gigabytes=n * 4 / 1e9)

    def _symmetric(self, n: int) -> tuple[Tensor, Any]:
        import torch.distributed._symmetric_memory as symmetric

        buffer = symmetric.empty(n, dtype=torch.float32, device=self.device)
        return buffer, symmetric.rendezvous(buffer, dist.group.WORLD)

    def _copy_from_peer(self, n: int) -> dict[str, Callable[[], Any]]:
        if self.device.type != "cuda":
            return {}
        buffer, handle = self._symmetric(n)
        peer, out = handle.get_buffer((self.rank + 1) % self.world, (n,), torch.float32), torch.empty_like(buffer)

        def copy(keep: Tensor = buffer) -> None:  # the peer's memory is within reach as long as this one's lives
            out.copy_(peer)

        return {"copy_ from the peer": copy}

    def _send_and_receive(self, x: Tensor) -> tuple[Callable[[], None], Tensor]:
        """A call that gets the x of the next process, and where it puts that."""
        out = torch.empty_like(x)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world

        def call() -> None:
            ops = [dist.P2POp(dist.isend, x, before), dist.P2POp(dist.irecv, out, after)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        return call, out

    def barrier(self) -> None:
        token, one = self.empty(0), torch.zeros(1, device=self.device)

        def eager(call: Callable[[], Any]) -> float:
            return timed_us([call], self.rounds, 100, self.device)

        def ours() -> Tensor:
            return tle_ops.distributed_barrier(token)

        times = {}
        if self.device.type == "cuda":
            times["distributed_barrier"] = replayed_us([ours], self.rounds, self.device)
        times["distributed_barrier, eager"] = eager(ours)
        if self.device.type == "cuda":
            _, handle = self._symmetric(16)
            times["symmetric memory"] = eager(handle.barrier)
        times[f"{self.by} all_reduce of one"] = eager(lambda: dist.all_reduce(one))
        self.row("distributed_barrier", "", times)


def markdown(result: dict[str, Any]) -> str:
    env = result["environment"]
    lines = [
        f"{env['card']} x {result['world']}, driver {env['driver']}, torch {env['torch']}, Triton {env['triton']}, "
        f"tle_ops {env['tle_ops']}, {env['date']}. Microseconds; NVLink multicast off.",
        "",
    ]
    for op in dict.fromkeys(row["op"] for row in result["cases"]):
        rows = [row for row in result["cases"] if row["op"] == op]
        names = list(dict.fromkeys(name for row in rows for name in row["us"]))
        lines += [f"| {op} | {' | '.join(names)} | |", f"| --- |{' ---: |' * len(names)} --- |"]
        for row in rows:
            rates = row.get("gb_per_s", {})
            figures = [
                f"{row['us'][n]:.1f}" + (f" ({rates[n]:.0f} GB/s)" if n in rates else "") if n in row["us"] else ""
                for n in names
            ]
            lines.append(f"| {row['case']} | {' | '.join(figures)} | {row['note']} |")
        lines.append("")
    return "\n".join(lines)


def chart(result: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in result["cases"] if len(row["us"]) > 1]
    figure, axes = plt.subplots(figsize=(9, 0.32 * sum(len(row["us"]) + 1 for row in shown) + 1))
    at, ticks, labels = 0, [], []
    for row in shown:
        slowest = max(row["us"].values())
        for i, (name, us) in enumerate(row["us"].items()):
            axes.barh(at, slowest / us, color="#1f5fa8" if i == 0 else "#bab0ac")
            axes.text(slowest / us, at, f" {us:.0f} us", va="center", fontsize=7)
            ticks.append(at)
            labels.append(f"{row['op']} {row['case']}: {name}" if i == 0 else name)
            at += 1
        at += 0.6
    axes.set_yticks(ticks, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("speed, the slowest of each group = 1")
    axes.set_title(f"{result['environment']['card']} x {result['world']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 64, 256], help="MiB of bf16 a rank")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rehearse", action="store_true", help="run it on the CPU")
    parser.add_argument("--out", type=pathlib.Path, default=None, help="default: bench/results/<card>")
    options = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    timeout = datetime.timedelta(seconds=120)
    if options.rehearse:
        if options.out is None:
            parser.error("--rehearse needs --out: its times are no results")
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timeout)
    else:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=timeout)
    torch.manual_seed(dist.get_rank())
    bench = Bench(options.rounds, device)
    bench.barrier()
    for megabytes in options.sizes:
        bench.all_gather(megabytes)
        bench.reduce_scatter(megabytes)
        bench.remote(megabytes)
    if dist.get_rank() == 0:
        write(bench, options.out)
    dist.barrier()
    td.release()
    dist.destroy_process_group()


def write(bench: Bench, out: pathlib.Path | None) -> None:
    result = {
        "family": "distributed",
        "world": bench.world,
        "environment": report.environment(bench.device, {}, bench.rounds),
        "cases": bench.rows,
    }
    folder = out or pathlib.Path(__file__).parent / "results" / report.slug(result["environment"]["card"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "distributed.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "distributed.md").write_text(markdown(result), encoding="utf-8")
    chart(result, folder / "distributed.png")


if __name__ == "__main__":
    main()
