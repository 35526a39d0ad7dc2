"""Megatron-LM checkpoints: every order of the fused projection, tensor ranks, old and new names, files that do not fit."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.interchange.megatron import from_megatron, load_megatron
from bigbatch.models.transformer_config import BERTConfig, GPTConfig, TransformerConfig
from torch import Tensor, nn

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 48}
GPT = GPTConfig(**SMALL, max_position_embeddings=16, vocab_multiple=16)
BERT = BERTConfig(
    **SMALL,
    max_position_embeddings=16,
    vocab_multiple=8,
    layer_norm="pre",
    sentence_head="sop",
    activation="gelu_tanh",
    layer_norm_eps=1e-5,
)
TOKENS = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(1))


def draw(config: TransformerConfig) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def fuse(q: Tensor, k: Tensor, v: Tensor, version: float) -> Tensor:
    """Rows of q, k and v (A, D, ...) in the order that Megatron of this version splits them: see its attention layer."""
    if version >= 2.0:  # view (heads, 3 * size), split the last in three
        return torch.cat([q, k, v], 1).flatten(0, 1)
    if version >= 1.0:  # view (heads, size, 3)
        return torch.stack([q, k, v], 2).flatten(0, 2)
    return torch.cat([part.flatten(0, 1) for part in (q, k, v)])  # split the whole in three


def megatron_states(model: nn.Module, version: float, ranks: int, modern: bool, padded: int = 80) -> list[dict]:
    """A model as Megatron writes it, tensor rank by tensor rank."""
    config, bert = model.config, model.config.kind == "bert"
    body = model.encoder if bert else model
    heads, body_name = config.num_attention_heads, "encoder" if modern else "transformer"
    size = config.hidden_size // heads
    attention = "self_attention" if modern else "attention"
    states = []
    for rank in range(ranks):

        def part(tensor: Tensor, dim: int, rank: int = rank) -> Tensor:
            return tensor.detach().chunk(ranks, dim)[rank].clone()

        words = torch.zeros(padded, config.hidden_size)
        words[: config.vocab_size] = body.embedding.weight[: config.vocab_size]
        embedding = {
            "word_embeddings": {"weight": part(words, 0)},
            "position_embeddings": {"weight": body.positions.weight.detach()},
        }
        layers = {}
        for n, layer in enumerate(body.layers):
            mine = slice(rank * heads // ranks, (rank + 1) * heads // ranks)
            for leaf in ("weight", "bias"):
                rows = getattr(layer.attention.qkv, leaf).detach().unflatten(0, (heads, 3, size))[mine]
                fused = fuse(rows[:, 0], rows[:, 1], rows[:, 2], version)
                layers[f"layers.{n}.{attention}.query_key_value.{leaf}"] = fused
                layers[f"layers.{n}.input_layernorm.{leaf}"] = getattr(layer.attention_norm, leaf).detach()
                layers[f"layers.{n}.post_attention_layernorm.{leaf}"] = getattr(layer.mlp_norm, leaf).detach()
                layers[f"layers.{n}.mlp.dense_h_to_4h.{leaf}"] = part(getattr(layer.mlp.up, leaf), 0)
            for theirs, linear in (
                (f"{attention}.dense", layer.attention.output),
                ("mlp.dense_4h_to_h", layer.mlp.down),
            ):
                layers[f"layers.{n}.{theirs}.weight"] = part(linear.weight, 1)
                layers[f"layers.{n}.{theirs}.bias"] = linear.bias.detach()
        layers.update(
            {f"final_layernorm.{leaf}": getattr(body.final_norm, leaf).detach() for leaf in ("weight", "bias")}
        )
        language = {"embedding": embedding, body_name: layers}
        state: dict = {"language_model": language}
        if bert:
            bias = torch.zeros(padded)
            bias[: config.vocab_size] = model.word_bias[: config.vocab_size]
            embedding["tokentype_embeddings"] = {"weight": body.token_types.weight.detach()}
            language["pooler"] = {f"dense.{leaf}": getattr(body.pooler, leaf).detach() for leaf in ("weight", "bias")}
            state["binary_head"] = {leaf: getattr(model.sentence, leaf).detach() for leaf in ("weight", "bias")}
            state["lm_head"] = {"bias": part(bias, 0)}
            for leaf in ("weight", "bias"):
                state["lm_head"][f"dense.{leaf}"] = getattr(model.transform, leaf).detach()
                state["lm_head"][f"layernorm.{leaf}"] = getattr(model.transform_norm, leaf).detach()
        else:
            layers["layers.0.attention.masked_bias"] = torch.tensor(-1e4)
        states.append({"model": state, **({"checkpoint_version": version} if version else {})})
    return states


def options(config: TransformerConfig) -> argparse.Namespace:
    return argparse.Namespace(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        ffn_hidden_size=config.ffn_hidden_size,
        max_position_embeddings=config.max_position_embeddings,
        layernorm_epsilon=config.layer_norm_eps,
        bias_gelu_fusion=True,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        make_vocab_size_divisible_by=config.vocab_multiple,
    )


def write(states: list[dict], folder: Path, config: TransformerConfig | None = None) -> Path:
    for rank, state in enumerate(states):
        place = folder / "iter_0000500" / f"mp_rank_{rank:02}"
        place.mkdir(parents=True)
        extra = {} if config is None else {"args": options(config)}
        torch.save({**state, **extra, "iteration": 500}, place / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("500")
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("version", [0.0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("config", [GPT, BERT], ids=["gpt", "bert"])
def test_every_version_loads(config: TransformerConfig, version: float, ranks: int) -> None:
    model = draw(config)
    states = megatron_states(model, version, ranks, modern=version >= 2)
    tensors = from_megatron(states, config, "x")
    loaded = build_model(config).eval()
    loaded.load_state_dict(tensors)
    for ours, theirs in zip(loaded(TOKENS), model(TOKENS)):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    if version != 2.0:  # the orders differ, so reading one for another must show
        wrong = from_megatron([{**state, "checkpoint_version": 2.0} for state in states], config, "x")
        name = f"{'encoder.' if config.kind == 'bert' else ''}layers.0.attention.qkv.weight"
        same = torch.equal(wrong[name], tensors[name])
        assert same == (version > 2.0)


@pytest.mark.parametrize("config", [GPT, BERT], ids=["gpt", "bert"])
def test_a_checkpoint_folder_loads_with_its_own_options(config: TransformerConfig, tmp_path: Path) -> None:
    model = draw(config)
    folder = write(megatron_states(model, 2.0, 2, True), tmp_path, config)
    loaded = load_megatron(folder, vocab_size=61)
    assert loaded.config == config
    torch.testing.assert_close(loaded.eval()(TOKENS)[0], model(TOKENS)[0], rtol=0, atol=0)
    again = load_megatron(folder / "iter_0000500", config=config).eval()
    torch.testing.assert_close(again(TOKENS)[0], model(TOKENS)[0], rtol=0, atol=0)


def test_one_file_without_options_needs_the_configuration(tmp_path: Path) -> None:
    model = draw(GPT)
    folder = write(megatron_states(model, 0.0, 1, False), tmp_path)
    file = folder / "iter_0000500" / "mp_rank_00" / "model_optim_rng.pt"
    with pytest.raises(ValueError, match="does not hold its options: pass the configuration of its model"):
        load_megatron(file)
    torch.testing.assert_close(load_megatron(file, GPT).eval()(TOKENS)[0], model(TOKENS)[0], rtol=0, atol=0)


def test_checkpoints_of_another_architecture_are_refused(tmp_path: Path) -> None:
    folder = write(megatron_states(draw(GPT), 2.0, 1, True), tmp_path)
    with pytest.raises(ValueError, match=r"of another architecture: it has no word_bias \(64,\)"):
        load_megatron(folder, BERT)
    message = r"positions.weight is \(16, 32\) there and \(20, 32\) in the model"
    with pytest.raises(ValueError, match=message):
        load_megatron(folder, replace(GPT, max_position_embeddings=20))
    states = megatron_states(draw(GPT), 2.0, 1, True)
    states[0]["model"]["language_model"]["decoder"] = {"weight": torch.zeros(1)}
    with pytest.raises(
        ValueError, match=r"x is of another architecture: GPT-2 and BERT have no language_model.decoder"
    ):
        from_megatron(states, GPT, "x")


def test_files_that_are_no_checkpoint_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no Megatron-LM checkpoint here: there is neither latest_"):
        load_megatron(tmp_path)
    (tmp_path / "bad.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"bad.pt: damaged, or it holds more than weights and options"):
        load_megatron(tmp_path / "bad.pt")
    torch.save({"model": {}, "args": Path("x")}, tmp_path / "code.pt")
    with pytest.raises(ValueError, match=r"code.pt: damaged, or it holds more than"):
        load_megatron(tmp_path / "code.pt")
    torch.save({"weights": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other.pt: no Megatron-LM checkpoint: it has no `model`"):
        load_megatron(tmp_path / "other.pt")
    torch.save({"model": {}, "args": argparse.Namespace(hidden_size=3)}, tmp_path / "few.pt")
    with pytest.raises(ValueError, match=r"options lack 'max_position_embeddings'"):
        load_megatron(tmp_path / "few.pt")
    (tmp_path / "mp_rank_00_000").mkdir()
    with pytest.raises(ValueError, match="split over pipeline ranks"):
        load_megatron(tmp_path)
