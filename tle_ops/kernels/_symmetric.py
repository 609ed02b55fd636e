"""Memory that all GPUs of a group can address: PyTorch's symmetric memory, and the protocol by which the kernels of
`distributed_triton.py` share it.

A workspace is one symmetric buffer per process:

    half 0 | half 1 | arrivals, int64 [processes, TILES] | signals of tle.distributed_barrier, for CHANNELS channels

Calls of a group are numbered, by a counter in each GPU's own memory so that a CUDA graph counts on when it is replayed
(in 64 bits: at 10 us a call, 32 would last six hours), and take the halves in turn. No call, of whatever size, returns
before it has heard from every process that the same call has begun there. So when call n + 2 writes where call n did,
every process has begun n + 1, hence has finished n: nobody reads there any more, and a call needs one meeting of the
processes, not two.

NVLink multicast is not used, and not set up.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tle_ops.kernels import _group
from tle_ops.kernels._group import Member, PeerError
from tle_ops.kernels._replay import current_stream
from tle_ops.language._context import device_context, signal_count

CHANNELS = 1024  # programs of a launch that may meet their like on the peers
TILES = 1 << 16  # of one process's data that can be reported one by one
LEAST = 1 << 22  # bytes of a half
_lock = threading.RLock()
_workspaces: dict[tuple, Workspace | None] = {}
# Address of a storage -> it, its context, and the same memory of all processes.
_tensors: dict[int, tuple[StorageWeakRef, Tensor, list[Tensor]]] = {}


class Workspace:
    """The symmetric buffer of one group on one device."""

    def __init__(self, me: Member, device: torch.device, half: int) -> None:
        arrivals = me.size * TILES * 8
        signals = signal_count(me.size, CHANNELS) * 4
        total = 2 * half + arrivals + signals
        self.rank, self.size, self.half, self.device = me.rank, me.size, half, device
        self.buffer, addresses, _ = allocate(me, total, device)
        self.stage = self.buffer[:0]
        self.stages: list[Tensor] = []
        self.arrivals = self.buffer[2 * half : 2 * half + arrivals].view(torch.int64)
        self.buffer[2 * half :].zero_()
        self.context = device_context(
            me.rank, addresses, [a + 2 * half + arrivals for a in addresses], CHANNELS, device
        )
        self.state = torch.tensor([1, 0], device=device)  # number of the call, programs that are done
        # Ranks that did not come, told by kernels; host memory, so that looking does not wait for the GPU.
        self.missing = torch.zeros(max(me.size, 4), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._missing = memoryview(self.missing.numpy())  # `any` of it costs a twentieth of the tensor's
        self.stream: Any = None  # of the call before
        self._beside: Any = None
        self.captured = False
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        me.barrier("before the first use of symmetric memory")  # all signals are 0 before anyone counts

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """What follows runs on a stream beside the current one, after what that has been given so far."""
        if self.device.type != "cuda":
            yield
            return
        if self._beside is None:
            self._beside = torch.cuda.Stream(self.device)
        self._beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._beside):
            yield

    def join(self) -> None:
        if self._beside is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._beside)

    def stage_of(self, me: Member, nbytes: int) -> tuple[Tensor, list[Tensor]]:
        """Symmetric memory besides the halves, for copies that the host orders with two barriers: this process's bytes
        and those of all. Like the workspace it grows by all processes together."""
        if self.stage.numel() < nbytes:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "tle_ops: call it once, with tensors of this size, before the capture of a CUDA graph"
                )
            if self.captured:
                _retired.append(self.stage)  # with it the peers' memory stays within reach
            self.stage, _, self.stages = allocate(me, 1 << (nbytes - 1).bit_length(), self.device)
        return self.stage, self.stages

    def raise_if_missing(self, what: str, me: Member) -> None:
        """PeerError if a kernel of an earlier call has given up; the workspace, out of step, is given back."""
        if any(self._missing):
            ranks = self.missing.nonzero().flatten().tolist()
            release(me)
            raise PeerError(
                f"{what}: {me._called(ranks)} did not arrive at an earlier call within {_group.get_timeout():g} s; "
                "what that call returned is not valid"
            )


def allocate(me: Member, nbytes: int, device: torch.device) -> tuple[Tensor, list[int], list[Tensor]]:
    """This process's bytes, and those of all processes in the order of the ranks: their addresses as this process sees
    them, and tensors of them."""
    nbytes = (nbytes + 15) // 16 * 16
    if me.size == 1:
        buffer = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        return buffer, [buffer.data_ptr()], [buffer]
    import torch.distributed._symmetric_memory as symmetric

    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    buffer = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(buffer, me.group)
    everyone = [handle.get_buffer(r, (nbytes,), torch.uint8) for r in range(me.size)]
    return buffer, list(handle.buffer_ptrs), everyone


def _reachable(me: Member, device: torch.device) -> bool:
    """Whether all GPUs of the group address each other's memory. All processes come to the same answer."""
    if me.size == 1:
        return True
    if device.type != "cuda":
        return False
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    mine = f"{socket.gethostname()} {uuid}"
    everyone = me.meet("symmetric memory", mine, "symmetric memory")
    if len({v.split()[0] for v in everyone}) > 1:  # other hosts
        return False
    # One GPU for several processes is for tests: kernels that wait for each other then take turns on it.
    if len(set(everyone)) < me.size and os.environ.get("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES") != "1":
        return False
    try:
        allocate(me, 1 << 16, device)
        verdict = "yes"
    except RuntimeError as e:
        verdict = f"no: {e}"
    return all(v == "yes" for v in me.meet("symmetric memory", verdict, "symmetric memory"))


def workspace(op: str, me: Member, device: torch.device, nbytes: int) -> Workspace | None:
    """The group's workspace with halves of at least `nbytes`; None where the GPUs do not reach each other. The first
    call, and one that needs more than any before, must be made by all processes together."""
    key = (me.name, device)
    found = _workspaces.get(key, False)
    if found and found.half >= nbytes:
        found.raise_if_missing(op, me)
        _on_one_stream(found)
        return found
    if found is None:
        return None
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{op}: call it once, with tensors of this size, before the capture of a CUDA graph")
    with _lock:
        if not found and not _reachable(me, device):
            _workspaces[key] = None
            return None
        if found:
            found.raise_if_missing(op, me)
            if found.captured:
                _retired.append(found)  # a graph has its addresses
        made = Workspace(me, device, max(LEAST, 1 << (nbytes - 1).bit_length()))
        _workspaces[key] = made
    _on_one_stream(made)
    return made


_retired: list[Any] = []  # memory whose addresses a CUDA graph has


def _on_one_stream(ws: Workspace) -> None:
    """Calls of a group come one after another on the GPU, whatever streams they are made on."""
    if ws.device.type != "cuda":
        return
    if torch.cuda.is_current_stream_capturing():
        ws.captured = True
        return
    if ws.stream is not None and ws.stream.cuda_stream == current_stream(ws.device.index):
        return
    stream = torch.cuda.current_stream(ws.device)
    if ws.stream is not None:
        stream.wait_stream(ws.stream)
    ws.stream = stream


def raise_if_missing(me: Member) -> None:
    """PeerError if a kernel of this group, on any device, has given up."""
    for (name, _), ws in list(_workspaces.items()):
        if ws is not None and name == me.name:
            ws.raise_if_missing("distributed_barrier", me)


def release(me: Member | None = None) -> None:
    """Give the memory back: that of one group, or all."""
    with _lock:
        for key in [k for k in _workspaces if me is None or k[0] == me.name]:
            del _workspaces[key]
        if me is None:
            _retired.clear()
            _tensors.clear()


# --- tensors of the user in symmetric memory: remote reads need no copy -----------------------------------------------
def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, me: Member) -> Tensor:
    count = 1
    for n in shape:
        count *= n
    buffer, addresses, everyone = allocate(me, max(count * dtype.itemsize, 16), device)
    context = device_context(me.rank, addresses, addresses, 1, device)  # no signals: it serves addresses alone
    storage = buffer.untyped_storage()
    everyone[me.rank] = context  # not its own memory, which would never be freed
    _tensors[storage.data_ptr()] = (StorageWeakRef(storage), context, everyone)
    flat = buffer[: count * dtype.itemsize].view(dtype)
    return flat.view(shape)


def allocation_of(x: Tensor) -> tuple[Tensor, list[Tensor]] | None:
    """Of the symmetric allocation that x lies in: its context, and the bytes of the peers."""
    if not _tensors:
        return None
    address = x.untyped_storage().data_ptr()
    if address in _tensors and _tensors[address][0].expired():
        del _tensors[address]  # other memory has that address now
    return _tensors[address][1:] if address in _tensors else None
