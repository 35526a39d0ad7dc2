"""The published featurisation of a review: from a string to the bytes a model reads.

The same function cleans training text and the texts of a transfer, so that the two can never differ. Reading files is
left to `sources.py`.

Two kinds of surrogate may sit in a string. U+DC80..U+DCFF are bytes that were no valid UTF-8 in the file (Python's
`surrogateescape`): they come out as the very bytes they were. Any other lone surrogate can only come from a JSON escape
such as "\\ud83d" (an emoji cut in half) and stands for no byte: it becomes U+FFFD.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable

CLEANING_VERSION = 1
PREFIX = "\n "
SUFFIX = " "
NEWLINE = "\n"

_NOT_A_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def encode_text(text: str) -> bytes:
    """UTF-8 bytes of `text`; undecodable bytes come back as they were, other lone surrogates become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _NOT_A_BYTE.sub("\ufffd", text).encode(errors="surrogateescape")


def clean_review(text: str) -> bytes:
    """Bytes of one review: entities resolved, on one line, stripped, between newline + space and a space.

    Args:
        text: The review as found in the data.

    Returns:
        UTF-8 bytes; `b"\\n  "` for a text of white space only.

    Source: `preprocess` in `utils.py` of openai/generating-reviews-discovering-sentiment. As there, only "\\n" counts
    as a newline, and `str.strip` also takes U+0085 and other Unicode spaces off the ends.
    """
    if "&" in text:
        text = html.unescape(text)
    return encode_text(f"{PREFIX}{text.replace(NEWLINE, ' ').strip()}{SUFFIX}")


def keep_text(text: str) -> bytes:
    """Bytes of the text as it is: the cleaning called `none`."""
    return encode_text(text)


CLEANERS: dict[str, Callable[[str], bytes]] = {"reviews": clean_review, "none": keep_text}

# What each cleaning leaves of a text without content: such a document is skipped.
EMPTY = {"reviews": (PREFIX + SUFFIX).encode(), "none": b""}
