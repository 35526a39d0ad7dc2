"""arXiv 1808.01371, figure 3: hours for an epoch and speed-up against the number of GPUs, with the scaling model's lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..backtest_rows import TOKENS_PER_EPOCH
from ..clusters import load_cluster
from ..fitted import FITTED
from ..published_tables import read_published
from ..scaling import Layout, predict
from ..workloads import mlstm
from . import style
from .style import Drawn, Rows

GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
# series of the table -> hidden size, batch a GPU, cluster
SERIES = {
    "4k_no_infiniband": (4096, 256, "dgx1v-ethernet"),
    "4k_infiniband": (4096, 256, "dgx1v-infiniband"),
    "8k_infiniband": (8192, 96, "dgx1v-infiniband"),
}
LABELS = {
    "4k_no_infiniband": "4,096 units, 10 Gb/s",
    "4k_infiniband": "4,096 units, InfiniBand",
    "8k_infiniband": "8,192 units, InfiniBand",
}


def load(runs: Sequence[Path] = ()) -> Rows:
    """Published hours at 8 GPUs and (derived from the abstract) 128, published speed-ups, and the model at every count.

    Hours at other counts were not found. One run is one point here, so own runs are not drawn.
    """
    rows = [
        {**row, "panel": "hours", "gpus": 8}
        for row in style.published(read_published("nv_train_time_8gpu"), "run", hours="hours_for_one_epoch_approx")
    ]
    for row in read_published("derived_throughput"):
        if row["setup"].startswith("128 GPUs"):
            hours = TOKENS_PER_EPOCH / float(row["chars_per_s_total"]) / 3600
            rows.append({"series": "FP16 256/GPU x 128 (abstract: 3 epochs in 4 h)", "kind": "published", "hours": hours,
                         "source": row["source"], "panel": "hours", "gpus": 128})  # fmt: skip
    for row in read_published("nv1808_gpu_scaling"):
        values = {"speedup": float(row["effective_speedup_approx"]), "gpus": int(row["gpus"]), "panel": "speedup"}
        rows.append({"series": row["series"], "kind": "published", **values, "source": row["source"]})
    for series, (hidden, batch, name) in SERIES.items():
        work, cluster = mlstm(hidden), load_cluster(name)
        estimates = {
            gpus: predict(work, cluster.resized(gpus), Layout(gpus, 1, 1, batch, batch * gpus), "fp16", FITTED)
            for gpus in GPUS
        }
        for gpus, estimate in estimates.items():
            speed = estimate.tokens_per_second / estimates[1].tokens_per_second
            common = {"series": series, "kind": "model", "gpus": gpus, "source": "scaling model"}
            rows.append({**common, "panel": "speedup", "speedup": speed})
            if hidden == 4096:
                rows.append({**common, "panel": "hours", "hours": estimate.run_hours(TOKENS_PER_EPOCH)})
    return rows


def draw(rows: Rows) -> Drawn:
    figure, (left, right) = style.new(2, width=10.5, height=5.2)
    hours = style.of(rows, panel="hours", kind="published")
    for index, row in enumerate(hours):
        left.plot(row["gpus"], row["hours"], style.marker(index), color=style.colour(index), ms=7, label=row["series"])
    lines = {
        "4k_no_infiniband": ("--", "model, FP16 256/GPU, 10 Gb/s"),
        "4k_infiniband": ("-", "model, FP16 256/GPU, InfiniBand"),
    }
    for series, (dashes, label) in lines.items():
        part = style.of(rows, panel="hours", kind="model", series=series)
        left.plot([r["gpus"] for r in part], [r["hours"] for r in part], dashes, color=style.GREY, lw=1.3, label=label)
    style.plain_log(left, GPUS)
    style.plain_log(left, (1, 2, 5, 10, 20, 50, 100, 200), "y", base=10)
    style.finish(left, "GPUs", "hours for one epoch", "Hours an epoch, 4,096 units", fontsize=7, loc="lower left")
    for index, (series, label) in enumerate(LABELS.items()):
        points = style.of(rows, panel="speedup", kind="published", series=series)
        line = style.of(rows, panel="speedup", kind="model", series=series)
        color = style.colour(index)
        right.plot(
            [r["gpus"] for r in points],
            [r["speedup"] for r in points],
            style.marker(index),
            color=color,
            ms=6,
            label=label,
        )
        dashes = ("-", "-", "--")[index]  # the third lies on the second
        right.plot([r["gpus"] for r in line], [r["speedup"] for r in line], dashes, color=color, lw=1.2)
    right.plot(GPUS, GPUS, ":", color=style.BLACK, lw=1, label="ideal")
    style.plain_log(right, GPUS)
    style.plain_log(right, GPUS, "y")
    style.finish(right, "GPUs", "speed-up over one GPU", "Speed-up: points published, lines model")
    style.only_published(figure, rows)
    caption = (
        "V100 in DGX-1V nodes of 8, FP16, batch 256 a GPU (8,192 units: 96 assumed in the model). Points are published, one "
        "measurement each, read off figures (speed-ups to +-1, hours to +-1) or derived from the abstract (128 "
        "GPUs); hours at "
        "other counts were not found. The first FP32 release (156 h) is another code than the later FP32 run. "
        "Lines: scaling "
        f"model (docs/scaling.md). Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
