"""Fits the global numbers of the scaling model to published tables, and says how far it is off, also on a table left out.

Every table weighs the same, whatever its number of rows; errors are logarithms of predicted over published. What is
fitted is `Parameters` alone: rates are measured on one device and come from the cluster files, bandwidths from data
sheets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from .backtest_rows import Row, all_rows
from .fitted import FITTED, LEFT_OUT, LEFT_OUT_FAMILY
from .scaling import Parameters

NAMES = tuple(field.name for field in fields(Parameters))
START = (1.0, 0.7, 0.7, 0.01, 0.3)
LOWER = (0.05, 0.2, 0.1, 0.0, 0.0)
UPPER = (5.0, 1.0, 1.0, 0.1, 1.0)
TARGET_MEDIAN, TARGET_LARGEST = 0.15, 0.35
# Every device always at its measured rate, and nothing lost on the way but the bubble: what the model has to beat.
PERFECT = Parameters(0.0, 1e9, 1e9, 0.0, 1.0)


def errors(rows: Sequence[Row], parameters: Parameters) -> np.ndarray:
    """Predicted over published, less 1, in the printed quantity (n,), fp64."""
    return np.array([row.predict(parameters) / row.published - 1 for row in rows])


def fit(rows: Sequence[Row]) -> Parameters:
    """Least squares of logarithmic errors, each table weighing the same."""
    from scipy.optimize import least_squares  # comes with scikit-learn

    count = {row.table: sum(other.table == row.table for other in rows) for row in rows}
    weights = np.array([count[row.table] ** -0.5 for row in rows])

    def residuals(values: np.ndarray) -> np.ndarray:
        return weights * np.log1p(errors(rows, Parameters(*map(float, values))))

    found = least_squares(residuals, START, bounds=(LOWER, UPPER), x_scale=np.array(START))
    return Parameters(*(float(f"{value:.4g}") for value in found.x))


@dataclass(frozen=True)
class Score:
    """Errors of one table.

    Args:
        table: its name.
        rows: number of rows.
        median: of the absolute error, all tables fitted.
        largest: likewise.
        left_out_median: when the table was not among those fitted.
        left_out_largest: likewise.
    """

    table: str
    rows: int
    median: float
    largest: float
    left_out_median: float
    left_out_largest: float


def targets() -> list[Row]:
    return [row for row in all_rows() if row.use == "target"]


def refit() -> tuple[Parameters, dict[str, Parameters]]:
    """The numbers of `fitted.py` anew: of all tables, and of all but the one named."""
    rows = targets()
    tables = dict.fromkeys(row.table for row in rows)
    return fit(rows), {table: fit([row for row in rows if row.table != table]) for table in tables}


def scores(rows: Sequence[Row]) -> list[Score]:
    """One for each table and, last, one for all."""
    found, every, out = [], [], []
    for table in dict.fromkeys(row.table for row in rows):
        part = [row for row in rows if row.table == table]
        inside = np.abs(errors(part, FITTED))
        outside = np.abs(errors(part, LEFT_OUT[table]))
        every.append(inside)
        out.append(outside)
        found.append(_score(table, inside, outside))
    return [*found, _score("all", np.concatenate(every), np.concatenate(out))]


def _score(table: str, inside: np.ndarray, outside: np.ndarray) -> Score:
    medians = float(np.median(inside)), float(np.median(outside))
    return Score(table, len(inside), medians[0], float(inside.max()), medians[1], float(outside.max()))


def parameter_table() -> str:
    """Fitted numbers, as Markdown: all tables, then what each takes when one table is left out."""
    lines = ["| fitted to | " + " | ".join(NAMES) + " |", "|---" * (len(NAMES) + 1) + "|"]
    sets = {"all tables": FITTED, **{f"all but {name}": value for name, value in LEFT_OUT.items()}}
    for name, values in sets.items():
        lines.append(f"| {name} | " + " | ".join(f"{value:.4g}" for value in astuple(values)) + " |")
    return "\n".join(lines)


def score_table() -> str:
    """Errors by table, as Markdown, with the sentence that says whether the targets are met."""
    lines = [
        "| table | rows | median error | largest | left out: median | left out: largest |",
        "|---|---|---|---|---|---|",
    ]
    found = scores(targets())
    for score in found:
        values = (score.median, score.largest, score.left_out_median, score.left_out_largest)
        lines.append(
            f"| {score.table} | {score.rows} | " + " | ".join(f"{100 * value:.1f} %" for value in values) + " |"
        )
    total = found[-1]
    met = total.median <= TARGET_MEDIAN and total.largest <= TARGET_LARGEST
    perfect = np.abs(errors(targets(), PERFECT))
    ratio = np.expm1(np.abs(np.log1p(errors(targets(), FITTED))))
    lines.append(
        f"\nTarget (median at most {100 * TARGET_MEDIAN:.0f} %, none above {100 * TARGET_LARGEST:.0f} %): "
        f"{'met' if met else 'NOT met'} with {100 * total.median:.1f} % and {100 * total.largest:.1f} %. "
        f"Counted as a ratio, whichever way it is off, the largest is {100 * ratio.max():.1f} %. Perfect scaling from the "
        f"same rates has a median error of {100 * np.median(perfect):.1f} % and a largest of {100 * perfect.max():.0f} %."
    )
    return "\n".join(lines)


def family_table() -> str:
    """Errors of all tables of one line of work, predicted by a fit to the others, as Markdown."""
    lines = ["| left out: all tables named | rows | median error | largest |", "|---|---|---|---|"]
    for family, parameters in LEFT_OUT_FAMILY.items():
        off = np.abs(errors([row for row in targets() if row.table.startswith(family)], parameters))
        lines.append(f"| {family}* | {len(off)} | {100 * np.median(off):.1f} % | {100 * off.max():.1f} % |")
    return "\n".join(lines)


def row_table(rows: Sequence[Row]) -> str:
    """Every row with its prediction, as Markdown."""
    lines = ["| table | what | devices | published | predicted | error | |", "|---|---|---|---|---|---|---|"]
    for row, error in zip(rows, errors(rows, FITTED)):
        predicted = "-" if math.isnan(error) else f"{row.published * (1 + error):,.4g}"
        percent = "-" if math.isnan(error) else f"{100 * error:+.1f} %"
        kind = "" if row.use == "target" else f"{row.use}: "
        published = f"{row.published:,.4g} {row.unit}"
        lines.append(
            f"| {row.table} | {row.name} | {row.devices} | {published} | {predicted} | {percent} | {kind}{row.note} |"
        )
    return "\n".join(lines)


def report() -> str:
    """All of the back-test, as Markdown."""
    rows = all_rows()
    others = [row for row in rows if row.use != "target"]
    return "\n\n".join(
        [
            parameter_table(),
            score_table(),
            family_table(),
            row_table([row for row in rows if row.use == "target"]),
            "Not fitted and not counted:",
            row_table(others),
        ]
    )
