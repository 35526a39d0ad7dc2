"""Colouring text: which value a character gets, what a reader sees, and that no text becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.sentiment.featurize import cell_trace, featurize
from bigbatch.sentiment.heatmap import (
    PALETTE,
    Panel,
    Scale,
    Trace,
    fit_scale,
    heatmap_page,
    text_html,
    trace_text,
    trace_units,
)

SCALE = Scale(center=0.0, limit=1.0)
HOSTILE = "<script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"


def make_trace(text: str, caption: str = "") -> Trace:
    return Trace([*text, " "], np.linspace(-1, 1, len(text) + 1).astype(np.float32), caption)


class Reader(HTMLParser):
    """Collects tags, attributes and the text a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def model() -> MLSTM:
    torch.manual_seed(0)
    return MLSTM(MLSTMConfig(hidden_size=12, embedding_size=6)).eval()


def test_text_with_markup_stays_text() -> None:
    reader = Reader(heatmap_page([Panel(HOSTILE, SCALE, [make_trace(HOSTILE, caption=HOSTILE)])] * 2, HOSTILE))
    assert not {"script", "img", "link", "iframe"} & set(reader.tags)
    assert not any(name.startswith("on") or name in ("src", "href") for name, _ in reader.attributes)
    assert reader.text.count(HOSTILE) == 9  # title, heading, caption; of each unit legend, name and the coloured text


def test_page_loads_nothing() -> None:
    page = heatmap_page([Panel("unit", SCALE, [make_trace("plain")])], "page")
    assert not re.search(r"https?:|url\(|@import|<script|<link", page)


def test_each_character_has_its_own_value_and_colour() -> None:
    page = text_html(make_trace("abc"), SCALE)
    found = re.findall(r'<i style="background:(#[0-9a-f]{6})" title="([^"]*)">(.)</i>', page)
    assert [(title, character) for _, title, character in found] == [
        ("-1.0000", "a"),
        ("-0.3333", "b"),
        ("0.3333", "c"),
    ]
    assert found[0][0] == "#" + "".join(f"{channel:02x}" for channel in PALETTE[0])
    assert "after the last space: 1.000" in page


def test_value_of_a_character_is_the_one_after_its_last_byte(model: MLSTM) -> None:
    text = "aé日😀b"
    trace = trace_text(model, text, unit=3)
    assert trace.characters == ["a", "é", "日", "😀", "b", " "]
    states = cell_trace(model, text)[:, 3]
    # Prefix of two bytes, then 1, 2, 3, 4, 1 and the space: the last bytes are at
    np.testing.assert_array_equal(trace.values, states[[2, 4, 7, 11, 12, 13]])
    assert trace.values[-1] == featurize(model, [text], progress=False)[0, 3]


def test_hover_of_a_multibyte_character_shows_that_value(model: MLSTM) -> None:
    trace = trace_text(model, "日", unit=0)
    assert f'title="{cell_trace(model, "日")[4, 0]:.4f}">日<' in text_html(trace, SCALE)


def test_bytes_that_are_no_text_are_shown_as_such(model: MLSTM) -> None:
    trace = trace_text(model, "a\udcffb\x00", unit=1)
    assert len(trace.values) == len(clean_review("a\udcffb\x00")) - 2
    page = text_html(trace, SCALE)
    assert "\ufffd" in page and "byte 0xff" in page and "\x00" not in page
    page.encode()  # a page is valid UTF-8


def test_scale_is_symmetric_about_the_threshold_and_follows_the_sign() -> None:
    ends = np.array([0.5 - 2, 0.5, 0.5 + 2])
    forward, backward = Scale(0.5, 2.0, 1).colors(ends), Scale(0.5, 2.0, -1).colors(ends)
    assert forward.tolist() == [list(PALETTE[0]), list(PALETTE[2]), list(PALETTE[4])]
    assert backward.tolist() == forward[::-1].tolist()
    assert Scale(0.5, 2.0).colors(np.array([99.0])).tolist() == [list(PALETTE[4])]


def test_fitted_scale_covers_nearly_all_and_survives_constant_text() -> None:
    trace = Trace(["x"] * 1000, np.concatenate([np.linspace(-1, 1, 999), [500.0]]).astype(np.float32))
    assert 0.9 < fit_scale([trace]).limit < 1.1
    assert fit_scale([Trace(["x"], np.zeros(1, np.float32))]).limit > 0


def relative_luminance(color: tuple[int, int, int]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (channel / 255 for channel in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_is_readable_on_every_colour() -> None:
    ink = relative_luminance((0x11, 0x11, 0x11))
    for color in SCALE.colors(np.linspace(-1, 1, 41)):
        assert (relative_luminance(tuple(int(c) for c in color)) + 0.05) / (ink + 0.05) >= 4.5  # type: ignore[arg-type]


def test_ends_differ_for_the_colour_blind() -> None:
    # Protanopia and deuteranopia by Machado et al. 2009, severity 1, on linear light.
    protan = np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    )
    deutan = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]])
    low, high = (np.array(PALETTE[i]) / 255 for i in (0, -1))
    for matrix in (protan, deutan):
        assert np.abs(matrix @ low**2.2 - matrix @ high**2.2).max() > 0.3


def test_unit_out_of_range(model: MLSTM) -> None:
    with pytest.raises(ValueError, match="unit 12 does not exist: the model has units 0 to 11"):
        trace_text(model, "x", unit=12)
    with pytest.raises(ValueError, match="unit -1 does not exist"):
        trace_text(model, "x", unit=-1)


def test_several_units_have_each_its_own_scale_and_row(model: MLSTM) -> None:
    texts = ["one good lamp", "two"]
    rows = [trace_units(model, text, [3, 7], caption=f"about {text}") for text in texts]
    for text, row in zip(texts, rows):
        for unit, trace in zip((3, 7), row):
            np.testing.assert_array_equal(trace.values, trace_text(model, text, unit).values)
    scales = [Scale(0.0, 0.1, negative="low", positive="high"), Scale(0.5, 0.2, -1, "bad", "good")]
    panels = [
        Panel(f"Unit {unit}", scale, [row[i] for row in rows]) for i, (unit, scale) in enumerate(zip((3, 7), scales))
    ]
    page = heatmap_page(panels, "two units")
    assert [page.count(word) for word in ("about one", "about two", "Unit 3", "Unit 7")] == [1, 1, 3, 3]
    assert page.count('class="bar"') == 2 and "good (0.3)" in page and "bad (0.7)" in page and "low (-0.1)" in page
    order = [page.index(f"about {texts[0]}"), page.index(text_html(rows[0][0], scales[0]).partition("\n")[2])]
    order += [page.index(text_html(rows[0][1], scales[1]).partition("\n")[2]), page.index(f"about {texts[1]}")]
    assert order == sorted(order)


def test_bytes_are_read_as_they_are_and_shown_whole(model: MLSTM) -> None:
    data = "\n Good\n é".encode()
    (trace,) = trace_units(model, data, [2])
    assert trace.characters == ["\n", " ", "G", "o", "o", "d", "\n", " ", "é", " "]
    with torch.no_grad():
        _, _, cells = model.encode(torch.tensor([list(data)]), return_cells=True)
    np.testing.assert_allclose(trace.values, cells[0, [0, 1, 2, 3, 4, 5, 6, 7, 9, 9], 2], atol=1e-6)
    assert text_html(trace, SCALE).count(' (end of line)">↵</i>') == 2
    assert ">é</i>" in text_html(trace, SCALE) and f">{trace.values[-1]:.3f}</i>" in text_html(trace, SCALE)
    with pytest.raises(ValueError, match="no bytes to trace"):
        trace_units(model, b"", [2])
