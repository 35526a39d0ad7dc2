"""Rows of text, and labels where there are any, from csv, tsv, json, jsonl, parquet and txt files, streamed.

Conventions, format by format:

- csv: RFC 4180 with a header row. tsv: a header row; quotes are ordinary characters, as in GLUE and IANA's
  definition.
- jsonl ("loose json"): one object a line, blank lines ignored. A .json file holds the same, or one array of objects.
- txt: one document a line; blank lines are separators, not rows.
- parquet: needs pyarrow (`pip install 'bigbatch[parquet]'`).

"NA", "null" and the like are legal reviews. Files and decoding are `files.py`; the meaning of labels is `labelled.py`.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .config import BAD_ROW_POLICIES
from .files import MAX_LINE_BYTES, SourceReport, byte_blocks, char_blocks, expand_paths, file_format, line_blocks

__all__ = ["BadRow", "Row", "SourceReport", "expand_paths", "iter_rows"]

TEXT_KEYS = ("sentence", "text", "reviewText", "review", "content", "tweet")
LABEL_KEYS = ("label", "sentiment", "overall", "stars", "rating")

# Rows looked at to learn the keys of a JSON file, where a single row may lack some.
PEEKED_ROWS = 100


class Row(NamedTuple):
    """One document: its text, its label as found (None without one), and its place in the file (lines count from 1)."""

    text: str
    label: Any
    path: Path
    number: int


class BadRow(NamedTuple):
    """A row that gives no document: where it is, why, and what it held."""

    path: Path
    number: int
    reason: str
    record: Any


# Stand-ins for what csv would misread, from surrogates that no decoded file can hold. The last row is our own: if it
# comes back inside another, a quote was open at the end of the file.
_CARRIAGE_RETURN = "\ud800"
_END_OF_FILE = "\ud801"
_BLANK_LINE = "\ud802"

Records = Iterator[tuple[int, Any]]


def iter_rows(
    paths: Iterable[str | os.PathLike[str]],
    text_key: str | None = None,
    label_key: str | Sequence[str] | None = None,
    on_bad_row: str = "skip",
    report: SourceReport | None = None,
    on_reject: Callable[[BadRow], None] | None = None,
    labels: bool = True,
) -> Iterator[Row]:
    """Streams the rows of all files in order.

    Args:
        paths: Files, glob patterns, folders.
        text_key: Column of the text; None guesses the first of `TEXT_KEYS` that is there, whatever its case.
        label_key: Column of the label; None guesses from `LABEL_KEYS`, and a file without one is unlabelled. Several
            columns give a tuple of values as the label of a row.
        on_bad_row: `skip` counts rows without text, `error` stops at the first.
        report: Filled while reading: counts (`rows` at the end of each file), columns taken, messages.
        on_reject: Called with every row that is skipped.
        labels: Look for labels at all; without, every label is None.

    Raises:
        FileNotFoundError: a file or pattern that is not there.
        ValueError: an unknown file type or column, an empty or damaged file, a broken JSON line, a file in which no
            row has text, or (with `error`) a row without text. The message names file and line.
    """
    if on_bad_row not in BAD_ROW_POLICIES:
        raise ValueError(f"on_bad_row is {on_bad_row!r}; it is one of {', '.join(BAD_ROW_POLICIES)}")
    report = report if report is not None else SourceReport()
    for path in expand_paths(paths):
        report.files.append((path, path.stat().st_size))
        yield from _file_rows(path, text_key, label_key, on_bad_row, report, on_reject, labels)


def _file_rows(
    path: Path,
    text_key: str | None,
    label_key: str | Sequence[str] | None,
    on_bad_row: str,
    report: SourceReport,
    on_reject: Callable[[BadRow], None] | None,
    labels: bool,
) -> Iterator[Row]:
    kind = file_format(path)
    if kind == "txt":
        columns, records = ["text"], _txt_records(path, report)
        text_name, label_name = "text", None
    else:
        columns, records = _READERS[kind](path, report)
        text_name, label_name = _choose_columns(path, columns, text_key, label_key, report, labels)
    by_position = kind in ("csv", "tsv", "txt")
    text_at = columns.index(text_name) if by_position else text_name
    label_at: Any = label_name
    if by_position and label_name is not None:
        one = isinstance(label_name, str)
        label_at = columns.index(label_name) if one else tuple(columns.index(name) for name in label_name)
    report.columns[str(path)] = (text_name, label_name)
    found, new_row = 0, tuple.__new__  # Row(...) itself takes twice as long, a tenth of all the time of `prepare`
    try:
        for number, record in records:
            try:
                text = record[text_at]
            except (KeyError, IndexError, TypeError):
                text = None
            if type(text) is str and text and not text.isspace():
                found += 1
                yield new_row(Row, (text, None if label_at is None else _value(record, label_at), path, number))
                continue
            reason = "no text" if text is None or isinstance(text, str) else f"the text is a {type(text).__name__}"
            if on_bad_row == "error":
                raise ValueError(
                    f"{path}:{number}: {reason} in column {text_name!r}: mend the row or use on_bad_row=skip"
                )
            report.rows_without_text += 1
            if on_reject is not None:
                on_reject(BadRow(path, number, reason, record))
    finally:
        report.rows += found
    if not found:
        raise ValueError(f"{path}: no row has text in column {text_name!r}; columns: {', '.join(columns)}")


def _value(record: Any, key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_value(record, each) for each in key)
    try:
        return record[key]
    except (KeyError, IndexError, TypeError):
        return None


def _choose_columns(
    path: Path,
    columns: list[str],
    text_key: str | None,
    label_key: str | Sequence[str] | None,
    report: SourceReport,
    labels: bool,
) -> tuple[str, str | tuple[str, ...] | None]:
    there = ", ".join(repr(column) for column in columns)
    label_keys = [label_key] if label_key is None or isinstance(label_key, str) else list(label_key)
    for option, key in (("text", text_key), *(("label", key) for key in label_keys)):
        if key is not None and key not in columns:
            raise ValueError(f"{path}: no column {key!r} for the {option}; columns: {there}")
    text = text_key or _guess(columns, TEXT_KEYS)
    label = (label_key or _guess(columns, LABEL_KEYS)) if labels else None
    label = label if label is None or isinstance(label, str) else tuple(label)
    if text is None:
        raise ValueError(
            f"{path}: which column is the text? Say so with --text-key (in train --data.text-key); columns: {there}"
        )
    guessed = [f"text from column {text!r}"] if text_key is None else []
    guessed += [f"label from column {label!r}"] if label is not None and label_key is None else []
    if guessed:
        options = "--text-key" if label is None else "--text-key, --label-key"
        report.messages.append(f"{path.name}: {', '.join(guessed)} (guessed; {options} to choose)")
    return text, label


def _guess(columns: list[str], candidates: tuple[str, ...]) -> str | None:
    folded = {column.casefold(): column for column in reversed(columns)}
    for candidate in candidates:
        if candidate in columns:
            return candidate
        if candidate.casefold() in folded:
            return folded[candidate.casefold()]
    return None


def _txt_records(path: Path, report: SourceReport) -> Records:
    number = 0
    for lines in line_blocks(path, report):
        for line in lines:
            number += 1
            if line and not line.isspace():
                yield number, (line.removesuffix("\r"),)


def _table_records(path: Path, report: SourceReport) -> tuple[list[str], Records]:
    rows = _csv_rows(path, report)
    try:
        _, header = next(rows)
    except StopIteration:
        raise ValueError(f"{path}: the file is empty") from None
    return header, _count_wide(path, rows, len(header), report)


def _count_wide(path: Path, rows: Records, width: int, report: SourceReport) -> Records:
    """The rows, and a message if some have more fields than the header: their text is likely cut at a comma."""
    wide = first = 0
    for number, row in rows:
        if len(row) > width:
            wide, first = wide + 1, first or number
        yield number, row
    if wide:
        report.messages.append(
            f"{path}: {wide:,} rows have more fields than the {width} of the header (first: line {first}), and only as many are "
            "read: put quotes around text that holds the separator"
        )


def _csv_rows(path: Path, report: SourceReport) -> Records:
    # csv has one limit for the whole process and none a reader; a lower one would stop at a long review.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    lines = itertools.chain(_csv_lines(path, report), [_END_OF_FILE + "\n"])
    tabs = file_format(path) == "tsv"
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines)
    number = 1
    try:
        for row in reader:
            text = "".join(row)
            if text == _BLANK_LINE and len(row) == 1:  # not the row of one column whose text is ""
                row = []
            elif _CARRIAGE_RETURN in text or _BLANK_LINE in text:
                row = [field.replace(_CARRIAGE_RETURN, "\r").replace(_BLANK_LINE, "\r") for field in row]
                row[-1] = row[-1].removesuffix("\r")
            if row:
                if row[-1] == _END_OF_FILE:
                    return
                if row[-1].endswith(_END_OF_FILE + "\n"):
                    raise ValueError(f"{path}:{number}: a quote that opens here is never closed")
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}:{number}: {error} (a quote that is never closed?)") from None


def _csv_lines(path: Path, report: SourceReport) -> Iterator[str]:
    for block in line_blocks(path, report):
        for line in block:
            # csv takes any carriage return for the end of a row; here only "\n" and "\r\n" are.
            if "\r" in line:
                line = _BLANK_LINE if line == "\r" else line.replace("\r", _CARRIAGE_RETURN)
            yield line + "\n"


def _json_records(path: Path, report: SourceReport) -> tuple[list[str], Records]:
    records = _json_lines(path, report)
    if file_format(path) == "json" and _starts_with_bracket(path):
        records = _json_array(path, report)
    first = list(itertools.islice(records, PEEKED_ROWS))
    columns = list(dict.fromkeys(key for _, record in first if isinstance(record, dict) for key in record))
    if not columns:
        raise ValueError(f"{path}: no JSON object with keys in it; each row must be an object such as {{'text': …}}")
    return columns, itertools.chain(first, records)


def _starts_with_bracket(path: Path) -> bool:
    for block in byte_blocks(path, SourceReport()):
        if block := block.lstrip():
            return block.startswith(b"[")
    return False


def _json_lines(path: Path, report: SourceReport) -> Records:
    parse = json.JSONDecoder().raw_decode
    number = 0
    for lines in line_blocks(path, report):
        for line in lines:
            number += 1
            try:
                record, end = parse(line)
            except (json.JSONDecodeError, RecursionError):
                # Rare: a blank line, white space in front (raw_decode takes none), or a line that is broken.
                if not line or line.isspace():
                    continue
                record, end = _parse_again(path, number, line), len(line)
            if end != len(line) and not line[end:].isspace():
                raise ValueError(f"{path}:{number}: broken JSON: more text after the object: {line[end : end + 40]!r}")
            yield number, record


def _parse_again(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}:{number}: broken JSON ({error}); every line must be one object") from None


def _json_array(path: Path, report: SourceReport) -> Records:
    """Elements of one array, parsed as the text arrives; `number` counts elements."""
    parse = json.JSONDecoder().raw_decode
    blocks = char_blocks(path, report)
    text, at, number, opened = "", 0, 0, False
    for block in itertools.chain(blocks, [None]):
        if block is not None:
            text, at = text[at:] + block, 0
            if len(text) > MAX_LINE_BYTES:
                raise ValueError(f"{path}: array element {number + 1} is longer than {MAX_LINE_BYTES:,} characters")
        while True:
            at = _skip(text, at, " \t\r\n," if opened and number else " \t\r\n")
            if at == len(text):
                break
            if not opened:
                opened, at = True, at + 1
                continue
            if text[at] == "]":
                return
            try:
                record, at = parse(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                if block is not None:
                    break
                raise ValueError(f"{path}: element {number + 1} of the array is broken JSON ({error})") from None
            number += 1
            yield number, record
    raise ValueError(f"{path}: the JSON array ends early after element {number}: fetch or write the file again")


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _parquet_records(path: Path, report: SourceReport) -> tuple[list[str], Records]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError(f"{path}: reading .parquet needs one more package: pip install 'bigbatch[parquet]'") from None
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: damaged or not a parquet file ({error})") from None
    columns = [column for column in file.schema_arrow.names]

    def rows() -> Records:
        text, label = report.columns[str(path)]
        wanted = [text, *([] if label is None else [label] if isinstance(label, str) else label)]
        number, size = 0, path.stat().st_size
        batches = file.iter_batches(batch_size=1024, columns=wanted)
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(
                    f"{path}: damaged after row {number} ({error}): fetch or write the file again"
                ) from None
            if batch is None:
                break
            for record in batch.to_pylist():
                number += 1
                yield number, record
        report.source_bytes += size
        report.text_bytes += size

    return columns, rows()


_READERS: dict[str, Callable[[Path, SourceReport], tuple[list[str], Records]]] = {
    "csv": _table_records,
    "tsv": _table_records,
    "json": _json_records,
    "jsonl": _json_records,
    "parquet": _parquet_records,
}
