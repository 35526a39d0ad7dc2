"""Sentiment accuracy by model size: published bars on SST and IMDB, own results beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import read_published
from . import style
from .own_runs import read_runs
from .style import Drawn, Rows

PANELS = {
    "SST": "SST, all units",
    "SST_1_neuron": "SST, one unit",
    "IMDB": "IMDB, all units",
    "IMDB_1_neuron": "IMDB, one unit",
}


def load(runs: Sequence[Path] = ()) -> Rows:
    """Accuracies in percent by panel and size; own results of tasks named sst or imdb."""
    rows: Rows = []
    for row in read_published("nv_sentiment_error_by_size"):
        values = {"panel": row["dataset"], "accuracy": float(row["accuracy_percent"]), "n": ""}
        rows.append({"series": row["hidden_size"], "kind": "published", **values, "source": row["source"]})
    for run in read_runs(runs):
        for task, probe, unit, n in run.accuracies:
            for suffix, accuracy in (("", probe), ("_1_neuron", unit)):
                panel = task.upper().replace("-", "_") + suffix
                if panel in PANELS and accuracy is not None:
                    rows.append({"series": f"ours {run.hidden_size}", "kind": "ours", "panel": panel, "accuracy": 100 * accuracy,
                                 "n": n, "source": run.source})  # fmt: skip
    return rows


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(4, width=11, height=4, sharey=True)
    for panel, (name, title) in zip(axes, PANELS.items()):
        part = style.of(rows, panel=name)
        best = [row for row in part if row["series"].startswith("SOTA")]
        bars = [row for row in part if row not in best]
        heights = [row["accuracy"] for row in bars]
        colours = [style.ORANGE if row["kind"] == "ours" else style.BLUE for row in bars]
        panel.bar(range(len(bars)), heights, color=colours, width=0.7)
        for at, height in enumerate(heights):
            panel.text(at, height - 1, f"{height:.1f}", ha="center", va="top", fontsize=8, color="white")
        for row in best:
            panel.axhline(row["accuracy"], color=style.BLACK, lw=1, ls=":", label=f"Gray et al. {row['accuracy']:.1f}")
        panel.set_xticks(range(len(bars)), [row["series"].replace(" ", "\n") for row in bars], fontsize=8)
        panel.set_ylim(40, 106)
        style.finish(
            panel, "units", "accuracy, percent" if name == "SST" else "", title, loc="upper left", borderaxespad=0.1
        )
    style.only_published(figure, rows)
    ours = style.of(rows, kind="ours")
    sizes = f" Ours (orange): n = {', '.join(sorted({str(row['n']) for row in ours}))} test texts." if ours else ""
    caption = (
        "Test accuracy of a logistic-regression probe on all units, and of the best single unit, by units of the "
        "mLSTM. Published (blue): "
        "100 minus the error printed on the bars, trained on V100; neither n nor intervals are given there."
        f"{sizes} {style.ours(rows)}Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
