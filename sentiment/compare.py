"""Two transfer results on the same test texts, compared pair by pair: whose errors are the other's, and is it chance.

The predictions are those that `transfer.py` wrote beside its results; nothing is computed anew.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.statistics import mcnemar_exact, paired_difference
from .probe_file import write_json
from .results import SCHEMA_VERSION, predictions_path

COMPARISON_KIND = "comparison"


def compare_results(first: Path, second: Path) -> dict[str, Any]:
    """Accuracy of the first minus accuracy of the second.

    Args:
        first: `results/<task>-<hash>.json` of a transfer; its table of predictions lies beside it.
        second: Another, of another model, other features or another task name, on the same labelled test texts.

    Returns:
        `difference` with its paired 95 % interval, n, how many texts only one of them has right, and `p_value` of
        McNemar's exact test; and what the two are.

    Raises:
        ValueError: Files that are no such results, results without labels, other test texts, or a table of predictions
            that is missing or does not belong to its result.
    """
    results = [_read(path) for path in (first, second)]
    if results[0]["data"]["test"]["sha256"] != results[1]["data"]["test"]["sha256"]:
        raise ValueError(
            f"{first} and {second} have other test data: a paired comparison needs the same texts, in the same order, with "
            "the same labels"
        )
    (labels, mine), (_, theirs) = (_predictions(path, result) for path, result in zip((first, second), results))
    found = paired_difference(mine, theirs, labels)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": COMPARISON_KIND,
        "task": results[0]["task"],
        **{
            name: {
                "result": str(path),
                "task": result["task"],
                "model": result["model"]["hash"],
                "features": result["features"],
                "accuracy": result["probe"]["accuracy"],
            }
            for name, path, result in zip(("first", "second"), (first, second), results)
        },
        **found.to_dict(),
        "p_value": mcnemar_exact(found.only_a, found.only_b),
    }


def comparison_line(comparison: dict[str, Any]) -> str:
    """The comparison in a sentence."""
    return (
        f"minus {Path(comparison['second']['result']).name}: {comparison['difference']:+.4f} "
        f"[{comparison['low']:+.4f}, {comparison['high']:+.4f}] on {comparison['n']:,} texts; right in this one alone "
        f"{comparison['only_a']:,}, in that one alone {comparison['only_b']:,}; McNemar's exact p = "
        f"{comparison['p_value']:.2g}"
    )


def write_comparison(comparison: dict[str, Any], first: Path, second: Path) -> Path:
    """Writes `results/<first>.vs-<second>.json`."""
    path = first.with_suffix(f".vs-{second.stem}.json")
    write_json(path, comparison)
    return path


def check_result(path: Path) -> None:
    """Raises `ValueError` if the file is none that `compare_results` takes; before work is done whose result it needs."""
    result = _read(path)
    _predictions(path, result)


def _read(path: Path) -> dict[str, Any]:
    hint = "name a results/TASK-HASH.json of bigbatch transfer"
    if not path.is_file():
        raise ValueError(f"there is no result {path}; {hint}")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        kind, version = result["kind"], result["schema_version"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result ({error!r}); {hint}") from None
    if kind != "transfer" or version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} is a {kind} of version {version}, not one label a text of version {SCHEMA_VERSION}; {hint}"
        )
    if "accuracy" not in result["probe"]:
        raise ValueError(f"{path} has no accuracy: its test data had no labels")
    return result


def _predictions(path: Path, result: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions of the test texts, by class name."""
    table = predictions_path(path)
    try:
        with table.open(encoding="utf-8", newline="") as file:
            rows = [(row["label"], row["predicted"]) for row in csv.DictReader(file)]
    except (OSError, KeyError) as error:
        raise ValueError(
            f"the predictions {table} of {path.name} cannot be read ({error!r}); run transfer again"
        ) from None
    labels, predicted = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    right = int(np.count_nonzero(labels == predicted))
    if len(rows) != result["probe"]["n"] or abs(right / max(len(rows), 1) - result["probe"]["accuracy"]) > 1e-9:
        raise ValueError(f"the predictions {table} are not those of {path.name}; run transfer again")
    return labels, predicted
