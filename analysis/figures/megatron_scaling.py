"""Megatron-LM weak scaling: efficiency of 2019 and 2020, TFLOP/s a GPU of 2020 to now, with the scaling model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ..backtest_rows import all_rows
from ..fitted import FITTED
from ..published_tables import number, read_published
from . import style
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Published TFLOP/s a GPU and, where it is printed, efficiency; the model's prediction of the same rows."""
    rows: Rows = []
    for row in read_published("megatron_weak_scaling"):
        values = {
            "gpus": int(row["gpus"]),
            "tflops": float(row["tflops_per_gpu"]),
            "percent": number(row["scaling_pct"]),
        }
        rows.append({"series": _name(row["series"]), "kind": "published", **values, "source": row["source"]})
    wanted = {"8.3B 8 GPUs model parallel only": 8, "8.3B 512 GPUs": 512}
    for row in read_published("megatron_heads_and_strong_scaling"):
        if row["experiment"] in wanted and row["unit"] == "%" and "abstract" not in row["setting"]:
            gpus = wanted[row["experiment"]]
            rows.append({"series": "2019 V100, 8.3 B against 1.2 B", "kind": "published", "gpus": gpus, "tflops": None,
                         "percent": float(row["value"]), "source": row["source"]})  # fmt: skip
    for row in all_rows():
        predicted = row.predict(FITTED)
        if row.table == "megatron_weak_scaling" and not math.isnan(predicted):
            series, tflops = _model(row.name, row.devices, row.published, predicted, row.unit, rows)
            rows.append({"series": series, "kind": "model", "gpus": row.devices, "tflops": tflops, "percent": None,
                         "source": f"scaling model, {row.use}"})  # fmt: skip
    return rows


def _name(series: str) -> str:
    for start, name in (("2021", "2021 A100, to 1 T"), ("current", "current H100, to 462 B")):
        if series.startswith(start):
            return name
    return series.replace("DGX-2 ", "").replace("MPxDP", "tensor x data").replace("MP only", "tensor only")


def _model(name: str, gpus: int, published: float, predicted: float, unit: str, rows: Rows) -> tuple[str, float]:
    """Series and TFLOP/s of a prediction; one in milliseconds is turned by the published pair of the same row."""
    if unit == "TFLOP/s":
        return ("2021 A100, to 1 T" if name.startswith("2021") else "current H100, to 462 B"), predicted
    key = _name(f"2020 {name.rsplit(' ', 2)[0]}")
    (row,) = [row for row in rows if row["series"] == key and row["gpus"] == gpus and row["kind"] == "published"]
    return key, row["tflops"] * published / predicted


def draw(rows: Rows) -> Drawn:
    figure, (left, right) = style.new(2, width=11, height=4.8)
    for index, series in enumerate(style.names(rows)):
        color, mark = style.colour(index), style.marker(index)
        points = style.of(rows, series=series, kind="published")
        percent = [row for row in points if row["percent"] is not None]
        if percent:
            left.plot(
                [r["gpus"] for r in percent],
                [r["percent"] for r in percent],
                f"{mark}-",
                color=color,
                ms=6,
                lw=1,
                label=series,
            )
        speed = [row for row in points if row["tflops"] is not None]
        right.plot(
            [r["gpus"] for r in speed],
            [r["tflops"] for r in speed],
            mark,
            color=color,
            ms=6,
            label=series if speed else None,
        )
        model = style.of(rows, series=series, kind="model")
        right.plot([r["gpus"] for r in model], [r["tflops"] for r in model], "--", color=color, lw=1.2)
    style.plain_log(left, (1, 2, 4, 8, 32, 128, 512, 1024))
    left.set_ylim(60, 103)
    style.finish(left, "GPUs", "percent of one GPU's speed, each", "Weak scaling (published)", fontsize=7)
    style.plain_log(right, (1, 8, 64, 512, 3072))
    right.set_ylim(0, 640)
    style.finish(
        right, "GPUs", "TFLOP/s a GPU", "Points published, dashed model", fontsize=7, loc="upper left", ncols=2
    )
    style.only_published(figure, rows)
    caption = (
        "GPT of 1.2 B to 1 T parameters. V100 in DGX-2H, A100 and H100 in DGX nodes; one measurement each, "
        "published. TFLOP/s include "
        "recomputation (2020, 2021) or count the model alone (current). Dashed: scaling model; those of 2020 were "
        "fitted, those of 2021 and "
        f"now were not, and their micro-batches are assumed to be 1. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
