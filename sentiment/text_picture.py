"""Coloured text as PNG: what `heatmap.py` shows as a page.

A picture has to bring its own letters. Each character is drawn in a font that has it: DejaVu Sans Mono or DejaVu Sans,
which come with matplotlib, else any installed one. What no font has is named in words, `:grinning face:` for an emoji
and its number for a letter; colour fonts cannot be drawn. Letters of right-to-left scripts are put in their order
line by line, but not joined: for Arabic the page is better.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle

from .characters import ZERO_WIDTH_JOINER, ZERO_WIDTH_NON_JOINER, is_regional, is_skin_tone
from .heatmap import Panel, Scale, Trace, palette_colors, visible
from .visualize import INK, save_figure

PNG_COLUMNS, PNG_MAX_LINES = 96, 300
_FONTS = ("DejaVu Sans Mono", "DejaVu Sans")
# Fonts that claim characters they draw as boxes, or whose pictures matplotlib cannot draw.
_UNFIT = ("Last Resort", "LastResort", "Color Emoji")
_SIZE, _SMALL_SIZE = 10.0, 7.5
_SMALL_COLUMNS = 0.78  # width of a letter of that size, in columns
_GREY = "#555555"


class Cell(NamedTuple):
    """A character in its place: first column, columns taken, the character and its value."""

    column: int
    width: int
    character: str
    value: float


class Glyph(NamedTuple):
    """How a character is drawn: the text, a font file, and whether it is a name in small letters."""

    text: str
    font: str
    named: bool


def heatmap_png(panels: Sequence[Panel], path: Path, title: str = "") -> None:
    """All texts, each coloured by all units in turn, with a scale for each unit on top.

    Raises:
        ValueError: More text than fits a picture.
    """
    lines: list[tuple[Scale | None, list[Cell] | str]] = []
    for traces in zip(*(panel.traces for panel in panels)):
        if traces[0].caption:
            lines.append((None, traces[0].caption))
        for panel, trace in zip(panels, traces):
            lines += [(None, panel.name)] if len(panels) > 1 else []
            lines += [(panel.scale, line) for line in wrap(trace)]
        lines.append((None, ""))
    if len(lines) > PNG_MAX_LINES:
        raise ValueError(
            f"{path}: {len(lines)} lines of text are too many for a picture of {PNG_MAX_LINES}; write .html"
        )
    cell_width, line_height, head = 0.088, 0.25, 1.8 + 1.2 * len(panels)
    width, height = PNG_COLUMNS * cell_width + 0.4, (len(lines) + head + 0.2) * line_height
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.2 / width, 0, 1 - 0.4 / width, 1))
    axes.set_xlim(0, PNG_COLUMNS)
    axes.set_ylim(len(lines) + head + 0.2, 0)
    axes.axis("off")
    _write(axes, 0, 0.8, title, 11, INK)
    for number, panel in enumerate(panels):
        _draw_scale(axes, panel, 1.9 + 1.2 * number, len(panels) > 1)
    for row, (scale, line) in enumerate(lines):
        if isinstance(line, str):
            _write(axes, 0, row + head + 0.55, line, 9, _GREY)
        elif scale is not None:
            _draw_line(axes, line, scale, row + head)
    save_figure(figure, path)


def _draw_line(axes: Axes, line: list[Cell], scale: Scale, top: float) -> None:
    colors = scale.colors(np.array([cell.value for cell in line])) / 255
    for cell, color in zip(line, colors):
        axes.add_patch(Rectangle((cell.column, top), cell.width, 0.94, facecolor=color, linewidth=0))
        if not cell.character.isspace():
            shown = glyph(cell.character)
            font = FontProperties(fname=shown.font, size=_SMALL_SIZE if shown.named else _SIZE)
            axes.text(
                cell.column + cell.width / 2, top + 0.5, shown.text, ha="center", va="center", fontproperties=font,
                color="#111111", parse_math=False,
            )  # fmt: skip


def _draw_scale(axes: Axes, panel: Panel, middle: float, named: bool) -> None:
    low, high = panel.scale.ends
    left, right = 38, 68
    steps = np.linspace(-1, 1, 120)
    for step, color in zip(steps, palette_colors(steps) / 255):
        x = left + (step + 1) / 2 * (right - left)
        axes.add_patch(Rectangle((x, middle - 0.35), (right - left) / 119, 0.7, facecolor=color, linewidth=0))
    if named:
        _write(axes, 0, middle, panel.name, 9, INK)
    _write(axes, left - 1, middle, f"{panel.scale.negative} ({low:.3g})", 9, _GREY, "right")
    _write(axes, right + 2, middle, f"{panel.scale.positive} ({high:.3g})", 9, _GREY)


def _write(axes: Axes, x: float, y: float, text: str, size: float, color: str, align: str = "left") -> None:
    """A line of our own, in the default font; what it lacks is named."""
    known = _charmap(findfont("DejaVu Sans"))
    words = "".join(c if ord(c) in known else _name(c) for c in text)
    axes.text(x, y, words, ha=align, va="center", fontsize=size, color=color, parse_math=False)


@functools.cache
def _charmap(path: str) -> frozenset[int]:
    """Code points that a font file has; none where it cannot be read."""
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()


@functools.cache
def _font_files() -> tuple[str, ...]:
    others = {font.fname for font in fontManager.ttflist if not any(part in font.name for part in _UNFIT)}
    return (*(findfont(name) for name in _FONTS), *sorted(others))


@functools.cache
def glyph(character: str) -> Glyph:
    """What is drawn for a character."""
    shown, _ = visible(character)
    # Variation selectors and joiners have no picture of their own, and a joined sequence is none without its font.
    points = [c for c in shown if c != ZERO_WIDTH_NON_JOINER and not "\ufe00" <= c <= "\ufe0f"]
    joined = ZERO_WIDTH_JOINER in points or any(is_skin_tone(c) or is_regional(c) for c in points)
    if points and not joined:
        for path in _font_files():
            if all(ord(c) in _charmap(path) for c in points):
                return Glyph("".join(points), path, False)
    return Glyph(_name(shown), findfont(_FONTS[0]), True)


def _name(character: str) -> str:
    """A character in words: `:woman, wrench:`, `:FR:`, or `U+65E5` for a letter."""
    if all(is_regional(c) for c in character):
        return f":{''.join(chr(ord(c) - 0x1F1E6 + ord('A')) for c in character)}:"
    kinds = ("So", "Sm", "Sk", "Cn")
    pictures = [c for c in character if unicodedata.category(c) in kinds and not is_skin_tone(c)]
    if pictures:
        return f":{', '.join(unicodedata.name(c, '').lower() or f'U+{ord(c):04X}' for c in pictures)}:"
    return f"U+{ord(character[0]):04X}"


def _columns(character: str) -> int:
    if character.isspace():
        return 1
    shown = glyph(character)
    if shown.named:
        return min(PNG_COLUMNS, math.ceil(_SMALL_COLUMNS * len(shown.text)) + 1)
    return 2 if unicodedata.east_asian_width(character[0]) in "WF" else 1


def wrap(trace: Trace) -> list[list[Cell]]:
    """Lines of cells, broken after the last space that fits, each in the order in which it is seen."""
    cells = [
        Cell(0, _columns(character), character, float(value))
        for character, value in zip(trace.characters, trace.values)
    ]
    rtl = next((d == "R" for c in cells if (d := _direction(c.character)) in "LR"), False)
    lines: list[list[Cell]] = []
    start = 0
    while start < len(cells):
        end, used = start, 0
        while end < len(cells) and used + cells[end].width <= PNG_COLUMNS:
            used += cells[end].width
            end += 1
        if end < len(cells):
            end = max((i + 1 for i in range(start, end) if cells[i].character.isspace()), default=end)
        lines.append(_place(_in_visual_order(cells[start:end], rtl), rtl))
        start = end
    return lines


def _place(cells: list[Cell], rtl: bool) -> list[Cell]:
    """Cells side by side, at the left edge or (right-to-left text) at the right one."""
    column = PNG_COLUMNS - sum(cell.width for cell in cells) if rtl else 0
    placed = []
    for cell in cells:
        placed.append(cell._replace(column=column))
        column += cell.width
    return placed


def _direction(character: str) -> str:
    """L and R for letters of a direction, D for digits, N for what follows its surroundings."""
    kind = unicodedata.bidirectional(character[0])
    return {"L": "L", "R": "R", "AL": "R", "EN": "D", "AN": "D"}.get(kind, "N")


def _in_visual_order(cells: list[Cell], rtl: bool) -> list[Cell]:
    """Runs of right-to-left letters turned round.

    Digits run from left to right; what stands between two letters of one direction belongs to them, else to the text.

    Source: Unicode Standard Annex 9, without its control characters and its pairs of brackets.
    """
    base = "R" if rtl else "L"
    kinds = [_direction(cell.character) for cell in cells]
    if "R" not in kinds:
        return cells
    strong, nested = base, []
    for i, kind in enumerate(kinds):
        strong = kind if kind in "LR" else strong
        nested.append(kind == "D" and strong == "R")
        if kind == "D":  # counts as a letter of what it stands in
            kinds[i] = strong
    levels = []
    for i, kind in enumerate(kinds):
        if kind == "N":
            before = next((k for k in reversed(kinds[:i]) if k != "N"), base)
            after = next((k for k in kinds[i + 1 :] if k != "N"), base)
            kind = before if before == after else base
        levels.append(2 if nested[i] or (kind == "L" and rtl) else int(kind == "R"))
    for level in (2, 1):
        cells, levels = _reverse_runs(cells, levels, level)
    return [
        cell._replace(character=_mirrored(cell.character)) if odd == 1 else cell for cell, odd in zip(cells, levels)
    ]


def _reverse_runs(cells: list[Cell], levels: list[int], level: int) -> tuple[list[Cell], list[int]]:
    """Every run of at least this level, turned round."""
    order: list[int] = []
    start = 0
    while start < len(cells):
        end = start
        while end < len(cells) and (levels[end] >= level) == (levels[start] >= level):
            end += 1
        run = range(start, end)
        order += reversed(run) if levels[start] >= level else run
        start = end
    return [cells[i] for i in order], [levels[i] for i in order]


def _mirrored(character: str) -> str:
    """Brackets inside right-to-left text open to the other side."""
    pairs = "()[]{}<>«»"
    return pairs[pairs.index(character) ^ 1] if len(character) == 1 and character in pairs else character
