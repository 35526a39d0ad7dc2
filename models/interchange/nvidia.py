"""Files of NVIDIA/sentiment-discovery, `.pt`: every layout from v0.1 to HEAD is read, that of v0.3 to HEAD written.

| | v0.1, package `sentiment_discovery` | `main.py` and later (v0.3 to HEAD) |
|---|---|---|
| embedding | `embedder.weight` | `encoder.weight` |
| wx, wh, wmx, wmh | `rnn.layers.N.wx.weight` and so on | `rnn.rnns.N.w_ih`, `w_hh`, `w_mih`, `w_mhh` |
| bias | `rnn.layers.N.wh.bias` | `rnn.rnns.N.b_ih` + `b_hh` |
| output | `rnn.h2o.weight`, `.bias` | `decoder.weight`, `.bias` |
| around it | nothing, or `state_dict` | `encoder`, `lm_encoder`, `sd`, a classifier beside it |

With weight norm a matrix is two, `_g` (rows, 1) and `_v`, normalised by row without an epsilon. Gates are i, f, o, j or
i, f, g, o: the order changed in April 2018 (their issue 18) under the same names, so most files do not tell. At HEAD the
vocabulary is 257: id 0 is padding and byte b is b + 1; here bytes come first and padding is row 256.

Source: github.com/NVIDIA/sentiment-discovery: sentiment_discovery/modules, model/model.py, apex_utils/apex/RNN/cells.py,
reparameterization/weight_norm.py, data_utils/tokenization.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..mlstm_scan import GATE_ORDER
from ..weight_norm import normalise
from .torch_file import flatten, load_torch_file, save_torch_file
from .weights import GATE_ORDERS, MATRICES, Weights, config_of, reorder_gates, to_fp32

BYTES, PADDED = 256, 257
ORDER_KEY = "gate_order"  # ours, at the top of files that we write; their code never looks at it
LEAVABLE = ("classifier", "decoder")


@dataclass(frozen=True, eq=False)
class Layout:
    """Where a layout keeps each part; `layer` is the prefix of layer N below the prefix of the model."""

    name: str
    embedding: str
    layer: str
    matrices: dict[str, str]
    biases: tuple[str, ...]
    output: str


OLD = Layout(
    "v0.1", "embedder.weight", "rnn.layers.",
    {"wx": "wx.weight", "wh": "wh.weight", "wmx": "wmx.weight", "wmh": "wmh.weight"}, ("wh.bias",), "rnn.h2o",
)  # fmt: skip
NEW = Layout(
    "v0.3 to HEAD", "encoder.weight", "rnn.rnns.",
    {"wx": "w_ih", "wh": "w_hh", "wmx": "w_mih", "wmh": "w_mhh"}, ("b_ih", "b_hh"), "decoder",
)  # fmt: skip


@dataclass
class Source:
    """The tensors of a file by dotted names, taken out one by one, so that what is left over is known.

    Attributes:
        path: The file, for messages.
        tensors: What has not been taken yet.
        layout: How the names are built.
        prefix: What stands before the embedding's and the layers' names.
        outer: What stands before the output layer's name.
        notes: What was recognised.
        missing: Names looked for in vain.
    """

    path: Path
    tensors: dict[str, Tensor]
    layout: Layout
    prefix: str
    outer: str
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def take(self, name: str) -> Tensor:
        """The tensor of this name in fp32; where there is none, the name is noted as missing."""
        if name not in self.tensors:
            self.missing.append(name)
            return torch.zeros(0)
        return to_fp32({name: self.tensors.pop(name)}, self.notes)[name]

    def take_matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        """A matrix and, where it is normalised, its gains (rows,)."""
        if f"{name}_v" not in self.tensors and f"{name}_g" not in self.tensors:
            return self.take(name), None
        return self.take(f"{name}_v"), self.take(f"{name}_g").flatten()


def read_nvidia(path: Path, gate_order: str | None = None, ignore: Collection[str] = ()) -> Weights:
    """Reads the mLSTM in a `.pt` file. Nothing in the file is executed.

    Args:
        path: The file.
        gate_order: "ifoj" or "ifgo"; needed where the file does not tell.
        ignore: "classifier": a classifier beside the language model is left out. "decoder": the output layer may be
            missing and is zeros then, which is enough for features and heatmaps, not for text.

    Raises:
        ValueError: No such file, code in it, no mLSTM, keys unused or missing (named), or an order that is not told.
    """
    content = load_torch_file(path)
    tensors, rest = flatten(content)
    source = _recognise(path, tensors)
    notes = source.notes
    others = sorted(rest.keys() - {ORDER_KEY})
    if others:
        notes.append(f"beside the weights, left out: {', '.join(others)}")
    _drop_classifier(source, ignore)
    tensors = _take_all(source, ignore)
    if source.missing or source.tensors:
        parts = [("missing", source.missing), ("unused", sorted(source.tensors))]
        said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
        hint = " (--ignore decoder reads the file without its output layer)" if _only_output(source) else ""
        raise ValueError(f"{path} does not hold exactly one mLSTM of layout {source.layout.name}; {said}{hint}")
    config = config_of(tensors, str(path))
    if config.vocab_size not in ((BYTES,) if source.layout is OLD else (BYTES, PADDED)):
        known = "256" if source.layout is OLD else "256, or 257 with padding"
        raise ValueError(f"{path} has a vocabulary of {config.vocab_size:,}: only bytes are read, {known}")
    order = _gate_order(source, config.vocab_size, gate_order, rest.get(ORDER_KEY))
    tensors = reorder_gates(tensors, GATE_ORDERS[order], GATE_ORDER)
    if config.vocab_size == PADDED:
        tensors = _move_row(tensors, 0, BYTES)
        notes.append("vocabulary 257: byte b was row b + 1 and is row b; the padding row 0 is row 256, kept")
    return Weights(config, tensors, list(dict.fromkeys(notes)))


def write_nvidia(weights: Weights, path: Path, gate_order: str | None = None) -> list[str]:
    """Writes a language model in the layout of v0.3 to HEAD, whole or not at all.

    Args:
        weights: The model.
        path: The file; one of this name is an error.
        gate_order: "ifgo", as their code since April 2018 reads it, by default; or "ifoj".

    Returns:
        Notes on what was written.

    Raises:
        ValueError: The file exists, or the vocabulary is not one of bytes.
        OSError: It cannot be written.
    """
    if path.exists():
        raise ValueError(f"{path} exists: name another file")
    order, vocab_size = gate_order or "ifgo", weights.config.vocab_size
    if vocab_size not in (BYTES, PADDED):
        raise ValueError(f"the model has a vocabulary of {vocab_size:,}; the layout has 256, or 257 with padding")
    tensors = reorder_gates(weights.tensors, GATE_ORDER, GATE_ORDERS[order])
    if vocab_size == PADDED:
        tensors = _move_row(tensors, BYTES, 0)
    rnn: dict[str, Tensor] = {}
    for layer in range(weights.config.num_layers):
        ours, theirs = f"layers.{layer}", f"rnns.{layer}"
        for name, leaf in NEW.matrices.items():
            matrix, gain = tensors[f"{ours}.{name}.v"], tensors.get(f"{ours}.{name}.g")
            if gain is None:
                rnn[f"{theirs}.{leaf}"] = matrix
            else:
                rnn |= {f"{theirs}.{leaf}_g": gain.unsqueeze(1), f"{theirs}.{leaf}_v": matrix}
        bias = tensors[f"{ours}.bias"]
        rnn |= {f"{theirs}.b_ih": bias, f"{theirs}.b_hh": torch.zeros_like(bias)}
    encoder = {"encoder": {"weight": tensors["embedding.weight"]}, "rnn": rnn}
    decoder = {"weight": tensors["output.weight"], "bias": tensors["output.bias"]}
    save_torch_file({"encoder": encoder, "decoder": decoder, ORDER_KEY: order}, path)
    return [
        f"language model of NVIDIA's v0.3 to HEAD, gates {', '.join(order)}, vocabulary {vocab_size}; bit for bit (b_ih is our "
        "bias, b_hh is zero)"
    ]


def _recognise(path: Path, tensors: dict[str, Tensor]) -> Source:
    """The layout by its names, and where in the file the model stands."""
    found: set[tuple[Layout, str]] = set()
    for layout in (OLD, NEW):
        pattern = re.compile(rf"(.*?){re.escape(layout.layer)}\d+\.{re.escape(layout.matrices['wx'])}(_[gv])?")
        found |= {(layout, match[1]) for name in tensors if (match := pattern.fullmatch(name))}
    if len({prefix for _, prefix in found}) > 1:
        raise ValueError(f"{path} holds several models: {', '.join(sorted(prefix for _, prefix in found))}")
    if not found:
        names = ", ".join(sorted(tensors)[:8]) or "no tensors"
        raise ValueError(f"{path} holds no mLSTM of NVIDIA/sentiment-discovery; it has {names}")
    layout, prefix = found.pop()
    inside = layout is NEW and (prefix == "encoder." or prefix.endswith(".encoder."))
    source = Source(path, tensors, layout, prefix, prefix.removesuffix("encoder.") if inside else prefix)
    where = f" below {prefix.rstrip('.')}" if prefix else ""
    source.notes.append(f"NVIDIA sentiment-discovery, layout {layout.name}{where}")
    return source


def _drop_classifier(source: Source, ignore: Collection[str]) -> None:
    classifier = [name for name in source.tensors if "classifier" in name.split(".")]
    if not classifier:
        return
    if "classifier" not in ignore:
        raise ValueError(
            f"{source.path} holds a classifier beside the language model ({', '.join(sorted(classifier))}), which has no place "
            "in a model folder: leave it out with --ignore classifier, and fit a probe with bigbatch transfer"
        )
    for name in classifier:
        del source.tensors[name]
    source.notes.append(f"classifier left out: {', '.join(sorted(classifier))}")


def _take_all(source: Source, ignore: Collection[str]) -> dict[str, Tensor]:
    """Our tensors, gates still in the file's order; takes what it finds out of `source`."""
    layout, tensors = source.layout, {}
    tensors["embedding.weight"] = source.take(source.prefix + layout.embedding)
    pattern = re.compile(rf"{re.escape(source.prefix + layout.layer)}(\d+)\.")
    layers = {int(match[1]) for name in source.tensors if (match := pattern.match(name))}
    if layout is OLD and len(layers) > 1:
        raise ValueError(
            f"{source.path} has {len(layers)} layers of layout v0.1, which adds the input of a layer to its output: an "
            "architecture that bigbatch has not"
        )
    gains = 0
    if not any(layout.matrices["wmx"] in name for name in source.tensors):
        raise ValueError(f"{source.path} holds an LSTM, not an mLSTM: there is no {layout.matrices['wmx']}")
    for number in range(max(layers) + 1):
        start = f"{source.prefix}{layout.layer}{number}."
        for name in MATRICES:
            matrix, gain = source.take_matrix(start + layout.matrices[name])
            tensors[f"layers.{number}.{name}.v"] = matrix
            if gain is not None:
                tensors[f"layers.{number}.{name}.g"] = gain
                gains += 1
        tensors[f"layers.{number}.bias"] = _take_bias(source, start)
    if gains not in (0, len(MATRICES) * len(layers)) and not source.missing:
        raise ValueError(
            f"{source.path}: weight norm on {gains} of {len(MATRICES) * len(layers)} matrices; all or none"
        )
    source.notes.append(f"{len(layers)} layer(s), {'weight norm' if gains else 'no weight norm'}")
    tensors["output.weight"], tensors["output.bias"] = _take_output(source, tensors, ignore)
    return tensors


def _take_bias(source: Source, start: str) -> Tensor:
    """The bias of a layer; two are added, in fp32."""
    present = [start + leaf for leaf in source.layout.biases if start + leaf in source.tensors]
    if len(present) < 2:
        return source.take(present[0] if present else start + source.layout.biases[0])
    first, second = (source.take(name) for name in present)
    if first.shape != second.shape:
        raise ValueError(f"{source.path}: {' and '.join(present)} differ in shape, {first.shape} and {second.shape}")
    if not second.any():  # not a sum, which would turn -0 into 0
        return first
    if not first.any():
        return second
    source.notes.append(f"two biases, {' + '.join(present)}, added in fp32: rounded once, the two cannot be had back")
    return first + second


def _take_output(source: Source, tensors: Mapping[str, Tensor], ignore: Collection[str]) -> tuple[Tensor, Tensor]:
    """Weight and bias of the output layer; weight norm on it (v0.1) is folded."""
    name = source.outer + source.layout.output
    if "decoder" in ignore and not any(key.startswith(f"{name}.") for key in source.tensors):
        rows, columns = len(tensors["embedding.weight"]), tensors["layers.0.wmh.v"].shape[-1]
        source.notes.append(f"no output layer ({name}): zeros, so every byte is equally probable; features are whole")
        return torch.zeros(rows, columns), torch.zeros(rows)
    weight, gain = source.take_matrix(f"{name}.weight")
    if gain is not None and weight.ndim == 2 and gain.shape == weight.shape[:1]:
        weight = normalise(weight, gain)
        source.notes.append("weight norm of the output layer folded into its matrix: rounded once")
    return weight, source.take(f"{name}.bias")


def _only_output(source: Source) -> bool:
    """Whether all that is missing is the output layer, as in a file of features."""
    output = {f"{source.outer}{source.layout.output}.{leaf}" for leaf in ("weight", "bias")}
    return bool(source.missing) and set(source.missing) == output and not source.tensors


def _gate_order(source: Source, vocab_size: int, chosen: str | None, written: Any) -> str:
    """The order of the gates: as chosen, or as the file tells.

    Raises:
        ValueError: The file does not tell and nothing was chosen.
    """
    told, why = None, ""
    if isinstance(written, str) and written in GATE_ORDERS:
        told, why = written, "the file says so"
    elif "lm_encoder" in source.prefix.split("."):
        told, why = "ifgo", "lm_encoder came after the change of order"
    elif vocab_size == PADDED:
        told, why = "ifgo", "a vocabulary of 257 came after the change of order"
    if chosen is not None:
        why = "as given" + (f", against the file ({why})" if told not in (None, chosen) else "")
        told = chosen
    if told is None:
        raise ValueError(
            f"{source.path} does not tell the order of its gates, and another order gives nonsense without an error: give "
            "--gate-order ifoj (files up to v0.2, and others before April 2018) or --gate-order ifgo (v0.3 to HEAD, and v0.1 "
            "with -fuse_lstm); of two conversions the right one has far fewer bits in bigbatch evaluate"
        )
    source.notes.append(f"gates {', '.join(told)}: {why}")
    return told


def _move_row(tensors: Mapping[str, Tensor], source: int, target: int) -> dict[str, Tensor]:
    """One row of embedding and output layer to another place, the rest in their order."""
    moved = dict(tensors)
    for name in ("embedding.weight", "output.weight", "output.bias"):
        rows = list(range(len(moved[name])))
        rows.insert(target, rows.pop(source))
        moved[name] = moved[name][rows]
    return moved
