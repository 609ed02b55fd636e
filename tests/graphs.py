"""CUDA graphs: an op is captured once, then its inputs change in place and the graph is replayed."""

import torch
from torch import Tensor

from tests.table import assert_same_bits, outputs


def assert_replays(op, *versions: tuple) -> None:
    """versions: argument tuples on the CPU that differ in the values of their tensors alone. The graph captured with
    the first must give what the op gives for each."""
    static = [a.cuda() if isinstance(a, Tensor) else a for a in versions[0]]
    op(*static)  # builds the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = outputs(op(*static))
    for version in (*versions[1:], versions[0], versions[-1]):
        for target, source in zip(static, version, strict=True):
            if isinstance(target, Tensor):
                target.copy_(source)
        graph.replay()
        for got, want in zip(captured, outputs(op(*static)), strict=True):
            assert_same_bits(got, want)
        for got, want in zip(captured, outputs(op(*version)), strict=True):
            if not want.dtype.is_floating_point:
                assert_same_bits(got, want)
