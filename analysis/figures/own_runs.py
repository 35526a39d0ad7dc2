"""What figures take from run folders: settings, training curve, last validation, accuracies."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...training.metrics import read_metrics
from ...training.run import read_config


@dataclass(frozen=True)
class OwnRun:
    """A run folder as figures see it.

    Args:
        name: of the folder.
        hidden_size: units.
        batch: global batch of the configuration.
        precision: as configured.
        lr: initial learning rate.
        curve: (percent of the run, training BPC).
        final_bpc: of the last validation, else of the last training line; None if it was not finite, or worse than the 8
            bits of a guess: the run diverged.
        percent: of the run that is done.
        accuracies: (task, probe accuracy, accuracy of one unit or None, n) of each result.
    """

    name: str
    hidden_size: int
    batch: int
    precision: str
    lr: float
    curve: tuple[tuple[float, float], ...]
    final_bpc: float | None
    percent: float
    accuracies: tuple[tuple[str, float, float | None, int], ...]

    @property
    def source(self) -> str:
        return f"run folder {self.name}"


def read_runs(folders: Sequence[Path | str]) -> list[OwnRun]:
    """Reads run folders.

    Raises:
        ValueError: if a folder holds no run.
    """
    return [_read(Path(folder)) for folder in folders]


def _read(folder: Path) -> OwnRun:
    config = read_config(folder)
    rows = read_metrics(folder)
    training = [row for row in rows if "event" not in row]
    validation = [row for row in rows if row.get("event") == "eval"]
    if not training:
        raise ValueError(f"{folder} has no line of metrics yet: let the run go on, or leave it out")
    last = (validation or training)[-1]["bpc"]  # None is how metrics.jsonl writes what is not finite
    percent = [100 * row["samples"] / row["total_samples"] for row in training]
    return OwnRun(
        name=folder.name,
        hidden_size=config["model"]["hidden_size"],
        batch=config["batch"]["global_batch_size"],
        precision=config["precision"] if isinstance(config.get("precision"), str) else "auto",
        lr=config["optim"]["lr"],
        curve=tuple((x, row["bpc"]) for x, row in zip(percent, training) if row["bpc"] is not None),
        final_bpc=last if last is not None and math.isfinite(last) and last <= 8 else None,
        percent=percent[-1],
        accuracies=tuple(_accuracies(folder)),
    )


def _accuracies(folder: Path) -> list[tuple[str, float, float | None, int]]:
    found = []
    for path in sorted((folder / "results").glob("*.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        if "accuracy" not in summary["probe"]:
            continue
        unit = summary["unit"]["accuracy"] if summary.get("unit") else None
        found.append((path.stem.rpartition("-")[0], summary["probe"]["accuracy"], unit, summary["probe"]["n"]))
    return found
