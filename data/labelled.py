"""Labelled texts for probes and classifiers: a whole file in memory, labels turned into class numbers.

Rules, in this order:

- Star ratings (a column named like one; whole numbers or halves from 1 to 5 or to 10, not just 1 and 2): below the
  middle is negative, above is positive, the middle (3; 5 and 6 of 10) is dropped and counted.
- Two classes that mean sentiment (0/1, -1/1, neg/pos, negative/positive, false/true): negative is 0, positive is 1. Three
  (-1/0/1, say) are three classes.
- Anything else: classes in sorted order, numbers by value.

Several labels for each text, and numbers in place of classes, are `targets.py`. Reading and the guess of the columns
are `sources.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .files import SourceReport
from .sources import iter_rows

STAR_COLUMNS = ("overall", "stars", "rating", "star_rating")
SENTIMENT: tuple[str, ...] = ("negative", "positive")
MAX_CLASSES, MIN_ROWS_PER_CLASS = 100, 5  # more classes than that need so many rows each, or they are no classes

_POLARITY = {
    "0": 0, "-1": 0, "neg": 0, "negative": 0, "false": 0,
    "1": 1, "pos": 1, "positive": 1, "true": 1,
}  # fmt: skip


@dataclass(frozen=True)
class LabelledData:
    """Texts with their classes.

    Attributes:
        texts: Texts as found, uncleaned.
        labels: Class of each text, int64 (n,); None for unlabelled data. From `targets.py`: 0 or 1 for each of K labels,
            int64 (n, K), or numbers, fp64 (n,).
        classes: Class names by number, or the K label names; empty for unlabelled data and for numbers.
        report: What reading found.
        messages: Lines for the user: columns that were guessed, rows that were dropped.
        rows: Number of each text in its file, as `sources.Row.number`.
        num_dropped: Rows in the middle of a star scale.
        num_without_label: Rows with text but without a label, left out of labelled data.
        stars: Top of the star scale that the labels were read on, 5 or 10; 0 if they are no stars.
    """

    texts: list[str]
    labels: np.ndarray | None
    classes: list[str]
    report: SourceReport
    messages: list[str]
    rows: list[int] = field(default_factory=list)
    num_dropped: int = 0
    num_without_label: int = 0
    stars: int = 0

    def __len__(self) -> int:
        return len(self.texts)


def load_labelled(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    text_key: str | None = None,
    label_key: str | None = None,
    on_bad_row: str = "skip",
    allow_unlabelled: bool = False,
    classes: Sequence[str] | None = None,
    stars: int = 0,
) -> LabelledData:
    """Reads labelled texts.

    Args:
        paths: A file, glob or folder, or several.
        text_key: Column of the text; None guesses.
        label_key: Column of the label; None guesses.
        on_bad_row: `skip` counts rows without text or label, `error` stops at the first.
        allow_unlabelled: Accept a file without labels, or with one class only (a test part, say).
        classes: Class names of the training part; labels of this part are numbered by them.
        stars: Star scale of the training part: this part's stars are read on it, whichever of them occur. 0: each part
            shows its own scale.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: bad input (see `sources.iter_rows`), labels of one class or none unless allowed, labels that are no
            classes, or a label that `classes` does not have.
    """
    report = SourceReport()
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    where = ", ".join(os.fspath(name) for name in names)
    rows = list(iter_rows(names, text_key, label_key, on_bad_row, report))
    texts, raw = [row.text for row in rows], [normalised(row.label) for row in rows]
    label_columns = {label for _, label in report.columns.values() if isinstance(label, str)}
    labelled = [i for i, value in enumerate(raw) if value is not None]
    if not labelled:
        if allow_unlabelled:
            numbers = [row.number for row in rows]
            return LabelledData(texts, None, [], report, list(report.messages), numbers, num_without_label=len(texts))
        columns = f"column {', '.join(sorted(label_columns))} is empty" if label_columns else "name it with --label-key"
        raise ValueError(f"{where}: no labels: {columns}")
    if len(labelled) < len(raw) and on_bad_row == "error":
        row = next(row for row, value in zip(rows, raw) if value is None)
        raise ValueError(f"{row.path}:{row.number}: no label: mend the row or use on_bad_row=skip")
    values = [raw[i] for i in labelled]
    numbers, names_of_classes, scale = _classify(where, values, label_columns, classes, stars)
    kept = [i for i, number in zip(labelled, numbers) if number >= 0]
    labels = np.array([number for number in numbers if number >= 0], np.int64)
    if len(np.unique(labels)) < 2 and not allow_unlabelled:
        found = names_of_classes[labels[0]] if len(labels) else "none"
        raise ValueError(f"{where}: labels of one class only ({found}): a probe needs at least two")
    dropped, without = len(labelled) - len(kept), len(raw) - len(labelled)
    messages = list(report.messages)
    if dropped:
        messages.append(f"{where}: star ratings read as negative/positive; {dropped:,} rows in the middle dropped")
    if without:
        messages.append(f"{where}: {without:,} rows without a label left out")
    if report.undecodable_bytes:
        messages.append(f"{where}: {report.undecodable_bytes:,} bytes that are not UTF-8 kept as they are")
    texts, found = [texts[i] for i in kept], [rows[i].number for i in kept]
    return LabelledData(texts, labels, names_of_classes, report, messages, found, dropped, without, scale)


def normalised(value: Any) -> str | float | None:
    """A label as a float where it is a number, else as a string; None if there is none."""
    if value is None:
        return None
    if isinstance(value, (bool, int, float, np.number)):
        number = float(value)
        return None if math.isnan(number) else number if math.isfinite(number) else str(value)
    text = str(value).strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _classify(
    where: str, values: list[Any], columns: set[str], classes: Sequence[str] | None, stars: int
) -> tuple[list[int], list[str], int]:
    """Class number of each label (-1: dropped), the class names, and the star scale (0: no stars)."""
    distinct = set(values)
    binary = classes is None or set(classes) == set(SENTIMENT)
    scale = 0
    if binary and columns and all(c.casefold() in STAR_COLUMNS for c in columns):
        scale = _star_scale(distinct, stars)
    polarity = {value: _POLARITY.get(_name(value).casefold()) for value in distinct}
    spellings = {_name(value).casefold() for value in distinct}
    if scale:
        low, high = (3.0, 3.0) if scale == 5 else (5.0, 6.0)
        meaning = {v: SENTIMENT[0] if v < low else SENTIMENT[1] if v > high else "" for v in distinct}
        ordered = list(SENTIMENT)
    elif binary and None not in polarity.values() and len(spellings) == len(set(polarity.values())):
        meaning = {value: SENTIMENT[number or 0] for value, number in polarity.items()}
        ordered = list(SENTIMENT)
    else:
        if classes is None and len(distinct) > max(MAX_CLASSES, len(values) / MIN_ROWS_PER_CLASS):
            raise ValueError(
                f"{where}: column {', '.join(sorted(columns))} has {len(distinct):,} different values in "
                f"{len(values):,} rows, too many for classes (more than {MAX_CLASSES}, and under {MIN_ROWS_PER_CLASS} rows "
                "each): choose another with --label-key"
            )
        meaning = {value: _name(value) for value in distinct}
        ordered = [meaning[v] for v in sorted(distinct, key=lambda value: (isinstance(value, str), value))]
    names = ordered if classes is None else list(classes)
    number_of = {"": -1, **{name: number for number, name in enumerate(names)}}
    unknown = sorted(set(meaning.values()) - set(number_of))
    if unknown:
        raise ValueError(f"{where}: label {unknown[0]!r} is not among the classes {', '.join(names)}")
    return [number_of[meaning[value]] for value in values], names, scale


def _star_scale(distinct: set[Any], known: int) -> int:
    """5 or 10 where the values are whole or half stars, else 0. A known scale needs no high value to be recognised."""
    numbers = all(isinstance(value, float) and math.isfinite(value) for value in distinct)
    if not numbers or min(distinct) < 1 or any(value * 2 != int(value * 2) for value in distinct):
        return 0
    if known:
        return known if max(distinct) <= known else 0
    return 0 if not 2 < max(distinct) <= 10 else 5 if max(distinct) <= 5 else 10


def _name(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else str(value)
