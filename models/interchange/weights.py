"""What the converters exchange: the weights of an mLSTM by our names, and the steps that several layouts need.

Gate blocks follow `GATE_ORDER` here and are permuted at the border of a layout. What is done on the way that is not a
mere change of order or shape is recorded in `notes`, so that nobody learns of a rounding from a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..config import MLSTMConfig
from ..weight_norm import normalise

# The two orders in which others stack the gates, by the letters that their code uses.
GATE_ORDERS = {
    "ifoj": ("input", "forget", "output", "candidate"),
    "ifgo": ("input", "forget", "candidate", "output"),
}
MATRICES = ("wx", "wh", "wmx", "wmh")
GATED = ("wx", "wh", "bias")  # what has four blocks of rows; wmx and wmh have one


@dataclass(frozen=True)
class Weights:
    """An mLSTM as it travels between layouts.

    Attributes:
        config: Sizes, and whether the matrices are normalised.
        tensors: fp32, by the names of `MLSTM.state_dict()`, gates in `GATE_ORDER`.
        notes: What was recognised, and what is not exact.
    """

    config: MLSTMConfig
    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)


def reorder_gates(tensors: Mapping[str, Tensor], source: tuple[str, ...], target: tuple[str, ...]) -> dict[str, Tensor]:
    """The same tensors with the gates' blocks of rows in another order."""
    reordered = dict(tensors)
    for name, tensor in tensors.items():
        if name.startswith("layers.") and name.split(".")[2] in GATED:
            blocks = dict(zip(source, tensor.chunk(len(source)), strict=True))
            reordered[name] = torch.cat([blocks[gate] for gate in target])
    return reordered


def to_fp32(tensors: Mapping[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """The same values in fp32. Half precision widens exactly; fp64 is rounded, which is noted.

    Raises:
        ValueError: A tensor that holds no real numbers.
    """
    kinds = {tensor.dtype for tensor in tensors.values()}
    wrong = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if wrong:
        raise ValueError(f"{wrong[0]} holds {tensors[wrong[0]].dtype}, not weights in floating point")
    for dtype in sorted(kinds - {torch.float32}, key=str):
        how = "rounded to fp32: not exact" if dtype == torch.float64 else "widened to fp32: exact"
        notes.append(f"stored in {str(dtype).removeprefix('torch.')}, {how}")
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}


def config_of(tensors: Mapping[str, Tensor], where: str) -> MLSTMConfig:
    """The configuration that tensors by our names have, in any order of the gates.

    Raises:
        ValueError: Naming all that is missing, unknown or of another shape.
    """
    for name in ("embedding.weight", "layers.0.wmh.v"):
        if name not in tensors or tensors[name].ndim != 2 or not tensors[name].numel():
            raise ValueError(f"{where}: {name} (in our names) is no matrix")
    vocab_size, embedding_size = tensors["embedding.weight"].shape
    config = MLSTMConfig(
        vocab_size=vocab_size,
        embedding_size=embedding_size,
        hidden_size=tensors["layers.0.wmh.v"].shape[1],
        num_layers=sum(name.endswith(".wmh.v") for name in tensors),
        weight_norm="layers.0.wmh.g" in tensors,
    )
    expected = expected_shapes(config)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = [f"{name} is absent" for name in expected if name not in found]
    wrong += [f"{name} is not known" for name in found if name not in expected]
    wrong += [
        f"{name} is {found[name]} and should be {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if wrong:
        raise ValueError(f"{where} is no whole mLSTM (in our names: {'; '.join(wrong)})")
    return config


def expected_shapes(config: MLSTMConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of an `MLSTM` of this configuration."""
    vocab, hidden = config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab, config.embedding_size)}
    for layer in range(config.num_layers):
        inputs = hidden if layer else config.embedding_size
        rows = {
            "wx": (4 * hidden, inputs),
            "wh": (4 * hidden, hidden),
            "wmx": (hidden, inputs),
            "wmh": (hidden, hidden),
        }
        for name, shape in rows.items():
            shapes[f"layers.{layer}.{name}.v"] = shape
            if config.weight_norm:
                shapes[f"layers.{layer}.{name}.g"] = shape[:1]
        shapes[f"layers.{layer}.bias"] = (4 * hidden,)
    return {**shapes, "output.weight": (vocab, hidden), "output.bias": (vocab,)}


def fold_weight_norm(weights: Weights) -> Weights:
    """The model without weight norm whose matrices are the normalised ones; the same where there is none.

    Not exact: each row is rounded once, in fp32, as the model itself does at every forward pass.
    """
    if not weights.config.weight_norm:
        return weights
    tensors = dict(weights.tensors)
    for name in [name for name in tensors if name.endswith(".g")]:
        gain = tensors.pop(name)
        direction = name.removesuffix("g") + "v"
        tensors[direction] = normalise(tensors[direction], gain)
    note = "weight norm folded into the matrices: rounded once, and the gains cannot be had back"
    return Weights(replace(weights.config, weight_norm=False), tensors, [*weights.notes, note])
