"""Which selections a cluster of blocks takes (topk_tilelang), where it is sooner than the default, and how a row is
shared out. By shapes, dtypes and plain arguments alone, so that CUDA graphs can be replayed; the dispatcher asks, so
there is no kernel language here.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

THREADS = 1024
STEP = 16  # elements that a thread has under way
ROOM = 8192  # elements of a list
SAMPLE = 4096  # elements
RUN = 8  # of which so many lie together: a sector of float32
# Blocks of a cluster, no more than is portable, and for how many rows an H200 runs that many clusters at once. Those of
# a cluster share a group of 16 or 18 multiprocessors, so not every multiprocessor finds a place in one.
CLUSTERS = ((8, 8), (4, 28), (2, 66), (1, 2**31))
# Words of 32 columns that a block has bits for. Few sizes, since each is a kernel of its own: shared memory is not what
# limits how many blocks a multiprocessor holds.
WORDS = (8192, 16384)
SHARED = 205_216  # bytes of a block, at most
FEWEST = 16384  # columns of a block, if one more would have as few
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Plan(NamedTuple):
    cluster: int  # blocks of a row
    part: int  # columns of a block, a multiple of 32
    words: int  # of WORDS


@functools.lru_cache(4096)
def plan(M: int, N: int, k: int) -> Plan | None:
    """None where this way does not lead."""
    if k > ROOM // 2 or max(M, N) >= 2**31:
        return None
    step = N / SAMPLE
    above = k + 5 * math.sqrt(k * step) + 5 * step  # expected, where the bound is set
    if 1.03 * above + 4 * math.sqrt(above * step) > ROOM:
        return None
    cluster = next(c for c, rows in CLUSTERS if rows >= M and (c == 1 or c // 2 * FEWEST < N))
    part = -(-N // (32 * cluster)) * 32
    words = next((w for w in WORDS if 32 * w >= part), None)
    return None if words is None else Plan(cluster, part, words)


def takes(op: str, args: tuple[Any, ...]) -> bool:
    """Whether topk_tilelang has a kernel for a call of topk or topk_selector."""
    return _plan_of(op, args) is not None


def pays(op: str, args: tuple[Any, ...]) -> bool:
    """Whether it was measured to be the sooner one, with what a call costs the host. (In a CUDA graph Triton's is the
    sooner one for a single row and few elements.)"""
    x = args[0]
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.dim() == 0 or not 16384 < x.shape[-1] <= 262144:
        return False
    return _plan_of(op, args) is not None


def _plan_of(op: str, args: tuple[Any, ...]) -> Plan | None:
    if len(args) < 2:
        return None
    x, k = args[:2]
    if not isinstance(x, Tensor) or x.dtype not in DTYPES or x.dim() == 0 or x.numel() == 0 or k <= 0:
        return None
    if op == "topk":
        dim, _, in_order = (*args[2:], *(-1, True, True)[len(args) - 2 :])
        if in_order or dim not in (-1, x.dim() - 1):
            return None
    N = x.shape[-1]
    return plan(x.numel() // N, N, k) if _has_clusters(x.get_device()) else None


@functools.cache
def _has_clusters(device: int) -> bool:
    """From compute capability 9.0 on, where a block may have as much shared memory. Without any GPU, where one can only
    ask what would be, yes."""
    if not torch.cuda.is_available():
        return True
    found = torch.cuda.get_device_properties(max(device, 0))
    return found.major >= 9 and found.shared_memory_per_block_optin >= SHARED
