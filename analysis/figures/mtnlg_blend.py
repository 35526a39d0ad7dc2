"""MT-NLG 530B: the weights of its 15 data sets, and how often 270 B tokens pass over each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import number, read_published
from . import style
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Weight and, where the size was found, passes; the largest weight first."""
    rows = [
        {"series": row["dataset"], "kind": "published", "weight": float(row["weight"]),
         "passes": number(row["epochs_derived_for_270B"]), "source": row["source"]}
        for row in read_published("mtnlg_datasets")
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["weight"])


def draw(rows: Rows) -> Drawn:
    figure, (left, right) = style.new(2, width=10, height=5, sharey=True)
    place = range(len(rows))
    left.barh(place, [100 * row["weight"] for row in rows], color=style.BLUE)
    left.set_yticks(place, [row["series"] for row in rows], fontsize=9)
    left.invert_yaxis()
    for at, row in enumerate(rows):
        left.text(100 * row["weight"] + 0.2, at, f"{100 * row['weight']:.1f}", va="center", fontsize=8)
    left.set_xlim(0, 22.5)
    style.finish(left, "percent of the samples", "", "Weight (published)", legend=False)
    for at, row in enumerate(rows):
        if row["passes"] is None:
            right.text(0.05, at, "size not found", va="center", fontsize=8, color=style.GREY)
        else:
            right.barh(at, row["passes"], color=style.ORANGE)
            right.text(row["passes"] + 0.04, at, f"{row['passes']:.2f}", va="center", fontsize=8)
    right.set_xlim(0, 4)
    style.finish(right, "passes in 270 B tokens", "", "Passes (derived)", legend=False)
    style.only_published(figure, rows)
    caption = (
        "The 15 data sets of MT-NLG 530B: published weights, and passes derived from sizes in tokens that another "
        "paper gives for the same "
        f"corpora; sizes that were not found stay empty. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
