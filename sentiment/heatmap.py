"""Text coloured character by character by one unit, as HTML: what `visualize.py` draws as PNG, pages show as this.

The model works on bytes, a reader on characters: a character takes the value after its last byte, and marks that belong
to the character before them (accents, emoji modifiers) are shown with it. All text is escaped.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from ..data.cleaning import PREFIX, SUFFIX, clean_review
from .featurize import StateKind, Transform, cell_trace

# Orange - light grey - blue: told apart with any colour vision, and dark text is readable (4.5 : 1) on all of it.
PALETTE = ((230, 97, 1), (253, 184, 99), (247, 247, 247), (146, 197, 222), (67, 147, 195))
_ZERO_WIDTH_JOINER = "\u200d"


@dataclass(frozen=True)
class Trace:
    """A text as a reader sees it and the unit's value after each of its characters.

    Attributes:
        characters: Characters of the cleaned text without its prefix; the last one is the space it is read up to.
        values: The unit after each, shape (len(characters),), float32. The last is the feature of the text.
        caption: A line above the text, may be empty.
    """

    characters: list[str]
    values: np.ndarray
    caption: str = ""


@dataclass(frozen=True)
class Scale:
    """How values become colours: `center` is grey, `center + limit` (times sign) is the positive end.

    Attributes:
        center: Value of no colour, the threshold of a single-unit probe or 0.
        limit: Distance at which colours stop changing, above 0.
        sign: +1 if larger values are positive, -1 if they are negative.
    """

    center: float
    limit: float
    sign: int = 1
    negative: str = "negative"
    positive: str = "positive"

    def position(self, values: np.ndarray) -> np.ndarray:
        """Values on the scale from -1 (negative end) to +1 (positive end)."""
        return np.clip(self.sign * (np.asarray(values, dtype=np.float64) - self.center) / self.limit, -1, 1)

    def colors(self, values: np.ndarray) -> np.ndarray:
        """Colours, shape (n, 3), uint8."""
        return palette_colors(self.position(values))


def palette_colors(position: np.ndarray) -> np.ndarray:
    """Colours of positions from -1 to 1, shape (n, 3), uint8."""
    stops = np.linspace(-1, 1, len(PALETTE))
    channels = np.array(PALETTE, dtype=np.float64).T
    return np.stack([np.interp(position, stops, channel) for channel in channels], axis=-1).round().astype(np.uint8)


def fit_scale(traces: Sequence[Trace], center: float = 0.0, sign: int = 1, **names: str) -> Scale:
    """A scale on which 98 % of the characters of these texts lie inside the ends."""
    distance = np.abs(np.concatenate([trace.values for trace in traces]).astype(np.float64) - center)
    limit = float(np.quantile(distance, 0.98))
    return Scale(center, limit if limit > 0 else 1.0, sign, **names)


def characters_of(data: bytes) -> tuple[list[str], np.ndarray]:
    """Splits bytes into what a reader takes for characters.

    Args:
        data: Bytes, UTF-8 or not; a byte that is no part of a character stands for itself.

    Returns:
        The characters and for each the index of its last byte, int64.
    """
    characters: list[str] = []
    ends: list[int] = []
    position = 0
    for character in data.decode("utf-8", errors="surrogateescape"):
        position += len(character.encode("utf-8", errors="surrogateescape"))
        if characters and _belongs_to(characters[-1], character):
            characters[-1] += character
            ends[-1] = position - 1
        else:
            characters.append(character)
            ends.append(position - 1)
    return characters, np.array(ends, dtype=np.int64)


def _belongs_to(before: str, character: str) -> bool:
    """Whether a code point changes the one before it and is shown with it."""
    if unicodedata.category(character) in ("Mn", "Me", "Mc") or character == _ZERO_WIDTH_JOINER:
        return True
    if before.endswith(_ZERO_WIDTH_JOINER) or "\U0001f3fb" <= character <= "\U0001f3ff":
        return True
    # Two regional indicators make one flag.
    return _is_regional(character) and len(before) == 1 and _is_regional(before)


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def trace_text(
    model: nn.Module,
    text: str,
    unit: int,
    *,
    state: StateKind = "cell",
    transform: Transform = "raw",
    caption: str = "",
) -> Trace:
    """The unit's value after each character of a text.

    Raises:
        ValueError: A unit the model does not have.
    """
    values = cell_trace(model, text, units=[unit], state=state, transform=transform)[:, 0]
    data = clean_review(text)
    prefix = PREFIX.encode()
    assert data.startswith(prefix) and data.endswith(SUFFIX.encode())
    characters, ends = characters_of(data[len(prefix) :])
    return Trace(characters, values[ends + len(prefix)], caption)


CSS = """\
.bb-text{margin:.35rem 0 1.1rem;font:15px/1.9 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
color:#111;white-space:pre-wrap;overflow-wrap:anywhere}
.bb-text i{font-style:normal;padding:.22em 0}
.bb-text i.end{margin-left:.5em;padding:.22em .55em;border:1px solid #555;border-radius:3px;font-size:.8em;unicode-bidi:isolate}
.bb-caption{margin:0;font-size:.9rem;color:#444}
.bb-scale{display:flex;flex-wrap:wrap;align-items:center;gap:.2rem .6rem;font-size:.85rem;color:#444;margin:.6rem 0 1.2rem}
.bb-scale .bar{width:16rem;max-width:40vw;height:.8rem;border:1px solid #bbb;border-radius:2px}
"""


def text_html(trace: Trace, scale: Scale) -> str:
    """One coloured text as an HTML fragment (styled by `CSS`); hovering over a character shows its value."""
    spans = []
    colors = [_hex(color) for color in scale.colors(trace.values)]
    for character, value, color in zip(trace.characters[:-1], trace.values, colors):
        shown, note = _visible(character)
        spans.append(f'<i style="background:{color}" title="{value:.4f}{note}">{html.escape(shown)}</i>')
    final = f"{trace.values[-1]:.3f}"
    spans.append(f'<i class="end" style="background:{colors[-1]}" title="after the last space: {final}">{final}</i>')
    caption = f'<p class="bb-caption">{html.escape(trace.caption)}</p>\n' if trace.caption else ""
    return f'{caption}<p class="bb-text" dir="auto">{"".join(spans)}</p>\n'


def _hex(color: Sequence[int] | np.ndarray) -> str:
    return "#" + "".join(f"{int(channel):02x}" for channel in color)


def _visible(character: str) -> tuple[str, str]:
    """What to show for a character, and a note for those that cannot be shown themselves."""
    code = ord(character[0])
    if 0xDC80 <= code <= 0xDCFF:
        return "\ufffd", f" (byte 0x{code - 0xDC00:02x})"
    if code < 0x20:
        return chr(0x2400 + code), f" (control character {code})"
    if 0x7F <= code < 0xA0:
        return "\ufffd", f" (control character {code})"
    if unicodedata.category(character[0]) in ("Zl", "Zp"):
        return "␤", " (line separator)"
    return character, ""


def scale_html(scale: Scale) -> str:
    """The legend of a scale: a bar of its colours with the values at both ends."""
    stops = ",".join(_hex(color) for color in PALETTE)
    low, high = scale.center - scale.sign * scale.limit, scale.center + scale.sign * scale.limit
    return (
        f'<div class="bb-scale"><span>{html.escape(scale.negative)} ({low:.3g})</span>'
        f'<span class="bar" style="background:linear-gradient(to right,{stops})"></span>'
        f"<span>{html.escape(scale.positive)} ({high:.3g})</span>"
        f"<span>grey at {scale.center:.3g}; hover for values; the box at the end is the feature</span></div>\n"
    )


def heatmap_page(traces: Sequence[Trace], scale: Scale, title: str) -> str:
    """A page of its own with all texts and one scale; it loads nothing from anywhere."""
    texts = "".join(text_html(trace, scale) for trace in traces)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n<style>\n'
        f"body{{max-width:60rem;margin:2rem auto;padding:0 1rem;font-family:system-ui,sans-serif;background:#fff}}\n"
        f"h1{{font-size:1.2rem}}\n{CSS}</style></head>\n<body><h1>{html.escape(title)}</h1>\n"
        f"{scale_html(scale)}{texts}</body></html>\n"
    )
