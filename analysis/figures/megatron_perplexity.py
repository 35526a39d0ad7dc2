"""Megatron-LM: WikiText-103 perplexity and LAMBADA accuracy by model size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import number, read_published
from . import style
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Sizes in billions of parameters; the best before, without a size; what was not found stays empty."""
    rows: Rows = []
    for row in read_published("gpt2_sizes_ppl_lambada"):
        size = row["params"]
        billions = None
        if size[0].isdigit():
            billions = float(size.split()[0][:-1]) / (1000 if "M" in size.split()[0] else 1)
        series = "news article, other data and evaluation" if "blog" in size else "paper" if billions else "best before"
        rows.append({"series": series, "kind": "published", "billions": billions, "perplexity": number(row["wikitext103_ppl"]),
                     "lambada": number(row["lambada_acc_pct"]), "source": row["source"]})  # fmt: skip
    return rows


def draw(rows: Rows) -> Drawn:
    figure, panels = style.new(2, width=9.5, height=4)
    for axes, key, label in zip(
        panels, ("perplexity", "lambada"), ("WikiText-103 word perplexity", "LAMBADA accuracy, percent")
    ):
        for index, series in enumerate(style.names(rows)):
            part = [row for row in style.of(rows, series=series) if row[key] is not None]
            color = style.colour(index)
            sized = [row for row in part if row["billions"] is not None]
            if sized:
                x, y = [row["billions"] for row in sized], [row[key] for row in sized]
                axes.plot(x, y, f"{style.marker(index)}-", color=color, ms=7, lw=1.2, label=series)
            for row in part:
                if row["billions"] is None:
                    axes.axhline(row[key], color=style.BLACK, lw=1, ls=":", label=f"{series}: {row[key]:.2f}")
            offset = (6, 6) if key == "perplexity" else (8, -10)
            if series == "paper":
                for row in sized:
                    axes.annotate(
                        f"{row[key]:.2f}", (row["billions"], row[key]), offset, textcoords="offset points", fontsize=8
                    )
        style.plain_log(axes, (0.355, 1, 2.5, 8.3), base=10)
        axes.set_xlim(0.28, 14)
        axes.margins(y=0.1)
        style.finish(axes, "billion parameters", label)
    style.only_published(figure, rows)
    caption = (
        "GPT-2 of 355 M, 2.5 B and 8.3 B parameters on 64, 128 and 512 V100, one run each, published. The 17.41 "
        "of the news article is on "
        "other data (37 GB of WebText) and another evaluation than the 10.81 of the paper (174 GB); its LAMBADA "
        "accuracy was not found. "
        f"Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
