"""Files of labelled texts, csv, jsonl or parquet, written piece by piece so that a run that was stopped goes on.

What is being written lies beside its place (`NAME.partial`, and `NAME.partial.json` with how far it got) and is renamed
when it is complete. After every chunk of rows the state is put down; a start with the same input and options cuts what
lies beyond it and goes on from there. Parquet has its footer at the end and cannot be appended to: each chunk is a part of
its own in `NAME.partial/`, and the parts are joined, one in memory at a time, at the end.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from ..data.cleaning import encode_text
from .probe_file import write_json

FORMATS = ("csv", "jsonl", "parquet")


class Labelled(NamedTuple):
    """A labelled row.

    Attributes:
        number: of the row in its input, from 1.
        text: as found.
        label: name of the class, or of the labels.
        probabilities: of each class, (K,) fp64.
    """

    number: int
    text: str
    label: str
    probabilities: np.ndarray


@dataclass
class Progress:
    """How far a file has got.

    Attributes:
        rows: rows labelled and written.
        rejected: rows that could not be labelled.
        size: bytes of the partial file, or number of parts.
        rejects_size: bytes of the reject file.
        key: what the rows depend on: input, model, options. Another key starts again.
    """

    rows: int = 0
    rejected: int = 0
    size: int = 0
    rejects_size: int = 0
    key: str = ""


def format_of(path: Path | None, asked: str | None) -> str:
    """The format of an output file: as asked for, else by its name, else csv."""
    if asked:
        return asked
    endings = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    return endings.get(path.suffix, "csv") if path else "csv"


def json_line(row: dict[str, Any]) -> str:
    """One JSON line. Bytes that were no UTF-8 are escaped, so that the file as a whole is UTF-8."""
    line = json.dumps(row, ensure_ascii=False, default=str)
    try:
        line.encode()
    except UnicodeEncodeError:
        line = json.dumps(row, default=str)
    return line + "\n"


def write_rows(file: TextIO, kind: str, names: Sequence[str], rows: Sequence[Labelled], header: bool) -> None:
    """Rows as csv or jsonl: number, label, its probability, all probabilities, text."""
    if kind == "csv":
        writer = csv.writer(file, lineterminator="\n")
        if header:
            writer.writerow(_columns(names))
        for row in rows:
            # Half an emoji, from a JSON escape, has no place in a file; bytes that were no UTF-8 leave as they came.
            text = encode_text(row.text).decode(errors="surrogateescape")
            numbers = [f"{value:.6f}" for value in (row.probabilities.max(), *row.probabilities)]
            writer.writerow([row.number, row.label, *numbers, text])
        return
    for row in rows:
        each = {name: round(float(value), 6) for name, value in zip(names, row.probabilities)}
        fields = {"row": row.number, "label": row.label, "probability": max(each.values()), "probabilities": each}
        file.write(json_line({**fields, "text": row.text}))


def _columns(names: Sequence[str]) -> list[str]:
    return ["row", "label", "probability", *(f"probability_{name}" for name in names), "text"]


class LabelFile:
    """An output file under way; use as a context manager.

    Args:
        path: where it appears when it is complete.
        kind: one of `FORMATS`.
        names: class names.
        rejects: JSONL file of rows that cannot be labelled.
        key: see `Progress`; empty for input that cannot be read again, which is never gone on with.

    Attributes:
        progress: how far it had got when it was opened, and has got now.
    """

    def __init__(self, path: Path, kind: str, names: Sequence[str], rejects: Path, key: str) -> None:
        self.path, self.kind, self.names, self.rejects = path, kind, list(names), rejects
        if kind == "parquet":
            _pyarrow()
        self._partial = path.with_name(path.name + ".partial")
        self._state = path.with_name(path.name + ".partial.json")
        self.progress = self._restore(key)
        self._cut()
        self._pending_rejects: list[str] = []
        self._rejects_seen = 0

    def _restore(self, key: str) -> Progress:
        try:
            found = Progress(**json.loads(self._state.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Progress(key=key)
        return found if key and found.key == key and self._holds(found) else Progress(key=key)

    def _holds(self, found: Progress) -> bool:
        """Whether what the state speaks of is there."""
        if found.rejects_size and not (self.rejects.is_file() and self.rejects.stat().st_size >= found.rejects_size):
            return False
        if self.kind == "parquet":
            return all(self._part(number).is_file() for number in range(found.size))
        return self._partial.is_file() and self._partial.stat().st_size >= found.size

    def _cut(self) -> None:
        """Takes away what lies beyond the state, or all of an earlier run."""
        if not self.progress.rows and not self.progress.rejected:
            self._remove()
            self.rejects.unlink(missing_ok=True)  # no file means that nothing was rejected
        if self.kind != "parquet" and self._partial.is_file():
            os.truncate(self._partial, self.progress.size)
        if self.rejects.is_file():
            os.truncate(self.rejects, self.progress.rejects_size)

    def _remove(self) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)

    def __enter__(self) -> LabelFile:
        return self

    def reject(self, number: int, reason: str, record: Any) -> None:
        """Takes note of a row that cannot be labelled; one that was noted before the start is passed over."""
        self._rejects_seen += 1
        if self._rejects_seen > self.progress.rejected:
            self._pending_rejects.append(json_line({"row": number, "reason": reason, "record": record}))

    def add(self, rows: Sequence[Labelled]) -> None:
        """Appends a chunk, and the rejects so far, and puts the state down."""
        progress = self.progress
        if self.kind == "parquet":
            if rows:
                self._partial.mkdir(exist_ok=True)
                self._write_part(rows)
                progress.size += 1
        else:
            with self._partial.open("a", encoding="utf-8", errors="surrogateescape", newline="") as file:
                write_rows(file, self.kind, self.names, rows, header=progress.size == 0)
            progress.size = self._partial.stat().st_size
        if self._pending_rejects:
            with self.rejects.open("a", encoding="utf-8") as file:
                file.writelines(self._pending_rejects)
            progress.rejects_size = self.rejects.stat().st_size
            progress.rejected += len(self._pending_rejects)
            self._pending_rejects = []
        progress.rows += len(rows)
        if progress.key:
            write_json(self._state, asdict(progress))

    def finish(self) -> None:
        """Puts the complete file in its place."""
        self.add([])
        if self.kind == "parquet":
            self._join_parts()
        else:
            self._partial.replace(self.path)
        self._remove()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # What a signal or a full disk has stopped is gone on with; what the input has stopped will stop there again.
        if kind is not None and (issubclass(kind, ValueError) or not self.progress.key):
            self._remove()
            self.rejects.unlink(missing_ok=True)

    def _part(self, number: int) -> Path:
        return self._partial / f"part-{number:06d}.parquet"

    def _write_part(self, rows: Sequence[Labelled]) -> None:
        pyarrow, parquet = _pyarrow()
        probabilities = np.stack([row.probabilities for row in rows])
        columns = [
            [row.number for row in rows],
            [row.label for row in rows],
            *(column.tolist() for column in (probabilities.max(axis=1), *probabilities.T)),
            [encode_text(row.text).decode(errors="replace") for row in rows],
        ]
        parquet.write_table(pyarrow.table(columns, schema=self._schema()), self._part(self.progress.size))

    def _schema(self) -> Any:
        pyarrow, _ = _pyarrow()
        types = {"row": pyarrow.int64(), "label": pyarrow.string(), "text": pyarrow.string()}
        return pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in _columns(self.names)])

    def _join_parts(self) -> None:
        _, parquet = _pyarrow()
        self._partial.mkdir(exist_ok=True)
        joined = self._partial / "joined"
        with parquet.ParquetWriter(joined, self._schema()) as writer:
            for number in range(self.progress.size):
                writer.write_table(parquet.read_table(self._part(number)))
        joined.replace(self.path)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("writing .parquet needs one more package: pip install 'bigbatch[parquet]'") from None
    return pyarrow, pyarrow.parquet
