"""Intervals and tests that belong to a score: Wilson's for an accuracy, Newcombe's and McNemar's for a pair, a bootstrap.

The first three are closed forms, so an accuracy and its interval never depend on a seed. The bootstrap is for scores
that are no share (F1, MCC, ...); its seed is an argument. All assume items drawn independently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np

_BLOCK_ELEMENTS = 2**22  # resampling weights drawn at once


def _z(confidence: float) -> float:
    assert 0 < confidence < 1
    return NormalDist().inv_cdf(0.5 + confidence / 2)


@dataclass(frozen=True)
class Accuracy:
    """A share of `n` items that are right, with its interval [low, high]."""

    accuracy: float
    n: int
    low: float
    high: float
    confidence: float = 0.95

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.accuracy:.4f} [{self.low:.4f}, {self.high:.4f}] (n = {self.n})"


@dataclass(frozen=True)
class Difference:
    """Accuracy of a minus accuracy of b on the same `n` items; `only_a` were right in a alone, `only_b` in b alone."""

    difference: float
    n: int
    low: float
    high: float
    only_a: int
    only_b: int
    confidence: float = 0.95

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion.

    Raises:
        ValueError: No items.

    Source:
        Wilson 1927; Brown, Cai and DasGupta 2001, eq. 4.
    """
    if n < 1:
        raise ValueError("an accuracy needs at least one item; the labelled set is empty")
    assert 0 <= successes <= n
    z = _z(confidence)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # The ends are exact where the formula only reaches them up to rounding.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def accuracy_interval(predicted: np.ndarray, labels: np.ndarray, confidence: float = 0.95) -> Accuracy:
    """Accuracy of predictions with Wilson's interval. Both arrays have shape (n,)."""
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    assert predicted.shape == labels.shape and predicted.ndim == 1
    n, right = len(labels), int(np.count_nonzero(predicted == labels))
    low, high = wilson_interval(right, n, confidence)
    return Accuracy(right / n, n, low, high, confidence)


def paired_difference(
    predicted_a: np.ndarray, predicted_b: np.ndarray, labels: np.ndarray, confidence: float = 0.95
) -> Difference:
    """Accuracy of a minus accuracy of b on the same items, with an interval that uses the pairing.

    Args:
        predicted_a: Predictions of the first classifier, shape (n,).
        predicted_b: Predictions of the second, same items in the same order.
        labels: The truth, shape (n,).
        confidence: Coverage of the interval.

    Source:
        Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on paired
        data", method 10 (square-and-add of Wilson intervals with a continuity-corrected correlation).
    """
    right_a = np.asarray(predicted_a) == np.asarray(labels)
    right_b = np.asarray(predicted_b) == np.asarray(labels)
    assert right_a.shape == right_b.shape and right_a.ndim == 1
    n = len(right_a)
    both = int(np.count_nonzero(right_a & right_b))
    only_a = int(np.count_nonzero(right_a & ~right_b))
    only_b = int(np.count_nonzero(~right_a & right_b))
    neither = n - both - only_a - only_b
    low_a, high_a = wilson_interval(both + only_a, n, confidence)
    low_b, high_b = wilson_interval(both + only_b, n, confidence)
    share_a, share_b = (both + only_a) / n, (both + only_b) / n
    phi = _correlation(both, only_a, only_b, neither)
    delta = (only_a - only_b) / n

    def spread(left: float, right: float) -> float:
        return math.sqrt(max(left * left - 2 * phi * left * right + right * right, 0.0))

    low = delta - spread(share_a - low_a, high_b - share_b)
    high = delta + spread(high_a - share_a, share_b - low_b)
    return Difference(delta, n, max(low, -1.0), min(high, 1.0), only_a, only_b, confidence)


def _correlation(both: int, only_a: int, only_b: int, neither: int) -> float:
    """Newcombe's phi: the correlation of the 2 x 2 table, shrunk towards zero when it is positive."""
    n = both + only_a + only_b + neither
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    if margins == 0:
        return 0.0
    determinant = both * neither - only_a * only_b
    if determinant > 0:
        determinant = max(determinant - n / 2, 0)
    return determinant / math.sqrt(margins)


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value that two classifiers err equally often, from the items that one alone has right.

    Under the hypothesis each such item is a fair coin: the p-value is twice the smaller tail of the binomial
    distribution, at most 1.

    Source:
        McNemar 1947; the exact form as in Agresti, Categorical Data Analysis, section 10.1.
    """
    assert only_a >= 0 and only_b >= 0
    n, least = only_a + only_b, min(only_a, only_b)
    # Logarithms, as 2**-n underflows from n = 1075 on.
    log_choose = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(least + 1)]
    tail = math.fsum(math.exp(value - n * math.log(2)) for value in log_choose)
    return min(1.0, 2 * tail)


def bootstrap_interval(
    contributions: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    confidence: float = 0.95,
    repeats: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic that is a function of sums over items.

    Items are drawn with replacement, n of n, `repeats` times; counts of true positives, squared errors and the like are
    such sums, so that a resample is a row of a matrix product and the statistic is computed for all resamples at once.

    Args:
        contributions: What each item adds, shape (n, M).
        statistic: From sums of shape (R, M) to values of shape (R,).
        confidence: Coverage of the interval.
        repeats: Resamples R.
        seed: Of the draws.

    Raises:
        ValueError: No items.

    Source:
        Efron 1979; Efron and Tibshirani 1993, section 13.3.
    """
    contributions = np.asarray(contributions, dtype=np.float64)
    n = len(contributions)
    if n < 1:
        raise ValueError("an interval needs at least one item; the labelled set is empty")
    assert 0 < confidence < 1
    generator = np.random.default_rng(seed)
    distinct, sizes = np.unique(contributions, axis=0, return_counts=True)
    few = 4 * len(distinct) <= n  # counts: as many kinds of items as cells in a confusion matrix, drawn as such
    width = len(distinct) if few else n
    block, values = max(1, _BLOCK_ELEMENTS // width), []
    for start in range(0, repeats, block):
        rows = min(block, repeats - start)
        if few:
            weights = generator.multinomial(n, sizes / n, size=rows)
        else:
            drawn = generator.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        values.append(statistic(weights @ (distinct if few else contributions)))
    low, high = np.quantile(np.concatenate(values), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
