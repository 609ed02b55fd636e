"""Cases: the distributed ops in a world of one process, where nothing travels: what their kernels cost beside a copy.
Between GPUs: `torchrun --nproc-per-node 2 -m bench.distributed`, whose results are the family distributed."""

from __future__ import annotations

import torch
import torch.distributed as dist

from bench.harness import Case


def _alone() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def tensor(shape, device):
    _alone()
    return (torch.randn(shape, device=device, dtype=torch.bfloat16),)


def shard(shape, device):
    return (*tensor(shape, device), 0)


def put(shape, device):
    (x,) = tensor(shape, device)
    return x, x + 1, 0


def token(shape, device):
    _alone()
    return (torch.zeros(shape, device=device),)


_SHAPE = (8192, 4096)
_NAME = "8192x4096 bf16, alone"
CASES = [
    Case("remote", _NAME, _SHAPE, shard, eager=lambda x, _: x.clone(), quick=True),
    Case("remote_put", _NAME, _SHAPE, put, rowwise=False, quick=True),
    Case("ring_exchange", _NAME, _SHAPE, tensor, eager=lambda x: x.clone(), quick=True),
    Case("distributed_barrier", "alone", (1,), token, eager=lambda x: x.clone(), rowwise=False, quick=True),
    Case("all_gather_fp8", _NAME, _SHAPE, tensor, quick=True),
    Case("reduce_scatter_fp8", _NAME, _SHAPE, tensor, quick=True),
]
