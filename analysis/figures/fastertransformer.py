"""FasterTransformer: latency of BERT-base by batch and length, against TorchScript, on four GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import number, read_published
from . import style
from .style import Drawn, Rows

GPUS = ("T4", "V100", "A10", "A100")
LENGTHS = (32, 128, 384)
VARIANTS = {"TorchScript": "TorchScript", "FT": "FasterTransformer", "EFF-FT": "without padding (EFF-FT)"}


def load(runs: Sequence[Path] = ()) -> Rows:
    """FP16 milliseconds by GPU, batch and length (version 5), TF against FT of version 1 (V100)."""
    rows: Rows = []
    seen = set()
    for row in read_published("fastertransformer_v5_bert_pytorch_latency"):
        if row["precision"] != "FP16":
            continue
        common = {"kind": "published", "panel": row["gpu"], "batch": int(row["batch"]), "length": int(row["seq_len"]),
                  "source": row["source"]}  # fmt: skip
        key = (row["gpu"], row["batch"], row["seq_len"])
        if key not in seen:  # printed once for each variant
            rows.append({"series": "TorchScript", **common, "ms": float(row["torchscript_ms"])})
            seen.add(key)
        rows.append({"series": row["variant"], **common, "ms": float(row["variant_ms"])})
    for row in read_published("fastertransformer_v1_latency"):
        if row["gpu"] != "V100":
            continue
        for series, column in (("TensorFlow XLA", "tf_xla_ms"), ("FasterTransformer 1", "ft_ms")):
            ms = number(row[column])
            if ms is not None:
                rows.append({"series": f"{series}, {row['heads']} heads x {row['head_dim']}", "kind": "published", "panel": "v1",
                             "batch": int(row["batch"]), "length": 32, "ms": ms, "source": row["source"]})  # fmt: skip
    return rows


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(4, 2, width=13, height=7.4)
    for panel, gpu in zip(axes[0], GPUS):
        part = style.of(rows, panel=gpu)
        for index, (series, label) in enumerate(VARIANTS.items()):
            for line, length in zip((":", "--", "-"), LENGTHS):
                points = style.of(part, series=series, length=length)
                panel.plot([r["batch"] for r in points], [r["ms"] for r in points], f"{style.marker(index)}{line}", ms=4, lw=1.1,
                           color=style.colour(index), label=label if length == 384 else None)  # fmt: skip
        style.plain_log(panel, (1, 8, 32))
        panel.set_yscale("log")
        panel.set_ylim(0.5, 300)
        style.finish(
            panel, "batch", "milliseconds" if gpu == GPUS[0] else "", f"{gpu}, FP16", fontsize=7, loc="upper left"
        )
    for panel, gpu in zip(axes[1], GPUS):
        _grid(panel, style.of(rows, panel=gpu), gpu)
    figure.supxlabel(
        "Published numbers only: no run of ours. Top: lengths 32 dotted, 128 dashed, 384 solid.",
        fontsize=8,
        color=style.GREY,
    )
    caption = (
        "BERT-base (12 layers) in FP16 on T4, V100, A10 and A100, one measurement each, published: milliseconds "
        "of a batch (top), and how many "
        "times faster than TorchScript the version without padding is (bottom). Version 1 (V100, TensorFlow) is in the CSV. "
        f"Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)


def _grid(panel: style.Axes, rows: Rows, gpu: str) -> None:
    """Speed-up of EFF-FT over TorchScript by batch and length."""
    batches = sorted({row["batch"] for row in rows})
    times = {(row["series"], row["batch"], row["length"]): row["ms"] for row in rows}
    ratio = [[times["TorchScript", b, s] / times["EFF-FT", b, s] for s in LENGTHS] for b in batches]
    panel.imshow(ratio, cmap="Blues", vmin=0, vmax=8, aspect="auto")
    for y, line in enumerate(ratio):
        for x, value in enumerate(line):
            panel.text(
                x, y, f"{value:.1f}x", ha="center", va="center", color="white" if value > 5 else "black", fontsize=9
            )
    panel.set_xticks(range(len(LENGTHS)), list(map(str, LENGTHS)))
    panel.set_yticks(range(len(batches)), batches)
    panel.set_xlabel("sequence length")
    panel.set_ylabel("batch" if gpu == GPUS[0] else "")
    panel.set_title(f"{gpu}: TorchScript / EFF-FT", fontsize=10)
