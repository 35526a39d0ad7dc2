"""The table of UTF-8 against Python's own decoder, for every character there is."""

from __future__ import annotations

import numpy as np
import pytest
from bigbatch.inference.utf8 import MISSING, NEXT, START, allowed_bytes, state_after


def accepted(data: bytes) -> bool:
    """Whether the table takes `data` as whole characters."""
    state = START
    for byte in data:
        state = int(NEXT[state, byte])
        if state < 0:
            return False
    return state == START


def decodable(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_every_character_is_accepted() -> None:
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            data = chr(code).encode()
            assert accepted(data), hex(code)


def test_accepts_what_python_decodes_and_nothing_else() -> None:
    # Every sequence of up to three bytes at the edges of the ranges, and four bytes after every lead.
    edges = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
    for first in range(256):
        assert accepted(bytes([first])) == decodable(bytes([first]))
        for second in range(256):
            assert accepted(bytes([first, second])) == decodable(bytes([first, second]))
    for data in np.array(np.meshgrid(*[list(edges)] * 4), dtype=np.uint8).reshape(4, -1).T:
        for length in (3, 4):
            assert accepted(data[:length].tobytes()) == decodable(data[:length].tobytes()), data


@pytest.mark.parametrize("character", ["é", "日", "\u0800", "\ud7ff", "😀", "\U00100000"])
def test_missing_bytes_of_a_character_begun(character: str) -> None:
    data = character.encode()
    for taken in range(len(data)):
        assert MISSING[state_after(b"abc" + data[:taken])] == (len(data) - taken if taken else 0)
    assert state_after(data) == START


def test_a_broken_byte_starts_anew() -> None:
    assert state_after(b"\xe2\x82A") == START and state_after(b"\xff\x80") == START
    assert MISSING[state_after(b"\xe2\xc3")] == 1


def test_characters_are_finished_in_time() -> None:
    states = np.arange(8)
    for left in (1, 2, 3, 4):
        possible = states[left >= MISSING]
        allowed = allowed_bytes(possible, left)
        assert allowed.any(axis=1).all()
        for state, row in zip(possible, allowed):
            for byte in range(256):
                following = int(NEXT[state, byte])
                assert row[byte] == (following >= 0 and MISSING[following] <= left - 1)
    assert not allowed_bytes(np.array([START]), 1)[0, 0x80:].any()
