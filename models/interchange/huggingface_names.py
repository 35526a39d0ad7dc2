"""What Hugging Face calls the parts and options of GPT-2 and BERT; `huggingface.py` reads and writes the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..transformer_config import BERTConfig, GPTConfig, TransformerConfig
from . import qkv

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_MODEL_TYPES = {"gpt2": "GPT2", "bert": "Bert", "megatron-bert": "MegatronBert"}
_HEADS: dict[str, dict[str, Any]] = {
    "Model": {"head": "encoder"},
    "ForPreTraining": {"head": "pretraining"},
    "ForMaskedLM": {"head": "pretraining", "sentence_head": "none"},
    # The sentence head alone is a classification into two.
    "ForNextSentencePrediction": {"head": "classification", "num_labels": 2},
    "ForSequenceClassification": {"head": "classification"},
    "ForQuestionAnswering": {"head": "question_answering"},
    "ForMultipleChoice": {"head": "multiple_choice"},
}
# Options that change what a model computes, with the only value that ours has.
_FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "is_decoder": False,
    "tie_word_embeddings": True,
}

# Names of modules, ours to theirs; `#` is the number of a layer.
_GPT = {
    "embedding": "wte",
    "positions": "wpe",
    "final_norm": "ln_f",
    "layers.#.attention_norm": "h.#.ln_1",
    "layers.#.attention.qkv": "h.#.attn.c_attn",
    "layers.#.attention.output": "h.#.attn.c_proj",
    "layers.#.mlp_norm": "h.#.ln_2",
    "layers.#.mlp.up": "h.#.mlp.c_fc",
    "layers.#.mlp.down": "h.#.mlp.c_proj",
}
_BERT = {
    "encoder.embedding": "embeddings.word_embeddings",
    "encoder.positions": "embeddings.position_embeddings",
    "encoder.token_types": "embeddings.token_type_embeddings",
    "encoder.embedding_norm": "embeddings.LayerNorm",
    "encoder.layers.#.attention.query": "encoder.layer.#.attention.self.query",
    "encoder.layers.#.attention.key": "encoder.layer.#.attention.self.key",
    "encoder.layers.#.attention.value": "encoder.layer.#.attention.self.value",
    "encoder.layers.#.attention.output": "encoder.layer.#.attention.output.dense",
    "encoder.layers.#.attention_norm": "encoder.layer.#.attention.output.LayerNorm",
    "encoder.layers.#.mlp.up": "encoder.layer.#.intermediate.dense",
    "encoder.layers.#.mlp.down": "encoder.layer.#.output.dense",
    "encoder.layers.#.mlp_norm": "encoder.layer.#.output.LayerNorm",
    "encoder.pooler": "pooler.dense",
}
_PRE_NORM = {
    "encoder.layers.#.attention_norm": "encoder.layer.#.attention.ln",
    "encoder.layers.#.mlp_norm": "encoder.layer.#.ln",
    "encoder.final_norm": "encoder.ln",
}
_BERT_HEADS = {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "sentence": "cls.seq_relationship",
    "classifier": "classifier",
    "choice": "classifier",
    "answer": "qa_outputs",
}
_WORD_BIAS = "cls.predictions.bias"
# What a folder may hold that is no weight of its own: constants of old versions, and copies of tied weights.
_LEFT_OUT = re.compile(r"(^|\.)(attn\.(masked_)?bias|position_ids|lm_head\.weight|cls\.predictions\.decoder\..*)$")
_VOCABULARY = ("embedding.weight", "encoder.embedding.weight", "word_bias")


def read_config(raw: Mapping[str, Any], source: str) -> TransformerConfig:
    """Our configuration of what config.json says.

    Raises:
        ValueError: another family, an option ours has not, a field that is missing.
    """
    family = raw.get("model_type")
    if family not in _MODEL_TYPES:
        raise ValueError(f"{source}: model_type is {family!r}; what can be read is {', '.join(_MODEL_TYPES)}")
    for name, value in _FIXED.items():
        if raw.get(name, value) not in (value, None):
            raise ValueError(f"{source}: {name} is {raw[name]!r}, which is not supported: it has to be {value!r}")
    field, default = ("activation_function", "gelu_new") if family == "gpt2" else ("hidden_act", "gelu")
    activation = raw.get(field, default)
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{source}: the activation is {activation!r}; supported are {', '.join(_ACTIVATIONS)}")
    try:
        config = _gpt_fields(raw) if family == "gpt2" else _bert_fields(raw, family, source)
    except KeyError as error:
        raise ValueError(f"{source}: has no {error.args[0]!r}") from None
    config["activation"] = _ACTIVATIONS[activation]
    return GPTConfig(**config) if family == "gpt2" else BERTConfig(**config)


def _gpt_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": raw["vocab_size"],
        "max_position_embeddings": raw["n_positions"],
        "hidden_size": raw["n_embd"],
        "num_layers": raw["n_layer"],
        "num_attention_heads": raw["n_head"],
        "ffn_hidden_size": raw.get("n_inner"),
        "dropout": raw.get("resid_pdrop", 0.1),
        "attention_dropout": raw.get("attn_pdrop", 0.1),
        "layer_norm_eps": raw.get("layer_norm_epsilon", 1e-5),
        "init_std": raw.get("initializer_range", 0.02),
    }


def _bert_fields(raw: Mapping[str, Any], family: str, source: str) -> dict[str, Any]:
    architecture = (raw.get("architectures") or [f"{_MODEL_TYPES[family]}Model"])[0]
    head = _HEADS.get(architecture.removeprefix(_MODEL_TYPES[family]))
    if head is None:
        known = ", ".join(_MODEL_TYPES[family] + name for name in _HEADS)
        raise ValueError(f"{source}: the architecture is {architecture}; what can be read is {known}")
    sentence = {"sentence_head": raw.get("sentence_head", "nsp")} if head["head"] == "pretraining" else {}
    return {
        "vocab_size": raw["vocab_size"],
        "max_position_embeddings": raw["max_position_embeddings"],
        "type_vocab_size": raw["type_vocab_size"],
        "hidden_size": raw["hidden_size"],
        "num_layers": raw["num_hidden_layers"],
        "num_attention_heads": raw["num_attention_heads"],
        "ffn_hidden_size": raw["intermediate_size"],
        "dropout": raw.get("hidden_dropout_prob", 0.1),
        "attention_dropout": raw.get("attention_probs_dropout_prob", 0.1),
        "layer_norm_eps": raw.get("layer_norm_eps", 1e-12),
        "init_std": raw.get("initializer_range", 0.02),
        "layer_norm": "post" if family == "bert" else "pre",
        "num_labels": len(raw.get("id2label") or (0, 1)),
        **sentence,
        **head,
    }


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """What config.json says of a model of ours."""
    shared = {"vocab_size": config.vocab_size, "initializer_range": config.init_std, "tie_word_embeddings": True}
    activation = "gelu" if config.activation == "gelu" else "gelu_new"
    if isinstance(config, GPTConfig):
        end = config.vocab_size - 1 if config.vocab_size == 50257 else None
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": config.max_position_embeddings,
            "n_embd": config.hidden_size,
            "n_layer": config.num_layers,
            "n_head": config.num_attention_heads,
            "n_inner": config.mlp_size,
            "activation_function": activation,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
            "layer_norm_epsilon": config.layer_norm_eps,
            "bos_token_id": end,
            "eos_token_id": end,
            **shared,
        }
    family = "bert" if config.layer_norm == "post" else "megatron-bert"
    return {
        "model_type": family,
        "architectures": [_MODEL_TYPES[family] + _architecture(config)],
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.mlp_size,
        "hidden_act": activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.layer_norm_eps,
        "sentence_head": config.sentence_head,
        "id2label": {str(n): f"LABEL_{n}" for n in range(config.num_labels)},
        "label2id": {f"LABEL_{n}": n for n in range(config.num_labels)},
        **shared,
    }


def from_huggingface(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Their tensors under our names, in our order and with the vocabulary padded.

    A tensor whose name means nothing to us keeps it, so that `load_weights` can name it.
    """
    gpt = isinstance(config, GPTConfig)
    table = {_pattern(theirs): ours for ours, theirs in _modules(config).items()}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _LEFT_OUT.search(name):
            continue
        name = name.replace(".gamma", ".weight").replace(".beta", ".bias")  # as in weights converted from TensorFlow
        module, _, leaf = re.sub(r"^(transformer|bert)\.", "", name).rpartition(".")
        ours = next((_rename(match, ours) for key, ours in table.items() if (match := key.fullmatch(module))), None)
        if name == _WORD_BIAS:
            found["word_bias"] = tensor
        else:
            is_linear = gpt and module.endswith(("c_attn", "c_proj", "c_fc"))
            found[name if ours is None else f"{ours}.{leaf}"] = tensor.t() if is_linear and leaf == "weight" else tensor
    if getattr(config, "head", None) == "classification" and "classifier.weight" not in found:
        for leaf in ("weight", "bias"):  # of a folder with the sentence head alone
            if f"sentence.{leaf}" in found:
                found[f"classifier.{leaf}"] = found.pop(f"sentence.{leaf}")
    for name in [name for name in found if name.endswith(("attention.query.weight", "attention.query.bias"))]:
        parts = [name.replace("query", part) for part in ("query", "key", "value")]
        if all(part in found for part in parts):
            found[name.replace("query", "qkv")] = torch.cat([found.pop(part) for part in parts])
    for name, tensor in found.items():
        if name.rpartition(".")[0].endswith("attention.qkv") and len(tensor) == 3 * config.hidden_size:
            found[name] = qkv.to_ours(tensor, config.num_attention_heads, "3AD")
        if name in _VOCABULARY and len(tensor) == config.vocab_size:
            extra = config.padded_vocab_size - config.vocab_size
            found[name] = F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, extra))
    return found


def to_huggingface(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Our tensors under the names of the architecture that `write_config` gives, contiguous and in fp32."""
    gpt = isinstance(config, GPTConfig)
    modules = _modules(config)
    base = "transformer." if gpt else "" if config.head == "encoder" else "bert."
    given: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().float().cpu()
        if name in _VOCABULARY:
            tensor = tensor[: config.vocab_size]
        module, _, leaf = name.rpartition(".")
        parts = {module: tensor}
        if module.endswith("attention.qkv"):
            stacked = qkv.from_ours(tensor, config.num_attention_heads)
            split = zip(("query", "key", "value"), stacked.chunk(3))
            parts = {module: stacked} if gpt else {module.replace("qkv", part): piece for part, piece in split}
        for ours, piece in parts.items():
            number = re.search(r"\d+", ours)
            theirs = _WORD_BIAS
            if name != "word_bias":
                theirs = modules[re.sub(r"\d+", "#", ours, count=1)].replace("#", number[0] if number else "")
                theirs = f"{'' if ours in _BERT_HEADS else base}{theirs}.{leaf}"
            is_linear = gpt and ".c_" in theirs and leaf == "weight"
            given[theirs] = (piece.t() if is_linear else piece).contiguous().clone()
    return given


def _architecture(config: BERTConfig) -> str:
    if config.head == "pretraining":
        return "ForMaskedLM" if config.sentence_head == "none" else "ForPreTraining"
    return next(name for name, fields in _HEADS.items() if fields == {"head": config.head})


def _modules(config: TransformerConfig) -> dict[str, str]:
    if isinstance(config, GPTConfig):
        return _GPT
    body = _BERT if config.layer_norm == "post" else {**_BERT, **_PRE_NORM}
    # Two heads are called `classifier`; the configuration says which is meant.
    other = "classifier" if config.head == "multiple_choice" else "choice"
    return {**body, **{ours: theirs for ours, theirs in _BERT_HEADS.items() if ours != other}}


def _pattern(theirs: str) -> re.Pattern[str]:
    return re.compile(re.escape(theirs).replace(r"\#", r"(\d+)"))


def _rename(match: re.Match[str], ours: str) -> str:
    return ours.replace("#", match[1]) if "#" in ours else ours
