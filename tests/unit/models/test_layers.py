"""GPT and BERT: against NumPy in fp64, with a cache, recomputed, in half precision, and with input that does not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bigbatch.fp16.policy import apply_policy
from bigbatch.models.bert import BERTForPretraining, build_bert
from bigbatch.models.build import build_model, load_weights
from bigbatch.models.gpt import GPT
from bigbatch.models.layers import Attention, layer_norm
from bigbatch.models.transformer_config import BERTConfig, GPTConfig, TransformerConfig
from torch import Tensor, nn
from torch.nn import functional as F

SMALL = {"vocab_size": 61, "vocab_multiple": 16, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 4}
QUIET = {"dropout": 0.0, "attention_dropout": 0.0}
GPT_CONFIG = GPTConfig(**SMALL, max_position_embeddings=24)
BERT_CONFIG = BERTConfig(**SMALL, max_position_embeddings=24)
FAMILIES = {
    "gpt": GPT_CONFIG,
    "bert": BERT_CONFIG,
    "rearranged": replace(BERT_CONFIG, layer_norm="pre", sentence_head="sop"),
}


def draw(config: TransformerConfig, large: bool = True) -> nn.Module:
    """A model with every weight drawn large enough to matter, biases and norms too."""
    torch.manual_seed(0)
    model = build_model(config)
    if large:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def some_tokens(rows: int = 3, time: int = 12) -> Tensor:
    return torch.randint(0, 61, (rows, time), generator=torch.Generator().manual_seed(1))


class InNumpy:
    """The models once more, in fp64, one head, one row and one token at a time."""

    def __init__(self, model: nn.Module, prefix: str = "") -> None:
        self.config = model.config
        self.w = {n.removeprefix(prefix): p.detach().double().numpy() for n, p in model.named_parameters()}

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.layer_norm_eps)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def gelu(self, x: np.ndarray) -> np.ndarray:
        if self.config.activation == "gelu":
            return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def attention(self, x: np.ndarray, name: str, causal: bool, mask: np.ndarray) -> np.ndarray:
        heads = self.config.num_attention_heads
        size = x.shape[-1] // heads
        qkv = self.linear(x, f"{name}.qkv").reshape(len(x), heads, 3, size)
        out = np.zeros((len(x), heads, size))
        for head in range(heads):
            for t in range(len(x)):
                seen = [s for s in range(len(x)) if mask[s] and (s <= t or not causal)]
                scores = np.array([qkv[t, head, 0] @ qkv[s, head, 1] / math.sqrt(size) for s in seen])
                weights = np.exp(scores - scores.max())
                out[t, head] = sum(w * qkv[s, head, 2] for w, s in zip(weights / weights.sum(), seen))
        return self.linear(out.reshape(len(x), -1), f"{name}.output")

    def layer(self, x: np.ndarray, n: int, causal: bool, pre: bool, mask: np.ndarray) -> np.ndarray:
        name = f"layers.{n}"

        def mlp(y: np.ndarray) -> np.ndarray:
            return self.linear(self.gelu(self.linear(y, f"{name}.mlp.up")), f"{name}.mlp.down")

        if pre:
            x = x + self.attention(self.norm(x, f"{name}.attention_norm"), f"{name}.attention", causal, mask)
            return x + mlp(self.norm(x, f"{name}.mlp_norm"))
        x = self.norm(x + self.attention(x, f"{name}.attention", causal, mask), f"{name}.attention_norm")
        return self.norm(x + mlp(x), f"{name}.mlp_norm")

    def gpt(self, row: np.ndarray) -> np.ndarray:
        x = self.w["embedding.weight"][row] + self.w["positions.weight"][: len(row)]
        for n in range(self.config.num_layers):
            x = self.layer(x, n, True, True, np.ones(len(row), bool))
        return self.norm(x, "final_norm") @ self.w["embedding.weight"].T

    def bert(self, row: np.ndarray, types: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pre = self.config.layer_norm == "pre"
        x = self.w["embedding.weight"][row] + self.w["positions.weight"][: len(row)]
        x = x + self.w["token_types.weight"][types]
        x = x if pre else self.norm(x, "embedding_norm")
        for n in range(self.config.num_layers):
            x = self.layer(x, n, False, pre, mask)
        x = self.norm(x, "final_norm") if pre else x
        sentences = self.linear(np.tanh(self.linear(x[0], "pooler")), "sentence")
        features = self.norm(self.gelu(self.linear(x, "transform")), "transform_norm")
        return features @ self.w["embedding.weight"].T + self.w["word_bias"], sentences


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gpt_is_what_numpy_computes(activation: str) -> None:
    model = draw(replace(GPT_CONFIG, activation=activation)).eval()
    tokens = some_tokens()
    logits, cache = model(tokens)
    assert cache is None and logits.shape == (3, 12, 64)
    for row, ours in zip(tokens, logits):
        expected = InNumpy(model).gpt(row.numpy())
        np.testing.assert_allclose(ours[:, :61].detach(), expected[:, :61], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer_norm", ["post", "pre"])
def test_bert_is_what_numpy_computes(layer_norm: str) -> None:
    model = draw(replace(BERT_CONFIG, layer_norm=layer_norm)).eval()
    tokens = some_tokens()
    types, mask = (torch.arange(12) > 5).long().expand(3, -1), torch.arange(12) < torch.tensor([[12], [9], [4]])
    words, sentences = model(tokens, types, mask)
    reference = InNumpy(model, "encoder.")
    for n in range(3):
        expected_words, expected_sentence = reference.bert(tokens[n].numpy(), types[n].numpy(), mask[n].numpy())
        kept = mask[n].numpy()
        np.testing.assert_allclose(words[n].detach()[kept][:, :61], expected_words[kept][:, :61], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sentences[n].detach(), expected_sentence, rtol=1e-4, atol=1e-4)


def test_words_at_chosen_places_are_those_of_all_places() -> None:
    model = draw(BERT_CONFIG).eval()
    tokens = some_tokens()
    everywhere = model(tokens).words
    chosen = torch.rand(3, 12) < 0.3
    torch.testing.assert_close(model(tokens, places=chosen).words, everywhere[chosen])
    index = torch.tensor([0, 13, 35])
    torch.testing.assert_close(model(tokens, places=index).words, everywhere.flatten(0, 1)[index])


def test_heads_read_the_pooled_or_the_token_features() -> None:
    tokens = some_tokens(6)
    for head, outputs in (("classification", 3), ("multiple_choice", 1)):
        model = draw(replace(BERT_CONFIG, head=head, num_labels=3)).eval()
        pooled = model.encoder(tokens).pooled
        layer = model.classifier if head == "classification" else model.choice
        assert layer.out_features == outputs
        expected = pooled @ layer.weight.T + layer.bias
        given = model(tokens) if head == "classification" else model(tokens.view(2, 3, 12)).reshape(6, 1)
        torch.testing.assert_close(given, expected)
    model = draw(replace(BERT_CONFIG, head="question_answering")).eval()
    start, end = model(tokens)
    both = model.encoder(tokens).hidden @ model.answer.weight.T + model.answer.bias
    torch.testing.assert_close(torch.stack([start, end], -1), both)
    assert model.encoder(tokens).pooled is None


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_words_beyond_the_vocabulary_never_win_nor_learn(config: TransformerConfig) -> None:
    model = draw(config)
    table = model.embedding if isinstance(model, GPT) else model.encoder.embedding
    with torch.no_grad():
        table.weight[61:] = 100.0
    tokens = some_tokens()
    logits = model(tokens)[0]
    assert logits.shape[-1] == 64 and int(logits.argmax(-1).max()) < 61
    assert logits.float().softmax(-1)[..., 61:].max() == 0
    # With smoothing every logit enters the loss; it has to stay a number.
    loss = F.cross_entropy(logits[..., :61].flatten(0, 1), tokens.flatten())
    torch.testing.assert_close(F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), loss)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    assert table.weight.grad[61:].abs().max() == 0 and table.weight.grad[:61].abs().max() > 0


def test_first_weights_are_those_of_the_papers() -> None:
    torch.manual_seed(0)
    config = replace(GPT_CONFIG, hidden_size=128, num_layers=8)
    model = build_model(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.full_like(parameter, 1.0 if "norm.weight" in name else 0.0)), name
        else:
            writes = name.endswith(("attention.output.weight", "mlp.down.weight"))
            std = 0.02 / 4 if writes else 0.02  # sqrt(2 * 8) is 4
            rows = parameter[:61] if name == "embedding.weight" else parameter
            assert rows.std().item() == pytest.approx(std, rel=0.1), name
    assert torch.equal(model.embedding.weight[61:], torch.zeros(3, 128))
    post = build_model(replace(BERT_CONFIG, hidden_size=128))
    assert post.encoder.layers[0].mlp.down.weight.std().item() == pytest.approx(0.02, rel=0.1)


# -- decoding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 1, 1, 5]], ids=str)
def test_reading_with_a_cache_gives_the_logits_of_one_window(pieces: list[int]) -> None:
    model = draw(GPT_CONFIG).eval()
    tokens = some_tokens()
    with torch.no_grad():
        expected = model(tokens)[0]
        cache, parts = model.init_cache(3), []
        for piece in tokens.split(pieces, dim=1):
            logits, cache = model(piece, cache)
            parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-4, atol=1e-5)
    assert cache.lengths.tolist() == [12] * 3 and cache.used == 12


def test_rows_of_different_lengths_share_a_cache() -> None:
    model = draw(GPT_CONFIG).eval()
    tokens, lengths = some_tokens(3, 8), torch.tensor([8, 3, 5])
    more = some_tokens(3, 12)[:, 8:]
    with torch.no_grad():
        _, cache = model(tokens, model.init_cache(3, max_length=12), lengths)
        logits, cache = model(more, cache)
        for row, length in enumerate(lengths.tolist()):
            alone = torch.cat([tokens[row, :length], more[row]])[None]
            torch.testing.assert_close(logits[row], model(alone)[0][0, length:], rtol=1e-4, atol=1e-5)
    assert cache.lengths.tolist() == [12, 7, 9]


def test_a_selected_cache_goes_its_own_way() -> None:
    model = draw(GPT_CONFIG).eval()
    tokens = some_tokens(2, 6)
    with torch.no_grad():
        _, cache = model(tokens, model.init_cache(2))
        twins = cache.select(torch.tensor([1, 1, 0]))
        logits, _ = model(torch.tensor([[3], [4], [5]]), twins)
        for row, (parent, token) in enumerate(((1, 3), (1, 4), (0, 5))):
            alone = torch.cat([tokens[parent], torch.tensor([token])])[None]
            torch.testing.assert_close(logits[row, 0], model(alone)[0][0, -1], rtol=1e-4, atol=1e-5)


def test_a_cache_in_half_precision_belongs_to_a_model_in_it() -> None:
    model = draw(GPT_CONFIG, large=False).eval()
    policy = apply_policy(model, "bf16", "cpu")
    tokens = some_tokens()
    with torch.no_grad():
        expected = policy(tokens)[0]
        _, cache = policy(tokens[:, :7], model.init_cache(3, dtype=torch.bfloat16))
        logits, _ = policy(tokens[:, 7:], cache)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits[..., :61].float(), expected[:, 7:, :61].float(), rtol=0.05, atol=0.02)


# -- training ----------------------------------------------------------------------------------------------------------


def gradient(model: nn.Module, config: TransformerConfig, scale: float = 1.0) -> Tensor:
    tokens = some_tokens()
    torch.manual_seed(3)  # of dropout
    logits = model(tokens)[0].float()
    model.zero_grad()
    (F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) * scale).backward()
    used = [p for p in model.parameters() if p.grad is not None]
    assert all(p.grad.dtype == torch.float32 for p in used)
    return torch.cat([p.grad.flatten() for p in used]) / scale


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "amp"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_recomputation_changes_no_gradient(config: TransformerConfig, recompute: str, precision: str) -> None:
    plain = gradient(apply_policy(draw(config), precision, "cpu"), config, 64.0)
    config = replace(config, recompute=recompute)
    assert torch.equal(gradient(apply_policy(draw(config), precision, "cpu"), config, 64.0), plain)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "amp"])
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_gradients_in_half_precision_are_close_to_those_in_fp32(config: TransformerConfig, precision: str) -> None:
    config = replace(config, **QUIET)
    plain = gradient(draw(config), config)
    error = (gradient(apply_policy(draw(config), precision, "cpu"), config, 64.0) - plain).norm() / plain.norm()
    assert 1e-5 < error < (3e-2 if precision == "bf16" else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layer_norm_takes_its_statistics_in_fp32(dtype: torch.dtype) -> None:
    norm = layer_norm(GPT_CONFIG)
    x = (torch.randn(4, 32, generator=torch.Generator().manual_seed(2)) * 3e3 + 2e4).to(dtype)
    assert not (x.square().sum(-1) < torch.finfo(torch.float16).max).any(), (
        "a sum of squares in fp16 would not overflow"
    )
    ours = norm.to(dtype)(x).double()
    exact = F.layer_norm(x.double(), (32,), eps=1e-5)
    assert (ours - exact).abs().max() < 4 * torch.finfo(dtype).eps


def test_softmax_of_attention_is_taken_in_fp32() -> None:
    config = replace(GPT_CONFIG, hidden_size=8, num_attention_heads=1, **QUIET)
    attention = Attention(config, causal=False)
    query = torch.full((1, 1, 2, 8), 200.0)
    key = torch.full((1, 1, 4096, 8), 120.0)
    value = torch.linspace(0, 1, 4096).view(1, 1, -1, 1).expand(-1, -1, -1, 8)
    # Scores of 67,882 are more than fp16 holds, and a sum of 4,096 equal weights is exact in fp32 only.
    out = attention._attend(*(part.half() for part in (query, key, value)), None, False)
    torch.testing.assert_close(out.float(), torch.full((1, 1, 2, 8), 0.5), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_dropout_is_where_the_papers_put_it(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    places, real = [], F.dropout
    monkeypatch.setattr(F, "dropout", lambda x, p, on: places.append(p) or real(x, p, on))
    draw(config)(some_tokens())
    assert places == [0.1] * (1 + 2 * 2)  # the embeddings, and what each part of the two layers adds


def test_dropout_is_off_outside_training() -> None:
    tokens = some_tokens()
    for fields in ({"dropout": 0.0}, {"attention_dropout": 0.0}):
        model = draw(replace(GPT_CONFIG, **fields))
        assert not torch.equal(model(tokens)[0], model(tokens)[0])
        model.eval()
        assert torch.equal(model(tokens)[0], model(tokens)[0])


# -- input that does not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [GPT_CONFIG, BERT_CONFIG], ids=["gpt", "bert"])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(2, 25, dtype=torch.int64), "a sequence of 25 tokens is longer than the model's 24 positions"),
        (torch.tensor([[1, 61]]), "token id 61 is outside the vocabulary of 61 tokens"),
        (torch.tensor([[1, -2]]), "token id -2 is outside the vocabulary of 61 tokens"),
        (torch.zeros(2, 3), r"tokens must be integers .*not torch.float32 \(2, 3\)"),
        (torch.zeros(2, 0, dtype=torch.int64), r"tokens must be integers \(batch, time\) with time >= 1"),
    ],
)
def test_tokens_that_do_not_fit_are_named(config: TransformerConfig, tokens: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(config)(tokens)


def test_shapes_that_do_not_fit_are_named() -> None:
    model, tokens = build_model(GPT_CONFIG), some_tokens(2, 5)
    with pytest.raises(ValueError, match="the cache holds 3 rows but there are 2 rows of tokens"):
        model(tokens, model.init_cache(3))
    with pytest.raises(
        ValueError, match="the cache has room for 4 tokens, not for 5: make it with a larger max_length"
    ):
        model(tokens, model.init_cache(2, max_length=4))
    with pytest.raises(ValueError, match=r"lengths must be \(2,\)"):
        model(tokens, model.init_cache(2), torch.tensor([1]))
    with torch.no_grad(), pytest.raises(ValueError, match="a sequence of 25 tokens is longer"):
        _, cache = model(some_tokens(2, 20), model.init_cache(2))
        model(tokens, cache)
    with pytest.raises(ValueError, match=r"mask must be \(2, 5\) as the tokens are, not \(5,\)"):
        build_model(BERT_CONFIG)(tokens, mask=torch.ones(5))
    with pytest.raises(ValueError, match=r"tokens must be \(batch, choices, time\), not \(2, 5\)"):
        build_bert(replace(BERT_CONFIG, head="multiple_choice"))(tokens)


def test_weights_of_another_architecture_are_refused_and_nothing_is_loaded() -> None:
    model = build_model(GPT_CONFIG)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}

    def others(config: TransformerConfig) -> dict[str, Tensor]:
        return dict(build_model(config).named_parameters())

    with pytest.raises(ValueError, match=r"x.pt is of another architecture: it has no embedding.weight \(64, 32\)"):
        load_weights(model, others(BERT_CONFIG), "x.pt")
    message = r"x.pt is of another architecture: positions.weight is \(30, 32\) there and \(24, 32\) in the model"
    with pytest.raises(ValueError, match=message):
        load_weights(model, others(replace(GPT_CONFIG, max_position_embeddings=30)), "x.pt")
    with pytest.raises(ValueError, match=r"the model has no layers.2.attention_norm.weight \(32,\)"):
        load_weights(model, others(replace(GPT_CONFIG, num_layers=3)), "x.pt")
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    tensors = others(GPT_CONFIG)
    load_weights(model, tensors, "x.pt")
    assert all(torch.equal(parameter, tensors[name]) for name, parameter in model.named_parameters())


def test_encoder_weights_have_the_same_names_under_every_head() -> None:
    pretrained = build_bert(BERT_CONFIG)
    assert isinstance(pretrained, BERTForPretraining)
    names = {name for name in pretrained.state_dict() if name.startswith("encoder.")}
    for head in ("encoder", "classification", "multiple_choice"):
        other = build_bert(replace(BERT_CONFIG, head=head)).state_dict()
        assert {name for name in other if name.startswith("encoder.")} == names
