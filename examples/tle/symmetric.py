"""Memory that every process of a group can reach, and the context through which kernels reach it: on GPUs PyTorch's
symmetric memory, on the CPU files that all processes map."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

import tle_ops.language as tle


def start() -> torch.device:
    """Join the group that torchrun describes."""
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def allocate(size: int, dtype: torch.dtype, device: torch.device, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This process's buffer, and its context. Every process calls it; the memory lives as long as the buffer."""
    rank, world = dist.get_rank(), dist.get_world_size()
    words = tle.signal_count(world, channels)
    if device.type == "cuda":
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # not needed here
        buffer = symmetric_memory.empty(size, dtype=dtype, device=device)
        signals = symmetric_memory.empty(words, dtype=torch.int32, device=device).zero_()
        handles = [symmetric_memory.rendezvous(t, dist.group.WORLD) for t in (buffer, signals)]
        addresses = [list(h.buffer_ptrs) for h in handles]
        keep = (signals, handles)
    else:
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder)
        names = [[os.path.join(folder[0], f"{what}{r}") for r in range(world)] for what in ("buffer", "signals")]
        keep = [
            [torch.from_file(name, shared=True, size=n, dtype=t) for name in files]  # a new file is all zeros
            for files, n, t in zip(names, (size, words), (dtype, torch.int32), strict=True)
        ]
        addresses = [[t.data_ptr() for t in tensors] for tensors in keep]
        buffer = keep[0][rank]
    dist.barrier()  # everyone's signals are there, and 0
    if device.type == "cpu" and rank == 0:
        for name in (*names[0], *names[1]):
            os.remove(name)  # the mappings stay
        os.rmdir(folder[0])
    buffer.keep = keep
    return buffer, tle.device_context(rank, *addresses, channels, device)
