"""Scores as functions of counts: true and false positives, false and true negatives, in arrays of any one shape.

`scores.py` gets its intervals from them, as a resample is a table of counts, and `sentiment/thresholds.py` searches with
them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

ZERO_DIVISION = 0.0


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """The ratio, and 0 where the denominator is 0."""
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1), ZERO_DIVISION)


def f1(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> np.ndarray:
    return divide(2 * tp, 2 * tp + fp + fn)


def jaccard(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> np.ndarray:
    return divide(tp, tp + fp + fn)


def accuracy(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> np.ndarray:
    return divide(tp + tn, tp + fp + fn + tn)


def mcc(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> np.ndarray:
    """Matthews' correlation of a label and its prediction."""
    return divide(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


METRICS: dict[str, Callable[..., np.ndarray]] = {"f1": f1, "mcc": mcc, "jaccard": jaccard, "accuracy": accuracy}
