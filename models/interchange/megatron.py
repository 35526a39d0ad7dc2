"""Reads GPT-2 and BERT checkpoints of Megatron-LM: its names, its orders of the fused projection, its tensor ranks.

A checkpoint is one file a tensor rank, pickled by torch; only tensors, plain values and the `argparse.Namespace` of its
options are let through. Pipeline ranks and the sharded formats of Megatron Core are refused.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..build import build_model, load_weights
from ..transformer_config import BERTConfig, GPTConfig, TransformerConfig
from . import qkv

FILE, LATEST = "model_optim_rng.pt", "latest_checkpointed_iteration.txt"

# Of the fused projection, by checkpoint version.
_ORDERS: list[tuple[float, qkv.Order]] = [(2.0, "A3D"), (1.0, "AD3"), (0.0, "3AD")]

# Names of modules, theirs to ours (BERT's encoder with `encoder.` before it); `#` is the number of a layer. The second
# entry is the dimension that tensor ranks share, by leaf.
_BODY: dict[str, tuple[str, dict[str, int]]] = {
    "embedding.word_embeddings": ("embedding", {"weight": 0}),
    "embedding.position_embeddings": ("positions", {}),
    "embedding.tokentype_embeddings": ("token_types", {}),
    "layers.#.input_layernorm": ("layers.#.attention_norm", {}),
    "layers.#.attention.query_key_value": ("layers.#.attention.qkv", {"weight": 0, "bias": 0}),
    "layers.#.attention.dense": ("layers.#.attention.output", {"weight": 1}),
    "layers.#.post_attention_layernorm": ("layers.#.mlp_norm", {}),
    "layers.#.mlp.dense_h_to_4h": ("layers.#.mlp.up", {"weight": 0, "bias": 0}),
    "layers.#.mlp.dense_4h_to_h": ("layers.#.mlp.down", {"weight": 1}),
    "final_layernorm": ("final_norm", {}),
    "pooler.dense": ("pooler", {}),
}
_HEADS: dict[str, tuple[str, dict[str, int]]] = {
    "lm_head.dense": ("transform", {}),
    "lm_head.layernorm": ("transform_norm", {}),
    "binary_head": ("sentence", {}),
}
_LEFT_OUT = re.compile(r"masked_bias$|attention\.bias$|_extra_state|word_embeddings_for_head")


def load_megatron(
    path: str | os.PathLike[str], config: TransformerConfig | None = None, vocab_size: int | None = None
) -> torch.nn.Module:
    """Builds the model of a Megatron-LM checkpoint, in fp32.

    Args:
        path: a file, a folder of one iteration (mp_rank_00/...), or the folder of a run, whose latest is taken.
        config: what the model is; read from the checkpoint's own options if None (the oldest have none).
        vocab_size: tokens that exist, since a checkpoint only knows the padded number; 50,257 for GPT, 30,522 for BERT
            (the uncased vocabulary) if None. Not together with `config`.

    Raises:
        ValueError: no such file, a damaged one, pipeline ranks, no options, weights that do not fit (names the first).
    """
    path = Path(path)
    states = [_read(file) for file in _rank_files(path)]
    config = config or _config_of(states[0], vocab_size, str(path))
    tensors = from_megatron(states, config, str(path))
    model = build_model(config)
    load_weights(model, tensors, str(path))
    return model


def from_megatron(states: Sequence[Mapping[str, Any]], config: TransformerConfig, source: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under our names, tensor ranks joined, in our order, the vocabulary padded our way.

    Args:
        states: what the file of each tensor rank holds: `model`, and `checkpoint_version` since 1.0.
        config: the model.
        source: where they come from, for messages.

    Raises:
        ValueError: a tensor that belongs to no part of GPT-2 or BERT.
    """
    version = float(states[0].get("checkpoint_version") or 0.0)
    order: qkv.Order = next(order for least, order in _ORDERS if version >= least)
    ranks = [_flatten(state["model"]) for state in states]
    prefix = "encoder." if isinstance(config, BERTConfig) else ""
    heads = config.num_attention_heads // len(ranks)
    found: dict[str, Tensor] = {}
    for name in ranks[0]:
        if _LEFT_OUT.search(name):
            continue
        ours, dim = _translate(name, prefix, source)
        parts = [rank[name].float() for rank in ranks]
        if ".attention.qkv." in ours and len(parts[0]) % (3 * heads) == 0:
            parts = [qkv.to_ours(part, heads, order) for part in parts]
        tensor = parts[0] if dim is None else torch.cat(parts, dim)
        if ours in (f"{prefix}embedding.weight", "word_bias"):
            tensor = _pad(tensor, config)
        found[ours] = tensor
    return found


def _translate(name: str, prefix: str, source: str) -> tuple[str, int | None]:
    """Our name for theirs, and the dimension along which tensor ranks are joined."""
    if name == "lm_head.bias":
        return "word_bias", 0
    module, _, leaf = name.rpartition(".")
    body = re.sub(r"^language_model\.(transformer\.|encoder\.)?", "", module).replace("self_attention", "attention")
    generic = re.sub(r"\d+", "#", body, count=1)
    number = re.search(r"\d+", body)
    if generic in _BODY:
        ours, dims = _BODY[generic]
        return f"{prefix}{ours}.{leaf}".replace("#", number[0] if number else ""), dims.get(leaf)
    if module in _HEADS:
        return f"{_HEADS[module][0]}.{leaf}", _HEADS[module][1].get(leaf)
    raise ValueError(f"{source} is of another architecture: GPT-2 and BERT have no {name}")


def _pad(tensor: Tensor, config: TransformerConfig) -> Tensor:
    """A table padded their way, or a bias, padded ours; rows beyond the vocabulary are zero."""
    rows = tensor[: config.vocab_size]
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, config.padded_vocab_size - config.vocab_size))


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        elif isinstance(value, Tensor):
            flat[prefix + name] = value
    return flat


def _config_of(state: Mapping[str, Any], vocab_size: int | None, source: str) -> TransformerConfig:
    args, flat = state.get("args"), _flatten(state["model"])
    if args is None:
        raise ValueError(f"{source}: the checkpoint does not hold its options: pass the configuration of its model")
    options = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
    try:
        fields: dict[str, Any] = {
            "max_position_embeddings": options["max_position_embeddings"],
            "hidden_size": options["hidden_size"],
            "num_layers": options["num_layers"],
            "num_attention_heads": options["num_attention_heads"],
        }
    except KeyError as error:
        raise ValueError(f"{source}: the checkpoint's options lack {error.args[0]!r}") from None
    exact = not (options.get("bias_gelu_fusion", True) or options.get("openai_gelu", False))
    fields.update(
        ffn_hidden_size=options.get("ffn_hidden_size"),
        dropout=options.get("hidden_dropout", 0.1),
        attention_dropout=options.get("attention_dropout", 0.1),
        layer_norm_eps=options.get("layernorm_epsilon", 1e-5),
        init_std=options.get("init_method_std", 0.02),
        activation="gelu" if exact else "gelu_tanh",
        vocab_multiple=options.get("make_vocab_size_divisible_by", 128),
    )
    if not any("tokentype_embeddings" in name for name in flat):
        return GPTConfig(vocab_size=vocab_size or 50257, **fields)
    types = next(len(tensor) for name, tensor in flat.items() if "tokentype_embeddings" in name)
    fields["sentence_head"] = "sop" if any(name.startswith("binary_head") for name in flat) else "none"
    return BERTConfig(vocab_size=vocab_size or 30522, type_vocab_size=types, layer_norm="pre", **fields)


def _rank_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / LATEST).is_file():
        latest = (path / LATEST).read_text(encoding="utf-8").strip()
        path = path / (latest if latest == "release" else f"iter_{latest:0>7}")
    if any(path.glob("mp_rank_[0-9][0-9]_[0-9]*")):
        raise ValueError(f"{path}: the checkpoint is split over pipeline ranks: merge them with Megatron's own tool")
    files = sorted(path.glob(f"mp_rank_[0-9][0-9]/{FILE}"))
    if not files:
        raise ValueError(f"{path}: no Megatron-LM checkpoint here: there is neither {LATEST} nor mp_rank_00/{FILE}")
    return files


def _read(path: Path) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ValueError(
            f"{path}: damaged, or it holds more than weights and options, which is not read: save its `model`, `args` and "
            "`checkpoint_version` alone"
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        raise ValueError(f"{path}: no Megatron-LM checkpoint: it has no `model`")
    return state
