"""A mixture-of-experts layer: `topk_gate` routes tokens, `moe_align` sorts them into blocks of one expert each, and a
grouped product runs over the blocks. No step waits for the device, so the layer can be captured in a CUDA graph.

    python examples/moe_layer.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tle_ops


class MoE(nn.Module):
    """y = sum over a token's k experts of weight * down(swiglu(gate_up(x))), routed as in DeepSeek-V3: sigmoid scores,
    a bias that only selects, and groups of experts of which the best are open.

    Args:
        dim, hidden: widths of the layer and of an expert.
        experts, k: how many there are, and how many a token takes.
        groups, open_groups: the experts form so many groups, and a token chooses from so many of them.
        block: tokens of a block of the grouped product.
    """

    def __init__(
        self, dim: int, hidden: int, experts: int, k: int, groups: int = 1, open_groups: int = 1, block: int = 16
    ) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.bias = nn.Buffer(torch.zeros(experts))  # moved by the load of each expert, not by a gradient
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, dim) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(experts, dim, hidden) * hidden**-0.5)
        self.k, self.groups, self.open_groups, self.block = k, groups, open_groups, block

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, dim] -> weights [T, k] float32, experts [T, k] int32"""
        return tle_ops.topk_gate(
            self.router(x),
            self.k,
            scoring="sigmoid",
            bias=self.bias,
            num_groups=self.groups,
            topk_groups=self.open_groups,
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [T, dim] -> [T, dim]"""
        T, dim = x.shape
        weights, experts = self.route(x)
        slots, owners, _ = tle_ops.moe_align(experts, self.gate_up.shape[0], self.block)
        slots = F.pad(slots, (0, -slots.shape[0] % self.block), value=T * self.k)
        slots = slots.view(-1, self.block)  # [blocks, block]
        rows = F.pad(x, (0, 0, 0, 1))[(slots // self.k).long()]  # [blocks, block, dim]; the padding reads zeros
        owners = owners.clamp_min(0).long()  # blocks after the last hold padding alone
        hidden = tle_ops.swiglu_packed(rows @ self.gate_up[owners].mT)  # [blocks, block, hidden]
        out = hidden @ self.down[owners].mT  # [blocks, block, dim]
        # Back to the order of the slots: each is written once, the padding to one place past the end.
        by_slot = x.new_zeros(T * self.k + 1, dim).index_put((slots.flatten().long(),), out.flatten(0, 1))
        return (by_slot[:-1].view(T, self.k, dim) * weights[..., None]).sum(1).to(x.dtype)

    def forward_by_loops(self, x: Tensor) -> Tensor:
        """The same, a token and an expert at a time."""
        y = torch.zeros_like(x)
        for t, (weights, experts) in enumerate(zip(*self.route(x), strict=True)):
            for weight, e in zip(weights, experts.tolist(), strict=True):
                gate, up = (self.gate_up[e] @ x[t]).chunk(2)
                y[t] += weight * (self.down[e] @ (F.silu(gate) * up))
        return y


def main(tokens: int = 64) -> float:
    """Run it and its gradient; returns how far it is off from the loops."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = MoE(dim=64, hidden=32, experts=32, k=4, groups=8, open_groups=3).to(device)
    x = torch.randn(tokens, 64, device=device)
    y, want = layer(x), layer.forward_by_loops(x)
    error = float((y - want).detach().norm() / want.detach().norm())
    y.square().mean().backward()
    load = tle_ops.histogram(layer.route(x)[1].flatten(), 32)
    print(f"{tokens} tokens on {device}: off by {error:.2g}; load of the experts {load.tolist()}")
    return error


if __name__ == "__main__":
    main()
