"""MT-NLG 530B: seconds of an iteration and TFLOP/s a GPU at 280, 350 and 420 nodes, with the scaling model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..clusters import load_cluster
from ..extrapolation import spread
from ..published_tables import read_published
from ..scaling import Layout
from ..workloads import WORKLOADS
from . import style
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Three published pairs, and the model's with its range over fits that leave out a table."""
    rows: Rows = []
    cluster, work = load_cluster("dgx-a100"), WORKLOADS["mt-nlg-530b"]
    for row in read_published("mtnlg_throughput"):
        common = {"series": "MT-NLG 530B", "nodes": int(row["dgx_a100_servers"])}
        rows.append({**common, "kind": "published", "seconds": float(row["iteration_s"]), "low": "", "high": "",
                     "tflops": float(row["tflops_per_gpu"]), "source": row["source"]})  # fmt: skip
        layout = Layout(int(row["data_parallel_derived"]), 8, 35, 1, int(row["gbs"]), recompute=True)
        estimate, low, high = spread(work, cluster, layout, "bf16")
        rows.append({**common, "kind": "model", "seconds": estimate.step_seconds, "low": low, "high": high,
                     "tflops": estimate.device_tflops, "source": "scaling model"})  # fmt: skip
    return rows


def draw(rows: Rows) -> Drawn:
    figure, panels = style.new(2, width=9, height=4)
    data, model = style.of(rows, kind="published"), style.of(rows, kind="model")
    for axes, key, label in zip(panels, ("seconds", "tflops"), ("seconds an iteration", "TFLOP/s a GPU")):
        axes.bar(
            [row["nodes"] - 9 for row in data],
            [row[key] for row in data],
            width=16,
            color=style.BLUE,
            label="published",
        )
        bars = None
        if key == "seconds":
            bars = [[row["seconds"] - row["low"] for row in model], [row["high"] - row["seconds"] for row in model]]
        axes.bar([row["nodes"] + 9 for row in model], [row[key] for row in model], width=16, color=style.ORANGE, yerr=bars,
                 capsize=4, label="scaling model")  # fmt: skip
        for shift, part in ((-9, data), (9, model)):
            for row in part:
                top = row[key] if key == "tflops" or row["kind"] == "published" else row["high"]
                axes.text(row["nodes"] + shift, top * 1.015, f"{row[key]:.1f}", ha="center", fontsize=8)
        axes.set_xticks(
            [row["nodes"] for row in data], [f"{row['nodes']} nodes\n{row['nodes'] * 8:,} GPUs" for row in data]
        )
        axes.set_ylim(0, max(row[key] for row in rows) * 1.28)
        style.finish(axes, "", label, loc="upper right")
    figure.supxlabel("No run of ours. Whiskers: fits that leave out one published table.", fontsize=8, color=style.GREY)
    caption = (
        "530 B parameters, global batch 1,920 x 2,048 tokens, tensor 8 x pipeline 35, bf16, A100-80GB in DGX A100 "
        "nodes; published: one "
        f"measurement each. Orange: scaling model from the rate of a 1.16 B model on one A100. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
