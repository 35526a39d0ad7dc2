"""Text coloured character by character by units, as HTML: what `text_picture.py` draws as PNG, pages show as this.

The model works on bytes, a reader on characters (`characters.py`): a character takes the value after its last byte. All
text is escaped, and its order is left to the browser, which lays out each text by its own first letter.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from ..data.cleaning import PREFIX, SUFFIX, clean_review
from .characters import characters_of
from .featurize import StateKind, Transform, cell_trace

# Orange - light grey - blue, the outer colours of ColorBrewer's PuOr (orange) and RdBu (blue): told apart with any colour
# vision, and dark text is readable (4.5 : 1) on all of it.
PALETTE = ((230, 97, 1), (253, 184, 99), (247, 247, 247), (146, 197, 222), (67, 147, 195))


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

    @property
    def ends(self) -> tuple[float, float]:
        """Values at the negative and at the positive end."""
        return self.center - self.sign * self.limit, self.center + self.sign * self.limit

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


@dataclass(frozen=True)
class Panel:
    """Some texts coloured by one unit.

    Attributes:
        name: What the unit is called, above its scale and (of several) before each text.
        scale: Of this unit.
        traces: One for each text, in the same order in all panels of a page; captions are taken from the first panel.
    """

    name: str
    scale: Scale
    traces: list[Trace]


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
    return trace_units(model, text, [unit], state=state, transform=transform, caption=caption)[0]


def trace_units(
    model: nn.Module,
    text: str | bytes,
    units: Sequence[int],
    *,
    state: StateKind = "cell",
    transform: Transform = "raw",
    caption: str = "",
) -> list[Trace]:
    """Values of several units after each character of a text, one trace for each unit.

    Args:
        model: Byte language model.
        text: A text, cleaned as in training and shown without its prefix; or bytes, read as they are and shown whole, with
            a space that repeats the last value where a cleaned text has its last.
        units: Of the last layer.
        state: "cell" or "hidden".
        transform: "raw" or "tanh".
        caption: Of each trace.

    Raises:
        ValueError: A unit the model does not have, or no bytes.
    """
    values = cell_trace(model, text, units=units, state=state, transform=transform)
    data, start = text, 0
    if isinstance(data, str):
        data, start = clean_review(data), len(PREFIX.encode())
        assert data.startswith(PREFIX.encode()) and data.endswith(SUFFIX.encode())
    characters, ends = characters_of(data[start:])
    if isinstance(text, bytes):
        characters, ends = [*characters, SUFFIX], np.append(ends, ends[-1])
    return [Trace(characters, values[ends + start, column], caption) for column in range(len(units))]


CSS = """\
.bb-text{margin:.35rem 0 1.1rem;font:15px/1.9 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
color:#111;white-space:pre-wrap;overflow-wrap:anywhere}
.bb-text i{font-style:normal;padding:.22em 0}
.bb-text i.end{margin-inline-start:.5em;padding:.22em .55em;border:1px solid #555;border-radius:3px;font-size:.8em;
unicode-bidi:isolate}
.bb-caption{margin:0;font-size:.9rem;color:#444;overflow-wrap:anywhere}
.bb-unit{margin:.35rem 0 0;font-size:.8rem;color:#444}
.bb-unit+.bb-text{margin:.1rem 0 .5rem}
.bb-scale{display:flex;flex-wrap:wrap;align-items:center;gap:.2rem .6rem;font-size:.85rem;color:#444;margin:.6rem 0 1.2rem}
.bb-scale b{min-width:6rem}
.bb-scale .bar{width:16rem;max-width:40vw;height:.8rem;border:1px solid #bbb;border-radius:2px}
"""


def text_html(trace: Trace, scale: Scale) -> str:
    """One coloured text as an HTML fragment (styled by `CSS`); hovering over a character shows its value."""
    return f"{_caption_html(trace.caption)}{_spans_html(trace, scale)}"


def _caption_html(caption: str) -> str:
    return f'<p class="bb-caption" dir="auto">{html.escape(caption)}</p>\n' if caption else ""


def _spans_html(trace: Trace, scale: Scale) -> str:
    spans = []
    colors = [_hex(color) for color in scale.colors(trace.values)]
    for character, value, color in zip(trace.characters[:-1], trace.values, colors):
        shown, note = visible(character)
        spans.append(f'<i style="background:{color}" title="{value:.4f}{note}">{html.escape(shown)}</i>')
    final = f"{trace.values[-1]:.3f}"
    style = f'class="end" dir="ltr" style="background:{colors[-1]}"'
    spans.append(f'<i {style} title="after the last space: {final}">{final}</i>')
    return f'<p class="bb-text" dir="auto">{"".join(spans)}</p>\n'


def _hex(color: Sequence[int] | np.ndarray) -> str:
    return "#" + "".join(f"{int(channel):02x}" for channel in color)


def visible(character: str) -> tuple[str, str]:
    """What to show for a character, and a note for those that cannot be shown themselves."""
    code = ord(character[0])
    if 0xDC80 <= code <= 0xDCFF:
        return "\ufffd", f" (byte 0x{code - 0xDC00:02x})"
    if character[0] in "\r\n":
        return "↵", " (end of line)"  # most fonts have it, few the picture of a control character
    if code < 0x20:
        return chr(0x2400 + code), f" (control character {code})"
    if 0x7F <= code < 0xA0:
        return "\ufffd", f" (control character {code})"
    if unicodedata.category(character[0]) in ("Zl", "Zp"):
        return "␤", " (line separator)"
    return character, ""


_HOW_TO_READ = "hover for values; the box at the end is the feature"


def scale_html(scale: Scale, name: str = "") -> str:
    """The legend of a scale: a bar of its colours with the values at both ends, and what it belongs to."""
    stops = ",".join(_hex(color) for color in PALETTE)
    low, high = scale.ends
    note = "" if name else f"; {_HOW_TO_READ}"
    return (
        f'<div class="bb-scale">{f"<b>{html.escape(name)}</b>" if name else ""}'
        f"<span>{html.escape(scale.negative)} ({low:.3g})</span>"
        f'<span class="bar" style="background:linear-gradient(to right,{stops})"></span>'
        f"<span>{html.escape(scale.positive)} ({high:.3g})</span>"
        f"<span>grey at {scale.center:.3g}{note}</span></div>\n"
    )


def heatmap_page(panels: Sequence[Panel], title: str) -> str:
    """A page of its own with all texts, each coloured by all units in turn, and a scale for each unit.

    It loads nothing from anywhere.
    """
    legends = "".join(scale_html(panel.scale, panel.name if len(panels) > 1 else "") for panel in panels)
    legends += f'<p class="bb-caption">{_HOW_TO_READ}</p>\n' if len(panels) > 1 else ""
    texts = []
    for traces in zip(*(panel.traces for panel in panels)):
        texts.append(_caption_html(traces[0].caption))
        for panel, trace in zip(panels, traces):
            texts += [f'<p class="bb-unit">{html.escape(panel.name)}</p>\n'] if len(panels) > 1 else []
            texts.append(_spans_html(trace, panel.scale))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n<style>\n'
        f"body{{max-width:60rem;margin:2rem auto;padding:0 1rem;font-family:system-ui,sans-serif;background:#fff}}\n"
        f'h1{{font-size:1.2rem}}\n{CSS}</style></head>\n<body><h1 dir="auto">{html.escape(title)}</h1>\n'
        f"{legends}{''.join(texts)}</body></html>\n"
    )
