"""Which bytes may come next in valid UTF-8: a table of eight states that decoding masks its logits with."""

from __future__ import annotations

import numpy as np

# A state is what the next byte may be: the start of a character; one, two or three more continuation bytes; or the
# narrower second byte after E0 (no overlong form), ED (no surrogate), F0 (no overlong form), F4 (nothing above U+10FFFF).
START, ONE, TWO, THREE, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4 = range(8)

# Bytes that a character still needs in each state.
MISSING = np.array([0, 1, 2, 3, 2, 2, 3, 3])


def _table() -> np.ndarray:
    table = np.full((8, 256), -1, dtype=np.int8)
    table[START, :0x80] = START
    table[START, 0xC2:0xE0] = ONE
    table[START, 0xE0:0xF0] = TWO
    table[START, 0xF0:0xF5] = THREE
    for lead, state in ((0xE0, AFTER_E0), (0xED, AFTER_ED), (0xF0, AFTER_F0), (0xF4, AFTER_F4)):
        table[START, lead] = state
    for state, after in ((ONE, START), (TWO, ONE), (THREE, TWO)):
        table[state, 0x80:0xC0] = after
    table[AFTER_E0, 0xA0:0xC0] = ONE
    table[AFTER_ED, 0x80:0xA0] = ONE
    table[AFTER_F0, 0x90:0xC0] = TWO
    table[AFTER_F4, 0x80:0x90] = TWO
    return table


# The state after each byte, shape (8, 256); -1 where the byte cannot stand there.
NEXT = _table()


def state_after(data: bytes) -> int:
    """The state at the end of `data`; a byte that cannot stand where it is starts anew."""
    state = START
    for byte in data[-4:]:  # no character is longer
        state = int(NEXT[state, byte])
        if state < 0:
            state = max(int(NEXT[START, byte]), START)
    return state


def allowed_bytes(states: np.ndarray, left: int) -> np.ndarray:
    """The bytes that may come next, where every character must be complete after `left` bytes, this one included.

    Args:
        states: The state of each stream, shape (B,).
        left: At least 1, and at least what the characters begun still need.

    Returns:
        True for those bytes, shape (B, 256); at least one in each row.
    """
    following = NEXT[states]
    return (following >= 0) & (MISSING[following] < left)
