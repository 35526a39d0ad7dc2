"""What a sweep has found so far, as Markdown: a table by factor, the best of each row, effects, and what went wrong.

Every mean is over the seeds of one setting and says over how many; a setting of which a seed diverged says so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .ablation import effects
from .results import Interval, markdown, mean_interval, run_row
from .sweeps import Sweep, short_names, text

if TYPE_CHECKING:
    import pandas as pd


def sweep_frame(sweep: Sweep) -> pd.DataFrame:
    """A row a cell: `cell`, the varied keys, and what `results.run_row` knows; cells without a folder are `not started`."""
    import pandas as pd

    rows = []
    for cell in sweep.cells:
        started = (cell.run_dir / "config.yaml").is_file()
        row = (
            run_row(cell.run_dir)[1] if started else {"status": _status_without_run(sweep, cell.name), "bpc": math.nan}
        )
        rows.append({"cell": cell.name, **cell.values, **row})
    return pd.DataFrame(rows)


def _status_without_run(sweep: Sweep, name: str) -> str:
    from .cells import read_cell

    return read_cell(sweep.root / name).get("status", "not started")


def report(sweep: Sweep) -> str:
    """The report of a sweep, finished or not.

    Raises:
        ValueError: no cell has been started.
    """
    frame = sweep_frame(sweep)
    if (frame["status"] == "not started").all():
        raise ValueError(f"no cell of {sweep.file} has been started in {sweep.root}: run `bigbatch sweep {sweep.file}`")
    parts = [_counts(sweep, frame)]
    factors = sweep.factors
    if sweep.alternatives:
        parts.append(_effects(sweep, frame))
    elif len(factors) == 2:
        parts += [_grid(frame, *factors), _best(frame, factors[0], factors[1:])]
    elif factors:
        parts += [_settings(frame, factors), _best(frame, factors[0], factors[1:])]
        parts += [_factor(frame, factor) for factor in factors if len(factors) > 1]
    parts.append(_endings(sweep, frame))
    return "\n\n".join(part for part in parts if part)


def _counts(sweep: Sweep, frame: pd.DataFrame) -> str:
    counts = frame["status"].value_counts()
    seeds = frame["seed"].nunique() if "seed" in frame else 1
    what = ", ".join(f"{count} {status}" for status, count in counts.items())
    return (
        f"# {sweep.file.name}: {len(frame)} cells ({what})\n\nFinal validation bits per character; means over finished seeds "
        f"(at most {seeds}) with 95 % intervals by Student's t; Div: diverged."
    )


def _summary(part: pd.DataFrame) -> str:
    """Mean and n of one setting, with what its seeds did otherwise."""
    interval, diverged = mean_interval(part["bpc"].tolist()), int((part["status"] == "Div").sum())
    if not interval.n:
        return f"Div {diverged}/{len(part)}" if diverged else "."
    spread = f" ± {interval.high - interval.mean:.3f}" if interval.n > 1 else ""
    return f"{interval.mean:.3f}{spread} (n = {interval.n})" + (f", Div {diverged}/{len(part)}" if diverged else "")


def _grid(frame: pd.DataFrame, row_key: str, column_key: str) -> str:
    """Two factors as rows and columns."""
    import pandas as pd

    columns = list(dict.fromkeys(frame[column_key]))
    short = short_names([row_key, column_key])
    rows = []
    for value, part in frame.groupby(row_key, sort=False, dropna=False):
        cells = {text(c): _summary(part[part[column_key] == c]) for c in columns}
        rows.append({f"{short[row_key]} \\ {short[column_key]}": text(value), **cells})
    return f"## {short[row_key]} by {short[column_key]}\n\n{markdown(pd.DataFrame(rows))}"


def _settings(frame: pd.DataFrame, factors: list[str]) -> str:
    import pandas as pd

    short = short_names(factors)
    rows = [
        {**{short[key]: text(value) for key, value in zip(factors, values)}, "bpc": _summary(part)}
        for values, part in frame.groupby(factors, sort=False, dropna=False)
    ]
    return f"## Settings\n\n{markdown(pd.DataFrame(rows))}"


def _factor(frame: pd.DataFrame, factor: str) -> str:
    """One factor over all values of the others."""
    import pandas as pd

    short = short_names([factor])[factor]
    rows = [
        {
            short: text(value), "cells": len(part), "finished": int((part["status"] == "finished").sum()),
            "Div": int((part["status"] == "Div").sum()), "mean bpc": part["bpc"].mean(), "best bpc": part["bpc"].min(),
        }
        for value, part in frame.groupby(factor, sort=False, dropna=False)
    ]  # fmt: skip
    return f"## {short}, over everything else (means of finished cells: other settings, not seeds alone)\n\n{markdown(pd.DataFrame(rows))}"


def best_settings(frame: pd.DataFrame, row_key: str, others: list[str]) -> pd.DataFrame:
    """For each value of a factor the setting of the others with the lowest mean BPC of which no seed diverged.

    Returns:
        Columns row_key, others, n, bpc, low, high, diverged (cells of the row).
    """
    import pandas as pd

    rows = []
    for value, part in frame.groupby(row_key, sort=False, dropna=False):
        found: list[tuple[tuple, Interval]] = []
        for setting, cells in part.groupby(others, sort=False, dropna=False) if others else [((), part)]:
            interval = mean_interval(cells["bpc"].tolist())
            if interval.n and not (cells["status"] == "Div").any():
                found.append((setting, interval))
        if found:
            setting, best = min(found, key=lambda pair: pair[1].mean)
            numbers = {"n": best.n, "bpc": best.mean, "low": best.low, "high": best.high}
            diverged = int((part["status"] == "Div").sum())
            rows.append({row_key: value, **dict(zip(others, setting)), **numbers, "Div cells": diverged})
    return pd.DataFrame(rows)


def _best(frame: pd.DataFrame, row_key: str, others: list[str]) -> str:
    best = best_settings(frame, row_key, others)
    if best.empty or not others:
        return ""
    short = short_names([row_key, *others])
    for key in (row_key, *others):
        best[key] = [text(value) for value in best[key]]
    note = "(chosen by the same numbers, so a little too good; settings of which a seed diverged are left out)"
    return f"## Best for each {short[row_key]} {note}\n\n{markdown(best.rename(columns=short))}"


def _effects(sweep: Sweep, frame: pd.DataFrame) -> str:
    base = mean_interval(frame[frame["setting"] == "base"]["bpc"].tolist())
    table = effects(frame, sweep.alternatives)
    shown = table.assign(
        effect=[f"{value:+.4f}" if math.isfinite(value) else "-" for value in table["effect"]],
        low=[f"{value:+.4f}" if math.isfinite(value) else "-" for value in table["low"]],
        high=[f"{value:+.4f}" if math.isfinite(value) else "-" for value in table["high"]],
    )
    return (
        f"## Effects: alternative minus base, paired by seed (above 0 is worse)\n\nBase: {base}. Each interval covers 95 % by "
        f"itself; {len(table)} are shown, so expect one in twenty to miss.\n\n{markdown(shown)}"
    )


def _endings(sweep: Sweep, frame: pd.DataFrame) -> str:
    """Cells that diverged or failed, and why."""
    from .cells import read_cell

    lines = []
    for cell in sweep.cells:
        ended = read_cell(cell.run_dir)
        if ended.get("status") in ("Div", "failed") or ended.get("attempts", 1) > 1:
            again = " after a crash" * (ended["attempts"] > 1)
            reason = f": {ended['reason']}" if ended["reason"] else ""
            lines.append(f"- {cell.name}: {ended['status']}{again}{reason}")
    return "## Diverged, failed, or tried twice\n\n" + "\n".join(lines) if lines else ""
