"""What a GPT or BERT is made of, as plain dataclasses told apart by `kind`.

Free of torch, as `config.py`. `presets.py` has the published sizes; `build.py` turns one into a module;
`transformer_flops.py` counts its parameters, its work and its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Activation = Literal["gelu", "gelu_tanh"]
Recompute = Literal["none", "selective", "full"]
LayerNormPlace = Literal["post", "pre"]
BERTHead = Literal["encoder", "pretraining", "classification", "question_answering", "multiple_choice"]
SentenceHead = Literal["none", "nsp", "sop"]

_SIZES = (
    "vocab_size",
    "vocab_multiple",
    "max_position_embeddings",
    "hidden_size",
    "num_layers",
    "num_attention_heads",
)


@dataclass
class GPTConfig:
    """GPT-2: learned positions, layer norm before each part of a layer, output layer tied to the embedding.

    Args:
        kind: tells the families apart in a configuration file.
        vocab_size: number of tokens V that exist.
        vocab_multiple: the embedding has V rounded up to a multiple of this, for the GPU's sake and so that ranks can
            share it; the rows beyond V are never predicted.
        max_position_embeddings: longest sequence.
        hidden_size: width H.
        num_layers: layers L.
        num_attention_heads: heads A; they divide H.
        ffn_hidden_size: inner width F of the MLP; 4 H if not given.
        dropout: probability on embeddings and on the output of each part of a layer.
        attention_dropout: probability on attention weights.
        activation: gelu (exact) or gelu_tanh (the approximation that GPT-2 and Megatron use).
        layer_norm_eps: added to the variance.
        init_std: standard deviation of new weights; those that write to the residual stream have it over sqrt(2 L).
        recompute: what the backward pass computes again: nothing, the attention weights (selective), or all of a layer
            but its input (full).

    Raises:
        ValueError: a size below 1, heads that do not divide H, a dropout outside [0, 1), an unknown choice.
    """

    kind: Literal["gpt"] = "gpt"
    vocab_size: int = 50257
    vocab_multiple: int = 128
    max_position_embeddings: int = 1024
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    ffn_hidden_size: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: Activation = "gelu_tanh"
    layer_norm_eps: float = 1e-5
    init_std: float = 0.02
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        _check(self, "gpt", ("activation", Activation), ("recompute", Recompute))

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return _padded(self)

    @property
    def mlp_size(self) -> int:
        """Inner width F of the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size


@dataclass
class BERTConfig:
    """BERT, as published (layer norm after each part) or as Megatron rearranged it (before); fields as in `GPTConfig`.

    Args:
        type_vocab_size: number of segments that token types tell apart.
        layer_norm: post (Devlin et al. 2018) or pre (Shoeybi et al. 2019, figure 7 b).
        head: what is built upon the encoder: nothing, the heads of pretraining, or those of a task.
        sentence_head: of pretraining: none, nsp (does the second text follow the first?) or sop (are the two in order?).
            Both are the same layer; the data make the difference.
        num_labels: classes of the classification head.

    Raises:
        ValueError: as in `GPTConfig`.
    """

    kind: Literal["bert"] = "bert"
    vocab_size: int = 30522
    vocab_multiple: int = 128
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    ffn_hidden_size: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: Activation = "gelu"
    layer_norm_eps: float = 1e-12
    init_std: float = 0.02
    recompute: Recompute = "none"
    layer_norm: LayerNormPlace = "post"
    head: BERTHead = "pretraining"
    sentence_head: SentenceHead = "nsp"
    num_labels: int = 2

    def __post_init__(self) -> None:
        _check(
            self,
            "bert",
            ("activation", Activation),
            ("recompute", Recompute),
            ("layer_norm", LayerNormPlace),
            ("head", BERTHead),
            ("sentence_head", SentenceHead),
        )
        for name in ("type_vocab_size", "num_labels"):
            _check_whole(name, getattr(self, name))

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return _padded(self)

    @property
    def mlp_size(self) -> int:
        """Inner width F of the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def has_pooler(self) -> bool:
        """Whether the model reads a sequence off its first token; masked words and answers alone need none."""
        if self.head == "pretraining":
            return self.sentence_head != "none"
        return self.head != "question_answering"


TransformerConfig = GPTConfig | BERTConfig


def _padded(config: TransformerConfig) -> int:
    return -(-config.vocab_size // config.vocab_multiple) * config.vocab_multiple


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"model.{name} is {value!r}: it must be a whole number of at least 1")


def _check(config: TransformerConfig, kind: str, *choices: tuple[str, object]) -> None:
    if config.kind != kind:
        raise ValueError(f"model.kind is {config.kind!r} where {kind!r} is meant")
    for name in _SIZES:
        _check_whole(name, getattr(config, name))
    if config.ffn_hidden_size is not None:
        _check_whole("ffn_hidden_size", config.ffn_hidden_size)
    for name, options in choices:
        if getattr(config, name) not in get_args(options):
            raise ValueError(f"model.{name} is {getattr(config, name)!r}: choose one of {', '.join(get_args(options))}")
    for name in ("dropout", "attention_dropout"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"model.{name} is {getattr(config, name)!r}: it must lie in [0, 1), 0 turns it off")
    for name in ("layer_norm_eps", "init_std"):
        if not getattr(config, name) > 0.0:
            raise ValueError(f"model.{name} is {getattr(config, name)!r}: it must be above 0")
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"model.num_attention_heads is {config.num_attention_heads}, which does not divide model.hidden_size "
            f"{config.hidden_size}: choose a divisor of it, such as {_nearest_divisor(config)}"
        )


def _nearest_divisor(config: TransformerConfig) -> int:
    hidden, heads = config.hidden_size, config.num_attention_heads
    divisors = (number for number in range(1, hidden + 1) if hidden % number == 0)
    return min(divisors, key=lambda number: abs(number - heads))
