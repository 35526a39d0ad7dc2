"""What counts as one character, case by case, and what must hold for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from bigbatch.sentiment.characters import characters_of
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("expected", "what"),
    [
        (["c", "a", "f", "e\u0301", "!"], "an accent on the letter before it"),
        (["q\u0307\u0323", "x"], "two marks"),
        (["👍🏽", "o", "k"], "a skin tone"),
        (["👩\u200d🔧", "."], "a joined sequence"),
        (["👩🏽\u200d❤\ufe0f\u200d👨🏻", "👪"], "a joined sequence with tones and a variation selector"),
        (["🙂\u200d↔\ufe0f"], "an arrow as a part of one"),
        (["🇫🇷", "🇩🇪", "🇮"], "flags of two letters, and one letter left"),
        (["🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "a"], "a flag spelt in tags"),
        (["❤\ufe0f"], "a variation selector"),
        (["1\ufe0f\u20e3", "2"], "a keycap"),
        (["ש", "ל", "ו", "ם"], "right-to-left letters are one each"),
        (["שּׁ", "א"], "points of a letter"),
        (["م\u200c", "ن"], "a non-joiner"),
        (["a\u200d", "b"], "a joiner between letters joins nothing to its right"),
        (["한", "\u1112\u1161\u11ab", "가\u11a8", "ㅎ"], "Hangul, composed and not"),
        (["क्ष", "क", "a"], "a conjunct of two consonants"),
        (["कि", "त"], "a vowel sign that takes room"),
        (["ก\u0e33"], "Thai sara am"),
        (["\u0600" + "1", "2"], "a prefixed sign"),
        (["\r\n", "\n", "\r"], "line ends"),
        (["a", "\u2028", "\u0301"], "no mark belongs to a line end"),
        (["a", "\u200b", "b"], "a space without width stands alone"),
        (["\udcff", "\u0301"], "a broken byte is no base"),
        (["日", "本"], "ideographs"),
    ],
)
def test_clusters(expected: list[str], what: str) -> None:
    data = "".join(expected).encode(errors="surrogateescape")
    characters, ends = characters_of(data)
    assert characters == expected, what
    assert np.diff([-1, *ends]).tolist() == [len(c.encode(errors="surrogateescape")) for c in expected]


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_nothing_is_lost_and_every_byte_has_its_character(data: bytes) -> None:
    characters, ends = characters_of(data)
    assert "".join(characters).encode(errors="surrogateescape") == data
    assert all(characters) and ends.tolist() == sorted(set(ends.tolist()))
    assert not data or ends[-1] == len(data) - 1
    for character, start, end in zip(characters, [0, *(ends + 1)], ends):
        assert data[start : end + 1] == character.encode(errors="surrogateescape")
