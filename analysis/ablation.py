"""One factor at a time: a base, alternatives for each factor, and the effect of each over shared seeds.

A plan is the section `ablate` of a sweep file (`sweeps.py`); an effect is alternative minus base, paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

BASE = "base"


def ablation_variants(
    file: Path, factors: Sequence[tuple[str, list[dict[str, Any]]]], name: Callable[[dict[str, Any]], str]
) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], dict[str, str]]:
    """The base and every alternative, each with all else as in the base.

    Args:
        file: for messages.
        factors: key, or keys that move together -> their settings.
        name: keys and values -> how they are written.

    Returns:
        What names a cell and its overrides, the base first; and setting -> factor.

    Raises:
        ValueError: no factors, or two alternatives of the same name.
    """
    if not factors:
        raise ValueError(f"{file}: ablate has no factors: give keys with lists of alternatives")
    variants: list[tuple[dict[str, Any], dict[str, Any]]] = [({"setting": BASE}, {})]
    alternatives: dict[str, str] = {}
    for factor, settings in factors:
        for overrides in settings:
            setting = name(overrides)
            if setting in alternatives:
                raise ValueError(f"{file}: two cells have the name {setting}: leave one of them")
            alternatives[setting] = factor
            variants.append(({"setting": setting}, overrides))
    return variants, alternatives


def effects(frame: pd.DataFrame, alternatives: Mapping[str, str], metric: str = "bpc") -> pd.DataFrame:
    """Alternative minus base for each factor.

    Args:
        frame: a row a cell with `setting`, `seed` (or none), `status` and the metric.
        alternatives: setting -> factor.
        metric: column compared; lower is better for bpc.

    Returns:
        Columns factor, setting, n (shared seeds), diverged, mean (of the alternative, over its own finished seeds), effect,
        low, high (95 %, Student's t over the paired differences; NaN with fewer than two).
    """
    import pandas as pd

    from .results import count, mean_interval, paired_interval

    cells = frame.to_dict("records")
    base = [row for row in cells if row["setting"] == BASE]
    table = []
    for setting, factor in alternatives.items():
        rows = [row for row in cells if row["setting"] == setting]
        effect = paired_interval(rows, base, metric)
        numbers = {
            "mean": mean_interval(row[metric] for row in rows).mean,
            "effect": effect.mean,
            "low": effect.low,
            "high": effect.high,
        }
        table.append({"factor": factor, "setting": setting, "n": effect.n, "diverged": count(rows, "Div"), **numbers})
    return pd.DataFrame(table)
