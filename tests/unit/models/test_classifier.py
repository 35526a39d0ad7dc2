"""Heads on an encoder: scores from the final state of each text, whatever stands beside it in the batch."""

from __future__ import annotations

import pytest
import torch
from bigbatch.fp16.policy import apply_policy
from bigbatch.models.classifier import TextClassifier
from bigbatch.models.config import ClassifierConfig, HeadConfig, LSTMConfig, MLSTMConfig, ModelConfig, model_config
from torch import nn

ENCODERS: list[ModelConfig] = [
    MLSTMConfig(embedding_size=6, hidden_size=8, num_layers=2),
    LSTMConfig(embedding_size=6, hidden_size=8),
]


def make(encoder: ModelConfig, **head: object) -> TextClassifier:
    torch.manual_seed(0)
    return TextClassifier(ClassifierConfig(encoder, HeadConfig(**head), ["bad", "good", "odd"])).eval()  # pyright: ignore


@pytest.mark.parametrize("state", ["cell", "hidden"])
@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda config: config.kind)
def test_scores_are_those_of_an_mlp_on_the_final_state(encoder: ModelConfig, state: str) -> None:
    model = make(encoder, hidden_sizes=[5, 4], num_heads=2, state=state)
    texts = [b"\n good ", b"\n a longer text, of two clauses ", b"\n x "]
    scores, logits = model(*padded(texts), with_logits=True)
    assert scores.shape == (3, 2, 3) and scores.dtype == torch.float32 and logits is not None
    for row, text in enumerate(texts):
        tokens = torch.tensor([list(text)], dtype=torch.uint8)
        own_logits, final = model.encoder(tokens)
        features = (final.cell if state == "cell" else final.hidden)[-1]
        first, second = (layer for layer in model.inner if isinstance(layer, nn.Linear))
        slopes = [layer.weight for layer in model.inner if isinstance(layer, nn.PReLU)]
        inner = nn.functional.prelu(features @ first.weight.T + first.bias, slopes[0])
        inner = nn.functional.prelu(inner @ second.weight.T + second.bias, slopes[1])
        for number in range(2):
            own = slice(3 * number, 3 * number + 3)
            expected = inner @ model.heads.weight[own].T + model.heads.bias[own]
            torch.testing.assert_close(scores[row, number], expected[0])
        torch.testing.assert_close(logits[row, : len(text)], own_logits[0])


def padded(texts: list[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, texts))
    rows = [list(text) + [255] * (width - len(text)) for text in texts]
    return torch.tensor(rows, dtype=torch.uint8), torch.tensor([len(text) for text in texts])


@pytest.mark.parametrize("precision", ["fp16", "bf16", "amp"])
def test_half_precision_reaches_the_heads_and_keeps_their_scores_fp32(precision: str) -> None:
    model = make(ENCODERS[0], hidden_sizes=[5])
    batch = padded([b"\n good film ", b"\n bad "])
    whole, _ = model(*batch)
    half, _ = apply_policy(model, precision, "cpu")(*batch)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, rtol=0, atol=2e-2)
    assert not torch.equal(half, whole)


def test_depth_counts_from_the_output() -> None:
    model = make(ENCODERS[0])
    depths = {name: model.parameter_depth(name) for name, _ in model.named_parameters()}
    assert depths["encoder.embedding.weight"] == 3 and depths["encoder.output.weight"] == 1
    layers = {name.split(".")[2]: depth for name, depth in depths.items() if name.startswith("encoder.layers.")}
    assert layers == {"0": 2, "1": 1}
    assert {depth for name, depth in depths.items() if name.startswith(("inner.", "heads."))} == {0}


def test_heads_of_a_class_at_right_angles_are_not_alike() -> None:
    model = make(ENCODERS[1], num_heads=2)
    weights = model.heads.weight.detach().double().view(2, 3, 8)
    expected = 0.0
    for k in range(3):
        a, b = weights[0, k], weights[1, k]
        cosine = float(a @ b / (a.norm() * b.norm()))
        expected += (1 + cosine**2) ** 0.5 - 1  # the same for both heads
    assert float(model.head_similarity().detach()) == pytest.approx(expected / 3, rel=1e-5)
    with torch.no_grad():
        model.heads.weight.copy_(torch.eye(6, 8))
    assert float(model.head_similarity().detach()) == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        model.heads.weight.fill_(0.5)
    assert float(model.head_similarity().detach()) == pytest.approx(2**0.5 - 1)


@pytest.mark.parametrize(
    "make_it, message",
    [
        (
            lambda: HeadConfig(hidden_sizes=[8, 0]),
            r"head.hidden_sizes is \[8, 0\]: it takes whole numbers of at least 1",
        ),
        (lambda: HeadConfig(num_heads=0), r"head.num_heads is 0"),
        (lambda: HeadConfig(dropout=1.0), r"head.dropout is 1.0: it must lie in \[0, 1\)"),
        (lambda: HeadConfig(state="both"), r"head.state is 'both': choose one of cell, hidden"),  # pyright: ignore
        (
            lambda: ClassifierConfig(ENCODERS[0], HeadConfig(), ["one"]),
            r"the classes are one: there must be two or more",
        ),
        (lambda: ClassifierConfig(ENCODERS[0], HeadConfig(), ["a", "a"]), r"the classes are a, a: .* each once"),
        (lambda: model_config({"kind": "gru"}), r"a model of kind 'gru' is not known .* mlstm, lstm"),
        (lambda: model_config({"kind": "lstm", "wheels": 4}), r"is of another version of bigbatch: .*wheels"),
    ],
)
def test_what_cannot_be_is_one_line(make_it: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_it()  # pyright: ignore[reportCallIssue]
