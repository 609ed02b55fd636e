"""tle.device_context and tle.signal_count: what the host tells a kernel of the other processes. Plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tle_ops.language.mesh import is_int


def signal_count(processes: int, channels: int) -> int:
    """Signals of one process, of 4 bytes each, which must be 0 before the first kernel runs on any process. A multiple
    of 4, so that those of the next process in one allocation are aligned as well."""
    for name, value in (("processes", processes), ("channels", channels)):
        _positive("signal_count", name, value)
    return -(-(processes + 1) * channels // 4) * 4


def device_context(
    rank: int, buffers: Sequence[int], signals: Sequence[int], channels: int, device: torch.device | str | int
) -> torch.Tensor:
    """The context of this process. buffers, signals: the addresses, as this process sees them, of every process's
    buffer and signals, 16-byte aligned. channels: how many barriers may be under way at a time; each program of a
    launch takes one."""
    op = "device_context"
    for name, addresses in (("buffers", buffers), ("signals", signals)):
        if not isinstance(addresses, list | tuple) or not all(map(is_int, addresses)):
            raise TypeError(f"{op}: {name} must be a list of addresses (ints), got {addresses!r}")
        for address in addresses:
            if not 0 < address < 1 << 63:
                raise ValueError(f"{op}: {name} must be addresses in (0, 2**63), got {address}")
            if address % 16:
                raise ValueError(f"{op}: addresses must be 16-byte aligned, got {address:#x}")
    if not is_int(rank):
        raise TypeError(f"{op}: rank must be an int, got {rank!r}")
    if not buffers or len(buffers) != len(signals):
        raise ValueError(
            f"{op}: buffers and signals must be one of each process, got {len(buffers)} and {len(signals)}"
        )
    if not 0 <= rank < len(buffers):
        raise ValueError(f"{op}: rank must be one of {len(buffers)} processes, got {rank}")
    _positive(op, "channels", channels)
    if device is None:
        raise TypeError(f"{op}: device must be given, got None")
    return torch.tensor([rank, len(buffers), channels, *buffers, *signals], dtype=torch.int64, device=device)


def _positive(op: str, name: str, value: Any) -> None:
    if not is_int(value):
        raise TypeError(f"{op}: {name} must be an int, got {value!r}")
    if not 0 < value < 1 << 31:
        raise ValueError(f"{op}: {name} must be positive, and below 2**31, got {value}")
