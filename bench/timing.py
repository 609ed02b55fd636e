"""How a time is taken. Two timers with one interface: CUDA events on a GPU, a wall clock on the CPU, to try it out.

On a GPU one sample is

    busy-wait, write 256 MB, event, call, event

in the stream's order. The busy-wait outlasts the host's enqueueing of the rest, so that no host time is between the
events; the write evicts the call's tensors from L2. Variants take turns (round-robin), so that a drift of the clocks
hits all of them alike. The figure is the median.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Call = Callable[[], object]
Samples = dict[str, list[float]]  # name -> microseconds

FLUSH_BYTES = 256 << 20
GRAPH_CALLS = 20  # calls in one replayed graph


class CudaTimer:
    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def flushed(self, calls: dict[str, Call], reps: int) -> Samples:
        """Each call with a cold L2."""
        return self._rounds(calls, reps, self._flush.zero_)

    def replayed(self, graphs: dict[str, Call], reps: int) -> Samples:
        """One call of each graph of GRAPH_CALLS, L2 as the calls before left it: no host, no launch gaps."""
        samples = self._rounds(graphs, reps, lambda: None)
        return {name: [t / GRAPH_CALLS for t in times] for name, times in samples.items()}

    def capture(self, call: Call, times: int = 1) -> Call:
        """The replay of a CUDA graph of `times` calls. The call must have run before."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(times):
                call()
        return graph.replay

    def _rounds(self, calls: dict[str, Call], reps: int, before: Call) -> Samples:
        cycles = {name: self._head_start(call) for name, call in calls.items()}
        events: dict[str, list] = {name: [] for name in calls}
        for _ in range(reps):
            for name, call in calls.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(cycles[name])
                before()
                start.record()
                call()
                end.record()
                events[name].append((start, end))
            torch.cuda.synchronize()
        return {name: [start.elapsed_time(end) * 1e3 for start, end in pairs] for name, pairs in events.items()}

    @staticmethod
    def _head_start(call: Call) -> int:
        """GPU cycles of a busy-wait that outlasts the host's part of the call, also after one of another variant that
        kept the CPU busy."""
        host = min(_enqueue_us(call, torch.cuda.synchronize) for _ in range(5))
        return int(min(2 * host + 200, 5000) * 2000)  # 2000 cycles are a microsecond at 2 GHz

    def host(self, calls: dict[str, Call], batches: int = 9, per_batch: int = 200) -> Samples:
        """Host time of back-to-back calls without synchronisation; on tensors so small that the GPU keeps up."""
        return _host(calls, batches, per_batch, torch.cuda.synchronize)


class CpuTimer:
    """Same interface, same rounds; there is no cache to flush by hand and no graph to replay."""

    def flushed(self, calls: dict[str, Call], reps: int) -> Samples:
        samples: Samples = {name: [] for name in calls}
        for _ in range(reps):
            for name, call in calls.items():
                samples[name].append(_enqueue_us(call, lambda: None))
        return samples

    def replayed(self, graphs: dict[str, Call], reps: int) -> Samples:
        return {}

    def capture(self, call: Call, times: int = 1) -> Call:
        return call

    def host(self, calls: dict[str, Call], batches: int = 9, per_batch: int = 20) -> Samples:
        return _host(calls, batches, per_batch, lambda: None)


def _host(calls: dict[str, Call], batches: int, per_batch: int, synchronize: Call) -> Samples:
    samples: Samples = {name: [] for name in calls}
    with _no_gc():
        for _ in range(batches):
            for name, call in calls.items():
                call()
                synchronize()
                start = time.perf_counter_ns()
                for _ in range(per_batch):
                    call()
                samples[name].append((time.perf_counter_ns() - start) / 1e3 / per_batch)
        synchronize()
    return samples


def _enqueue_us(call: Call, synchronize: Call) -> float:
    synchronize()
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


@contextmanager
def _no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
