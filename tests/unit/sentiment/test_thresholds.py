"""Thresholds against a search by brute force; the refinement only ever improves, and by small moves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bigbatch.sentiment.thresholds import GRID, REACH, search_thresholds
from sklearn import metrics

SCORES = {
    "f1": lambda t, p: metrics.f1_score(t, p, zero_division=0),
    "mcc": metrics.matthews_corrcoef,
    "jaccard": lambda t, p: metrics.jaccard_score(t, p, zero_division=0),
    "accuracy": metrics.accuracy_score,
}


def make(labels: int, n: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = (generator.random((n, labels)) < 0.25).astype(int)
    probability = np.clip(0.25 * truth + 0.6 * generator.random(truth.shape), 0, 1)
    return probability, truth


@pytest.mark.parametrize("metric", sorted(SCORES))
def test_one_label_gets_the_best_value_of_the_grid(metric: str) -> None:
    probability, truth = make(1)
    values = [SCORES[metric](truth[:, 0], (probability[:, 0] >= value).astype(int)) for value in GRID]
    best = [value for value, score in zip(GRID, values) if score > max(values) - 1e-12]
    thresholds, micro = search_thresholds(probability, truth, metric)
    assert micro == pytest.approx(max(values))
    # Of equally good ones the one nearest to 0.5, then the lower.
    assert thresholds[0] == min(best, key=lambda value: (round(abs(value - 0.5), 9), value))


def test_the_grid_is_the_published_one() -> None:
    assert len(GRID) == 200 and GRID[0] == 0.005 and GRID[-1] == 1.0 and REACH / 200 == 0.04


def test_refinement_improves_the_micro_average_to_where_no_move_helps() -> None:
    probability, truth = make(4, seed=3)
    thresholds, micro = search_thresholds(probability, truth)
    alone = np.array([search_thresholds(probability[:, [k]], truth[:, [k]])[0][0] for k in range(4)])

    def score(values: np.ndarray) -> float:
        return metrics.f1_score(truth, (probability >= values).astype(int), average="micro", zero_division=0)

    assert micro == pytest.approx(score(thresholds)) and micro > score(alone)
    for k, step in itertools.product(range(4), range(-REACH, REACH + 1)):
        moved = thresholds.copy()
        moved[k] = round((moved[k] + step / 200) * 200) / 200
        assert score(moved) <= micro + 1e-12
    np.testing.assert_array_equal(search_thresholds(probability, truth)[0], thresholds)


def test_a_label_without_an_example_takes_the_middle() -> None:
    probability, truth = make(2)
    truth[:, 1] = 0
    assert search_thresholds(np.stack([probability[:, 0], np.zeros(150)], 1), truth)[0][1] == 0.5


def test_bad_input_is_one_clear_line() -> None:
    probability, truth = make(2)
    with pytest.raises(ValueError, match="metric is 'auc'; choose one of f1, mcc, jaccard, accuracy"):
        search_thresholds(probability, truth, "auc")
    with pytest.raises(ValueError, match=r"of one shape \(rows, labels\), not \(150, 2\) and \(150, 1\)"):
        search_thresholds(probability, truth[:, :1])
