"""Calibration against scikit-learn and a grid; order, decisions and files stay in step with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bigbatch.evaluation.scores import calibration_scores
from bigbatch.sentiment.calibration import class_probabilities, fit_calibration
from bigbatch.sentiment.probe import SentimentProbe
from sklearn.calibration import _SigmoidCalibration

from .test_probe import make_data


def overconfident(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds three times too large and one too high, with the labels that the true ones gave."""
    generator = np.random.default_rng(seed)
    true = generator.normal(size=n)
    return 3 * true + 1, (generator.random(n) < 1 / (1 + np.exp(-true))).astype(int)


def test_platt_equals_scikit_learn_and_finds_the_truth() -> None:
    scores, y = overconfident()
    fitted = fit_calibration("platt", scores, y)
    assert fitted is not None
    theirs = _SigmoidCalibration().fit(scores, y)  # p = 1 / (1 + exp(a * score + b))
    assert (fitted.scale[0], fitted.shift[0]) == pytest.approx((-theirs.a_, -theirs.b_), rel=1e-3)
    assert (fitted.scale[0], fitted.shift[0]) == pytest.approx((1 / 3, -1 / 3), abs=0.04)


@pytest.mark.parametrize("classes", [2, 4])
def test_temperature_is_the_best_of_a_grid(classes: int) -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(classes, size=500)
    scores = generator.normal(size=(500, classes)) * 4
    scores[np.arange(500), y] += 5
    scores = scores[:, 1] - scores[:, 0] if classes == 2 else scores
    fitted = fit_calibration("temperature", scores, y)
    assert fitted is not None and not fitted.shift.any() and len(set(fitted.scale)) == 1

    def loss(scale: float) -> float:
        return -np.log(class_probabilities(scale * scores)[np.arange(500), y]).mean()

    grid = np.exp(np.linspace(-4, 1, 501))
    best = grid[np.argmin([loss(scale) for scale in grid])]
    assert fitted.scale[0] == pytest.approx(best, rel=0.02) and loss(fitted.scale[0]) <= loss(best) + 1e-12


def test_perfectly_told_apart_classes_stay_finite() -> None:
    scores, y = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([0, 0, 1, 1])
    for kind in ("platt", "temperature"):
        fitted = fit_calibration(kind, scores, y)
        assert fitted is not None and np.isfinite(fitted.scale).all() and np.isfinite(fitted.shift).all()
    assert fit_calibration("none", scores, y) is None
    with pytest.raises(ValueError, match="calibration is 'isotonic'; choose one of none, platt, temperature"):
        fit_calibration("isotonic", scores, y)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["platt", "temperature"])
def test_probe_is_better_calibrated_and_consistent(kind: str, classes: int, tmp_path: Path) -> None:
    X, y, X_val, y_val = make_data(classes=classes, n=900, units=60)
    # So little data and so weak a penalty that the raw probe is far too sure of itself.
    few = slice(0, 60)
    raw = SentimentProbe(Cs=(100.0,)).fit(X[few], y[few], X_val[:250], y_val[:250])
    probe = SentimentProbe(Cs=(100.0,), calibration=kind).fit(X[few], y[few], X_val[:250], y_val[:250])
    np.testing.assert_array_equal(probe.coef_, raw.coef_)
    X_test, y_test = X_val[250:], y_val[250:]
    before = calibration_scores(raw.predict_proba(X_test), y_test)
    after = calibration_scores(probe.predict_proba(X_test), y_test)
    assert after["ece"]["value"] < 0.6 * before["ece"]["value"] and after["brier"]["value"] < before["brier"]["value"]
    probability = probe.predict_proba(X_test)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    np.testing.assert_array_equal(probe.predict(X_test), probe.classes_[probability.argmax(axis=1)])
    probe.save(tmp_path / "p.json", {})
    loaded, _ = SentimentProbe.load(tmp_path / "p.json")
    np.testing.assert_array_equal(loaded.predict_proba(X_test), probability)
    assert loaded.get_params() == probe.get_params()
    with pytest.raises(ValueError, match="calibration is 'beta'"):
        SentimentProbe(calibration="beta").fit(X, y)  # type: ignore[arg-type]


def test_no_class_left_gives_it_to_the_least_unlikely() -> None:
    probability = class_probabilities(np.array([[-900.0, -800.0, -2000.0], [900.0, -800.0, -2000.0]]))
    np.testing.assert_array_equal(probability, [[0, 1, 0], [1, 0, 0]])
