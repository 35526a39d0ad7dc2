"""Frames of what run folders hold: a row a run, a row a setting with its interval over seeds, a row a paired comparison.

A run's seed is `seed` of its configuration; runs that differ in nothing else are one setting. Every mean has its n.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..training.config import LAYOUT_KEYS, config_from_dict, flatten
from ..training.metrics import read_metrics, read_result
from ..training.run import read_config
from .cells import read_cell

if TYPE_CHECKING:
    import pandas as pd

CLASSIFIERS = ("probe", "unit", "baseline_tfidf", "baseline_majority")
SCORES = ("accuracy", "n", "low", "high")

Row = dict[str, Any]


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values with its 95 % interval by Student's t; NaN where n is below two."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:.4f} (n = {self.n})" if self.n else "- (n = 0)"
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}] (n = {self.n})"


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """Mean and interval of values that are drawn independently, such as one for each seed; NaN are left out."""
    import numpy as np
    from scipy.stats import t

    finite = np.array([value for value in values if math.isfinite(value)], dtype=float)
    n = len(finite)
    if n < 2:
        return Interval(float(finite[0]) if n else math.nan, math.nan, math.nan, n)
    half = float(t.ppf(0.5 + confidence / 2, n - 1)) * float(finite.std(ddof=1)) / math.sqrt(n)
    mean = float(finite.mean())
    return Interval(mean, mean - half, mean + half, n)


def paired_interval(a: Sequence[Row], b: Sequence[Row], metric: str) -> Interval:
    """Mean of a minus b over the seeds for which both have a value; rows without a seed are one run against one."""
    left, right = ({row.get("seed"): row[metric] for row in rows if math.isfinite(row[metric])} for rows in (a, b))
    return mean_interval(left[seed] - right[seed] for seed in left if seed in right)


def grouped(rows: Iterable[Row], keys: Sequence[str]) -> list[tuple[tuple, list[Row]]]:
    """Rows by their values of the keys, in the order in which they come; without keys all of them."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.items())


def count(rows: Iterable[Row], status: str) -> int:
    return sum(row["status"] == status for row in rows)


def run_row(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flat configuration of a run and what is known of how it went.

    Raises:
        ValueError: no run folder, one of another version, or damaged results.
    """
    try:
        config = flatten(config_from_dict(read_config(run_dir)).to_dict())
    except ValueError as error:
        raise ValueError(
            str(error) if str(run_dir) in str(error) else f"{run_dir}: {error}: leave this run out"
        ) from None
    result = read_result(run_dir)
    rows = read_metrics(run_dir) if (run_dir / "metrics.jsonl").is_file() else []
    train = [row for row in rows if "event" not in row]
    last = train[-1] if train else {}
    done = result.get("train") or {}
    val = done.get("val") or {}
    ended = read_cell(run_dir)
    evals = [row["bpc"] for row in rows if row.get("event") == "eval" and row["bpc"] is not None]
    row: dict[str, Any] = {
        "status": ended.get("status") or ("unfinished" if train else "not started"),
        "samples": done.get("samples", last.get("samples", 0)),
        "tokens": done.get("tokens", last.get("tokens", 0)),
        "bpc": val.get("bpc", math.nan),
        "bpc_n": val.get("num_targets", 0),
        "best_bpc": min(evals, default=math.nan),
        "bpc_test": result.get("bpc", math.nan)
        if str(result.get("bpc_of", "")).startswith("the test split")
        else math.nan,
        "seconds": done.get("seconds", math.nan),
        "skipped_steps": done.get("skipped_steps", last.get("skipped_steps", 0)),
    }
    if row["status"] != "finished":
        row["bpc"] = math.nan
    noise = [value for value in (item.get("noise_scale") for item in train) if value is not None]
    if noise:
        row["noise_scale"] = noise[-1]
    return config, row | _accuracies(run_dir)


def _accuracies(run_dir: Path) -> dict[str, float]:
    """`task.classifier.accuracy`, `.n`, `.low`, `.high` of every transfer; of several of one task the newest."""
    found: dict[str, float] = {}
    for path in sorted((run_dir / "results").glob("*.json"), key=lambda path: path.stat().st_mtime):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and run `bigbatch transfer` again") from None
        task = summary.get("task", path.stem.rpartition("-")[0])
        for name in CLASSIFIERS:
            scores = summary.get(name) or {}
            if "accuracy" in scores:
                found |= {f"{task}.{name}.{score}": scores[score] for score in SCORES}
    return found


def run_frame(folders: Sequence[Path | str]) -> pd.DataFrame:
    """A row a run: `run`, the configuration keys that differ, `status`, and the numbers.

    Args:
        folders: run folders, or one folder of them (such as that of a sweep).

    Returns:
        `bpc` is the last validation of a finished run over `bpc_n` bytes, NaN otherwise; `attrs["settings"]` names the
        keys that differ, the seed among them; where a run is computed and how it is logged do not count.

    Raises:
        ValueError: as `run_row`, or there is no run.
    """
    import pandas as pd

    runs = [run for folder in folders for run in _runs_in(Path(folder))]
    if not runs:
        raise ValueError("no run folders were named: `bigbatch results runs/a runs/b`, or a folder that holds runs")
    pairs = [run_row(run) for run in runs]
    keys = [key for config, _ in pairs for key in config]
    keys = [key for key in dict.fromkeys(keys) if key not in LAYOUT_KEYS and not key.startswith("log.")]
    differ = [key for key in keys if len({json.dumps(config.get(key)) for config, _ in pairs}) > 1]
    names = _names(runs)
    rows = [
        {"run": name, **{key: config.get(key) for key in differ}, **row} for name, (config, row) in zip(names, pairs)
    ]
    frame = pd.DataFrame(rows)
    for key in differ:  # lists cannot be grouped by
        frame[key] = [json.dumps(value) if isinstance(value, list) else value for value in frame[key]]
    frame.attrs["settings"] = differ
    return frame


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself, or the run folders in it."""
    if (folder / "config.yaml").is_file() or not folder.is_dir():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/config.yaml")) or [folder]


def _names(runs: Sequence[Path]) -> list[str]:
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def check_metric(frame: pd.DataFrame, metric: str) -> None:
    """Raises ValueError where the frame has no such numbers."""
    import pandas as pd

    numbers = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
    if metric not in numbers:
        raise ValueError(
            f"--metric {metric!r} is no number of these runs: choose one of {', '.join(map(str, numbers))}"
        )


def by_setting(frame: pd.DataFrame, metric: str = "bpc") -> pd.DataFrame:
    """A row a setting: its keys, runs, how many are finished and diverged, and mean, low, high, n of the metric over seeds."""
    import pandas as pd

    keys = [key for key in frame.attrs["settings"] if key != "seed"]
    table = []
    for values, rows in grouped(frame.to_dict("records"), keys):
        interval = mean_interval(row[metric] for row in rows)
        ends = {"runs": len(rows), "finished": count(rows, "finished"), "diverged": count(rows, "Div")}
        numbers = {"n": interval.n, metric: interval.mean, "low": interval.low, "high": interval.high}
        table.append({**dict(zip(keys, values)), **ends, **numbers})
    return pd.DataFrame(table)


def paired(frame: pd.DataFrame, metric: str = "bpc") -> pd.DataFrame:
    """Every setting against the first one over the seeds that both have: n, difference, low, high.

    Settings that share no seed with the first are compared by nothing (n = 0): their difference would be one of seeds too.
    """
    import pandas as pd

    keys = [key for key in frame.attrs["settings"] if key != "seed"]
    groups = grouped(frame.to_dict("records"), keys)
    table = []
    for values, rows in groups[1:]:
        gap = paired_interval(rows, groups[0][1], metric)
        table.append({**dict(zip(keys, values)), "n": gap.n, "difference": gap.mean, "low": gap.low, "high": gap.high})
    return pd.DataFrame(table, columns=[*keys, "n", "difference", "low", "high"])


def markdown(frame: pd.DataFrame, digits: int = 4) -> str:
    """A frame as a Markdown table; what is not a number is a dash."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            if math.isnan(value):
                return "-"
            return f"{value:,.0f}" if value == round(value) and abs(value) >= 1 else f"{value:.{digits}g}"
        return "-" if value is None else str(value).replace("|", "\\|")

    rows = [[cell(value) for value in row] for row in frame.itertuples(index=False)]
    lines = [list(map(str, frame.columns)), ["---"] * len(frame.columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
