"""Coloured text as PNG: the colours of the scale, lines, the order of right-to-left text, and names for what no font has."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from bigbatch.sentiment import text_picture
from bigbatch.sentiment.characters import characters_of
from bigbatch.sentiment.heatmap import PALETTE, Panel, Scale, Trace
from bigbatch.sentiment.text_picture import PNG_COLUMNS, glyph, heatmap_png, wrap
from matplotlib.image import imread

SCALE = Scale(0.0, 1.0)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph is one
        yield


@pytest.fixture
def own_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the fonts that come with matplotlib, so that the result is the same on every machine."""
    files = text_picture._font_files()[:2]
    monkeypatch.setattr(text_picture, "_font_files", lambda: files)
    glyph.cache_clear()
    yield
    glyph.cache_clear()


def colors_in(path: Path) -> set[tuple[int, int, int]]:
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {(r, g, b) for r, g, b in np.unique(pixels, axis=0).tolist()}


def make_trace(text: str, caption: str = "") -> Trace:
    characters = characters_of(text.encode())[0] + [" "]
    return Trace(characters, np.linspace(-2, 2, len(characters)).astype(np.float32), caption)


def seen(text: str) -> str:
    """The line as it stands in the picture, from left to right."""
    (line,) = wrap(make_trace(text))
    assert [cell.column for cell in line] == sorted(cell.column for cell in line)
    return "".join(cell.character for cell in line)


def test_has_the_colours_of_its_ends_and_is_the_same_again(tmp_path: Path) -> None:
    traces = [make_trace("ab $x_1$ \\frac <b> 日本 😀 👩\u200d🔧 🇫🇷 e\u0301 \x01", "é 日 😀")]
    for name in ("m.png", "n.png"):
        heatmap_png([Panel("Unit 3", SCALE, traces)], tmp_path / name, "Unit $3$ 日")
    assert {PALETTE[0], PALETTE[-1]} <= colors_in(tmp_path / "m.png")
    assert (tmp_path / "m.png").read_bytes() == (tmp_path / "n.png").read_bytes()


def test_several_units_make_a_taller_picture(tmp_path: Path) -> None:
    panel = Panel("Unit 3", SCALE, [make_trace("a lamp")])
    heatmap_png([panel], tmp_path / "one.png")
    heatmap_png([panel, Panel("Unit 4", Scale(0.0, 100.0), panel.traces)], tmp_path / "two.png")
    assert imread(tmp_path / "two.png").shape[0] > imread(tmp_path / "one.png").shape[0] + 100
    assert imread(tmp_path / "two.png").shape[1] == imread(tmp_path / "one.png").shape[1]


def test_lines_break_at_spaces_and_keep_every_character() -> None:
    text = " ".join(["seven77"] * 40) + " " + "x" * 230
    trace = make_trace(text)
    lines = wrap(trace)
    assert "".join(cell.character for line in lines for cell in line) == text + " "
    assert [cell.value for line in lines for cell in line] == trace.values.tolist()
    assert all(line[-1].column + line[-1].width <= PNG_COLUMNS for line in lines)
    assert all(line[0].column == 0 and not line[0].character.isspace() for line in lines[:4])


def test_right_to_left_text_is_seen_from_the_right() -> None:
    # Latin capitals stand for what a Hebrew letter is: see `hebrew`.
    for text, expected in (
        ("car ABC end", "car CBA end "),
        ("ABC DEF", " FED CBA"),
        ("ABC 12 DEF", " FED 12 CBA"),
        ("ABC (DE) xy z", " xy z (ED) CBA"),
        ("car AB 42 CD.", "car DC 42 BA. "),
        ("car AB 42", "car 42 BA "),
        ("ABC!", " !CBA"),
    ):
        assert seen(hebrew(text)) == hebrew(expected), text
    (line,) = wrap(make_trace(hebrew("ABC")))
    assert line[-1].column + line[-1].width == PNG_COLUMNS and line[-1].character == hebrew("A")
    assert line[-1].value == -2.0  # a value moves with its character


def hebrew(text: str) -> str:
    return "".join(chr(0x05D0 + ord(c) - ord("A")) if "A" <= c <= "Z" else c for c in text)


@pytest.mark.usefixtures("own_fonts")
def test_what_no_font_has_is_named() -> None:
    names = {
        "👩\u200d🔧": ":woman, wrench:",
        "👍🏽": ":thumbs up sign:",
        "🇫🇷": ":FR:",
        "🦉": ":owl:",
        "日": "U+65E5",
        "\U0001fae8": ":U+1FAE8:" if not text_picture.unicodedata.name("\U0001fae8", "") else ":shaking face:",
    }
    for character, name in names.items():
        assert glyph(character)[::2] == (name, True)
    for character, drawn in {"a": "a", "é": "é", "❤\ufe0f": "❤", "e\u0301": "e\u0301", "ש": "ש", "😀": "😀"}.items():
        assert glyph(character)[::2] == (drawn, False)
    (line,) = wrap(make_trace("a🦉b"))
    owl, b = line[1], line[2]
    assert owl.width == 5 and b.column == 6


def test_fonts_that_only_pretend_are_left_out() -> None:
    assert not any("LastResort" in path or "ColorEmoji" in path for path in text_picture._font_files())
    assert text_picture._charmap("/nowhere.ttf") == frozenset()


def test_too_much_text_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"too many for a picture of 300; write \.html"):
        heatmap_png([Panel("", SCALE, [make_trace("word " * 6000)])], tmp_path / "m.png")
    assert not (tmp_path / "m.png").exists()
