"""Writing with a unit held: a hook for `inference/decode.py` that fixes units of the last layer's cell state.

After each step the cell of a held unit is set to its value, and the next step starts from there; all else runs free, and
so does the hidden state of that unit, which the next step makes from the cell. The prompt is read with nothing held; the
first byte written still comes from that reading. What value means a class is read from what `transfer.py` recorded.

Source: Radford et al. 2017, section 4.4, where the sentiment unit is overwritten so.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..models.recurrent import RecurrentState
from .featurize import check_unit

# A class's value is the mean over this part of its texts, those of the most extreme values.
TOP_SHARE = 0.1
_LARGEST_TANH = 1 - 1e-6  # predictions are written with six digits


@dataclass(frozen=True)
class ClassValue:
    """The value of a unit that stands for a class.

    Attributes:
        unit: The best single unit of a transfer.
        value: Of its cell, raw.
        class_name: The class.
        num_texts: Texts whose mean it is.
    """

    unit: int
    value: float
    class_name: str
    num_texts: int


def hold_units(held: Mapping[int, float], hidden_size: int) -> Callable[[RecurrentState], RecurrentState]:
    """A hook that sets units of the last layer's cell state after each step.

    Args:
        held: Value of each unit to hold; an empty mapping holds none.
        hidden_size: Units of the model.

    Raises:
        ValueError: A unit the model does not have, or a value that is not finite.
    """
    units = [check_unit(unit, hidden_size) for unit in held]
    for unit, value in held.items():
        if not math.isfinite(value):
            raise ValueError(f"unit {unit} cannot be held at {value}: the value must be finite")
    values = torch.tensor(list(held.values()), dtype=torch.float64)

    def hook(state: RecurrentState) -> RecurrentState:
        cell = state.cell.clone()
        cell[-1][:, units] = values.to(cell)
        return RecurrentState(state.hidden, cell)

    return hook


def parse_held(words: Sequence[str]) -> dict[int, float]:
    """`["42=1.5", "7=-2"]` as a mapping.

    Raises:
        ValueError: A word that is no UNIT=VALUE, or a unit named twice.
    """
    held: dict[int, float] = {}
    for word in words:
        unit, _, value = word.partition("=")
        try:
            number, level = int(unit), float(value)
        except ValueError:
            raise ValueError(f"{word!r} is no unit with its value; write UNIT=VALUE such as 42=1.5") from None
        if number in held:
            raise ValueError(f"unit {number} is held at {held[number]:g} and at {level:g}; choose one value")
        held[number] = level
    return held


def class_value(run_dir: Path, about: dict[str, Any], class_name: str) -> ClassValue:
    """The value at which the best single unit stands for a class.

    Rule: of the test texts of the transfer that carry the class's label (or, in a test file without labels, that the probe
    puts into the class), the tenth that lie furthest on its side of the unit, at least one; the mean of the unit's cell
    after them.

    Args:
        run_dir: Run folder.
        about: What `transfer.py` recorded beside the probe.
        class_name: One of its classes.

    Raises:
        ValueError: No best unit, a feature that is no cell state, an unknown class, or predictions that are gone or
            damaged or hold no text of the class.
    """
    task, unit, features = about["task"], about["unit"], about["features"]
    if unit is None:
        raise ValueError(
            f"task {task!r} has more than two classes and no best unit; name a unit of your own with --unit"
        )
    if features["state"] != "cell":
        raise ValueError(f"the probe {task!r} reads the {features['state']} state, but only the cell state can be held")
    if class_name not in about["class_names"]:
        raise ValueError(f"task {task!r} has no class {class_name!r}; it has {', '.join(about['class_names'])}")
    path = _predictions_path(run_dir, about)
    values = _unit_values(path, class_name)
    if not len(values):
        raise ValueError(f"{path} holds no text of class {class_name!r}; name a unit of your own with --unit")
    if features["transform"] == "tanh":
        values = np.arctanh(np.clip(values, -_LARGEST_TANH, _LARGEST_TANH))
    side = unit["sign"] if class_name == about["class_names"][1] else -unit["sign"]
    count = max(1, round(TOP_SHARE * len(values)))
    top = np.sort(side * values)[-count:]
    return ClassValue(unit["index"], float(side * top.mean()), class_name, count)


def _predictions_path(run_dir: Path, about: dict[str, Any]) -> Path:
    result = run_dir / about["result"]
    again = f"run bigbatch transfer --run-dir {run_dir} --task {about['task']} again, or name a unit with --unit"
    try:
        path = run_dir / json.loads(result.read_text(encoding="utf-8"))["predictions"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{result} cannot be read ({error!r}): {again}") from None
    if not path.is_file():
        raise ValueError(f"{path} is gone: {again}")
    return path


def _unit_values(path: Path, class_name: str) -> np.ndarray:
    """The unit's feature of each text of a class, in the order of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        labelled = any(row["label"] for row in rows)
        chosen = [row for row in rows if row["label" if labelled else "predicted"] == class_name]
        return np.array([float(row["unit"]) for row in chosen])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of predictions ({error!r}); run bigbatch transfer again") from None
