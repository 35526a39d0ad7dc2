"""GPT and BERT configurations, their presets, and their sizes, work and memory in closed form."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.presets import PRESETS, preset
from bigbatch.models.transformer_config import BERTConfig, GPTConfig, TransformerConfig
from bigbatch.models.transformer_flops import (
    activation_bytes,
    forward_flops,
    parameters,
    recomputed_flops,
    training_bytes,
    training_flops,
)
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

SMALL = {"vocab_size": 61, "vocab_multiple": 16, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 4}
GPT = GPTConfig(**SMALL, max_position_embeddings=24, ffn_hidden_size=80)
BERTS = [
    BERTConfig(**SMALL, max_position_embeddings=24, type_vocab_size=3, num_labels=5, **more)
    for more in (
        {"head": "encoder"},
        {"layer_norm": "pre"},
        {"sentence_head": "none"},
        {"head": "classification"},
        {"head": "question_answering"},
        {"head": "multiple_choice"},
    )
]
# The counts of the released models: vocabulary as it is.
RELEASED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
}


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Counts the products that run, attention as plain ones: PyTorch does not count its CPU kernel."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def label(config: TransformerConfig) -> str:
    return f"{config.kind}-{getattr(config, 'head', '')}-{getattr(config, 'layer_norm', '')}"


@pytest.mark.parametrize("config", [GPT, *BERTS], ids=label)
def test_closed_form_counts_the_parameters_of_the_module(config: TransformerConfig) -> None:
    assert parameters(config) == sum(p.numel() for p in build_model(config).parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_built_on_the_meta_device_with_the_counted_parameters(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        model = build_model(config)
    assert parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_their_published_counts(name: str) -> None:
    fields = {"head": "encoder"} if name.startswith("bert") else {}
    assert parameters(replace(preset(name), vocab_multiple=1, **fields)) == RELEASED[name]


def test_megatron_sizes_are_the_published_ones(facts: Path) -> None:
    with (facts / "megatron_scaling_configs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        name = f"megatron-{row['params_B']}b" + ("-32-heads" if row["params_B"] == "8.3" else "")
        config = preset(name)
        sizes = config.hidden_size, config.num_attention_heads, config.num_layers
        assert sizes == (int(row["hidden"]), int(row["heads"]), int(row["layers"]))
        assert round(parameters(config) / 1e9, 1) == float(row["params_B"])


def test_gpt2_and_megatron_bert_tables_match(facts: Path) -> None:
    with (facts / "gpt2_sizes_ppl_lambada.csv").open() as file:
        rows = {row["params"]: row for row in csv.DictReader(file)}
    for size, name in (("355M", "gpt2-355m"), ("2.5B", "megatron-2.5b"), ("8.3B", "megatron-8.3b-24-heads")):
        config, row = preset(name), rows[size]
        assert (config.num_layers, config.hidden_size) == (int(row["layers"]), int(row["hidden"]))
        assert config.num_attention_heads == int(row["heads"])
        assert config.hidden_size // config.num_attention_heads == int(row["head_dim"])
    with (facts / "megatron_bert_results.csv").open() as file:
        rows = {row["params"]: row for row in csv.DictReader(file)}
    for size, unit in (("336M", 1e6), ("1.3B", 1e9), ("3.9B", 1e9)):
        config, row = preset(f"megatron-bert-{size.lower()}"), rows[size]
        sizes = config.num_layers, config.hidden_size, config.num_attention_heads
        assert sizes == (int(row["layers"]), int(row["hidden"]), int(row["heads"]))
        published = float(size[:-1])
        assert abs(parameters(config) / unit / published - 1) < 0.03


def test_mt_nlg_is_counted_exactly(facts: Path) -> None:
    with (facts / "mtnlg_hparams.csv").open() as file:
        rows = {row["item"]: row["value"] for row in csv.DictReader(file)}
    config = preset("mt-nlg-530b")
    assert (config.num_layers, config.hidden_size) == (int(rows["layers"]), int(rows["hidden"]))
    assert config.num_attention_heads == int(rows["heads"])
    assert config.max_position_embeddings == int(rows["sequence length"])
    hidden, layers, vocab, length = 20480, 105, 51200, 2048
    assert parameters(config) == layers * (12 * hidden**2 + 13 * hidden) + (vocab + length + 2) * hidden
    assert round(parameters(config) / 1e9) == 530
    # Narayanan et al. 2021, less the recomputed forward pass: 72 T L H^2 (1 + T / 6H + V / 12LH).
    exact = 72 * length * layers * hidden**2 + 12 * length**2 * layers * hidden + 6 * length * hidden * vocab
    assert training_flops(config, length) == exact
    with torch.device("meta"):
        model = build_model(config).eval()
        tokens = torch.zeros(1, length, dtype=torch.int64)
    with counting() as counter, torch.no_grad():
        model(tokens)
    assert counter.get_total_flops() == forward_flops(config, length)


@pytest.mark.parametrize("config", [GPT, *BERTS], ids=label)
def test_flops_are_those_of_the_products_that_run(config: TransformerConfig) -> None:
    model = build_model(config).eval()
    tokens = torch.zeros(3, 20, dtype=torch.int64)
    head = getattr(config, "head", "")
    with counting() as counter:
        model(tokens[None] if head == "multiple_choice" else tokens)
    assert counter.get_total_flops() == 3 * forward_flops(config, 20)


def test_flops_of_words_at_some_places_only() -> None:
    config = BERTS[1]
    model = build_model(config).eval()
    with counting() as counter:
        model(torch.zeros(2, 20, dtype=torch.int64), places=torch.tensor([1, 5, 22, 23]))
    assert counter.get_total_flops() == 2 * forward_flops(config, 20, predictions=2)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_backward_flops_and_what_recomputation_adds(recompute: str) -> None:
    config = replace(GPT, recompute=recompute, dropout=0.0, attention_dropout=0.0)
    model = build_model(config)
    with counting() as counter, set_checkpoint_early_stop(False):
        model(torch.zeros(2, 20, dtype=torch.int64))[0].mean().backward()
    assert counter.get_total_flops() == 2 * (training_flops(config, 20) + recomputed_flops(config, 20))


def saved_bytes(config: TransformerConfig, dtype: torch.dtype) -> int:
    """Storage that autograd holds after a forward pass and its loss, parameters left out, each storage once."""
    model = build_model(config).to(dtype)
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}
    keep = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known and tensor.dim():
            seen[storage.data_ptr()] = storage.nbytes()
            keep.append(tensor)
        return tensor

    tokens = torch.randint(0, 61, (4, 24))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(tokens)[0]
        # The targets are not the model's.
        known.add(tokens.untyped_storage().data_ptr())
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
    assert loss.requires_grad
    return sum(seen.values())


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["gpt", "post", "pre"])
def test_activation_bytes_are_those_that_autograd_holds(family: str, precision: str, recompute: str) -> None:
    fields = {**SMALL, "hidden_size": 128, "num_layers": 3, "max_position_embeddings": 24, "recompute": recompute}
    fields.update(dropout=0.0, attention_dropout=0.0)
    config: TransformerConfig = GPTConfig(**fields)
    if family != "gpt":
        config = BERTConfig(**fields, layer_norm=family, sentence_head="none")
    parts = activation_bytes(config, 4, 24, precision)
    expected = sum(parts.values()) - parts["recomputed"]  # alive during the backward pass only
    measured = saved_bytes(config, torch.float32 if precision == "fp32" else torch.bfloat16)
    assert measured == pytest.approx(expected, rel=0.02)


def test_training_bytes_follow_the_parameters() -> None:
    count = parameters(GPT)
    whole = training_bytes(GPT, "fp16")
    assert whole == {"weights": 4 * count, "gradients": 4 * count, "optimizer": 8 * count, "copies": 2 * count}
    shared = training_bytes(GPT, "fp32", moments=1, shards=4)
    assert shared == {"weights": count, "gradients": count, "optimizer": count, "copies": 0}


def test_dropout_costs_a_byte_a_number() -> None:
    with_it = activation_bytes(GPT, 1, 1, "fp16")
    without = activation_bytes(replace(GPT, dropout=0.0), 1, 1, "fp16")
    assert with_it["layers"] - without["layers"] == 2 * 2 * 32
    assert with_it["embedding"] - without["embedding"] == 32


def test_the_vocabulary_is_padded_to_the_multiple() -> None:
    assert GPT.padded_vocab_size == 64
    assert preset("mt-nlg-530b").padded_vocab_size == 51200
    assert replace(GPT, vocab_multiple=1).padded_vocab_size == 61


def test_a_preset_is_a_copy_and_unknown_names_get_the_nearest() -> None:
    preset("gpt2-124m").num_layers = 3
    assert preset("gpt2-124m").num_layers == 12
    with pytest.raises(ValueError, match=r"no model is called 'gpt2-124': choose one of gpt2-124m"):
        preset("gpt2-124")
    with pytest.raises(ValueError, match=r"no model is called 'zzz': choose one of gpt2-124m, .*megatron-bert-3.9b"):
        preset("zzz")


@pytest.mark.parametrize("family", [GPTConfig, BERTConfig])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "model.hidden_size is 0: it must be a whole number of at least 1"),
        ({"num_layers": True}, "model.num_layers is True"),
        ({"ffn_hidden_size": -4}, "model.ffn_hidden_size is -4"),
        (
            {"hidden_size": 30, "num_attention_heads": 4},
            "num_attention_heads is 4, which does not divide model.hidden_size 30: choose a divisor of it, such as 3",
        ),
        ({"dropout": 1.0}, r"model.dropout is 1.0: it must lie in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"model.attention_dropout is -0.1"),
        ({"layer_norm_eps": 0.0}, "model.layer_norm_eps is 0.0: it must be above 0"),
        ({"activation": "relu"}, "model.activation is 'relu': choose one of gelu, gelu_tanh"),
        ({"recompute": "some"}, "model.recompute is 'some': choose one of none, selective, full"),
        ({"kind": "t5"}, "model.kind is 't5'"),
    ],
)
def test_wrong_values_are_named(family: type, fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        family(**fields)


def test_wrong_values_of_bert_are_named() -> None:
    with pytest.raises(ValueError, match=r"model.head is 'tagging': choose one of encoder, pretraining"):
        BERTConfig(head="tagging")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"model.sentence_head is 'yes': choose one of none, nsp, sop"):
        BERTConfig(sentence_head="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"model.num_labels is 0"):
        BERTConfig(num_labels=0)
