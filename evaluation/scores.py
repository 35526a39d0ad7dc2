"""Scores of classifiers: one label of two or many, several labels for each item, numbers; and how good probabilities are.

Values are scikit-learn's. Each headline score carries n and a 95 % interval: Wilson's for a share of items that are
right, a bootstrap over items for the others. Two rules hold throughout. A ratio whose denominator is zero is 0
(precision of a class never predicted, F1 of a class neither there nor predicted). Averages go over all classes or labels
of the task, also those that this set of items lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sklearn.metrics

from .counts import ZERO_DIVISION, divide, f1, jaccard, mcc
from .statistics import accuracy_interval, bootstrap_interval, wilson_interval

BINS = 10
metrics: Any = sklearn.metrics  # its annotations say str for zero_division

Score = dict[str, Any]  # value, n, low, high


def classification_scores(
    truth: np.ndarray, predicted: np.ndarray, classes: Sequence[str], probability: np.ndarray | None = None
) -> dict[str, Any]:
    """Scores where each item has one of K classes.

    Args:
        truth: Class numbers, shape (n,).
        predicted: Class numbers, shape (n,).
        classes: Names of the K classes; with two, the second is the positive one.
        probability: Rows that sum to 1, shape (n, K); adds `calibration`.

    Returns:
        `accuracy`, `f1_macro`, `f1_micro`, `mcc` and `jaccard_macro`, and for two classes `f1` (of the second), each a
        dictionary with value, n, low and high; `per_class` by name: precision, recall, f1, jaccard, support.

    Raises:
        ValueError: No items, or probabilities that do not sum to 1 in each row.
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    assert truth.shape == predicted.shape and truth.ndim == 1
    hits = accuracy_interval(predicted, truth)
    labels = np.arange(len(classes))
    counts = _counts(truth[:, None] == labels, predicted[:, None] == labels)
    n, two = len(truth), len(classes) == 2
    options = {"labels": labels, "zero_division": ZERO_DIVISION}
    statistics: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
        "f1_macro": (metrics.f1_score(truth, predicted, average="macro", **options), lambda s: _f1(s).mean(-1)),
        "f1_micro": (metrics.f1_score(truth, predicted, average="micro", **options), _f1_micro),
        "mcc": (float(_mcc(counts.sum(0), n)), lambda s: _mcc(s, n)),
        "jaccard_macro": (
            metrics.jaccard_score(truth, predicted, average="macro", **options),
            lambda s: _jaccard(s).mean(-1),
        ),
    }
    scores: dict[str, Any] = {"accuracy": {"value": hits.accuracy, "n": n, "low": hits.low, "high": hits.high}}
    if two:
        statistics["f1"] = (float(_f1(counts.sum(0))[1]), lambda s: _f1(s)[..., 1])
    for name, (value, statistic) in statistics.items():
        scores[name] = _with_interval(value, counts, statistic)
    scores["per_class"] = _per_class(truth, predicted, classes, labels)
    if probability is not None:
        scores["calibration"] = calibration_scores(probability, truth)
    return scores


def multilabel_scores(
    truth: np.ndarray, predicted: np.ndarray, labels: Sequence[str], probability: np.ndarray | None = None
) -> dict[str, Any]:
    """Scores where each item has any number of K labels.

    Args:
        truth: 0 or 1, shape (n, K).
        predicted: 0 or 1, shape (n, K).
        labels: Names of the K labels.
        probability: One for each label, not normalised, shape (n, K); adds `calibration` by label.

    Returns:
        `exact_match` (all labels of an item right), `f1_macro`, `f1_micro`, `jaccard_samples` (the mean over items of
        labels in common by labels in either), `mcc_macro`, each with value, n, low and high; `per_label` by name:
        precision, recall, f1, mcc, jaccard, support.

    Raises:
        ValueError: No items.
    """
    truth, predicted = np.asarray(truth).astype(int), np.asarray(predicted).astype(int)
    assert truth.shape == predicted.shape == (len(truth), len(labels))
    n = len(truth)
    right = int(np.count_nonzero((truth == predicted).all(axis=1)))
    low, high = wilson_interval(right, n)
    counts = _counts(truth == 1, predicted == 1)
    options = {"zero_division": ZERO_DIVISION}
    common, either = (truth & predicted).sum(1), (truth | predicted).sum(1)
    overlap = np.where(either > 0, common / np.maximum(either, 1), ZERO_DIVISION)[:, None]
    each_mcc = _mcc_each(counts.sum(0), n)  # scikit-learn's warns where a label is not there
    scores: dict[str, Any] = {
        "exact_match": {"value": right / n, "n": n, "low": low, "high": high},
        "f1_macro": _with_interval(
            metrics.f1_score(truth, predicted, average="macro", **options), counts, lambda s: _f1(s).mean(-1)
        ),
        "f1_micro": _with_interval(metrics.f1_score(truth, predicted, average="micro", **options), counts, _f1_micro),
        "jaccard_samples": _with_interval(
            metrics.jaccard_score(truth, predicted, average="samples", **options), overlap, lambda s: s[:, 0] / n
        ),
        "mcc_macro": _with_interval(float(np.mean(each_mcc)), counts, lambda s: _mcc_each(s, n).mean(-1)),
    }
    per_label = {}
    for k, name in enumerate(labels):
        per_label[name] = {**_one_class(truth[:, k], predicted[:, k]), "mcc": float(each_mcc[k])}
        if probability is not None:
            both = np.stack([1 - probability[:, k], probability[:, k]], axis=1)
            per_label[name]["calibration"] = calibration_scores(both, truth[:, k])
    return {**scores, "per_label": per_label}


def regression_scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Pearson's and Spearman's correlation and the mean squared error of numbers, each with value, n, low and high.

    A correlation with something constant is 0, by the same rule as elsewhere. Spearman's interval resamples ranks that
    were computed once.

    Raises:
        ValueError: No items.
    """
    truth, predicted = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    assert truth.shape == predicted.shape and truth.ndim == 1
    n = _need_items(truth)
    scores = {}
    for name, x, y in (("pearson", truth, predicted), ("spearman", _ranks(truth), _ranks(predicted))):
        x, y = x - x.mean(), y - y.mean()
        sums = np.stack([x, y, x * x, y * y, x * y], axis=1)
        scores[name] = _with_interval(float(_correlation(sums.sum(0), n)), sums, lambda s: _correlation(s, n))
    squared = ((truth - predicted) ** 2)[:, None]
    scores["mse"] = _with_interval(float(squared.mean()), squared, lambda s: s[:, 0] / n)
    return scores


def calibration_scores(probability: np.ndarray, truth: np.ndarray, bins: int = BINS) -> dict[str, Any]:
    """How far probabilities are from frequencies.

    Args:
        probability: Rows that sum to 1, shape (n, K).
        truth: Class numbers, shape (n,).
        bins: Bins of equal width over the probability of the predicted class.

    Returns:
        `ece` (expected calibration error: the mean over items of |accuracy - mean probability| of their bin), `brier`
        (the mean over items of the squared distance to the truth summed over classes; for two classes half of that, as
        the score of the second class is usually given), each with value, n, low and high; and `reliability`, a row for
        each bin with its edges, n, mean probability and accuracy.

    Raises:
        ValueError: No items, or rows that do not sum to 1.

    Source:
        Guo et al. 2017, eq. 3; Brier 1950.
    """
    probability, truth = np.asarray(probability, dtype=np.float64), np.asarray(truth)
    if not np.allclose(probability.sum(axis=1), 1, atol=1e-6):
        raise ValueError(
            "the probabilities of an item do not sum to 1 (those of a multi-label head do not); score each label by itself"
        )
    n, K = _need_items(truth), probability.shape[1]
    chosen = probability.argmax(axis=1)
    confidence, right = probability[np.arange(n), chosen], chosen == truth
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    inside = bin_of[:, None] == np.arange(bins)
    parts = np.concatenate([inside * right[:, None], inside * confidence[:, None]], axis=1)
    squared = ((probability - (truth[:, None] == np.arange(K))) ** 2).sum(axis=1, keepdims=True) / (2 if K == 2 else 1)

    def ece(sums: np.ndarray) -> np.ndarray:
        return np.abs(sums[..., :bins] - sums[..., bins:]).sum(axis=-1) / n

    table = []
    for number in range(bins):
        size = int(inside[:, number].sum())
        row: dict[str, Any] = {"low": number / bins, "high": (number + 1) / bins, "n": size}
        if size:
            row["probability"] = float(confidence[inside[:, number]].mean())
            row["accuracy"] = float(right[inside[:, number]].mean())
        table.append(row)
    return {
        "ece": _with_interval(float(ece(parts.sum(0))), parts, ece),
        "brier": _with_interval(float(squared.mean()), squared, lambda s: s[:, 0] / n),
        "reliability": table,
    }


def _need_items(truth: np.ndarray) -> int:
    if not len(truth):
        raise ValueError("a score needs at least one item; the labelled set is empty")
    return len(truth)


def _with_interval(value: float, contributions: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Score:
    low, high = bootstrap_interval(contributions, statistic)
    return {"value": float(value), "n": len(contributions), "low": low, "high": high}


def _per_class(
    truth: np.ndarray, predicted: np.ndarray, classes: Sequence[str], labels: np.ndarray
) -> dict[str, Score]:
    return {name: _one_class(truth == label, predicted == label) for name, label in zip(classes, labels)}


def _one_class(truth: np.ndarray, predicted: np.ndarray) -> Score:
    precision, recall, score, _ = metrics.precision_recall_fscore_support(
        truth, predicted, average="binary", pos_label=1, zero_division=ZERO_DIVISION
    )
    return {
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(score),
        "jaccard": float(metrics.jaccard_score(truth, predicted, zero_division=ZERO_DIVISION)),
        "support": int(np.count_nonzero(truth)),
    }


def _counts(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """What each item adds to true positives, false positives and false negatives, shape (n, 3K)."""
    return np.concatenate([truth & predicted, ~truth & predicted, truth & ~predicted], axis=1).astype(np.float64)


def _f1(sums: np.ndarray) -> np.ndarray:
    tp, fp, fn = np.split(sums, 3, axis=-1)
    return f1(tp, fp, fn, tp)  # has no use for true negatives


def _f1_micro(sums: np.ndarray) -> np.ndarray:
    return _f1(np.stack([part.sum(-1) for part in np.split(sums, 3, axis=-1)], axis=-1))[..., 0]


def _jaccard(sums: np.ndarray) -> np.ndarray:
    tp, fp, fn = np.split(sums, 3, axis=-1)
    return jaccard(tp, fp, fn, tp)  # nor has this


def _mcc(sums: np.ndarray, n: int) -> np.ndarray:
    """Matthews' correlation of K classes from their counts (Gorodkin 2004)."""
    tp, fp, fn = np.split(sums, 3, axis=-1)
    true, said, right = tp + fn, tp + fp, tp.sum(-1)
    spread = (n * n - (said**2).sum(-1)) * (n * n - (true**2).sum(-1))
    return divide(right * n - (true * said).sum(-1), np.sqrt(np.maximum(spread, 0)))


def _mcc_each(sums: np.ndarray, n: int) -> np.ndarray:
    tp, fp, fn = np.split(sums, 3, axis=-1)
    return mcc(tp, fp, fn, n - tp - fp - fn)


def _correlation(sums: np.ndarray, n: int) -> np.ndarray:
    """Pearson's correlation from sums of x, y, xx, yy, xy over n items."""
    x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = np.sqrt(np.maximum(xx - x * x / n, 0) * np.maximum(yy - y * y / n, 0))
    # Rounding leaves something of what is constant.
    constant = spread <= 1e-12 * np.sqrt(xx * yy)
    return np.where(constant, ZERO_DIVISION, (xy - x * y / n) / np.where(constant, 1, spread))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share the middle one."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]
