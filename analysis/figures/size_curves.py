"""arXiv 1808.01371, figure 4: BPC over an epoch by model size and batch, with the state-of-the-art line; own runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import read_published
from . import style
from .own_runs import read_runs
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Points of four published curves, the line, and the curves of own runs."""
    table = read_published("nv1808_size_comparison")
    rows = style.published(
        [row for row in table if row["percent_of_one_epoch"]], "model", percent="percent_of_one_epoch", bpc="bpc_approx"
    )
    rows += style.published([row for row in table if not row["percent_of_one_epoch"]], "model", bpc="bpc_approx")
    for run in read_runs(runs):
        label = f"ours, {run.hidden_size} @ batch {run.batch} ({run.name})"
        rows += [{"series": label, "kind": "ours", "percent": x, "bpc": y, "source": run.source} for x, y in run.curve]
    return rows


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(height=5)
    for index, series in enumerate(style.names([row for row in rows if "percent" in row])):
        part = style.of(rows, series=series)
        ours = part[0]["kind"] == "ours"
        fmt = "-" if ours else f"{style.marker(index)}-"
        axes.plot(
            [row["percent"] for row in part],
            [row["bpc"] for row in part],
            fmt,
            color=style.colour(index),
            lw=1.2,
            ms=5,
            label=series if ours else f"{series.split()[0]} units{series.removeprefix(series.split()[0])}",
        )
    for row in rows:
        if "percent" not in row:
            axes.axhline(row["bpc"], color=style.BLACK, lw=1, ls=":", label=f"{row['series']}: {row['bpc']:.3f}")
    axes.set_xlim(0, 100)
    if not any(row["kind"] == "ours" for row in rows):
        axes.set_ylim(1.0, 1.85)
    style.finish(axes, "percent of one epoch", "training bits per character", ncols=2, loc="upper right")
    style.only_published(figure, rows)
    caption = (
        "mLSTM of 256 to 8,192 units on 8 V100 (batch 768 or 2048), one epoch of Amazon reviews, one run each, "
        "FP16; published, read "
        f"off a figure to +-0.005 BPC. {style.ours(rows)}Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
