"""Thresholds of a multi-label head, found on validation data: a grid for each label, then a refinement of all together.

Both steps are deterministic: the same probabilities give the same thresholds.
"""

from __future__ import annotations

import numpy as np

from ..evaluation.counts import METRICS

GRID = np.arange(1, 201) / 200  # 0.005, 0.01, ..., 1
REACH = 8  # how many grid steps a refinement looks to either side: 0.04
MAX_SWEEPS = 20


def search_thresholds(probability: np.ndarray, truth: np.ndarray, metric: str = "f1") -> tuple[np.ndarray, float]:
    """Thresholds that do best on validation data; a label is predicted where its probability reaches its threshold.

    1. Each label takes the value of the grid with its best score; of equally good ones the one nearest to 0.5, then the
       lower.
    2. Label after label, the threshold moves to the value within 0.04 that improves the micro average (the score of the
       counts of all labels together) most, until a round through all labels changes nothing. The same rule for ties;
       a move has to improve.

    Args:
        probability: One for each label, shape (n, K).
        truth: 0 or 1, shape (n, K).
        metric: "f1", "mcc", "jaccard" or "accuracy".

    Returns:
        Thresholds, shape (K,), and the micro average that they reach.

    Raises:
        ValueError: A metric that is not known, no rows, or shapes that differ.

    Source:
        The grid and the width of the moves are those of NVIDIA/sentiment-discovery, threshold.py, whose moves are random.
    """
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; choose one of {', '.join(METRICS)}")
    probability, truth = np.asarray(probability), np.asarray(truth)
    if probability.shape != truth.shape or truth.ndim != 2 or not len(truth):
        raise ValueError(
            f"thresholds need probabilities and labels of one shape (rows, labels), not {probability.shape} and {truth.shape}"
        )
    score = METRICS[metric]
    counts = np.stack([_counts(probability[:, k], truth[:, k] > 0) for k in range(truth.shape[1])])  # (K, 200, 4)
    preference = np.lexsort((GRID, np.abs(GRID - 0.5)))
    chosen = np.array([_first_best(score(*np.moveaxis(each, -1, 0)), preference) for each in counts])
    micro = float(score(*_total(counts, chosen)))
    for _ in range(MAX_SWEEPS):
        before = micro
        for k in range(len(chosen)):
            others = _total(counts, chosen) - counts[k, chosen[k]]
            values = score(*np.moveaxis(others + counts[k], -1, 0))
            near = preference[np.abs(preference - chosen[k]) <= REACH]
            best = _first_best(values, near)
            if values[best] > micro:
                chosen[k], micro = best, float(values[best])
        if micro == before:
            break
    return GRID[chosen], micro


def _counts(probability: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """True and false positives, false and true negatives at each value of the grid, shape (200, 4)."""
    # Sorted once: what reaches a threshold is the end of the list.
    ones, zeros = np.sort(probability[positive]), np.sort(probability[~positive])
    tp, fp = len(ones) - np.searchsorted(ones, GRID), len(zeros) - np.searchsorted(zeros, GRID)
    return np.stack([tp, fp, len(ones) - tp, len(zeros) - fp], axis=1).astype(np.float64)


def _total(counts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return counts[np.arange(len(chosen)), chosen].sum(axis=0)


def _first_best(values: np.ndarray, preference: np.ndarray) -> int:
    """The index of the highest value; of equal ones the first in `preference`."""
    return int(preference[values[preference].argmax()])
