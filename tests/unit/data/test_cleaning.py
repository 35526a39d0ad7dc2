"""Cleaning is the published featurisation, byte for byte, and bytes that are not UTF-8 survive it."""

from __future__ import annotations

import html

import pytest
from bigbatch.data.cleaning import CLEANERS, EMPTY, clean_review, encode_text
from hypothesis import given
from hypothesis import strategies as st


def published(text: str) -> bytes:
    """The steps as openai/generating-reviews-discovering-sentiment lists them, one by one."""
    text = html.unescape(text)
    text = text.replace("\n", " ")
    text = text.strip()
    return ("\n " + text + " ").encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("a&#;lt3gqu\n\t \x85"))
def test_equals_the_published_steps(text: str) -> None:
    assert clean_review(text) == published(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Great!", b"\n Great! "),
        (" two\nlines \n", b"\n two lines "),
        ("a\r\nb", b"\n a\r b "),
        ("AT&amp;T &#34;x&#34; &lt;br&gt;", b'\n AT&T "x" <br> '),
        ("&amp;amp;", b"\n &amp; "),
        ("caf\xe9", b"\n caf\xc3\xa9 "),
        ("\x85a\x85b\x85", b"\n a\xc2\x85b "),
        ("&nbsp;", b"\n  "),
    ],
)
def test_examples(text: str, expected: bytes) -> None:
    assert clean_review(text) == expected


@given(st.binary())
def test_any_bytes_survive_decoding_and_encoding(data: bytes) -> None:
    assert encode_text(data.decode("utf-8", "surrogateescape")) == data


def test_half_an_emoji_becomes_the_replacement_character() -> None:
    assert clean_review("ok \ud83d!") == "\n ok \ufffd! ".encode()
    assert clean_review("\ud83d \udcff") == b"\n " + "\ufffd ".encode() + b"\xff "  # the second is a byte, escaped


def test_each_cleaning_knows_what_it_leaves_of_nothing() -> None:
    for name, clean in CLEANERS.items():
        assert clean("") == EMPTY[name]
