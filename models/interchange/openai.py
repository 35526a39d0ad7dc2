"""OpenAI's released arrays: a folder of `0.npy`, `1.npy` and so on, read and written.

    0           embedding (V, E)
    1           wx (E, 4H)
    2 3 4 5     wh (H, 4H), cut into four by columns
    6 7         wmx (E, H), wmh (H, H)
    8           bias (4H,)
    9 10 11 12  gains of wx, wh, wmx and wmh: (4H,), (4H,), (H,), (H,)
    13 14       output layer (H, V), (V,)

Matrices are (inputs, outputs), gates i, f, o, u by columns, weight norm by column with 1e-12 on the squared norm. A
stack repeats 1 to 12 for each layer; without weight norm the gains are left out, which their reader calls rnn_wn=False.

Source: github.com/openai/generating-reviews-discovering-sentiment, encoder.py (one layer, V 256, E 64, H 4096).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..mlstm_scan import GATE_ORDER
from .weights import GATE_ORDERS, MATRICES, Weights, config_of, reorder_gates, to_fp32

OPENAI_ORDER = GATE_ORDERS["ifoj"]
WH_CHUNKS = 4


def is_openai(path: Path) -> bool:
    return (path / "0.npy").is_file()


def read_openai(folder: Path) -> Weights:
    """Reads a folder of arrays, of any sizes and number of layers.

    Raises:
        ValueError: An array is missing, too many, not an array, or of a shape that does not fit; the message names it.
    """
    arrays = _load_arrays(folder)
    weight_norm = len(arrays) > 9 and arrays[9].ndim == 1
    names = file_names(_num_layers(folder, arrays, weight_norm), weight_norm)
    notes: list[str] = []
    stored = {f"{number}.npy": torch.from_numpy(array) for number, array in enumerate(arrays)}
    tensors: dict[str, Tensor] = {}
    for name, files in names.items():
        parts = to_fp32({file: stored[file] for file in files}, notes)
        ndim = 1 if name.endswith(("bias", ".g")) else 2
        for file, part in parts.items():
            if part.ndim != ndim:
                raise ValueError(f"{folder / file} has {part.ndim} dimensions; {name} has {ndim}")
        if len({part.shape[0] for part in parts.values()}) > 1:
            shapes = ", ".join(f"{file} {tuple(part.shape)}" for file, part in parts.items())
            raise ValueError(f"{folder}: the column chunks of {name} differ in rows: {shapes}")
        tensors[name] = _transposed(name, torch.cat(list(parts.values()), dim=ndim - 1))
    config = config_of(tensors, str(folder))
    tensors = reorder_gates(tensors, OPENAI_ORDER, GATE_ORDER)
    note = f"{len(arrays)} OpenAI arrays: gates i, f, o, u; {'weight norm' if weight_norm else 'no weight norm'}"
    return Weights(config, tensors, [note, *dict.fromkeys(notes)])


def write_openai(weights: Weights, folder: Path) -> list[str]:
    """Writes the arrays; the folder appears whole or not at all.

    Returns:
        Notes on what was written.

    Raises:
        ValueError: The folder exists and is not empty.
        OSError: It cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name another folder for the arrays")
    config = weights.config
    building = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(building, ignore_errors=True)  # of a conversion that was killed
    try:
        building.mkdir(parents=True)
        count, tensors = 0, reorder_gates(weights.tensors, GATE_ORDER, OPENAI_ORDER)
        for name, files in file_names(config.num_layers, config.weight_norm).items():
            array = _transposed(name, tensors[name]).numpy()
            for file, part in zip(files, np.split(array, len(files), axis=array.ndim - 1), strict=True):
                np.save(building / file, np.ascontiguousarray(part), allow_pickle=False)
                count += 1
        os.replace(building, folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    notes = [f"{count} OpenAI arrays: gates i, f, o, u; bit for bit"]
    if not config.weight_norm:
        notes.append("no gains, since the model has no weight norm: their encoder.py needs rnn_wn=False")
    if config.num_layers > 1:
        notes.append(f"{config.num_layers} layers, one after the other: their encoder.py builds one")
    return notes


def file_names(num_layers: int, weight_norm: bool) -> dict[str, list[str]]:
    """The files of each of our tensors, in the order of their numbers."""
    names = ["embedding.weight"]
    for layer in range(num_layers):
        names += [f"layers.{layer}.{name}.v" for name in MATRICES] + [f"layers.{layer}.bias"]
        names += [f"layers.{layer}.{name}.g" for name in MATRICES] if weight_norm else []
    files: dict[str, list[str]] = {}
    number = 0
    for name in [*names, "output.weight", "output.bias"]:
        count = WH_CHUNKS if name.endswith(".wh.v") else 1
        files[name] = [f"{number + part}.npy" for part in range(count)]
        number += count
    return files


def _load_arrays(folder: Path) -> list[np.ndarray]:
    found = {int(m[1]): path for path in folder.iterdir() if (m := re.fullmatch(r"(\d+)\.npy", path.name))}
    missing = sorted(set(range(max(found, default=-1) + 1)) - found.keys())
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(f'{number}.npy' for number in missing)}: the arrays are not whole")
    arrays = []
    for number in sorted(found):
        try:
            array = np.load(found[number], allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{found[number]} is no array that can be read: {error}") from None
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            raise ValueError(f"{found[number]} is no array of weights in floating point")
        arrays.append(array.astype(array.dtype.newbyteorder("=")))
    return arrays


def _num_layers(folder: Path, arrays: list[np.ndarray], weight_norm: bool) -> int:
    each = 12 if weight_norm else 8
    layers, rest = divmod(len(arrays) - 3, each)
    if layers < 1 or rest:
        kind = "with gains" if weight_norm else "without gains"
        raise ValueError(
            f"{folder} holds {len(arrays)} arrays, 0.npy to {len(arrays) - 1}.npy; L layers {kind} are {each} L + 3: some are "
            "missing or too many"
        )
    return layers


def _transposed(name: str, tensor: Tensor) -> Tensor:
    """Matrices but the embedding are (inputs, outputs) there and (outputs, inputs) here."""
    return tensor.t().contiguous() if tensor.ndim == 2 and name != "embedding.weight" else tensor
