"""Which words move a unit: its change over each word of a text, summed up by words and runs of words.

A word is what stands between white space. Its change is the unit after the white space that follows it minus the unit
before its first byte, so the changes of all words of a text add up to what the unit did over the whole text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_WORD = re.compile(rb"[^ \t\n\r\f\v]+[ \t\n\r\f\v]*")
_PUNCTUATION = string.punctuation + "“”‘’…–—"
CONTEXT_BYTES = 30


@dataclass(frozen=True)
class Change:
    """What a unit did over one word.

    Attributes:
        word: As it is compared: lower case, without punctuation around it.
        change: After it minus before it.
        start: Its first byte in the cleaned text.
        end: One past the white space that follows it.
    """

    word: str
    change: float
    start: int
    end: int


@dataclass(frozen=True)
class Span:
    """One to three words in a row, over all texts.

    Attributes:
        words: As compared, with single spaces.
        mean_change: Of the unit.
        count: Occurrences.
    """

    words: str
    mean_change: float
    count: int


def word_changes(data: bytes, trace: np.ndarray) -> list[Change]:
    """The changes over all words of a text.

    Args:
        data: A cleaned text.
        trace: The unit after each of its bytes, shape (len(data),).
    """
    found = []
    for match in _WORD.finditer(data):
        before = trace[match.start() - 1] if match.start() else 0.0
        word = match[0].decode(errors="replace").strip().lower()
        change = float(trace[match.end() - 1]) - float(before)
        found.append(Change(word.strip(_PUNCTUATION) or word, change, match.start(), match.end()))
    return found


def spans(changes: Sequence[Sequence[Change]], num_words: int, min_count: int) -> list[Span]:
    """Runs of `num_words` words that occur at least `min_count` times, from the largest mean change to the smallest.

    Args:
        changes: For each text its words.
        num_words: Words in a run.
        min_count: A mean of fewer says little.
    """
    totals: dict[str, list[float]] = {}
    for words in changes:
        for start in range(len(words) - num_words + 1):
            run = words[start : start + num_words]
            entry = totals.setdefault(" ".join(word.word for word in run), [0.0, 0])
            entry[0] += sum(word.change for word in run)
            entry[1] += 1
    kept = [Span(words, total / count, int(count)) for words, (total, count) in totals.items() if count >= min_count]
    return sorted(kept, key=lambda span: (-span.mean_change, span.words))


def occurrence(data: bytes, change: Change) -> str:
    """A word among its neighbours, between brackets, for a table."""
    before = data[max(0, change.start - CONTEXT_BYTES) : change.start].decode(errors="ignore").lstrip()
    word = data[change.start : change.end].decode(errors="replace").strip()
    after = data[change.end : change.end + CONTEXT_BYTES].decode(errors="ignore").rstrip()
    return f"{before}[{word}] {after}".strip()
