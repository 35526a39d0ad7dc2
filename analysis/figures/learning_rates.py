"""arXiv 1808.01371, figure 5: final BPC by initial learning rate and batch, with the two scaling rules marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import number, read_published
from . import style
from .own_runs import read_runs
from .style import Drawn, Rows

RULES = {
    "linear_rule_lr": "linear rule",
    "sqrt_rule_lr": "square-root rule",
    "capped_linear_lr_3e-3": "linear rule, at most 3e-3",
}


def load(runs: Sequence[Path] = ()) -> Rows:
    """The rules at each batch, learning rates that published recipes used, and own runs with their final BPC or `Div`.

    The published cells, and which of them diverged, were not found: they stay empty.
    """
    rows: Rows = []
    for row in read_published("lr_scaling_table"):
        for column, rule in RULES.items():
            rows.append({"series": rule, "kind": "published", "batch": int(row["batch"]), "lr": float(row[column]), "result": "",
                         "source": row["source"]})  # fmt: skip
    for row in read_published("lr_recipes_seen"):
        try:
            batch, rate = number(row["global_batch"].split()[0]), number(row["lr"].split()[0])
        except ValueError:
            continue  # "about 10x larger", "<=3e-3": no point
        if batch and rate and row["who"].startswith(("OpenAI", "NVIDIA v", "NVIDIA HEAD")):
            rows.append({"series": "recipe used", "kind": "published", "batch": int(batch), "lr": rate, "result": row["who"],
                         "source": row["source"]})  # fmt: skip
    for run in read_runs(runs):
        so_far = "" if run.percent > 99.5 else f" at {run.percent:.0f} %"
        result = "Div" if run.final_bpc is None else f"{run.final_bpc:.3f}{so_far}"
        rows.append({"series": "ours, final BPC", "kind": "ours", "batch": run.batch, "lr": run.lr, "result": result,
                     "source": run.source})  # fmt: skip
    return rows


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(height=5)
    dashes = {"linear rule": "-", "square-root rule": "--", "linear rule, at most 3e-3": ":"}
    for index, (series, line) in enumerate(dashes.items()):
        part = style.of(rows, series=series)
        x, y = [row["batch"] for row in part], [row["lr"] for row in part]
        axes.plot(x, y, f"{style.marker(index)}{line}", color=style.colour(index), ms=4, lw=1.3, label=series)
    used = style.of(rows, series="recipe used")
    axes.plot(
        [row["batch"] for row in used],
        [row["lr"] for row in used],
        "*",
        color=style.BLACK,
        ms=11,
        label="recipe used (published)",
    )
    for row in style.of(rows, kind="ours"):
        diverged = row["result"] == "Div"
        box = {"boxstyle": "round", "fc": "white", "ec": style.PINK if diverged else style.GREY, "alpha": 0.9}
        axes.annotate(row["result"], (row["batch"], row["lr"]), ha="center", va="center", fontsize=8, bbox=box)
        axes.plot(row["batch"], row["lr"], alpha=0)  # so that the axes reach the text
    batches = sorted({row["batch"] for row in rows})
    style.plain_log(axes, [batch for batch in batches if batch & (batch - 1) == 0])
    axes.tick_params(axis="x", labelsize=8)
    axes.set_yscale("log")
    style.finish(axes, "global batch", "initial learning rate", loc="upper left")
    note = "Boxes: final BPC of our runs, Div: diverged. " if style.of(rows, kind="ours") else "No run of ours. "
    figure.supxlabel(f"{note}The published cells of this figure were not found.", fontsize=8, color=style.GREY)
    caption = (
        "Initial learning rate by the linear and the square-root rule from 5e-4 at batch 128 (arithmetic), and "
        "the rates of published "
        "recipes (stars). The final BPC of each cell of figure 5, and which cells diverged, were not found and "
        "are not drawn. "
        f"{style.ours(rows)}Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
