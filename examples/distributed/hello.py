"""The example of the README:  torchrun --nproc-per-node 2 examples/distributed/hello.py"""

import torch
import torch.distributed as dist

import tle_ops
import tle_ops.distributed as td

dist.init_process_group("gloo")  # "nccl" on GPUs
mesh = td.device_mesh({"device": dist.get_world_size()})
x = td.distribute(torch.arange(8.0).view(4, 2), td.sharding(mesh, ["device", None]))  # rows over the processes
y = tle_ops.rms_norm(x, td.distribute(torch.ones(2), td.sharding(mesh)), 1e-6)  # a DTensor; nothing travels
neighbour = tle_ops.ring_exchange(y.to_local(), group=mesh)
q, scales = tle_ops.all_gather_fp8(y.to_local(), group=mesh)  # half the bytes of bfloat16
print(f"{dist.get_rank()} {y.placements} {neighbour.shape} {q.shape}")
dist.destroy_process_group()
