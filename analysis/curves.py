"""Training curves from metrics.jsonl: bits per character over characters read, and the loss scale of an fp16 run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from ..training.metrics import read_metrics

# Okabe and Ito's palette: told apart with any colour vision.
BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"


def _rows(run_dir: Path | str) -> tuple[list[dict], list[dict]]:
    """Training rows and validation rows of a run."""
    rows = read_metrics(run_dir)
    return [r for r in rows if "event" not in r], [r for r in rows if r.get("event") == "eval"]


def _column(rows: list[dict], key: str) -> list[float]:
    return [math.nan if row[key] is None else row[key] for row in rows]


def plot_training(run_dir: Path | str, path: Path | str, references: Mapping[str, float] | None = None) -> Path:
    """Draws training and validation BPC, with horizontal reference lines, and the learning rate below.

    Args:
        run_dir: a run folder.
        path: PNG to write.
        references: name -> bits per character, drawn as dashed lines.

    Raises:
        FileNotFoundError: if the folder holds no metrics.
    """
    train, val = _rows(run_dir)
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    axes.plot([r["tokens"] / 1e6 for r in train], _column(train, "bpc"), color=BLUE, lw=1, label="training")
    axes.plot([r["tokens"] / 1e6 for r in val], _column(val, "bpc"), "o-", color=ORANGE, ms=4, lw=1, label="validation")
    for (name, value), style in zip((references or {}).items(), ("--", ":", "-.")):
        axes.axhline(value, color=BLACK, lw=1, ls=style, label=f"{name} {value:.3f}")
    values = sorted(v for v in [*_column(train, "bpc"), *(references or {}).values()] if math.isfinite(v))
    if values:
        # The first steps start at 8 bits and would squeeze everything that matters to the bottom.
        axes.set_ylim(values[0] * 0.93, min(values[-1], values[int(len(values) * 0.97)]) * 1.03)
    axes.set_ylabel("bits per character")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    lower.plot([r["tokens"] / 1e6 for r in train], _column(train, "lr"), color=GREEN, lw=1)
    lower.set_ylabel("learning rate")
    lower.set_xlabel("million characters read")
    lower.grid(alpha=0.3)
    return _save(figure, path)


def plot_precision(runs: Mapping[str, Path | str], path: Path | str) -> Path:
    """Draws BPC curves of runs that differ in precision, and the loss scale of those that scale the loss.

    Args:
        runs: name -> run folder, such as {"fp32": ..., "fp16": ...}.
        path: PNG to write.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for (name, run_dir), color, style in zip(runs.items(), (BLUE, ORANGE, GREEN), ("-", "--", ":")):
        train, _ = _rows(run_dir)
        samples = [r["samples"] for r in train]
        axes.plot(samples, _column(train, "bpc"), color=color, ls=style, lw=1.5, label=name)
        scales = _column(train, "loss_scale")
        if max(scales) > 1:
            skipped = train[-1]["skipped_steps"]
            lower.step(
                samples,
                scales,
                where="post",
                color=color,
                lw=1.5,
                label=f"{name}: {skipped} of {train[-1]['step']} steps skipped",
            )
    axes.set_ylabel("bits per character (training)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    lower.set_yscale("log", base=2)
    lower.set_ylabel("loss scale")
    lower.set_xlabel("samples")
    lower.grid(alpha=0.3)
    if lower.lines:
        lower.legend(frameon=False)
    return _save(figure, path)


def _save(figure: Figure, path: Path | str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
