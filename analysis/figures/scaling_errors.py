"""The back-test of the scaling model: residuals of every row, fitted or with its table left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..backtest import TARGET_LARGEST, errors
from ..backtest_rows import all_rows
from ..fitted import FITTED, LEFT_OUT
from . import style
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Published, predicted and both errors, for rows that count and those that were never fitted."""
    rows: Rows = []
    for row in all_rows():
        if row.use == "excluded":
            continue
        series = row.table if row.use == "target" else f"{row.table}, later tables (not fitted)"
        fitted = float(errors([row], FITTED)[0])
        left = float(errors([row], LEFT_OUT[row.table])[0]) if row.use == "target" else fitted
        rows.append({"series": series, "kind": "model", "what": row.name, "gpus": row.devices, "unit": row.unit,
                     "published": row.published, "predicted": row.published * (1 + fitted), "error": fitted, "left_out_error": left,
                     "source": f"{row.table}.csv"})  # fmt: skip
    return rows


def draw(rows: Rows) -> Drawn:
    figure, (left, right) = style.new(2, width=12, height=5.4, sharey=True)
    for axes, key in ((left, "error"), (right, "left_out_error")):
        for index, series in enumerate(style.names(rows)):
            part = style.of(rows, series=series)
            later = "not fitted" in series
            axes.plot([row["gpus"] for row in part], [100 * row[key] for row in part], "x" if later else style.marker(index),
                      color=style.GREY if later else style.colour(index), ms=6, alpha=0.85, label=series)  # fmt: skip
        axes.axhspan(-100 * TARGET_LARGEST, 100 * TARGET_LARGEST, color="0.94", zorder=0)
        axes.axhline(0, color=style.BLACK, lw=0.8)
        style.plain_log(axes, (2, 8, 32, 128, 512, 2240, 6144))
        axes.set_ylim(-60, 60)
    style.finish(left, "devices", "predicted over published, less 1, percent", "All tables fitted", legend=False)
    style.finish(right, "devices", "", "Each table predicted from the others", legend=False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    caption = (
        "Residuals of the scaling model against published tables; grey band: the target of 35 %. Left: five "
        "numbers fitted to all tables. "
        "Right: each table predicted by a fit to the others. Crosses: later tables of Megatron-LM, never fitted, "
        "micro-batch and "
        "interleaving not published. One point is one published measurement; no run of ours."
    )
    return Drawn(figure, caption)
