"""The single-unit probe against a search over every threshold, and its rule of choice."""

from __future__ import annotations

import numpy as np
import pytest
from bigbatch.sentiment import units as module
from bigbatch.sentiment.units import UnitProbe, fit_thresholds


def slow_fit(values: np.ndarray, positive: np.ndarray) -> float:
    """Best accuracy of any threshold and sign, one by one."""
    distinct = np.unique(values)
    cuts = [distinct[0] - 1, *((distinct[1:] + distinct[:-1]) / 2), distinct[-1] + 1]
    return max(max(np.mean((values > cut) == positive), np.mean((values < cut) == positive)) for cut in cuts)


@pytest.mark.parametrize("rounded", [False, True])
def test_thresholds_are_the_best_there_are(rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    positive = generator.random(60) < 0.4
    X = generator.normal(size=(60, 30)).astype(np.float32)
    X[:, ::3] += positive[:, None]
    X[:, 1::3] -= positive[:, None]
    if rounded:  # many equal values: a cut between them would be a lie
        X = np.round(X)
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 7 * 60)
    thresholds, signs, accuracies = fit_thresholds(X, positive)
    for unit in range(30):
        assert accuracies[unit] == pytest.approx(slow_fit(X[:, unit].astype(np.float64), positive))
        predicted = (X[:, unit] - thresholds[unit]) * signs[unit] > 0
        assert np.mean(predicted == positive) == pytest.approx(accuracies[unit])
    assert set(signs) == {-1, 1}


def test_constant_unit_is_the_majority_class() -> None:
    positive = np.array([True, True, False])
    thresholds, signs, accuracies = fit_thresholds(np.full((3, 2), 0.5), positive)
    assert accuracies.tolist() == [2 / 3, 2 / 3]
    assert np.all((0.5 - thresholds) * signs > 0)


def test_best_unit_is_chosen_on_validation_not_on_training() -> None:
    generator = np.random.default_rng(0)
    y, y_val = np.arange(100) % 2, np.arange(80) % 2
    X, X_val = generator.normal(size=(100, 6)), generator.normal(size=(80, 6))
    X[:, 2] = y  # perfect in training, noise in validation
    X[:, 4] += 3.0 * y
    X_val[:, 4] += 3.0 * y_val
    probe = UnitProbe().fit(X, y, X_val, y_val)
    assert (probe.index_, probe.sign_) == (4, 1)
    assert probe.train_accuracy_ < 1.0
    assert (
        probe.validation_accuracy_ == np.mean(probe.predict(X_val) == y_val) == probe.all_validation_accuracies_.max()
    )
    assert set(probe.to_dict()) == {"index", "sign", "threshold", "train_accuracy", "validation_accuracy"}


def test_sign_is_reported() -> None:
    y = np.array([3, 3, 8, 8])
    X = np.array([[0.0, 9.0], [0.0, 8.0], [0.0, 1.0], [0.0, 2.0]])
    probe = UnitProbe().fit(X, y, X, y)
    assert (probe.index_, probe.sign_, probe.threshold_) == (1, -1, 5.0)
    assert probe.predict(np.array([[0.0, 100.0], [0.0, -100.0]])).tolist() == [3, 8]


def test_ties_go_to_training_accuracy_then_to_the_lower_index() -> None:
    y = np.array([0, 0, 1, 1])
    noisy, exact = [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]
    X = np.stack([noisy, exact, exact], axis=1)
    X_val = np.stack([exact, exact, exact], axis=1)
    assert UnitProbe().fit(X, y, X_val, y).index_ == 1


def test_more_than_two_classes_are_refused() -> None:
    X, y = np.zeros((3, 2)), np.arange(3)
    with pytest.raises(ValueError, match="two classes apart, and the training data has 3"):
        UnitProbe().fit(X, y, X, y)
    with pytest.raises(ValueError, match="no row of class 1"):
        UnitProbe().fit(X, np.array([0, 1, 1]), X, np.zeros(3, dtype=int))
