"""The coloured page in a real browser: what it parses, where it puts the letters, and which colours it paints."""

from __future__ import annotations

import html
import json
import re
import subprocess

import numpy as np
import pytest
from bigbatch.sentiment.characters import characters_of
from bigbatch.sentiment.heatmap import PALETTE, Panel, Scale, Trace, heatmap_page

TEXTS = [
    "Not <script>document.title='bad'</script> & \"fine\" <b>bold</b>",
    "cafe\u0301 👩\u200d🔧 🇫🇷 日本",
    "שלום (טוב) 12",
    "x" * 300,
]
# Written into the page by this test only: the page itself has no script.
PROBE = """<pre id="found"></pre><script>
const texts = [...document.querySelectorAll('.bb-text')].map(p => ({
  direction: getComputedStyle(p).direction, text: p.textContent, overflow: p.scrollWidth - p.clientWidth,
  spans: [...p.children].map(i => { const box = i.getBoundingClientRect(), style = getComputedStyle(i);
    return {text: i.textContent, title: i.title, color: style.backgroundColor, ink: style.color,
            left: box.left, width: box.width, tag: i.tagName}; })}));
document.getElementById('found').textContent = JSON.stringify({texts, title: document.title,
  scripts: document.scripts.length, bold: document.querySelectorAll('b').length,
  bars: [...document.querySelectorAll('.bar')].map(b => getComputedStyle(b).backgroundImage)});
</script>"""


@pytest.fixture(scope="module")
def found(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the browser makes of a page with two units."""
    folder = tmp_path_factory.mktemp("browser")
    traces = []
    for text in TEXTS:
        characters = [*characters_of(text.encode())[0], " "]
        traces.append(Trace(characters, np.linspace(-1, 1, len(characters)).astype(np.float32)))
    panels = [Panel("Unit 1", Scale(0.0, 1.0), traces), Panel("Unit 2", Scale(0.0, 1.0, -1), traces)]
    page = folder / "page.html"
    page.write_text(heatmap_page(panels, "a page").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--window-size=900,900", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr
    return json.loads(html.unescape(match[1]))


def test_text_stays_text(found: dict) -> None:
    assert found["title"] == "a page"
    assert found["scripts"] == 1  # this test's own
    assert found["bold"] == 2  # the names of the two scales
    for number, text in enumerate(TEXTS):
        for shown in found["texts"][2 * number : 2 * number + 2]:
            assert shown["text"].startswith(text)


def test_one_span_for_each_character_with_its_value(found: dict) -> None:
    spans = found["texts"][2]["spans"]
    assert [span["text"] for span in spans[:-1]] == [*"caf", "e\u0301", " ", "👩\u200d🔧", " ", "🇫🇷", " ", "日", "本"]
    values = np.linspace(-1, 1, 12)
    assert [float(span["title"].split()[-1]) for span in spans] == pytest.approx(values, abs=1e-3)
    assert all(span["width"] > 0 and span["tag"] == "I" for span in spans)


def test_colours_are_painted(found: dict) -> None:
    first, second = found["texts"][0]["spans"], found["texts"][1]["spans"]
    ends = ["rgb" + str(color) for color in (PALETTE[0], PALETTE[-1])]
    assert [first[0]["color"], first[-1]["color"]] == ends and [second[0]["color"], second[-1]["color"]] == ends[::-1]
    assert first[0]["ink"] == "rgb(17, 17, 17)"
    assert len(found["bars"]) == 2 and all(str(PALETTE[0]) in bar and str(PALETTE[-1]) in bar for bar in found["bars"])


def test_right_to_left_text_runs_from_the_right(found: dict) -> None:
    assert [text["direction"] for text in found["texts"]] == ["ltr"] * 4 + ["rtl"] * 2 + ["ltr"] * 2
    spans = found["texts"][4]["spans"]
    left = [span["left"] for span in spans]
    assert "".join(span["text"] for span in spans[:11]) == TEXTS[2][:11]
    assert left[:11] == sorted(left[:11], reverse=True)
    assert TEXTS[2][11:] == "12" and left[11] < left[12] < left[10]  # a number runs from left to right
    left = [span["left"] for span in found["texts"][2]["spans"]]
    assert left == sorted(left)


def test_long_words_stay_inside_the_page(found: dict) -> None:
    assert all(text["overflow"] <= 0 for text in found["texts"])
