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


def training_bytes(
    config: ModelConfig, lanes: int, precision: str, moments: int = 2, shards: int = 1
) -> dict[str, int]:
    """Bytes that a rank holds between two steps, in closed form.

    Args:
        config: the model.
        lanes: lanes of this rank, whose recurrent state is carried.
        precision: fp32, fp16, bf16 or amp; the hidden state has the compute type, the cell state is fp32.
        moments: fp32 tensors of a parameter's size that the optimizer keeps: 2 for Adam and LAMB, 1 for momentum.
        shards: ranks over which FSDP2 spreads parameters, gradients and optimizer state.

    Returns:
        weights (the fp32 masters), gradients, optimizer, state; and `copies`, the half-precision weights of a pass, which
        live no longer than it.
    """
    size = 4 * parameters(config) // shards
    units = config.num_layers * lanes * config.hidden_size
    state = units * (4 if precision == "fp32" else 2) + units * 4
    gains = 2 * _gate_rows(config) * config.num_layers if config.kind == "mlstm" and config.weight_norm else 0
    copies = 0 if precision == "fp32" else 2 * (parameters(config) - gains)
    return {"weights": size, "gradients": size, "optimizer": moments * size, "state": state, "copies": copies}


def activation_bytes(config: ModelConfig, batch_size: int, seq_length: int, precision: str) -> dict[str, int]:
    """Bytes that one window of training keeps between its forward and its backward pass, in closed form.

    A step and row keep hidden state (compute type) and cell state (fp32); without `config.recompute` also the four gates
    (fp32) and, in the mLSTM, wmh h (compute type). The first layer reads its projections from a table of the vocabulary,
    the others keep those of every step, and the states of the layer below.

    Args:
        config: the model, without dropout.
        batch_size: rows B of a micro-batch.
        seq_length: steps T.
        precision: fp32, fp16, bf16 or amp.

    Returns:
        recurrent: hidden and cell states, gates and wmh h of all layers; projections: inputs of the layers; output: the
        log-probabilities (fp32) that the loss keeps.
    """
    size, hidden, rows = 4 if precision == "fp32" else 2, config.hidden_size, batch_size * seq_length
    step = size + 4
    if not config.recompute:
        step += 4 * 4 + (size if config.kind == "mlstm" else 0)
    projected = _gate_rows(config) * size
    return {
        "recurrent": config.num_layers * rows * hidden * step,
        "projections": projected * (config.vocab_size + (config.num_layers - 1) * rows),
        "output": rows * config.vocab_size * 4,
    }


def _gate_rows(config: ModelConfig) -> int:
    """Rows of the recurrent matrices together: four gates, and the multiplicative state of the mLSTM."""
    return (4 if isinstance(config, LSTMConfig) else 5) * config.hidden_size


def _input_sizes(config: ModelConfig) -> list[int]:
    return [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
