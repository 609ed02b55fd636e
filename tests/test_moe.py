"""moe_align against its definition, by loops."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import tle_ops
from tests.conftest import CUDA
from tests.graphs import assert_replays
from tests.specs.scan import ints


def aligned(ids: list[int], num_experts: int, block_size: int) -> tuple[list[int], list[int], int]:
    """By hand: slots of one expert after the other, each expert filled up to whole blocks."""
    n = len(ids)
    slots, experts = [], []
    for expert in range(num_experts):
        mine = [slot for slot in range(n) if ids[slot] == expert]
        blocks = -(-len(mine) // block_size)
        slots += mine + [n] * (blocks * block_size - len(mine))
        experts += [expert] * blocks
    used = len(slots)
    room = n + num_experts * (block_size - 1)
    return slots + [n] * (room - used), experts + [-1] * (-(-room // block_size) - len(experts)), used


@hypothesis.settings(max_examples=100, deadline=None, print_blob=True)
@hypothesis.given(
    st.integers(0, 2**32 - 1), st.integers(0, 60), st.integers(1, 5), st.integers(1, 40), st.integers(1, 20)
)
def test_moe_align_by_its_definition(seed, tokens, k, num_experts, block_size):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(-2, num_experts + 2, (tokens, k), generator=g)
    got = tle_ops.moe_align(ids, num_experts, block_size)
    want = aligned(ids.flatten().tolist(), num_experts, block_size)
    assert [t.tolist() for t in got] == [want[0], want[1], [want[2]]]


def test_kernels_on_every_route(monkeypatch):
    """One launch with one expert a program and with several; two launches; three; a block's worth of ids and less."""
    from tle_ops.kernels import moe_triton as kernels

    for name, value in (("_FEW", (128, 256)), ("_PROGRAMS", 32), ("_CHUNK", 128), ("_CHUNKS", 3), ("_ROWS", 2)):
        monkeypatch.setattr(kernels, name, value)
    for n in (0, 128, 200, 300, 700):
        for num_experts, block_size in ((5, 1), (150, 8)):
            ids = ints(n, low=-1, high=num_experts + 1, seed=n)
            got = kernels.moe_align(ids.to("cuda" if CUDA else "cpu"), num_experts, block_size)
            want = aligned(ids.tolist(), num_experts, block_size)
            assert [t.tolist() for t in got] == [want[0], want[1], [want[2]]], (n, num_experts, block_size)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [100, 5000, 30000])  # one launch, two, three
def test_cuda_graphs(tokens):
    assert_replays(tle_ops.moe_align, *((ints(tokens, 4, high=64, seed=i), 64, 16) for i in range(3)))


def test_each_token_finds_its_expert(device):
    """What a grouped GEMM does with the result."""
    tokens, experts, block = ints(50, 3, high=6).to(device), 6, 16
    sorted_ids, expert_ids, used = tle_ops.moe_align(tokens, experts, block)
    flat = tokens.flatten().tolist()
    for b, expert in enumerate(expert_ids[: int(used) // block].tolist()):
        members = sorted_ids[b * block : (b + 1) * block].tolist()
        assert all(flat[s] == expert for s in members if s < len(flat))
