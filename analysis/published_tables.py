"""The published numbers in analysis/published/: one CSV a table, each row with its source.

A number that was looked for and not found is listed in not_found.csv, and its cell elsewhere is empty or says so: both
read as None here, so nothing can be drawn there.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("published")
ABSENT = ("not found", "not derivable")


def read_published(name: str) -> list[dict[str, str]]:
    """Rows of a table, column -> text.

    Args:
        name: of the file, without .csv.

    Raises:
        ValueError: if there is no such table, or a row names no source.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.csv")))
        raise ValueError(f"there is no table {name!r} of published numbers; tables: {known}")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for number, row in enumerate(rows, 2):
        if not row.get("source"):
            raise ValueError(f"{path.name}, line {number}: no source, and a number without one is not published")
    return rows


def number(text: str | None) -> float | None:
    """A cell as a number; None where it is empty or says `not found`.

    Raises:
        ValueError: if it is anything else that is no number.
    """
    text = (text or "").strip()
    return None if not text or text.startswith(ABSENT) else float(text.replace(",", ""))


def sources(rows: Iterable[dict[str, str]]) -> str:
    """The sources of rows, each once, in their order."""
    return "; ".join(dict.fromkeys(row["source"] for row in rows))
