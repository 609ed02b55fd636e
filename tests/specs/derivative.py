"""The plain form of a backward op: PyTorch's own gradient of the forward's plain form. No specs of its own."""

from collections.abc import Callable

import torch
from torch import Tensor

SPECS = []


def gradient_of(forward: Callable[..., Tensor], position: int) -> Callable[..., Tensor]:
    """(dy, *args) -> the gradient of <dy, forward(*args)> by args[position], itself differentiable"""

    def plain(dy: Tensor, *args):
        with torch.enable_grad():
            args = [
                a.detach().requires_grad_() if i == position and not a.requires_grad else a for i, a in enumerate(args)
            ]
            return torch.autograd.grad(forward(*args), args[position], dy, create_graph=True)[0]

    return plain
