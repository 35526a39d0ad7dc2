"""What a recurrent language model is made of, as plain dataclasses told apart by `kind`.

Free of torch, so that a configuration can be read, checked and printed without loading it. `build.py` turns one into a
module; `flops.py` counts its parameters and its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
