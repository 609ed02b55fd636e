"""The seed example of TLE on ordinary processes:  torchrun --nproc-per-node 2 examples/distributed/ring.py

Runs on GPUs if there are enough, else on the CPU."""

import os

import torch
import torch.distributed as dist

import tle_ops
import tle_ops.distributed as td


def main() -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = td.device_mesh({"node": 1, "device": world})
    x = torch.arange(4, device=device) + 100 * rank
    neighbour = tle_ops.remote(x, (rank + 1) % world, mesh)
    td.distributed_barrier(mesh)
    print(f"rank {rank} of {mesh}: my neighbour has {neighbour.tolist()}", flush=True)
    return neighbour


if __name__ == "__main__":
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpus else "gloo")
    main()
    td.release()
    dist.destroy_process_group()
