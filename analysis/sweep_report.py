"""What a sweep has found so far, as Markdown: a table by factor, the best of each row, effects, and what went wrong.

Every mean is over the seeds of one setting and says over how many; a setting of which a seed diverged says so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .ablation import BASE, effects
from .cells import read_cell
from .results import Interval, Row, count, grouped, markdown, mean_interval, run_row
from .sweeps import Sweep, short_names, text

if TYPE_CHECKING:
    import pandas as pd


def sweep_frame(sweep: Sweep) -> pd.DataFrame:
    """A row a cell: `cell`, the varied keys, and what `results.run_row` knows; cells without a folder are `not started`."""
    import pandas as pd

    rows = []
    for cell in sweep.cells:
        if (cell.run_dir / "config.yaml").is_file():
            row = run_row(cell.run_dir)[1]
        else:
            row = {"status": read_cell(cell.run_dir).get("status", "not started"), "bpc": math.nan}
        rows.append({"cell": cell.name, **cell.values, **row})
    return pd.DataFrame(rows)


def report(sweep: Sweep) -> str:
    """The report of a sweep, finished or not.

    Raises:
        ValueError: no cell has been started.
    """
    frame = sweep_frame(sweep)
    rows, factors = frame.to_dict("records"), sweep.factors
    if count(rows, "not started") == len(rows):
        raise ValueError(f"no cell of {sweep.file} has been started in {sweep.root}: run `bigbatch sweep {sweep.file}`")
    parts = [_counts(sweep, rows)]
    if sweep.alternatives:
        parts.append(_effects(sweep, frame))
    elif len(factors) == 2:
        parts += [_grid(rows, *factors), _best(rows, factors[0], factors[1:])]
    elif factors:
        parts += [_settings(rows, factors), _best(rows, factors[0], factors[1:])]
        parts += [_factor(rows, factor) for factor in factors if len(factors) > 1]
    parts.append(_endings(sweep))
    return "\n\n".join(part for part in parts if part)


def _counts(sweep: Sweep, rows: list[Row]) -> str:
    what = ", ".join(f"{len(group)} {status}" for (status,), group in grouped(rows, ["status"]))
    seeds = len({row.get("seed") for row in rows})
    return (
        f"# {sweep.file.name}: {len(rows)} cells ({what})\n\nFinal validation bits per character; means over finished seeds "
        f"(at most {seeds}) with 95 % intervals by Student's t; Div: diverged."
    )


def _summary(rows: list[Row]) -> str:
    """Mean and n of one setting, with what its seeds did otherwise."""
    interval, diverged = mean_interval(row["bpc"] for row in rows), count(rows, "Div")
    if not interval.n:
        return f"Div {diverged}/{len(rows)}" if diverged else "."
    spread = f" ± {interval.high - interval.mean:.3f}" if interval.n > 1 else ""
    return f"{interval.mean:.3f}{spread} (n = {interval.n})" + (f", Div {diverged}/{len(rows)}" if diverged else "")


def _table(rows: list[Row]) -> str:
    import pandas as pd

    return markdown(pd.DataFrame(rows))


def _grid(rows: list[Row], row_key: str, column_key: str) -> str:
    """Two factors as rows and columns."""
    short = short_names([row_key, column_key])
    columns = [value for (value,), _ in grouped(rows, [column_key])]
    lines = []
    for (value,), line in grouped(rows, [row_key]):
        cells = {text(c): _summary([row for row in line if row[column_key] == c]) for c in columns}
        lines.append({f"{short[row_key]} \\ {short[column_key]}": text(value), **cells})
    return f"## {short[row_key]} by {short[column_key]}\n\n{_table(lines)}"


def _settings(rows: list[Row], factors: list[str]) -> str:
    short = short_names(factors)
    lines = [
        {**{short[key]: text(value) for key, value in zip(factors, values)}, "bpc": _summary(group)}
        for values, group in grouped(rows, factors)
    ]
    return f"## Settings\n\n{_table(lines)}"


def _factor(rows: list[Row], factor: str) -> str:
    """One factor over all values of the others."""
    short = short_names([factor])[factor]
    lines = []
    for (value,), group in grouped(rows, [factor]):
        ends = {"cells": len(group), "finished": count(group, "finished"), "Div": count(group, "Div")}
        finite = [row["bpc"] for row in group if math.isfinite(row["bpc"])]
        numbers = {
            "mean bpc": sum(finite) / len(finite) if finite else math.nan,
            "best bpc": min(finite, default=math.nan),
        }
        lines.append({short: text(value), **ends, **numbers})
    note = "means of finished cells: other settings, not seeds alone"
    return f"## {short}, over everything else ({note})\n\n{_table(lines)}"


def best_settings(rows: list[Row], row_key: str, others: list[str]) -> list[Row]:
    """For each value of a factor the setting of the others with the lowest mean BPC of which no seed diverged.

    Returns:
        Rows of row_key, others, n, bpc, low, high, and the diverged cells of that value.
    """
    best = []
    for (value,), group in grouped(rows, [row_key]):
        found: list[tuple[tuple, Interval]] = []
        for setting, cells in grouped(group, others):
            interval = mean_interval(row["bpc"] for row in cells)
            if interval.n and not count(cells, "Div"):
                found.append((setting, interval))
        if found:
            setting, top = min(found, key=lambda pair: pair[1].mean)
            numbers = {"n": top.n, "bpc": top.mean, "low": top.low, "high": top.high}
            best.append({row_key: value, **dict(zip(others, setting)), **numbers, "Div cells": count(group, "Div")})
    return best


def _best(rows: list[Row], row_key: str, others: list[str]) -> str:
    best = best_settings(rows, row_key, others)
    if not best or not others:
        return ""
    short = short_names([row_key, *others])
    lines = [
        {short.get(key, key): text(value) if key in short else value for key, value in row.items()} for row in best
    ]
    note = "(chosen by the same numbers, so a little too good; settings of which a seed diverged are left out)"
    return f"## Best for each {short[row_key]} {note}\n\n{_table(lines)}"


def _effects(sweep: Sweep, frame: pd.DataFrame) -> str:
    base = mean_interval(row["bpc"] for row in frame.to_dict("records") if row["setting"] == BASE)
    table = effects(frame, sweep.alternatives)
    signed = {
        key: [f"{value:+.4f}" if math.isfinite(value) else "-" for value in table[key]]
        for key in ("effect", "low", "high")
    }
    shown = table.assign(**signed)
    return (
        f"## Effects: alternative minus base, paired by seed (above 0 is worse)\n\nBase: {base}. Each interval covers 95 % by "
        f"itself; {len(table)} are shown, so expect one in twenty to miss.\n\n{markdown(shown)}"
    )


def _endings(sweep: Sweep) -> str:
    """Cells that diverged or failed, and why."""
    lines = []
    for cell in sweep.cells:
        ended = read_cell(cell.run_dir)
        if ended.get("status") in ("Div", "failed") or ended.get("attempts", 1) > 1:
            again = " after a crash" * (ended["attempts"] > 1)
            reason = f": {ended['reason']}" if ended["reason"] else ""
            lines.append(f"- {cell.name}: {ended['status']}{again}{reason}")
    return "## Diverged, failed, or tried twice\n\n" + "\n".join(lines) if lines else ""
