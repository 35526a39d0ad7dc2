"""arXiv 1808.01371, figure 2: mixed against single precision, training BPC over an epoch; own runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import read_published
from . import style
from .own_runs import read_runs
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Points of the two curves in mixed precision, the line of Radford et al., curves of own runs by precision.

    Single precision at batch 1024 has no points of its own in the table: its curve lies under that of mixed precision.
    The panel with test results (2b) was not found, so it is not drawn.
    """
    table = read_published("nv_mp_vs_sp_bpc")
    rows = style.published(
        [row for row in table if row["percent_trained"] not in ("", "all")],
        "run",
        percent="percent_trained",
        bpc="bpc_approx",
    )
    rows += style.published([row for row in table if not row["percent_trained"]], "run", bpc="bpc_approx")
    for run in read_runs(runs):
        label = f"ours, {run.precision}, {run.hidden_size} units, batch {run.batch}"
        points = [{"percent": percent, "bpc": bpc} for percent, bpc in run.curve]
        rows += [{"series": label, "kind": "ours", **point, "source": run.source} for point in points]
    return rows


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new()
    for index, series in enumerate(style.names([row for row in rows if "percent" in row])):
        part = style.of(rows, series=series)
        x, y = [row["percent"] for row in part], [row["bpc"] for row in part]
        ours = part[0]["kind"] == "ours"
        label = f"{series} (SP lies under it)" if series == "MP batch 1024" else series
        fmt = "-" if ours else f"{style.marker(index)}--"
        axes.plot(x, y, fmt, color=style.colour(index), lw=1.2, ms=5, label=label)
    for row in rows:
        if "percent" not in row:
            axes.axhline(row["bpc"], color=style.BLACK, lw=1, ls=":", label=f"{row['series']} {row['bpc']:.2f}")
    style.finish(axes, "percent of the run", "training bits per character")
    style.only_published(figure, rows)
    caption = (
        "Mixed precision (MP) on V100, 4,096 units, one epoch of Amazon reviews, one run each; read off a figure "
        "to +-0.003 BPC. "
        "Published: single precision (SP) at batch 1024 cannot be told apart from MP there, so it has no points; "
        "the table of "
        f"test results (figure 2b) was not found. {style.ours(rows)}Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
