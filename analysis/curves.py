"""Curves over characters read: bits per character, loss scale and noise scale from metrics.jsonl, accuracy from results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..training.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart with any colour vision.
BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"


def _rows(run_dir: Path | str) -> tuple[list[dict], list[dict]]:
    """Training rows and validation rows of a run."""
    rows = read_metrics(run_dir)
    return [r for r in rows if "event" not in r], [r for r in rows if r.get("event") == "eval"]


def _column(rows: list[dict], key: str) -> list[float]:
    return [math.nan if row[key] is None else row[key] for row in rows]


def plot_training(run_dir: Path | str, path: Path | str, references: Mapping[str, float] | None = None) -> Path:
    """Draws training and validation BPC, with horizontal reference lines; below them the learning rate and, where it was
    logged, the gradient noise scale beside the global batch.

    Args:
        run_dir: a run folder.
        path: PNG to write.
        references: name -> bits per character, drawn as dashed lines.

    Raises:
        FileNotFoundError: if the folder holds no metrics.
    """
    train, val = _rows(run_dir)
    noisy = any("noise_scale" in row for row in train)
    figure = Figure(figsize=(7, 6.5 if noisy else 5), layout="constrained")
    axes, *below = figure.subplots(2 + noisy, 1, sharex=True, height_ratios=(4, 1, 1.5)[: 2 + noisy])
    lower = below[0]
    axes.plot([r["tokens"] / 1e6 for r in train], _column(train, "bpc"), color=BLUE, lw=1, label="training")
    axes.plot([r["tokens"] / 1e6 for r in val], _column(val, "bpc"), "o-", color=ORANGE, ms=4, lw=1, label="validation")
    values = sorted(v for v in [*_column(train, "bpc"), *(references or {}).values()] if math.isfinite(v))
    # The first steps start at 8 bits and would squeeze everything that matters to the bottom.
    top = min(values[-1], values[int(len(values) * 0.97)]) * 1.03 if values else math.inf
    for (name, value), style in zip((references or {}).items(), ("--", ":", "-.")):
        above = ", above the picture" if value > top else ""
        axes.axhline(value, color=BLACK, lw=1, ls=style, label=f"{name} {value:.3f}{above}")
    if values:
        axes.set_ylim(values[0] * 0.93, top)
    axes.set_ylabel("bits per character")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    lower.plot([r["tokens"] / 1e6 for r in train], _column(train, "lr"), color=GREEN, lw=1)
    lower.set_ylabel("learning rate")
    lower.grid(alpha=0.3)
    if noisy:
        _plot_noise_scale(below[1], train)
    below[-1].set_xlabel("million characters read")
    return save_figure(figure, path)


def _plot_noise_scale(axes: Axes, train: list[dict]) -> None:
    tokens = [r["tokens"] / 1e6 for r in train]
    noise = [math.nan if r.get("noise_scale") is None else r["noise_scale"] for r in train]
    axes.plot(tokens, noise, color=BLUE, lw=1, label="gradient noise scale")
    axes.step(
        tokens, _column(train, "global_batch_size"), where="pre", color=BLACK, lw=1, ls="--", label="global batch"
    )
    axes.set_yscale("log")
    axes.set_ylabel("samples")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def plot_transfer(results: Sequence[Path | str], path: Path | str, title: str = "") -> Path:
    """Draws the test accuracy of probe and single unit over the characters that the model had read.

    Args:
        results: result files of `bigbatch transfer`, one for each checkpoint, all of one task.
        path: PNG to write.
        title: of the picture.

    Raises:
        ValueError: if a result has no accuracies (an unlabelled test file), or there are none.
    """
    summaries = [json.loads(Path(result).read_text(encoding="utf-8")) for result in results]
    if not summaries:
        raise ValueError("no results: run `bigbatch transfer` on several checkpoints first")
    if any("accuracy" not in summary["probe"] for summary in summaries):
        raise ValueError("a result has no accuracy on its test part: score a test file with labels")
    summaries.sort(key=lambda summary: summary["model"]["tokens"])
    millions = [summary["model"]["tokens"] / 1e6 for summary in summaries]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for key, name, color in (("probe", "probe on all units", BLUE), ("unit", "best single unit", ORANGE)):
        parts = [summary[key] for summary in summaries]
        accuracy = [part["accuracy"] for part in parts]
        bars = [
            [a - part["low"] for a, part in zip(accuracy, parts)],
            [part["high"] - a for a, part in zip(accuracy, parts)],
        ]
        axes.errorbar(millions, accuracy, bars, fmt="o-", color=color, ms=4, lw=1.2, capsize=3, label=name)
    last = summaries[-1]
    for key, name, style in (
        ("baseline_tfidf", "TF-IDF + logistic regression", "--"),
        ("baseline_majority", "majority", ":"),
    ):
        axes.axhline(last[key]["accuracy"], color=BLACK, lw=1, ls=style, label=name)
    axes.set_xlabel("million characters read")
    axes.set_ylabel(f"test accuracy (n = {last['probe']['n']:,}, 95 % intervals)")
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


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
    return save_figure(figure, path)


def save_figure(figure: Figure, path: Path | str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, dpi=120, format="png")
    partial.replace(path)
    return path
