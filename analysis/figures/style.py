"""How the figures of published numbers look, and how one is written: PNG, SVG, the CSV of what is drawn, a caption.

A figure's module has `load`, which gives rows (column -> value, with `series`, `kind` and `source` in each), and `draw`,
which draws nothing but those rows. `kind` says whose a number is: published, ours, or the scaling model's.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..curves import BLACK, BLUE, GREEN, ORANGE

# The rest of Okabe and Ito's palette, less the yellow that white paper swallows.
SKY, PINK, AMBER, GREY = "#56B4E9", "#CC79A7", "#E69F00", "#777777"
COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 120
# SVG without dates and random names: the same numbers give the same file.
FIXED: Any = {"svg.hashsalt": "bigbatch", "svg.fonttype": "path"}

Rows = list[dict[str, Any]]


class Drawn(NamedTuple):
    """A figure and what is said below it."""

    figure: Figure
    caption: str


def new(columns: int = 1, rows: int = 1, width: float = 7.0, height: float = 4.5, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes (one, or an array)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def finish(axes: Axes, x: str, y: str, title: str = "", legend: bool = True, **options: Any) -> None:
    """Labels, a light grid, a legend without a frame."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(**{"frameon": False, "fontsize": 8, **options})


def plain_log(axes: Axes, ticks: Sequence[float], which: str = "x", base: int = 2) -> None:
    """A logarithmic axis whose ticks are those numbers, written out."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    getattr(axes, f"set_{which}scale")("log", base=base)
    axis.set_ticks(list(ticks), [f"{tick:,g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def only_published(figure: Figure, rows: Rows) -> None:
    """Says at the bottom whose numbers are drawn where none are ours."""
    if any(row["kind"] == "ours" for row in rows):
        return
    model = " Lines: scaling model." if any(row["kind"] == "model" for row in rows) else ""
    figure.supxlabel(f"Published numbers only: no run of ours.{model}", fontsize=8, color=GREY)


def of(rows: Rows, **wanted: Any) -> Rows:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def names(rows: Rows, key: str = "series") -> list[Any]:
    """Distinct values of a column, in their order."""
    return list(dict.fromkeys(row[key] for row in rows if key in row))


def sources(rows: Rows) -> str:
    """Where the published rows come from, each source once."""
    return "; ".join(dict.fromkeys(row["source"] for row in rows if row["kind"] == "published"))


def ours(rows: Rows) -> str:
    """A sentence on own runs for a caption; empty without any."""
    found = names(of(rows, kind="ours"), "source")
    return f"Ours: {', '.join(found)}, one run each, on the machine they were trained on. " if found else ""


def save(drawn: Drawn, rows: Rows, out: Path | str, name: str) -> list[Path]:
    """Writes NAME.png, NAME.svg, NAME.csv and NAME.txt, each beside its place and then renamed.

    Returns:
        The four paths.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    images = {}
    formats: dict[str, Any] = {"png": {"dpi": DPI}, "svg": {"metadata": {"Date": None}}}
    for kind, options in formats.items():
        image = io.BytesIO()
        with rc_context(FIXED):
            drawn.figure.savefig(image, format=kind, **options)
        images[kind] = image.getvalue()
    contents = {**images, "csv": table.getvalue().encode(), "txt": f"{drawn.caption}\n".encode()}
    return [_write(folder / f"{name}.{kind}", content) for kind, content in contents.items()]


def _write(path: Path, content: bytes) -> Path:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
    return path


def published(rows: Iterable[dict[str, str]], series: str, **columns: str) -> Rows:
    """Rows of a table as rows of a figure; those without a number in every column are left out, so their place stays empty.

    Args:
        rows: of `read_published`.
        series: column that names the series.
        columns: name in the figure -> name in the table, of numbers.
    """
    from ..published_tables import number

    found = []
    for row in rows:
        values = {name: number(row[column]) for name, column in columns.items()}
        if None not in values.values():
            found.append({"series": row[series], "kind": "published", **values, "source": row["source"]})
    return found
