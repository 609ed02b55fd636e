"""Quantize a real sentence encoder to FP8 and see what is lost.

    make demo                                # or: python examples/quantize_model.py [--device cpu] [--sentences FILE]

Every weight of a linear layer goes through `tle_ops.per_block_cast_fp8`, every activation that enters one through
`tle_ops.per_token_cast_fp8`. The demo compares each layer, the embeddings and the nearest neighbours with float32.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from dataclasses import dataclass, field

import matplotlib
import torch
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import tle_ops
from fp8_linear import checkpoint_bytes, linears, multiplies_codes, quantize, sqnr_db, weight_bytes
from minilm import Encoder, Tokenizer, load

SENTENCES = pathlib.Path(__file__).with_name("sentences.txt")
BATCH = 8


@dataclass
class Result:
    """What the two models made of the same sentences. S sentences, D features."""

    exact: Tensor  # [S, D], float32 model
    fp8: Tensor  # [S, D]
    alone: dict[str, float]  # linear layer -> SQNR in dB, given the float32 model's input
    chained: dict[str, float]  # the same inside the FP8 model, with the noise of all layers before it
    seconds: float

    @property
    def cosine(self) -> Tensor:  # [S]
        return torch.nn.functional.cosine_similarity(self.exact, self.fp8)


@dataclass
class Recorder:
    """Keeps what enters and leaves each linear layer of a model, in the positions that hold tokens."""

    model: nn.Module
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, layer in linears(self.model).items():
            layer.register_forward_hook(lambda _, args, y, name=name: self._keep(name, args[0], y))

    def _keep(self, name: str, x: Tensor, y: Tensor) -> None:
        self.inputs[name], self.outputs[name] = x[self.mask], y[self.mask]  # [tokens, K], [tokens, N]

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        self.mask = mask
        return self.model(tokens, mask)


def main(arguments: list[str] | None = None) -> Result:
    options = parse(arguments)
    console = Console(highlight=False)
    sentences, topics = read_sentences(options.sentences)
    device = torch.device(options.device)
    encoder, tokenizer = load()
    encoder = encoder.to(device)
    quantized = quantize(encoder)
    console.print(introduction(encoder, device, len(sentences)))
    result = compare(encoder, quantized, tokenizer, sentences, console)
    sizes = Sizes.of(encoder, quantized)
    console.print(layer_table(result))
    console.print(size_table(sizes))
    console.print(neighbour_table(result, sentences, topics))
    save_chart(result, options.output)
    console.print(conclusion(result, sizes, options.output))
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="cpu or cuda (default here: %(default)s)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo.png"), help="the chart (%(default)s)")
    parser.add_argument(
        "--sentences",
        type=pathlib.Path,
        default=SENTENCES,
        help="text file, one sentence a line; a line '# Topic' names the topic of those below it",
    )
    options = parser.parse_args(arguments)
    if not options.sentences.is_file():
        parser.error(f"--sentences: there is no file {options.sentences}")
    return options


def read_sentences(path: pathlib.Path) -> tuple[list[str], list[str]]:
    """The sentences of a file, and the topic of each."""
    sentences, topics, topic = [], [], ""
    for line in filter(None, map(str.strip, path.read_text(encoding="utf-8").splitlines())):
        if line.startswith("#"):
            topic = line.lstrip("# ")
        else:
            sentences.append(line)
            topics.append(topic)
    if len(sentences) < 2:
        sys.exit(f"{path}: it takes at least two sentences to look for neighbours, there are {len(sentences)}")
    return sentences, topics


@torch.inference_mode()
def compare(
    encoder: Encoder, quantized: nn.Module, tokenizer: Tokenizer, sentences: list[str], console: Console
) -> Result:
    start = time.perf_counter()
    exact, fp8 = Recorder(encoder), Recorder(quantized)
    layers = linears(quantized)
    pairs: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {name: [] for name in layers}
    embeddings = []
    device = next(encoder.parameters()).device
    columns = TextColumn("Float32 and FP8, side by side"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        for first in progress.track(range(0, len(sentences), BATCH)):
            tokens, mask = (t.to(device) for t in tokenizer(sentences[first : first + BATCH]))
            embeddings.append((exact(tokens, mask), fp8(tokens, mask)))
            for name, layer in layers.items():
                pairs[name].append((exact.outputs[name], layer.forward(exact.inputs[name]), fp8.outputs[name]))
    alone, chained = {}, {}
    for name, batches in pairs.items():
        true, given_true_input, in_model = map(torch.cat, zip(*batches, strict=True))
        alone[name], chained[name] = sqnr_db(true, given_true_input), sqnr_db(true, in_model)
    a, b = (torch.cat(parts).cpu() for parts in zip(*embeddings, strict=True))
    return Result(a, b, alone, chained, time.perf_counter() - start)


def nearest(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """[S, D], rows of length 1 -> the greatest cosine similarity to another row [S], and whose it is [S]"""
    similarity = embeddings @ embeddings.t()  # [S, S]
    return similarity.fill_diagonal_(-2).max(1)


@dataclass
class Sizes:
    """Bytes before and after."""

    linear: tuple[int, int]
    all: tuple[int, int]

    @classmethod
    def of(cls, encoder: nn.Module, quantized: nn.Module) -> Sizes:
        return cls(
            (weight_bytes(encoder), weight_bytes(quantized)), (checkpoint_bytes(encoder), checkpoint_bytes(quantized))
        )


# --- what is shown ---------------------------------------------------------------------------------------------------
STYLE = {
    "box": box.SIMPLE_HEAD,
    "collapse_padding": True,  # the widest table fits a terminal of 80 columns
    "title_justify": "left",
    "title_style": "bold",
    "caption_justify": "left",
}


def introduction(encoder: Encoder, device: torch.device, count: int) -> Panel:
    layers = linears(encoder)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    on_codes = all(multiplies_codes(device, *layer.weight.shape) for layer in layers.values())
    product = "FP8 codes, by cuBLAS (scaled_mm)" if on_codes else "dequantized to float32 (FP8 products need Hopper)"
    x = torch.empty(1, 128, device=device)
    lines = (
        f"[bold]all-MiniLM-L6-v2[/] in FP8: {len(layers)} linear layers, {count} sentences",
        f"device      {name}",
        f"quantizer   {tle_ops.explain('per_token_cast_fp8', x).module}, groups of 1 x 128 and blocks of 128 x 128",
        f"product     {product}",
    )
    return Panel("\n".join(lines), title="tle_ops", title_align="left", expand=False)


def grid(values: dict[str, float]) -> tuple[list[str], list[str], Tensor]:
    """{"layers.0.query": dB, ..} -> blocks, kinds of linear, dB [blocks, kinds]"""
    blocks, kinds = ([*dict.fromkeys(part)] for part in zip(*(name.rsplit(".", 1) for name in values), strict=True))
    return blocks, kinds, torch.tensor([[values[f"{b}.{k}"] for k in kinds] for b in blocks])


def layer_table(result: Result) -> Table:
    blocks, kinds, alone = grid(result.alone)
    chained = grid(result.chained)[2]
    table = Table(title="Output of each linear layer: signal to quantization noise in dB", **STYLE)
    table.add_column("layer")
    for kind in kinds:
        table.add_column(kind.replace("_", "\n"), justify="right")
    for block, row, row_in_model in zip(blocks, alone.tolist(), chained.tolist(), strict=True):
        table.add_row(block.rsplit(".", 1)[-1], *(f"{a:.1f}/{c:.1f}" for a, c in zip(row, row_in_model, strict=True)))
    table.caption = (
        "Left: given the float32 model's input. Right: inside the FP8 model, with the noise of all layers before."
    )
    return table


def size_table(sizes: Sizes) -> Table:
    table = Table(title="Size in MB", **STYLE)
    for column in ("", "float32", "FP8 codes + scales", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for name, (before, after) in (("weights of linear layers", sizes.linear), ("whole model", sizes.all)):
        table.add_row(name, f"{before / 1e6:.1f}", f"{after / 1e6:.1f}", f"{before / after:.2f}x")
    table.caption = "Embedding tables, norms and biases stay in float32."
    return table


def neighbour_table(result: Result, sentences: list[str], topics: list[str], rows: int = 8) -> Table:
    """A few sentences with their nearest neighbours, spread over the file."""
    (exact_similarity, exact), (fp8_similarity, fp8) = nearest(result.exact), nearest(result.fp8)
    table = Table(title="Nearest neighbours, a sample", **STYLE)
    table.add_column("sentence", ratio=1)
    table.add_column("nearest in FP8", ratio=1)
    table.add_column("cosine\nfloat32", justify="right")
    table.add_column("\nFP8", justify="right")
    table.add_column("same in\nfloat32", justify="center")
    for i in torch.linspace(0, len(sentences) - 1, min(rows, len(sentences))).long().tolist():
        same = "[green]yes[/]" if exact[i] == fp8[i] else "[yellow]no[/]"
        table.add_row(sentences[i], sentences[fp8[i]], f"{exact_similarity[i]:.3f}", f"{fp8_similarity[i]:.3f}", same)
    table.caption = neighbour_summary(result.exact, exact, fp8, topics)
    return table


def neighbour_summary(embeddings: Tensor, exact: Tensor, fp8: Tensor, topics: list[str]) -> str:
    """embeddings [S, D] of float32; exact and fp8 [S], each sentence's neighbour"""
    lines = []
    if any(topics):
        hits = [sum(topics[i] == topics[j] for i, j in enumerate(found.tolist())) for found in (exact, fp8)]
        lines.append(f"The neighbour is of the same topic: {hits[0]} of {len(topics)} in float32, {hits[1]} in FP8.")
    if (moved := (exact != fp8).nonzero().flatten()).numel():
        first, second = ((embeddings[moved] * embeddings[found[moved]]).sum(-1) for found in (exact, fp8))
        lines.append(f"Where they differ, float32 holds the two at most {(first - second).max():.3f} apart.")
    return "\n".join(lines)


def conclusion(result: Result, sizes: Sizes, chart: pathlib.Path) -> str:
    same = int((nearest(result.exact)[1] == nearest(result.fp8)[1]).sum())
    (before, after), cosine = sizes.linear, result.cosine
    return (
        f"[bold green]FP8 keeps {same} of {len(cosine)} nearest neighbours[/]; cosine similarity with float32: min "
        f"{cosine.min():.4f}, mean {cosine.mean():.4f}; linear weights {before / 1e6:.1f} -> {after / 1e6:.1f} MB; "
        f"{result.seconds:.1f} s; chart: {chart}"
    )


def save_chart(result: Result, path: pathlib.Path) -> None:
    matplotlib.use("Agg")  # a file, no window
    from matplotlib import pyplot as plt

    blocks, kinds, decibels = grid(result.chained)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    picture = left.imshow(decibels.numpy(), cmap="viridis", aspect="auto")
    left.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right")
    left.set_yticks(range(len(blocks)), blocks)
    for (row, column), value in ((divmod(i, len(kinds)), v) for i, v in enumerate(decibels.flatten().tolist())):
        color = "white" if value < decibels.mean() else "black"
        left.text(column, row, f"{value:.0f}", ha="center", va="center", color=color)
    figure.colorbar(picture, label="SQNR, dB")
    left.set_title("Output of each linear layer, in the FP8 model")

    pair = torch.triu_indices(len(result.exact), len(result.exact), 1)
    exact, fp8 = ((e @ e.t())[pair[0], pair[1]].numpy() for e in (result.exact, result.fp8))
    ends = [exact.min(), exact.max()]
    right.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
    right.scatter(exact, fp8, s=6, alpha=0.4)
    right.set_xlabel("cosine similarity, float32")
    right.set_ylabel("cosine similarity, FP8")
    right.set_title(f"All {len(exact)} pairs of sentences, largest difference {abs(exact - fp8).max():.3f}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
