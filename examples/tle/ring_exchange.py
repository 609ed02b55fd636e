"""The ring exchange of the TLE-Lite document: every process reads the shard of its neighbour on the same node.

    torchrun --nproc-per-node 2 examples/tle/ring_exchange.py

Each process on a GPU of its own if there are enough, over NVLink; else on the CPU, in Triton's interpreter.
"""

import os

import torch
import torch.distributed as dist

if torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import triton
import triton.language as tl
from symmetric import allocate, start

import tle_ops.language as tle

SIZE, BLOCK = 1 << 12, 1 << 10


@triton.jit
def ring_kernel(x_ptr, context, out_ptr, mesh: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = x_ptr + offsets
    node_rank = tle.shard_id(mesh, "node", context)
    device_rank = tle.shard_id(mesh, "device", context)
    next_device = (device_rank + 1) % mesh.shape[1]
    remote_x = tle.remote(x, shard_id=(node_rank, next_device), scope=mesh, context=context)
    tle.distributed_barrier(mesh, context)
    neighbor_vals = tl.load(remote_x)
    tle.distributed_barrier(mesh, context)  # nobody writes to x again before everyone has read
    tl.store(out_ptr + offsets, neighbor_vals)


def main() -> None:
    device = start()
    rank, world = dist.get_rank(), dist.get_world_size()
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = tle.device_mesh({"node": world // devices, "device": devices})
    programs = SIZE // BLOCK
    x, context = allocate(SIZE, torch.float32, device, channels=programs)
    out = torch.empty(SIZE, device=device)
    for turn in range(3):
        x.copy_(torch.arange(SIZE) + 10000 * rank + turn)
        ring_kernel[(programs,)](x, context, out, mesh, BLOCK)
        node, place = mesh.coordinate_of(rank)
        neighbor = mesh.rank_of((node, (place + 1) % devices))
        assert torch.equal(out.cpu(), torch.arange(SIZE) + 10000.0 * neighbor + turn), f"rank {rank}, turn {turn}"
    print(f"rank {rank} of {mesh} read the shard of rank {neighbor}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
