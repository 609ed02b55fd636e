"""examples/: sparse attention and the mixture of experts against their dense definitions."""

import torch

import moe_layer
import sparse_attention


def test_sparse_attention():
    with_few, with_all = sparse_attention.main(S=128, topk=32)
    assert 0 < with_few < 0.1  # little is left out
    assert with_all < 1e-5


def test_moe_layer():
    assert moe_layer.main() < 1e-5


def test_moe_layer_gradients():
    """Every weight, the router's through topk_gate, against the loops."""
    torch.manual_seed(1)
    layer = moe_layer.MoE(dim=16, hidden=8, experts=8, k=2, groups=4, open_groups=2, block=4)
    x = torch.randn(12, 16, requires_grad=True)
    cotangent = torch.randn(12, 16)
    inputs = [x, *layer.parameters()]
    got = torch.autograd.grad(layer(x), inputs, cotangent)
    want = torch.autograd.grad(layer.forward_by_loops(x), inputs, cotangent)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
