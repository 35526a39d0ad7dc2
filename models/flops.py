"""Parameters and work of a model in closed form, from its configuration alone.

The rule: a multiplication and an addition are two FLOPs; only matrix products with a recurrent, input or output weight
count; the backward pass costs twice the forward pass. Pointwise work, weight norm, loss and optimizer count zero. The
input projections count in full although the model may look them up in a table, so that speeds of different
implementations compare.
"""

from __future__ import annotations

from .config import LSTMConfig, ModelConfig


def parameters(config: ModelConfig) -> int:
    """Number of trainable parameters: one bias vector (4H) a layer, weight-norm gains and the output bias included."""
    hidden, rows = config.hidden_size, _gate_rows(config)
    gains = 2 * rows if config.kind == "mlstm" and config.weight_norm else 0
    layers = sum(rows * (size + hidden) + 4 * hidden + gains for size in _input_sizes(config))
    embedding = config.vocab_size * config.embedding_size
    return embedding + layers + (hidden + 1) * config.vocab_size


def flops_per_token(config: ModelConfig, backward: bool = True) -> int:
    """FLOPs for one token: 2 (5 H^2 + 5 E H + V H) forward for one mLSTM layer (4 for 5 in an LSTM), 6 with backward.

    Layers above the first read H features instead of E.
    """
    rows = _gate_rows(config)
    products = sum(rows * (size + config.hidden_size) for size in _input_sizes(config))
    return (6 if backward else 2) * (products + config.vocab_size * config.hidden_size)


def _gate_rows(config: ModelConfig) -> int:
    """Rows of the recurrent matrices together: four gates, and the multiplicative state of the mLSTM."""
    return (4 if isinstance(config, LSTMConfig) else 5) * config.hidden_size


def _input_sizes(config: ModelConfig) -> list[int]:
    return [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
