"""What a recurrent language model is made of, as plain dataclasses told apart by `kind`.

Free of torch, so that a configuration can be read, checked and printed without loading it. `build.py` turns one into a
module; `flops.py` counts its parameters and its work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def _check_sizes(config: MLSTMConfig | LSTMConfig) -> None:
    for name in ("vocab_size", "embedding_size", "hidden_size", "num_layers"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"model.{name} is {value!r}: it must be a whole number of at least 1")
    if not 0.0 <= config.dropout < 1.0:
        raise ValueError(f"model.dropout is {config.dropout!r}: it must lie in [0, 1), 0 turns it off")


def _check_kind(config: MLSTMConfig | LSTMConfig, kind: str) -> None:
    if config.kind != kind:
        raise ValueError(f"model.kind is {config.kind!r} where {kind!r} is meant: the kinds are 'mlstm' and 'lstm'")


@dataclass
class MLSTMConfig:
    """The multiplicative LSTM on tokens.

    Args:
        kind: tells the families apart in a configuration file.
        vocab_size: number of tokens V; 256 for bytes.
        embedding_size: width E of a token's embedding.
        hidden_size: number of units H of every layer.
        num_layers: layers L stacked on one another; the published models have one.
        dropout: probability on the non-recurrent connections between layers and before the output layer.
        weight_norm: weight normalisation of wx, wh, wmx and wmh, one gain for each of their output units.
        recompute: keep only hidden and cell states for the backward pass and compute the gates again there: 2/7 of the memory
            of a window's activations, for a third more work in its products.

    Raises:
        ValueError: a size below 1 or a dropout outside [0, 1).
    """

    kind: Literal["mlstm"] = "mlstm"
    vocab_size: int = 256
    embedding_size: int = 64
    hidden_size: int = 256
    num_layers: int = 1
    dropout: float = 0.0
    weight_norm: bool = True
    recompute: bool = False

    def __post_init__(self) -> None:
        _check_kind(self, "mlstm")
        _check_sizes(self)


@dataclass
class LSTMConfig:
    """The LSTM baseline: the fields of `MLSTMConfig` less weight normalisation, with the same meaning.

    Raises:
        ValueError: a size below 1 or a dropout outside [0, 1).
    """

    kind: Literal["lstm"] = "lstm"
    vocab_size: int = 256
    embedding_size: int = 64
    hidden_size: int = 256
    num_layers: int = 1
    dropout: float = 0.0
    recompute: bool = False

    def __post_init__(self) -> None:
        _check_kind(self, "lstm")
        _check_sizes(self)


ModelConfig = MLSTMConfig | LSTMConfig


@dataclass
class HeadConfig:
    """What stands on an encoder that is fine-tuned.

    Args:
        hidden_sizes: widths of the inner layers between state and classes; none is a linear head.
        dropout: probability, on the state and after every inner layer.
        num_heads: linear heads side by side, each with a loss of its own; their scores are averaged for a prediction.
        state: the encoder's final state that is read: cell (as the published probes do) or hidden.

    Raises:
        ValueError: a width or a number of heads below 1, a dropout outside [0, 1), an unknown state.
    """

    hidden_sizes: list[int] = field(default_factory=list)
    dropout: float = 0.0
    num_heads: int = 1
    state: Literal["cell", "hidden"] = "cell"

    def __post_init__(self) -> None:
        for name, values in (("hidden_sizes", self.hidden_sizes), ("num_heads", [self.num_heads])):
            if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in values):
                raise ValueError(f"head.{name} is {getattr(self, name)!r}: it takes whole numbers of at least 1")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"head.dropout is {self.dropout!r}: it must lie in [0, 1), 0 turns it off")
        if self.state not in ("cell", "hidden"):
            raise ValueError(f"head.state is {self.state!r}: choose one of cell, hidden")


@dataclass
class ClassifierConfig:
    """A fine-tuned text classifier.

    Args:
        encoder: the language model below.
        head: what stands on it.
        classes: names of the classes, or of the labels of which a text may have several.
        multi_label: whether a text may have several labels, or none.
        kind: tells the families apart in a configuration file.

    Raises:
        ValueError: fewer than two classes (one label if `multi_label`), or one of them twice.
    """

    encoder: ModelConfig
    head: HeadConfig
    classes: list[str]
    multi_label: bool = False
    kind: Literal["classifier"] = "classifier"

    def __post_init__(self) -> None:
        if isinstance(self.encoder, dict):  # as stored
            self.encoder = model_config(self.encoder)
        if isinstance(self.head, dict):
            self.head = HeadConfig(**self.head)
        if len(self.classes) < (1 if self.multi_label else 2) or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"the classes are {', '.join(self.classes) or 'none'}: there must be two or more, each once"
            )

    @property
    def vocab_size(self) -> int:
        return self.encoder.vocab_size


def model_config(values: dict[str, Any]) -> ModelConfig:
    """The configuration of a stored language model.

    Raises:
        ValueError: an unknown kind, or keys that this version does not know.
    """
    kinds = {"mlstm": MLSTMConfig, "lstm": LSTMConfig}
    kind = values.get("kind")
    if kind not in kinds:
        raise ValueError(
            f"a model of kind {kind!r} is not known to this version of bigbatch: it knows {', '.join(kinds)}"
        )
    try:
        return kinds[kind](**values)
    except TypeError as error:
        raise ValueError(f"the model's configuration is of another version of bigbatch: {error}") from None
