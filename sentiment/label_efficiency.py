"""How many labels it takes: test accuracy of the probe and of the best unit over the number of training labels.

A point with n labels is the mean over several draws of n training texts, with the class proportions of the whole; draws
of one seed are nested, so that more labels are never other labels. C and unit are chosen on validation texts drawn in the
same way, n of them or all there are, so that a point with few labels does not lean on many others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from ..evaluation.statistics import wilson_interval
from .probe import SentimentProbe
from .probe_file import write_atomic, write_json
from .results import SCHEMA_VERSION, table_csv
from .units import UnitProbe
from .visualize import INK, NEGATIVE, POSITIVE, save_figure

CURVE_KIND = "label-efficiency"


def default_sizes(n: int) -> list[int]:
    """10, 30, 100, 300, ... below n, and n."""
    steps = [step * 10**power for power in range(1, 10) for step in (1, 3)]
    return [*[size for size in steps if size < n], n]


def nested_order(y: np.ndarray, seed: int) -> np.ndarray:
    """An order of all rows of which every beginning has about the class proportions of the whole, by seed.

    The i-th of m rows of a class stands at (i + 1/2) / m of the way, except that the first row of each class comes before
    all others: as many labels as there are classes have one of each.
    """
    draws = np.random.default_rng(seed).random(len(y))
    place = np.empty(len(y))
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        members = members[np.argsort(draws[members], kind="stable")]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
        place[members[0]] = -1
    return np.lexsort((draws, place))


def label_efficiency(
    features: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    *,
    sizes: Sequence[int] | None = None,
    seeds: int = 5,
    seed: int = 42,
    progress: bool = True,
) -> dict[str, Any]:
    """The curve.

    Args:
        features: Of train, val and test, each of shape (n, H).
        labels: Class numbers of train, val and test, each of shape (n,).
        sizes: Numbers of training labels; None takes 10, 30, 100, ... and all.
        seeds: Draws for each number but all.
        seed: Of the first draw, and of liblinear.
        progress: Show a bar.

    Returns:
        `points`, each with the number of labels and for `probe`, and with two classes `unit`, the accuracies of the draws,
        their mean, standard deviation, lowest and highest; and Wilson's interval of the mean, which says how much the
        size of the test set leaves open.

    Raises:
        ValueError: Fewer than one draw, or a number of labels below the number of classes or above that of the texts.
    """
    (X, X_val, X_test), (y, y_val, y_test) = features, labels
    classes = len(np.unique(y))
    sizes = default_sizes(len(y)) if sizes is None else sorted(set(sizes))
    # A draw needs a row of each class; where the default has less, it starts higher.
    wanted = [size for size in sizes if size >= classes] if sizes == default_sizes(len(y)) else sizes
    if seeds < 1:
        raise ValueError(f"{seeds} draws of a label-efficiency curve; at least one is needed")
    if wanted[0] < classes or wanted[-1] > len(y):
        raise ValueError(
            f"{sizes} labels: each number has to lie between {classes}, the classes, and {len(y)}, the texts"
        )
    orders = [(nested_order(y, seed + draw), nested_order(y_val, seed + draw)) for draw in range(seeds)]
    points = []
    with tqdm(total=len(wanted) * seeds, desc="label efficiency", disable=None if progress else True) as bar:
        for size in wanted:
            found: dict[str, list[float]] = {"probe": []} | ({"unit": []} if classes == 2 else {})
            size_val = min(max(size, classes), len(y_val))
            for order, order_val in orders[: 1 if size == len(y) else seeds]:
                some, some_val = order[:size], order_val[:size_val]
                part = X[some], y[some], X_val[some_val], y_val[some_val]
                found["probe"].append(float(SentimentProbe(seed=seed).fit(*part).score(X_test, y_test)))
                if classes == 2:
                    found["unit"].append(float(UnitProbe().fit(*part).score(X_test, y_test)))
                bar.update(1)
            rows = {name: _spread(accuracies, len(y_test)) for name, accuracies in found.items()}
            points.append({"labels": size, "validation_labels": size_val, **rows})
    return {"points": points, "seed": seed, "draws": seeds, "n": len(y_test)}


def _spread(accuracies: list[float], n: int) -> dict[str, Any]:
    mean = float(np.mean(accuracies))
    low, high = wilson_interval(round(mean * n), n)
    return {
        "accuracies": accuracies,
        "mean": mean,
        "sd": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "min": min(accuracies),
        "max": max(accuracies),
        "low": low,
        "high": high,
    }


def write_curve(curve: dict[str, Any], result: Path, summary: dict[str, Any]) -> list[Path]:
    """Writes `results/<task>-<hash>.label-efficiency.json` and `.csv`, and `plots/<task>-label-efficiency.png`.

    Args:
        curve: From `label_efficiency`.
        result: Path of the transfer's result.
        summary: Its content: task, model, features and data go into the file.

    Returns:
        The three paths.
    """
    head = {"schema_version": SCHEMA_VERSION, "kind": CURVE_KIND, "task": summary["task"], "result": result.name}
    about = {key: summary[key] for key in ("model", "features", "data")}
    paths = [result.with_suffix(f".{CURVE_KIND}.{ending}") for ending in ("json", "csv")]
    rows = [
        [point["labels"], point["validation_labels"], name, draw, accuracy]
        for point in curve["points"]
        for name in ("probe", "unit")
        if name in point
        for draw, accuracy in enumerate(point[name]["accuracies"])
    ]
    picture = result.parent.parent / "plots" / f"{summary['task']}-{CURVE_KIND}.png"
    draw_curve(curve, picture, majority=summary.get("baseline_majority", {}).get("accuracy"))
    write_atomic(paths[1], table_csv(["labels", "validation_labels", "classifier", "draw", "accuracy"], rows))
    write_json(paths[0], {**head, **about, **curve})
    return [*paths, picture]


def draw_curve(curve: dict[str, Any], path: Path, majority: float | None = None) -> None:
    """Accuracy over labels, on a logarithmic axis: mean and standard deviation over draws, every draw as a dot."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    for name, color, text in (("probe", POSITIVE, "L1 probe on all units"), ("unit", NEGATIVE, "best single unit")):
        points = [point for point in curve["points"] if name in point]
        if not points:
            continue
        labels = [point["labels"] for point in points]
        means = [point[name]["mean"] for point in points]
        spread = [point[name]["sd"] or 0.0 for point in points]
        axes.errorbar(labels, means, yerr=spread, color=color, marker="o", markersize=4, capsize=3, label=text)
        for point in points:
            dots = point[name]["accuracies"]
            axes.scatter([point["labels"]] * len(dots), dots, color=color, s=8, alpha=0.35, linewidths=0)
    if majority is not None:
        axes.axhline(majority, color=INK, linestyle=":", linewidth=1, label="majority class")
    axes.set_xscale("log")
    axes.set_xlabel("training labels", fontsize=9)
    axes.set_ylabel(f"test accuracy (n = {curve['n']:,})", fontsize=9)
    axes.set_title(f"Labels needed: mean and standard deviation of {curve['draws']} draws", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    save_figure(figure, path)
