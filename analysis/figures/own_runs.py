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
        final_bpc: of the last validation, else of the last training line; None if the run ended with a loss that was not
            finite.
        accuracies: (task, probe accuracy, accuracy of one unit or None, n) of each result.
    """

    name: str
    hidden_size: int
    batch: int
    precision: str
    lr: float
    curve: tuple[tuple[float, float], ...]
    final_bpc: float | None
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
    rows = [row for row in read_metrics(folder) if row.get("bpc") is not None]
    training = [row for row in rows if "event" not in row]
    validation = [row for row in rows if row.get("event") == "eval"]
    last = (validation or training or [{"bpc": math.nan}])[-1]["bpc"]
    return OwnRun(
        name=folder.name,
        hidden_size=config["model"]["hidden_size"],
        batch=config["batch"]["global_batch_size"],
        precision=config["precision"] if isinstance(config.get("precision"), str) else "auto",
        lr=config["optim"]["lr"],
        curve=tuple((100 * row["samples"] / row["total_samples"], row["bpc"]) for row in training),
        final_bpc=last if math.isfinite(last) else None,
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
