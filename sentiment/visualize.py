"""Pictures of a transfer: the best unit by label, the probe's weights, and coloured text as PNG.

Figures are objects of their own drawn by Agg: no pyplot, no global state, no display. `heatmap.py` holds the colours
and the HTML form of the coloured text.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle

from .heatmap import Scale, Trace, palette_colors
from .probe import write_atomic

NEGATIVE, POSITIVE, INK = "#e66101", "#2b7bba", "#222222"
_EXTRA = ("#5e3c99", "#1b9e77", "#666666")
PNG_COLUMNS, PNG_MAX_LINES = 96, 300


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


def heatmap_png(traces: Sequence[Trace], scale: Scale, path: Path, title: str = "") -> None:
    """Coloured texts as a picture, in a monospaced font, with the scale on top.

    Characters that the font (DejaVu Sans Mono, which comes with matplotlib) lacks are shown as an empty box; use the
    HTML form for emoji and right-to-left scripts.

    Raises:
        ValueError: More text than fits a picture.
    """
    lines: list[list[tuple[int, str, float]] | str] = []
    for trace in traces:
        lines += [trace.caption] if trace.caption else []
        lines += [*_wrap(trace), ""]
    if len(lines) > PNG_MAX_LINES:
        raise ValueError(
            f"{path}: {len(lines)} lines of text are too many for a picture of {PNG_MAX_LINES}; write .html"
        )
    cell_width, line_height = 0.088, 0.25
    width, height = PNG_COLUMNS * cell_width + 0.4, (len(lines) + 3.2) * line_height
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.2 / width, 0, 1 - 0.4 / width, 1))
    axes.set_xlim(0, PNG_COLUMNS)
    axes.set_ylim(len(lines) + 3.2, 0)
    axes.axis("off")
    _draw_scale(axes, scale, title)
    font = FontProperties(family="DejaVu Sans Mono", size=10)
    known = FT2Font(findfont(font)).get_charmap()
    for row, line in enumerate(lines):
        top = row + 3.0
        if isinstance(line, str):
            caption = "".join(c if ord(c) in known else "□" for c in line)
            axes.text(0, top + 0.55, caption, va="center", fontsize=9, color="#555555", parse_math=False)
            continue
        colors = scale.colors(np.array([value for _, _, value in line])) / 255
        for (column, character, _), color in zip(line, colors):
            cells = _columns(character)
            axes.add_patch(Rectangle((column, top), cells, 0.94, facecolor=color, linewidth=0))
            if not character.isspace():
                glyph = character if all(ord(c) in known for c in character) else "□"
                axes.text(
                    column + cells / 2, top + 0.5, glyph, ha="center", va="center", fontproperties=font, color="#111111",
                    parse_math=False,
                )  # fmt: skip
    save_figure(figure, path)


def _draw_scale(axes: Axes, scale: Scale, title: str) -> None:
    low, high = scale.center - scale.sign * scale.limit, scale.center + scale.sign * scale.limit
    axes.text(0, 0.8, title, va="center", fontsize=11, color=INK, parse_math=False)
    left, right = 28, 62
    steps = np.linspace(-1, 1, 120)
    for step, color in zip(steps, palette_colors(steps) / 255):
        x = left + (step + 1) / 2 * (right - left)
        axes.add_patch(Rectangle((x, 1.55), (right - left) / 119, 0.7, facecolor=color, linewidth=0))
    axes.text(left - 1, 1.9, f"{scale.negative} ({low:.3g})", ha="right", va="center", fontsize=9, color="#555555")
    axes.text(right + 2, 1.9, f"{scale.positive} ({high:.3g})", ha="left", va="center", fontsize=9, color="#555555")


def _columns(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character[0]) in "WF" else 1


def _wrap(trace: Trace) -> list[list[tuple[int, str, float]]]:
    """Lines of (column, character, value), broken after the last space that fits."""
    lines: list[list[tuple[int, str, float]]] = [[]]
    column = 0
    for character, value in zip(trace.characters, trace.values):
        if ord(character[0]) < 0x20:
            character = " "
        if column + _columns(character) > PNG_COLUMNS:
            line = lines[-1]
            cut = max((i + 1 for i, (_, c, _) in enumerate(line) if c.isspace()), default=0)
            rest = line[cut:] if cut else []
            lines[-1] = line[: len(line) - len(rest)]
            column, moved = 0, []
            for _, c, v in rest:
                moved.append((column, c, v))
                column += _columns(c)
            lines.append(moved)
        lines[-1].append((column, character, float(value)))
        column += _columns(character)
    return lines
