"""What is trained, as the planner sees it: parameters, FLOPs, bytes and messages in closed form.

A multiplication and an addition are two FLOPs, and only matrix products count. *Model* FLOPs are what the mathematics
needs, *hardware* FLOPs include the forward pass that recomputation repeats. Recurrent models take their forms from
`models/flops.py`, which is checked against measured runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import yaml

from ..models.config import LSTMConfig, MLSTMConfig, ModelConfig
from ..models.flops import activation_bytes, flops_per_token, parameters, training_bytes
from .clusters import BYTES


class Workload(Protocol):
    """A model and the length of its samples."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def seq_length(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    def tensor_sizes(self) -> tuple[int, ...]:
        """Sizes that tensor parallelism splits: all must be divisible; empty if it cannot split the model."""
        ...

    def flops_per_token(self, recompute: bool) -> float:
        """Training FLOPs of a token; with `recompute` the hardware's."""
        ...

    def matrix_size(self, micro_batch_size: int, tensor: int) -> int:
        """The smallest dimension of its matrix products."""
        ...

    def message_bytes(self, micro_batch_size: int, precision: str) -> float:
        """Activations of a layer for a micro-batch: what tensor and pipeline parallelism send."""
        ...

    def memory(
        self, micro_batch_size: int, grad_accum_steps: int, tensor: int, pipeline: int, precision: str, recompute: bool
    ) -> dict[str, float]:
        """Bytes of a device: weights, gradients, optimizer, copies, state, activations."""
        ...


@dataclass(frozen=True)
class RecurrentWorkload:
    """An mLSTM or LSTM on windows of bytes; data parallel only."""

    name: str
    config: ModelConfig
    seq_length: int = 256

    @property
    def family(self) -> str:
        return self.config.kind

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def parameters(self) -> int:
        return parameters(self.config)

    def tensor_sizes(self) -> tuple[int, ...]:
        return ()

    def flops_per_token(self, recompute: bool) -> float:
        # Recomputation repeats the recurrent products; it is chosen with --model.recompute, a part of the model.
        return flops_per_token(self.config) * (4 / 3 if recompute else 1)

    def matrix_size(self, micro_batch_size: int, tensor: int) -> int:
        return min(micro_batch_size, self.config.hidden_size)  # a step multiplies (B, H) with (H, 4H)

    def message_bytes(self, micro_batch_size: int, precision: str) -> float:
        return float(micro_batch_size * self.config.hidden_size * BYTES[precision])

    def memory(
        self, micro_batch_size: int, grad_accum_steps: int, tensor: int, pipeline: int, precision: str, recompute: bool
    ) -> dict[str, float]:
        held = training_bytes(self.config, micro_batch_size * grad_accum_steps, precision)
        config = replace(self.config, recompute=recompute)
        window = activation_bytes(config, micro_batch_size, self.seq_length, precision)
        return {**{key: float(value) for key, value in held.items()}, "activations": float(sum(window.values()))}


@dataclass(frozen=True)
class TransformerWorkload:
    """A GPT (`head_fraction` 1) or BERT (its logits only where words are masked) with an inner width of 4 H.

    Attention counts in full, also where it is causal, as the published tables count it.

    Args:
        name: for tables.
        family: key of a measured rate.
        hidden_size: H.
        num_layers: L.
        num_attention_heads: A.
        vocab_size: V, padded.
        seq_length: tokens s of a sample.
        head_fraction: share of positions for which logits are computed.
    """

    name: str
    family: str
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    vocab_size: int = 51200
    seq_length: int = 2048
    head_fraction: float = 1.0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_attention_heads", "vocab_size", "seq_length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{self.name}: {name} is {value!r}: it must be a whole number of at least 1")

    @property
    def parameters(self) -> int:
        """Layers 12 H^2 + 13 H each, final norm, tied embedding, positions."""
        hidden = self.hidden_size
        layers = self.num_layers * (12 * hidden**2 + 13 * hidden)
        return layers + 2 * hidden + (self.vocab_size + self.seq_length) * hidden

    def tensor_sizes(self) -> tuple[int, ...]:
        return (self.num_attention_heads, self.hidden_size)

    def flops_per_token(self, recompute: bool) -> float:
        """Forward 2 (L (12 H^2 + 2 s H) + V H); three times that, and the layers' forward once more with `recompute`.

        Source: with `recompute` this is 96 B s L H^2 (1 + s / 6H + V / 16 L H) / (B s), arXiv 2104.04473.
        """
        layers = 2 * self.num_layers * (12 * self.hidden_size**2 + 2 * self.seq_length * self.hidden_size)
        head = 2 * self.vocab_size * self.hidden_size * self.head_fraction
        return (4 if recompute else 3) * layers + 3 * head

    def matrix_size(self, micro_batch_size: int, tensor: int) -> int:
        return min(micro_batch_size * self.seq_length, self.hidden_size // tensor)

    def message_bytes(self, micro_batch_size: int, precision: str) -> float:
        return float(micro_batch_size * self.seq_length * self.hidden_size * BYTES[precision])

    def memory(
        self, micro_batch_size: int, grad_accum_steps: int, tensor: int, pipeline: int, precision: str, recompute: bool
    ) -> dict[str, float]:
        """fp32 masters, gradients and two moments, half-precision copies; activations of the first stage under 1F1B.

        Source: s B H (10 + 24 / t + 5 A s / (H t)) bytes a layer in half precision, arXiv 2205.05198; with full
        recomputation 2 s B H a layer and one layer's worth of the rest.
        """
        held = self.parameters / (tensor * pipeline)
        rows = micro_batch_size * self.seq_length * self.hidden_size
        attention = 5 * self.num_attention_heads * self.seq_length / self.hidden_size
        layer = rows * (10 + (24 + attention) / tensor) * BYTES[precision] / 2
        inputs = rows * BYTES[precision]
        layers, in_flight = self.num_layers / pipeline, min(pipeline, grad_accum_steps)
        kept = in_flight * layers * (inputs if recompute else layer) + (layer if recompute else 0)
        logits = 4 * micro_batch_size * self.seq_length * self.head_fraction * self.vocab_size / tensor
        return {
            "weights": 4 * held,
            "gradients": 4 * held,
            "optimizer": 8 * held,
            "copies": (2 if BYTES[precision] == 2 else 0) * held,
            "state": 0.0,
            "activations": kept + (logits if pipeline == 1 else 0.0),
        }


def mlstm(hidden_size: int) -> RecurrentWorkload:
    """The published models: one layer on windows of 256 bytes."""
    return RecurrentWorkload(f"mlstm-{hidden_size}", MLSTMConfig(hidden_size=hidden_size))


def bert_large(seq_length: int) -> TransformerWorkload:
    """Its logits are computed for 20 of 128, or 80 of 512, positions."""
    return TransformerWorkload(f"bert-large-{seq_length}", "bert", 1024, 24, 16, 30528, seq_length, 20 / 128)


def _gpt(name: str, hidden: int, layers: int, heads: int, seq_length: int = 1024) -> TransformerWorkload:
    return TransformerWorkload(name, "gpt", hidden, layers, heads, 51200, seq_length)


# The sizes of arXiv 1808.01371 and 1909.08053 (Table 1), of Megatron-LM's table of 2020 (8.7b), and of MT-NLG.
WORKLOADS: dict[str, Workload] = {
    work.name: work
    for work in (
        mlstm(256), mlstm(1024), mlstm(4096), mlstm(8192),
        _gpt("gpt-1.2b", 1536, 40, 16), _gpt("gpt-2.5b", 1920, 54, 20), _gpt("gpt-4.2b", 2304, 64, 24),
        _gpt("gpt-8.3b", 3072, 72, 32), _gpt("gpt-8.7b", 4096, 42, 32), _gpt("mt-nlg-530b", 20480, 105, 128, 2048),
        bert_large(128), bert_large(512),
    )
}  # fmt: skip


def load_workload(name: str) -> Workload:
    """A model by name, or the `model` of a YAML file: that of a training run, or of kind gpt or bert.

    Args:
        name: a key of `WORKLOADS`, or a file with `model: {kind: ..., hidden_size: ..., ...}`; `batch.seq_length` there is
            the length of a recurrent model's window.

    Raises:
        ValueError: if there is no such model or file, or its fields are wrong.
    """
    if name in WORKLOADS:
        return WORKLOADS[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        raise ValueError(
            f"there is no model {name!r}: name a YAML file with `model:`, or one of {', '.join(WORKLOADS)}"
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    model = dict(content.get("model") or {}) if isinstance(content, dict) else {}
    kinds = {"mlstm": MLSTMConfig, "lstm": LSTMConfig}
    kind = model.get("kind")
    try:
        if kind in kinds:
            seq_length = (content.get("batch") or {}).get("seq_length", 256)
            return RecurrentWorkload(path.stem, kinds[kind](**model), seq_length)
        if kind in ("gpt", "bert"):
            del model["kind"]
            return TransformerWorkload(path.stem, kind, **model)
    except TypeError as error:
        raise ValueError(f"{path}: the fields of `model` are wrong: {error}") from error
    raise ValueError(f"{path}: model.kind is {kind!r}: the planner knows mlstm, lstm, gpt and bert")
