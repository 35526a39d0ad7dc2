"""What a reader takes for one character: grapheme clusters of bytes, for pictures that colour text.

The rules are those of Unicode's extended grapheme clusters, with the classes that Python's `unicodedata` lacks written
as ranges: marks and joiners, emoji sequences, flags, Hangul, Indic conjuncts, prefixed signs. Bytes that are no UTF-8
stand for themselves.

Source: Unicode Standard Annex 29, section 3.1.1.
"""

from __future__ import annotations

import unicodedata

import numpy as np

ZERO_WIDTH_JOINER, ZERO_WIDTH_NON_JOINER = "\u200d", "\u200c"
_PREPENDED = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
_EXTENDING = frozenset("\u200c\u200d\u0e33\u0eb3\uff9e\uff9f")  # beside categories Mn, Me and Mc
_PICTOGRAPHIC = frozenset("\u203c\u2049\u3030\u303d")  # beside category So
# The scripts whose virama joins two consonants; all keep the same places in blocks of 128.
_VIRAMA_BLOCKS = (0x0900, 0x0980, 0x0A80, 0x0B00, 0x0C00, 0x0D00)
_VIRAMA = 0x4D


def characters_of(data: bytes) -> tuple[list[str], np.ndarray]:
    """Splits bytes into what a reader takes for characters.

    Args:
        data: Bytes, UTF-8 or not; a byte that is no part of a character stands for itself, as its lone surrogate.

    Returns:
        The characters and for each the index of its last byte, int64.
    """
    characters: list[str] = []
    ends: list[int] = []
    position = 0
    for point in data.decode("utf-8", errors="surrogateescape"):
        position += len(point.encode("utf-8", errors="surrogateescape"))
        if characters and _continues(characters[-1], point):
            characters[-1] += point
            ends[-1] = position - 1
        else:
            characters.append(point)
            ends.append(position - 1)
    return characters, np.array(ends, dtype=np.int64)


def is_regional(point: str) -> bool:
    """Whether two of these make a flag."""
    return "\U0001f1e6" <= point <= "\U0001f1ff"


def is_skin_tone(point: str) -> bool:
    return "\U0001f3fb" <= point <= "\U0001f3ff"


def _continues(cluster: str, point: str) -> bool:
    """Whether a code point belongs to the cluster before it."""
    before = cluster[-1]
    if _is_control(before) or _is_control(point):
        return before == "\r" and point == "\n"
    if _extends(point) or before in _PREPENDED or _is_syllable(before, point):
        return True
    if is_regional(point):
        return len(cluster) == 1 and is_regional(before)
    base = cluster.rstrip("".join({c for c in cluster if _extends(c)}))[-1:]
    if before == ZERO_WIDTH_JOINER and _is_pictographic(point) and _is_pictographic(base):
        return True
    tail = cluster[cluster.rindex(base) + 1 :] if base else ""
    linked = any(ord(c) & 0x7F == _VIRAMA and ord(c) & ~0x7F in _VIRAMA_BLOCKS for c in tail)
    return linked and _is_consonant(point) and _is_consonant(base)


def _is_control(point: str) -> bool:
    """Breaks on both sides: control and format characters, line ends, and lone surrogates."""
    category = unicodedata.category(point)
    return category in ("Cc", "Cs", "Zl", "Zp") or (
        category == "Cf" and not _extends(point) and point not in _PREPENDED
    )


def _extends(point: str) -> bool:
    return (
        unicodedata.category(point) in ("Mn", "Me", "Mc")
        or point in _EXTENDING
        or is_skin_tone(point)
        or "\U000e0020" <= point <= "\U000e007f"  # tags, which spell the flag of a region
    )


def _is_pictographic(point: str) -> bool:
    return bool(point) and (
        "\U0001f000" <= point <= "\U0001faff"
        or "\u2190" <= point <= "\u21ff"
        or point in _PICTOGRAPHIC
        or unicodedata.category(point) == "So"
    )


def _is_consonant(point: str) -> bool:
    place = ord(point) & 0x7F if point else 0
    return (0x15 <= place <= 0x39 or 0x58 <= place <= 0x5F) and ord(point) & ~0x7F in _VIRAMA_BLOCKS


def _is_syllable(before: str, point: str) -> bool:
    """Hangul letters that are written as one syllable."""
    first, second = _hangul(before), _hangul(point)
    return (
        (first == "L" and second in ("L", "V", "LV", "LVT"))
        or (first in ("LV", "V") and second in ("V", "T"))
        or (first in ("LVT", "T") and second == "T")
    )


def _hangul(point: str) -> str:
    code = ord(point)
    if 0xAC00 <= code <= 0xD7A3:
        return "LV" if (code - 0xAC00) % 28 == 0 else "LVT"
    for kind, ranges in (
        ("L", ((0x1100, 0x115F), (0xA960, 0xA97C))),
        ("V", ((0x1160, 0x11A7), (0xD7B0, 0xD7C6))),
        ("T", ((0x11A8, 0x11FF), (0xD7CB, 0xD7FB))),
    ):
        if any(low <= code <= high for low, high in ranges):
            return kind
    return ""
