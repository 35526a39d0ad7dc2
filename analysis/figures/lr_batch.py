"""The picture of a learning-rate by batch sweep: final BPC by rate for each batch, the two scaling rules as marks on it, and
samples to a target by batch beside what the measured gradient noise scale predicts.

It reads the run folders of `bigbatch sweep configs/sweeps/lr_batch.yaml` only.

Source: Puri et al. 2018 (arXiv 1808.01371), figure 5, at small scale; the prediction is McCandlish et al. 2018 (arXiv
1812.06162), eq. 2.11: samples(B) = samples_min (1 + B / noise scale).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from ...training.metrics import read_metrics
from ..cells import read_cell
from ..curves import BLACK, BLUE, GREEN, ORANGE, save_figure
from ..results import Row, count, grouped, mean_interval, run_row
from ..sweep_folder import read_sweep
from ..sweep_report import best_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMMAND = "bigbatch sweep configs/sweeps/lr_batch.yaml --jobs 2"
BATCH, RATE = "batch.global_batch_size", "optim.lr"
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
RULES = {"linear": (1.0, "^"), "sqrt": (0.5, "s")}


@dataclass(frozen=True)
class LrBatch:
    """What the picture shows.

    Attributes:
        settings: a row a batch and rate: n (finished seeds), bpc, low, high, diverged, cells.
        batches: a row a batch: its best rate, samples_to_target (mean over n seeds; NaN where not reached), noise_scale.
        target: validation BPC that the best rate of every batch reaches.
        marks: `batch` and `lr` from which the rules are drawn; empty for none.
    """

    settings: list[Row]
    batches: list[Row]
    target: float
    marks: dict[str, float]

    def rule(self, name: str, batch: int) -> float:
        """The rate that a rule gives for a batch."""
        return self.marks["lr"] * (batch / self.marks["batch"]) ** RULES[name][0]


def load(root: Path | str) -> LrBatch:
    """Reads the run folders of a sweep over batch and rate.

    Raises:
        ValueError: runs are missing (with the command that makes them), or the sweep varies something else.
    """
    root = Path(root)
    if not (root / "sweep.json").is_file():
        raise ValueError(f"the runs of this figure are not in {root}: make them with `{COMMAND}`")
    stored = read_sweep(root)
    missing = [name for name in stored["cells"] if read_cell(root / name).get("status") not in ("finished", "Div")]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(stored['cells'])} runs of this figure are missing in {root} (such as {missing[0]}): make them "
            f"with `{COMMAND}`, which goes on where it stopped"
        )
    rows = [_cell(root / name, config) for name, config in stored["cells"].items()]
    rows.sort(key=lambda row: (row[BATCH], row[RATE], row["seed"]))
    settings = []
    for (batch, rate), cells in grouped(rows, [BATCH, RATE]):
        if len({row["seed"] for row in cells}) < len(cells):
            raise ValueError(
                f"{root}: cells of batch {batch} and lr {rate:g} differ in more than the seed: draw another sweep"
            )
        interval = mean_interval(row["bpc"] for row in cells)
        numbers = {"n": interval.n, "bpc": interval.mean, "low": interval.low, "high": interval.high}
        settings.append({"batch": batch, "lr": rate, **numbers, "diverged": count(cells, "Div"), "cells": len(cells)})
    return _with_target(settings, rows, stored.get("marks", {}))


def _cell(run_dir: Path, config: dict[str, Any]) -> Row:
    row = run_row(run_dir)[1]
    evals = [
        (r["samples"], r["bpc"]) for r in read_metrics(run_dir) if r.get("event") == "eval" and r["bpc"] is not None
    ]
    varied = {BATCH: config["batch"]["global_batch_size"], RATE: config["optim"]["lr"], "seed": config["seed"]}
    return {**varied, "noise_scale": math.nan, **row, "evals": evals}


def _with_target(settings: list[Row], rows: list[Row], marks: dict[str, float]) -> LrBatch:
    """Adds what depends on the best rate of each batch."""
    best = best_settings(rows, BATCH, [RATE])
    if not best:
        raise ValueError("no batch has a rate at which every seed finished: there is nothing to draw")
    target = max(row["bpc"] for row in best)
    batches = []
    for top in best:
        cells = [row for row in rows if (row[BATCH], row[RATE]) == (top[BATCH], top[RATE])]
        reached = mean_interval(samples_to(target, row["evals"]) for row in cells)
        noise = mean_interval(row["noise_scale"] for row in cells)
        numbers = {"samples_to_target": reached.mean, "n": reached.n, "noise_scale": noise.mean}
        batches.append({"batch": top[BATCH], "lr": top[RATE], "bpc": top["bpc"], **numbers})
    return LrBatch(settings, batches, target, marks)


def samples_to(target: float, evals: list[tuple[int, float]]) -> float:
    """Samples at which a validation curve first falls to the target, between two validations on a straight line; else NaN."""
    before = None
    for samples, bpc in evals:
        if bpc <= target:
            if before is None:
                return float(samples)
            share = (before[1] - target) / (before[1] - bpc)
            return before[0] + share * (samples - before[0])
        before = (samples, bpc)
    return math.nan


def predicted(data: LrBatch) -> tuple[float, float] | None:
    """Noise scale (geometric mean over the batches) and samples_min, which makes the curve meet the smallest batch."""
    noise = [row["noise_scale"] for row in data.batches if row["noise_scale"] > 0]
    first = data.batches[0]
    if not noise or math.isnan(first["samples_to_target"]):
        return None
    scale = math.exp(sum(map(math.log, noise)) / len(noise))
    return scale, first["samples_to_target"] / (1 + first["batch"] / scale)


def draw(data: LrBatch, path: Path | str) -> list[Path]:
    """Writes the picture as PNG and SVG and its numbers as CSV, all beside `path`."""
    path = Path(path)
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_rates(left, data)
    _draw_samples(right, data)
    files = [save_figure(figure, path.with_suffix(".png"))]
    svg, partial = path.with_suffix(".svg"), path.with_name(f".{path.stem}.svg.partial")
    figure.savefig(partial, format="svg", metadata={"Date": None})
    partial.replace(svg)
    return [*files, svg, _write_csv(data, path.with_suffix(".csv"))]


def _draw_rates(axes: Axes, data: LrBatch) -> None:
    finite = sorted(row["bpc"] for row in data.settings if row["n"])
    low = finite[0]
    # Runs that only just learned would squeeze the valley, which matters, to the bottom.
    top = low + 1.15 * max(min(finite[-1], 1.6 * low) - low, 0.05)
    groups = grouped(data.settings, ["batch"])
    for at, ((batch,), rows) in enumerate(groups):
        color = COLORS[at % len(COLORS)]
        done = [row for row in rows if row["n"] and not row["diverged"]]
        axes.plot(
            [r["lr"] for r in done], [r["bpc"] for r in done], "o-", color=color, ms=4, lw=1.2, label=f"batch {batch}"
        )
        spread = [row for row in done if row["n"] > 1]
        axes.vlines(
            [r["lr"] for r in spread],
            [r["low"] for r in spread],
            [r["high"] for r in spread],
            color=color,
            lw=0.8,
            alpha=0.6,
        )
        y = top - (0.02 + 0.035 * (len(groups) - 1 - at)) * (top - low)
        for row in rows:
            if row["diverged"]:
                axes.text(
                    row["lr"], y, f"Div {row['diverged']}/{row['cells']}", color=color, ha="center", va="center", fontsize=7
                )  # fmt: skip
        # A rule may lead to a rate that diverges: its mark is there, too.
        heights = {row["lr"]: y if row["diverged"] else row["bpc"] for row in rows}
        for name, (_, marker) in RULES.items() if data.marks else ():
            rate = data.rule(name, batch)
            on = [height for lr, height in heights.items() if math.isclose(lr, rate, rel_tol=1e-6)]
            axes.plot([rate] * len(on), on, marker, ms=10, mfc="none", mec=color, mew=1.3)
    for name, (_, marker) in RULES.items() if data.marks else ():
        label = f"{name} rule from {data.marks['lr']:g} at batch {data.marks['batch']:g}"
        axes.plot([], [], marker, ms=8, mfc="none", mec=BLACK, ls="none", label=label)
    axes.set_xscale("log", base=2)
    rates = sorted({row["lr"] for row in data.settings})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.set_xlim(rates[0] / 1.3, rates[-1] * 1.3)
    axes.set_ylim(low - 0.05 * (top - low), top)
    axes.set_xlabel("peak learning rate")
    seeds = max(row["cells"] for row in data.settings)
    axes.set_ylabel(f"final validation bits per character\n(mean of {seeds} seed{'s' * (seeds > 1)}, 95 % intervals)")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    axes.grid(alpha=0.3)


def _draw_samples(axes: Axes, data: LrBatch) -> None:
    batches = [row["batch"] for row in data.batches]
    axes.plot(
        batches,
        [row["samples_to_target"] for row in data.batches],
        "o-",
        color=BLACK,
        ms=5,
        lw=1.2,
        label="measured, best rate",
    )
    for at, row in enumerate(data.batches):
        axes.plot([row["batch"]], [row["samples_to_target"]], "o", color=COLORS[at % len(COLORS)], ms=6)
    found = predicted(data)
    if found:
        scale, least = found
        between = [batches[0] * (batches[-1] / batches[0]) ** (at / 50) for at in range(51)]
        axes.plot(
            between, [least * (1 + b / scale) for b in between], "--", color=BLACK, lw=1, label="from the noise scale"
        )
        axes.axvline(scale, color=BLACK, lw=1, ls=":", label=f"gradient noise scale, {scale:,.0f} samples")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value >= 1000 else f"{value:g}")
    axes.set_xlabel("global batch, samples")
    axes.set_ylabel(f"samples until validation is at {data.target:.2f} bits per character")
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    axes.grid(alpha=0.3)


def _write_csv(data: LrBatch, path: Path) -> Path:
    import pandas as pd

    best = {(row["batch"], row["lr"]): row for row in data.batches}
    rows = []
    for row in data.settings:
        rules = {
            f"{name}_rule": bool(data.marks) and math.isclose(data.rule(name, row["batch"]), row["lr"], rel_tol=1e-6)
            for name in RULES
        }
        top = best.get((row["batch"], row["lr"]), {})
        more = {key: top.get(key, math.nan) for key in ("samples_to_target", "noise_scale")}
        rows.append({**row, **rules, "target": data.target, **more})
    partial = path.with_name(f".{path.name}.partial")
    pd.DataFrame(rows).to_csv(partial, index=False)
    partial.replace(path)
    return path
