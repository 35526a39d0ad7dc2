"""BERT-large: hours of both phases against the number of GPUs, with the scaling model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ..backtest_rows import bert_hours
from ..fitted import FITTED
from ..published_tables import number, read_published
from . import style
from .style import Drawn, Rows

# Three points at 256 GPUs lie within 4 %: two are drawn beside the count.
SHIFT = {"A100-40GB fp16": 0.92, "A100-80GB tf32": 1.09}


def load(runs: Sequence[Path] = ()) -> Rows:
    """Every published row by hardware and precision, and the model's hours where it has a rate."""
    rows: Rows = []
    for row in read_published("bert_time_vs_gpus"):
        hours = number(row["hours"]) or float(row["minutes"]) / 60
        series = _series(row["system"], row["gpu"], row["precision"], row["global_batch_p1"])
        rows.append(
            {"series": series, "kind": "published", "gpus": int(row["gpus"]), "hours": hours, "source": row["source"]}
        )
    for row in bert_hours():
        if row.use == "target" and not math.isnan(predicted := row.predict(FITTED)):
            system, precision = row.name.rsplit(", ", 1)
            gpu = "V100-16GB" if "DGX-1" in system else "A100-80GB" if "A100" in system else "V100-32GB"
            series = _series(system, gpu, precision, "65536")
            rows.append(
                {"series": series, "kind": "model", "gpus": row.devices, "hours": predicted, "source": "scaling model"}
            )
    return rows


def _series(system: str, gpu: str, precision: str, batch: str) -> str:
    if number(batch) is None:
        return "V100, batch not published"
    if "A100" in gpu:
        return f"{gpu} {precision}"
    return f"DeepSpeed {gpu} {precision}" if "DeepSpeed" in system else f"{gpu} {precision}"


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(width=8, height=5.2)
    for index, series in enumerate(style.names(rows)):
        points = style.of(rows, series=series, kind="published")
        mark = (*style.MARKERS, "*", "<", ">")[index % 10]
        x, y = [row["gpus"] * SHIFT.get(series, 1) for row in points], [row["hours"] for row in points]
        face = {} if index < 7 else {"mfc": "white"}
        axes.plot(x, y, mark, color=style.colour(index), ms=7, label=series, **face)
        model = style.of(rows, series=series, kind="model")
        axes.plot(
            [row["gpus"] for row in model], [row["hours"] for row in model], "-", color=style.colour(index), lw=1.1
        )
    style.plain_log(axes, (8, 16, 32, 64, 128, 256, 512, 1024))
    style.plain_log(axes, (0.5, 1, 2, 5, 10, 20, 50, 100, 150), "y", base=10)
    style.finish(axes, "GPUs", "hours for both phases", "Points published, lines model", loc="upper right")
    style.only_published(figure, rows)
    caption = (
        "BERT-large pretraining, both phases (batch 65,536 of 128 tokens, then 32,768 of 512, where published), "
        "one run each, published. "
        "Lines: scaling model, from the rate of one node. The A100-40GB and tf32 runs are of other releases; no "
        "rate of one node is published "
        f"for them, nor for fp32; of three points at 256 GPUs two are drawn a little aside. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
