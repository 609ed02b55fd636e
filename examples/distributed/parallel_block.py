"""Sequence and tensor parallelism of a transformer MLP.

    torchrun --nproc-per-node 2 examples/distributed/parallel_block.py

Between blocks the activations are sharded by tokens: the norm works on its own rows. Inside, gate and up are sharded by
features (tensor parallel): the tokens are gathered, in FP8, which halves what travels, and the outputs of all processes
are summed and scattered back to tokens, in FP8 too. The same MLP with DTensors and in one piece gives the same result.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tle_ops
import tle_ops.distributed as td

TOKENS, HIDDEN, FEATURES = 64, 256, 512


def weights(device: torch.device) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = (HIDDEN,), (HIDDEN, FEATURES), (HIDDEN, FEATURES), (FEATURES, HIDDEN)
    return [(torch.randn(s, generator=g) * (s[0] ** -0.5 if len(s) > 1 else 1)).to(device) for s in shapes]


def whole_mlp(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """In one piece; with DTensors, by their placements."""
    y = tle_ops.rms_norm(x, norm, 1e-6)
    return tle_ops.add(tle_ops.swiglu(y @ gate, y @ up) @ down, x)


def fp8_mlp(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x: this process's tokens; gate, up, down: its features."""
    y = tle_ops.rms_norm(x, norm, 1e-6)  # [tokens / W, HIDDEN]
    q, scales = tle_ops.all_gather_fp8(y)  # all tokens
    y = tle_ops.per_token_cast_back(q, scales, dtype=x.dtype)
    partial = tle_ops.swiglu(y @ gate, y @ up) @ down  # [tokens, HIDDEN], a summand
    return tle_ops.add(tle_ops.reduce_scatter_fp8(partial), x)


def main() -> tuple[float, float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if dist.get_backend() == "nccl" else torch.device("cpu")
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).to(device)
    norm, gate, up, down = weights(device)
    want = whole_mlp(x, norm, gate, up, down)

    mesh = td.device_mesh({"device": world}).torch_mesh
    places = [Shard(0)], [Replicate()], [Shard(1)], [Shard(1)], [Shard(0)]
    tensors = (distribute_tensor(t, mesh, p) for t, p in zip((x, norm, gate, up, down), places, strict=True))
    by_dtensor = whole_mlp(*tensors).full_tensor()

    mine = x.chunk(world)[rank], norm, gate.chunk(world, 1)[rank], up.chunk(world, 1)[rank], down.chunk(world)[rank]
    by_fp8 = fp8_mlp(*(t.contiguous() for t in mine))

    errors = [float((got - w).norm() / w.norm()) for got, w in ((by_dtensor, want), (by_fp8, want.chunk(world)[rank]))]
    print(f"rank {rank}: relative error with DTensors {errors[0]:.1e}, with FP8 in between {errors[1]:.1e}", flush=True)
    return errors[0], errors[1]


if __name__ == "__main__":
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpus else "gloo")
    main()
    td.release()
    dist.destroy_process_group()
