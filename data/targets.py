"""Texts with other targets than one class each: several labels, one column for each; a number (a rating); or nothing.

One label a text, its classes and star ratings are `labelled.py`; reading is `sources.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .files import SourceReport
from .labelled import LabelledData, normalised
from .sources import Row, iter_rows

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_YES_NO = {"0": 0, "false": 0, "no": 0, "1": 1, "true": 1, "yes": 1}


def load_multilabel(
    paths: Paths,
    label_keys: Sequence[str],
    text_key: str | None = None,
    on_bad_row: str = "skip",
    allow_unlabelled: bool = False,
) -> LabelledData:
    """Reads texts of which each has any number of labels: a column of 0 and 1 (or false and true, no and yes) each.

    Args:
        paths: A file, glob or folder, or several.
        label_keys: The columns.
        text_key: Column of the text; None guesses.
        on_bad_row: `skip` counts rows that lack a text or one of the labels, `error` stops at the first.
        allow_unlabelled: Accept files without these columns, or with nothing in them.

    Returns:
        Labels of shape (n, K) in the order of `label_keys`, which are the class names.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: Bad input (see `sources.iter_rows`), no label columns or one twice, a value that is not 0 or 1.
    """
    keys = tuple(label_keys)
    if not keys or len(set(keys)) < len(keys):
        raise ValueError(f"the label columns are {', '.join(keys) or 'none'}; name each one once with --label-keys")

    def parse(row: Row) -> list[int] | None:
        values = [normalised(value) for value in row.label]
        if None in values:
            return None
        numbers = [_YES_NO.get(f"{value:g}" if isinstance(value, float) else str(value).casefold()) for value in values]
        for key, value, number in zip(keys, row.label, numbers):
            if number is None:
                raise ValueError(f"{row.path}:{row.number}: label {key} is {value!r}; it has to be 0 or 1")
        return [number or 0 for number in numbers]

    data = _load(paths, text_key, keys, on_bad_row, allow_unlabelled, parse)
    if data.labels is None:
        return data
    return _with(data, data.labels.astype(np.int64).reshape(len(data), len(keys)), list(keys))


def load_numbers(
    paths: Paths,
    text_key: str | None = None,
    label_key: str | None = None,
    on_bad_row: str = "skip",
    allow_unlabelled: bool = False,
) -> LabelledData:
    """Reads texts with a number each, such as a rating.

    Args:
        paths: A file, glob or folder, or several.
        text_key: Column of the text; None guesses.
        label_key: Column of the number; None guesses.
        on_bad_row: `skip` counts rows without text or number, `error` stops at the first.
        allow_unlabelled: Accept files without such a column, or with nothing in it.

    Returns:
        Labels fp64 of shape (n,); no class names.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: Bad input (see `sources.iter_rows`), or something that is no finite number.
    """

    def parse(row: Row) -> float | None:
        value = normalised(row.label)
        if isinstance(value, str):
            raise ValueError(f"{row.path}:{row.number}: the label {row.label!r} is no number; regression needs numbers")
        return value

    data = _load(paths, text_key, label_key, on_bad_row, allow_unlabelled, parse)
    return data if data.labels is None else _with(data, data.labels.astype(np.float64), [])


def load_texts(paths: Paths, text_key: str | None = None, on_bad_row: str = "skip") -> LabelledData:
    """Reads texts alone: whatever else the files hold is no label.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: Bad input (see `sources.iter_rows`).
    """
    report = SourceReport()
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    rows = list(iter_rows(names, text_key, None, on_bad_row, report, labels=False))
    texts, numbers = [row.text for row in rows], [row.number for row in rows]
    return LabelledData(texts, None, [], report, list(report.messages), numbers, num_without_label=len(texts))


def _load(
    paths: Paths,
    text_key: str | None,
    label_key: str | tuple[str, ...] | None,
    on_bad_row: str,
    allow_unlabelled: bool,
    parse: Callable[[Row], Any],
) -> LabelledData:
    report = SourceReport()
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    where = ", ".join(os.fspath(name) for name in names)
    rows = list(iter_rows(names, text_key, label_key, on_bad_row, report))
    parsed = [None if row.label is None else parse(row) for row in rows]
    labelled = [i for i, value in enumerate(parsed) if value is not None]
    without = len(rows) - len(labelled)
    messages = list(report.messages)
    if report.undecodable_bytes:
        messages.append(f"{where}: {report.undecodable_bytes:,} bytes that are not UTF-8 kept as they are")
    if not labelled:
        if allow_unlabelled:
            texts, numbers = [row.text for row in rows], [row.number for row in rows]
            return LabelledData(texts, None, [], report, messages, numbers, num_without_label=without)
        raise ValueError(f"{where}: no labels: name their column with --label-key, or columns with --label-keys")
    if without and on_bad_row == "error":
        row = next(row for row, value in zip(rows, parsed) if value is None)
        raise ValueError(f"{row.path}:{row.number}: no label: mend the row or use on_bad_row=skip")
    if without:
        messages.append(f"{where}: {without:,} rows without a label left out")
    texts, numbers = [rows[i].text for i in labelled], [rows[i].number for i in labelled]
    labels = np.array([parsed[i] for i in labelled])
    return LabelledData(texts, labels, [], report, messages, numbers, num_without_label=without)


def _with(data: LabelledData, labels: np.ndarray, classes: list[str]) -> LabelledData:
    return LabelledData(
        data.texts, labels, classes, data.report, data.messages, data.rows, num_without_label=data.num_without_label
    )
