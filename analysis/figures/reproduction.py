"""The reproduction of Radford et al.: BPC and SST accuracy over updates, with what OpenAI's weights reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import read_published
from . import style
from .style import Drawn, Rows

LINES = {
    "train_bpc": ("training", "openai_train_bpc_dashed"),
    "val_bpc": ("validation", "openai_val_bpc_dashed"),
    "sst_all_neurons_acc": ("all units", "openai_all_neurons_dashed"),
    "sst_1_neuron_acc": ("one unit", "openai_1_neuron_dashed"),
}


def load(runs: Sequence[Path] = ()) -> Rows:
    """Points of the four curves, and the four levels."""
    table = read_published("nv_reproduction_curves")
    rows = style.published([row for row in table if row["updates"]], "series", updates="updates", value="value_approx")
    return rows + style.published([row for row in table if not row["updates"]], "series", value="value_approx")


def draw(rows: Rows) -> Drawn:
    figure, panels = style.new(2, width=10, height=4.3)
    for axes, keys, label in zip(
        panels, (list(LINES)[:2], list(LINES)[2:]), ("bits per character", "SST accuracy, percent")
    ):
        for index, key in enumerate(keys):
            name, level = LINES[key]
            part = style.of(rows, series=key)
            color = style.colour(index)
            x, y = [row["updates"] / 1e6 for row in part], [row["value"] for row in part]
            axes.plot(x, y, f"{style.marker(index)}-", color=color, ms=5, lw=1.2, label=f"reproduction, {name}")
            (openai,) = style.of(rows, series=level)
            axes.axhline(openai["value"], color=color, lw=1, ls="--", label=f"OpenAI's weights, {name}")
        style.finish(axes, "million updates", label)
    style.only_published(figure, rows)
    caption = (
        "mLSTM of 4,096 units on V100, one run, read off a figure (approximate); dashed: OpenAI's weights, "
        "evaluated by NVIDIA. All of it "
        f"published. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
