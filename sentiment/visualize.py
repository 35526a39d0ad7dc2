"""Pictures of a transfer and of its units: the best unit by label, the probe's weights, correlations.

Figures are objects of their own drawn by Agg: no pyplot, no global state, no display. Coloured text is `text_picture.py`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from .heatmap import PALETTE
from .probe import write_atomic

NEGATIVE, POSITIVE, INK = "#e66101", "#2b7bba", "#222222"
_EXTRA = ("#5e3c99", "#1b9e77", "#666666")


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Writes a PNG, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    # No date or version inside: the same numbers give the same file.
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    write_atomic(path, picture.getvalue())


def _axes(width: float, height: float):
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return figure, axes


def unit_histogram(
    values: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    path: Path,
    *,
    unit: int,
    threshold: float,
    subtitle: str = "",
) -> None:
    """Histogram of one unit's feature, one colour for each label, with the threshold.

    Args:
        values: The unit's feature for each text, shape (n,).
        labels: Index into `class_names` for each, shape (n,).
        class_names: Names for the legend.
        path: PNG to write.
        unit: Index, for the title.
        threshold: Drawn as a dashed line.
        subtitle: What the texts are and what the accuracy is.
    """
    figure, axes = _axes(6.4, 3.8)
    low, high = np.quantile(values, [0.001, 0.999])
    pad = 0.02 * (high - low) or 1.0
    bins = np.linspace(low - pad, high + pad, 51)
    colors = [NEGATIVE, POSITIVE, *_EXTRA]
    for index, name in enumerate(class_names):
        chosen = np.clip(values[labels == index], bins[0], bins[-1])
        color = colors[index % len(colors)]
        axes.hist(chosen, bins=bins, color=color, alpha=0.55, label=f"{name} (n = {len(chosen):,})")
        axes.hist(chosen, bins=bins, color=color, histtype="step", linewidth=1.2)
    axes.axvline(threshold, color=INK, linestyle="--", linewidth=1, label=f"threshold {threshold:.3g}")
    axes.set_xlabel("value after the last byte of a text", fontsize=9)
    axes.set_ylabel("texts", fontsize=9)
    axes.set_title(f"Unit {unit}" + (f": {subtitle}" if subtitle else ""), fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=9)
    save_figure(figure, path)


def probe_weights(coef: np.ndarray, path: Path, *, best_unit: int | None = None, label_top: int = 5) -> None:
    """Weights of a probe over all units, the largest ones named.

    Args:
        coef: Weights, shape (H,); for several classes the caller picks a row.
        path: PNG to write.
        best_unit: Ringed, if given.
        label_top: How many of the largest weights carry their unit's number.
    """
    figure, axes = _axes(6.4, 3.8)
    units = np.arange(len(coef))
    used = coef != 0
    colors = [POSITIVE if weight > 0 else NEGATIVE for weight in coef[used]]
    axes.vlines(units[used], 0, coef[used], colors=colors, linewidth=0.8, alpha=0.7)
    axes.scatter(units[used], coef[used], c=colors, s=9, zorder=3)
    axes.axhline(0, color=INK, linewidth=0.8)
    if best_unit is not None:
        axes.scatter(
            [best_unit], [coef[best_unit]], s=90, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=4,
            label=f"best single unit ({best_unit})",
        )  # fmt: skip
        axes.legend(frameon=False, fontsize=9)
    for unit in np.argsort(-np.abs(coef), kind="stable")[:label_top]:
        if coef[unit]:
            axes.annotate(
                str(unit), (unit, coef[unit]), xytext=(5, 4 if coef[unit] > 0 else -9), textcoords="offset points",
                fontsize=8, color=INK,
            )  # fmt: skip
    axes.set_xlim(-0.02 * len(coef), 1.06 * len(coef))
    axes.margins(y=0.12)
    axes.set_xlabel("unit", fontsize=9)
    axes.set_ylabel("weight", fontsize=9)
    axes.set_title(f"Probe: {int(used.sum()):,} of {len(coef):,} units used", fontsize=10, loc="left")
    save_figure(figure, path)


def unit_correlations(correlations: np.ndarray, units: Sequence[int], path: Path) -> None:
    """Correlations between units as a coloured square, with their values where there is room.

    Args:
        correlations: Shape (k, k), from -1 to 1; NaN where a unit is constant.
        units: The k units, for the axes.
        path: PNG to write.
    """
    figure, axes = _axes(5.4, 4.6)
    image = axes.imshow(
        correlations, cmap=LinearSegmentedColormap.from_list("ours", np.array(PALETTE) / 255), vmin=-1, vmax=1
    )
    places, names = range(len(units)), [str(unit) for unit in units]
    axes.set_xticks(places, names, rotation=90)
    axes.set_yticks(places, names)
    axes.set_title("Correlation of units over the texts", fontsize=10, loc="left")
    if len(units) <= 12:
        for (row, column), value in np.ndenumerate(correlations):
            if np.isfinite(value):
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=INK)
    figure.colorbar(image, ax=axes, shrink=0.85).ax.tick_params(labelsize=8)
    save_figure(figure, path)
