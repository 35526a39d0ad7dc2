"""Radford et al.: labels that the representation needs to match earlier systems. The curve itself was not found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import number, read_published
from . import style
from .style import Drawn, Rows

ITEMS = {
    "labels to match multichannel CNN": "matches multichannel CNN",
    "labels to match CT-LSTM ensemble": "matches CT-LSTM ensemble",
    "SST train size": "all labels of SST",
}


def load(runs: Sequence[Path] = ()) -> Rows:
    """Three published numbers of labels; no point of the curve and no histogram of the unit is published."""
    return [
        {"series": ITEMS[row["item"]], "kind": "published", "labels": number(row["value"]), "source": row["source"]}
        for row in read_published("radford_results")
        if row["item"] in ITEMS
    ]


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(width=7, height=2.8)
    labels = [row["labels"] for row in rows]
    axes.barh(range(len(rows)), labels, color=style.BLUE, height=0.6)
    for at, value in enumerate(labels):
        axes.text(value * 1.08, at, f"{value:,.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row["series"] for row in rows])
    axes.set_xscale("log")
    axes.set_xlim(1, 30_000)
    style.finish(axes, "labelled sentences", "", legend=False)
    figure.supxlabel("Published numbers only; accuracies along the curve were not found.", fontsize=8, color=style.GREY)
    caption = (
        "Labelled sentences of SST with which a probe on the mLSTM of 4,096 units matches earlier systems that "
        "used all 6,920. Published. "
        f"The curve between, and a histogram of the sentiment unit, were not found. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
