"""Model configurations: their limits, their parameter counts and their work."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig, ModelConfig
from bigbatch.models.flops import flops_per_token, parameters
from torch import nn

CONFIGS = [
    MLSTMConfig(hidden_size=64),
    MLSTMConfig(hidden_size=12, embedding_size=5, vocab_size=30, num_layers=3),
    MLSTMConfig(hidden_size=12, weight_norm=False, num_layers=2),
    LSTMConfig(hidden_size=12, embedding_size=5),
    LSTMConfig(hidden_size=12, embedding_size=5, num_layers=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_closed_form_counts_the_parameters_of_the_module(config: ModelConfig) -> None:
    assert parameters(config) == sum(p.numel() for p in build_model(config).parameters())


def test_parameter_counts_are_the_published_ones(facts: Path) -> None:
    with (facts / "param_counts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 5
    for row in rows:
        sizes = {f"{name}_size": int(row[name]) for name in ("vocab", "embedding", "hidden")}
        assert parameters(MLSTMConfig(**sizes)) == int(row["total_params_wn_one_bias"])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_flops_count_each_weight_of_a_product_once(config: ModelConfig) -> None:
    model = build_model(config)
    matrices = [p.numel() for p in model.parameters() if p.dim() == 2 and p is not model.embedding.weight]
    assert flops_per_token(config) == 6 * sum(matrices)
    assert flops_per_token(config, backward=False) == 2 * sum(matrices)


def test_flops_follow_the_formula() -> None:
    config = MLSTMConfig(hidden_size=512)
    assert flops_per_token(config) == 6 * (5 * 512**2 + 5 * 64 * 512 + 256 * 512)


def test_weight_norm_is_on_four_matrices_only() -> None:
    model = build_model(MLSTMConfig(hidden_size=8))
    assert model.fp32_parameter_names == {f"layers.0.{w}.{part}" for w in ("wx", "wh", "wmx", "wmh") for part in "vg"}
    assert isinstance(model.embedding, nn.Embedding) and isinstance(model.output, nn.Linear)
    assert not build_model(MLSTMConfig(hidden_size=8, weight_norm=False)).fp32_parameter_names


@pytest.mark.parametrize("family", [MLSTMConfig, LSTMConfig])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "model.hidden_size is 0: it must be a whole number of at least 1"),
        ({"num_layers": 1.5}, "model.num_layers is 1.5: it must be a whole number of at least 1"),
        ({"vocab_size": True}, "model.vocab_size is True"),
        ({"dropout": 1.0}, r"model.dropout is 1.0: it must lie in \[0, 1\)"),
        ({"kind": "gru"}, "model.kind is 'gru'"),
    ],
)
def test_wrong_values_are_named(family: type, fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        family(**fields)
