"""How much of a probe rests on few units: the probe fitted anew on the k best ones, on all but the best, on k random ones.

Units are ranked by the absolute weight that the probe on all units gives them (by the largest of its classes), equal ones
by index; the single unit to drop is the one that `UnitProbe` chose, or the first of the ranking with more than two
classes. Every choice is made on training and validation data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.statistics import accuracy_interval, paired_difference
from .probe import SentimentProbe
from .probe_file import write_json
from .results import SCHEMA_VERSION

UNITS_KIND = "unit-sets"


def score_unit_sets(
    probe: SentimentProbe,
    best_unit: int | None,
    features: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    ks: Sequence[int],
    *,
    draws: int = 5,
    seed: int = 42,
) -> dict[str, Any]:
    """Test accuracies of probes on sets of units.

    Args:
        probe: Fitted on all units of `features`.
        best_unit: The best single unit; None takes the first of the ranking.
        features: Of train, val and test, each of shape (n, H).
        labels: Class numbers of train, val and test, each of shape (n,).
        ks: Sizes of the sets.
        draws: Random sets of each size.
        seed: Of the random sets.

    Returns:
        `sets`, each with its kind ("best", "random", "without"), units, C, validation accuracy, accuracy with n and
        interval, and its paired difference to the probe on all units.

    Raises:
        ValueError: A size below 1 or above the number of units.
    """
    X, X_val, X_test = features
    y, y_val, truth = labels
    units = X.shape[1]
    if not len(ks) or min(ks) < 1 or max(ks) > units:
        raise ValueError(f"sets of {', '.join(map(str, ks)) or 'no'} units: each size has to lie between 1 and {units}")
    ranking = np.argsort(-np.abs(probe.coef_).max(axis=0), kind="stable")
    dropped = int(ranking[0]) if best_unit is None else best_unit
    asked: list[tuple[str, list[int]]] = []
    if units > 1:
        asked.append(("without", [unit for unit in range(units) if unit != dropped]))
    for k in sorted(set(ks)):
        asked.append(("best", [int(unit) for unit in ranking[:k]]))
        # Ranks of `random()`, as elsewhere: the stream of `choice` may change between versions of numpy.
        for draw in range(draws):
            order = np.argsort(np.random.default_rng((seed, k, draw)).random(units), kind="stable")
            asked.append(("random", sorted(int(unit) for unit in order[:k])))
    everything, sets = probe.predict(X_test), []
    for kind, chosen in asked:
        fitted = SentimentProbe(probe.Cs, probe.seed, probe.max_iter).fit(X[:, chosen], y, X_val[:, chosen], y_val)
        predicted = fitted.predict(X_test[:, chosen])
        sets.append(
            {
                "kind": kind,
                "k": len(chosen),
                "units": [dropped] if kind == "without" else chosen,
                "C": fitted.C_,
                "validation_accuracy": max(fitted.validation_accuracy_),
                **accuracy_interval(predicted, truth).to_dict(),
                "minus_all": paired_difference(predicted, everything, truth).to_dict(),
            }
        )
    return {"sets": sets, "seed": seed, "draws": draws, "all": accuracy_interval(everything, truth).to_dict()}


def unit_sets_table(scored: dict[str, Any]) -> str:
    """Lines of text; random sets of one size share a line with their mean and range."""
    lines = [f"{'units':30}accuracy   95 % interval"]
    for row in scored["sets"]:
        if row["kind"] != "random":
            name = f"without unit {row['units'][0]}" if row["kind"] == "without" else f"best {row['k']}"
            lines.append(f"{name:30}{row['accuracy']:.4f}     {row['low']:.4f} - {row['high']:.4f}")
    for k in dict.fromkeys(row["k"] for row in scored["sets"] if row["kind"] == "random"):
        found = [row["accuracy"] for row in scored["sets"] if (row["kind"], row["k"]) == ("random", k)]
        lines.append(
            f"{f'random {k}, {len(found)} draws':30}{np.mean(found):.4f}     {min(found):.4f} - {max(found):.4f} (range)"
        )
    return "\n".join(lines)


def write_unit_sets(scored: dict[str, Any], result: Path, summary: dict[str, Any]) -> Path:
    """Writes `results/<task>-<hash>.unit-sets.json`; arguments as in `label_efficiency.write_curve`."""
    path = result.with_suffix(f".{UNITS_KIND}.json")
    head = {"schema_version": SCHEMA_VERSION, "kind": UNITS_KIND, "task": summary["task"], "result": result.name}
    write_json(path, {**head, **{key: summary[key] for key in ("model", "features", "data")}, **scored})
    return path
