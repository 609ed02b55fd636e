"""Train two transformer blocks to predict the next byte of a text, once with tle_ops and once with plain PyTorch.

    python examples/train_block.py  # 40 s on two idle cores

Both start from the same weights and read the same batches, so their loss curves should lie on each other, apart from
rounding, which training amplifies. A third run, plain PyTorch with its batches in another order, shows the noise that
any two runs have. The text is the help that comes with Python (pydoc_data). Figures go to the terminal, and to a chart
if matplotlib is installed.

Shapes: B sequences, T bytes, D features, H heads, F hidden features.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tle_ops

EPS = 1e-6


class Plain:
    """The same operators as compositions of torch functions."""

    @staticmethod
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)

    @staticmethod
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = x + residual
        return Plain.rms_norm(residual, weight, eps), residual

    @staticmethod
    def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        cos, sin = cos[..., None, :], sin[..., None, :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    @staticmethod
    def swiglu_packed(x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, -1)
        return (F.silu(gate) * up).to(x.dtype)


class Block(nn.Module):
    def __init__(self, D: int, H: int, hidden: int) -> None:
        super().__init__()
        self.H = H
        self.attention_norm = nn.Parameter(torch.ones(D))
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.feed_norm = nn.Parameter(torch.ones(D))
        self.gate_up = nn.Linear(D, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, D, bias=False)

    def forward(self, ops, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, D], what the layer before adds to the residual stream -> the same of this layer, and the stream"""
        if residual is None:
            y, residual = ops.rms_norm(x, self.attention_norm, EPS), x
        else:
            y, residual = ops.add_rms_norm(x, residual, self.attention_norm, EPS)
        qkv = self.qkv(y).unflatten(-1, (3 * self.H, -1))  # [B, T, 3 H, D / H]
        qk, v = ops.rope(qkv[:, :, : 2 * self.H], cos, sin), qkv[:, :, 2 * self.H :]
        q, k, v = (t.transpose(1, 2) for t in (*qk.chunk(2, 2), v))  # [B, H, T, D / H]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        y, residual = ops.add_rms_norm(self.out(y), residual, self.feed_norm, EPS)
        return self.down(ops.swiglu_packed(self.gate_up(y))), residual


class Model(nn.Module):
    """ops: `tle_ops`, or `Plain`."""

    def __init__(self, ops, D: int, H: int, layers: int, T: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.ops, self.dtype = ops, dtype
        self.embedding = nn.Embedding(256, D)
        self.blocks = nn.ModuleList(Block(D, H, 8 * D // 3 // 8 * 8) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(D))
        self.head = nn.Linear(D, 256, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        angles = torch.arange(T)[:, None] * 10000 ** (-torch.arange(0, D // H, 2) * H / D)  # [T, D / H / 2]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, text: Tensor) -> Tensor:
        """text [B, T] bytes -> logits [B, T, 256]"""
        x, residual = self.embedding(text).to(self.dtype), None
        for block in self.blocks:
            x, residual = block(self.ops, x, residual, self.cos, self.sin)
        y, _ = self.ops.add_rms_norm(x, residual, self.norm, EPS)
        return self.head(y)


def read_text() -> Tensor:
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def batches(text: Tensor, B: int, T: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random pieces of the text, and the same pieces one byte later, [B, T] each."""
    g = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - T, (B, 1), generator=g)
        pieces = text[starts + torch.arange(T + 1)].long()
        yield pieces[:, :-1], pieces[:, 1:]


def train(ops, text: Tensor, o: argparse.Namespace, device: str, seed: int) -> tuple[list[float], float]:
    """Losses of all steps, and seconds per step."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Model(ops, o.width, o.heads, o.layers, o.length, dtype).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, weight_decay=0.01)
    source = batches(text, o.batch, o.length, seed)
    losses, began = [], 0.0
    for step in range(o.steps):
        if step == min(5, o.steps - 1):  # kernels are built by now
            began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = o.lr * min(1.0, (step + 1) / 20)
        x, y = (t.to(device) for t in next(source))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, (time.perf_counter() - began) / max(o.steps - 5, 1)


def chart(path: str, curves: dict[str, list[float]], device: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tle, plain, other = curves.values()
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, height_ratios=(3, 2), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        above.plot(losses, style, label=name, linewidth=1.8 if style == "--" else 1.2)
    above.set(ylabel="loss (nats per byte)", title=f"Next byte of Python's help text, two blocks, {device}")
    above.legend()
    for name, losses in (("tle_ops", tle), ("another order of batches", other)):
        below.semilogy([abs(a - b) + 1e-9 for a, b in zip(losses, plain, strict=True)], label=f"|{name} - plain|")
    below.set(xlabel="step", ylabel="difference of the loss")
    below.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


SIZES = (
    ("steps", 200, "of each of the three runs"),
    ("batch", 16, "sequences of a step"),
    ("length", 128, "bytes of a sequence"),
    ("width", 128, "features"),
    ("heads", 4, "of the attention"),
    ("layers", 2, "transformer blocks"),
)


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Run it; returns the losses of the three runs."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, value, what in SIZES:
        parser.add_argument(f"--{name}", type=int, default=value, help=what)
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--chart", default="train_block.png", help="where to draw; '' for nowhere")
    parser.add_argument("--json", default="", help="where to write the losses; '' for nowhere")
    o = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = read_text()
    print(f"{len(text)} bytes of text; {o.steps} steps of {o.batch} x {o.length} bytes on {device}")
    curves, per_step = {}, {}
    for name, ops, seed in (("tle_ops", tle_ops, 1), ("plain PyTorch", Plain, 1), ("plain, another order", Plain, 2)):
        curves[name], per_step[name] = train(ops, text, o, device, seed)
        first, last = curves[name][0], sum(curves[name][-10:]) / len(curves[name][-10:])
        print(
            f"{name:22s} loss {first:.3f} -> {last:.3f} (mean of the last 10), {per_step[name] * 1e3:.1f} ms per step"
        )
    tle, plain, other = curves.values()
    for name, losses in (("tle_ops", tle), ("another order", other)):
        differences = [abs(a - b) for a, b in zip(losses, plain, strict=True)]
        print(f"{name:14s} against plain: mean difference {sum(differences) / len(differences):.1e}")
    if o.chart and importlib.util.find_spec("matplotlib"):
        chart(o.chart, curves, device)
        print(f"chart: {o.chart}")
    if o.json:
        ran = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__}
        result = {
            **ran,
            "options": {k: v for k, v in vars(o).items() if not isinstance(v, str)},
            "seconds_per_step": per_step,
            "losses": curves,
        }
        pathlib.Path(o.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return curves


if __name__ == "__main__":
    main()
