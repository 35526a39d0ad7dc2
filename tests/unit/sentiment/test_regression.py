"""Ridge regression against scikit-learn's, for more rows than units and fewer, and scikit-learn's own checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pytest
from bigbatch.sentiment.regression import RidgeProbe
from sklearn.base import BaseEstimator
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

ALPHAS = (0.1, 10.0, 1000.0)


@parametrize_with_checks([RidgeProbe()])
def test_it_passes_every_check(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    try:
        check(estimator)
    except SkipTest:  # only the check for other array libraries may skip itself
        assert "array_api" in str(check)


def make(n: int, units: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(2 * n, units)) * np.geomspace(0.01, 10, units) + 3
    X[:, 1] = 7.0  # a unit that never moves
    y = 2.5 + X[:, 0] * 80 + 0.3 * X[:, -1] + generator.normal(size=2 * n)
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.parametrize(("n", "units"), [(80, 10), (20, 60)])
def test_equal_to_scikit_learn_on_scaled_units(n: int, units: int, tmp_path: Path) -> None:
    X, y, X_val, y_val = make(n, units)
    models = [make_pipeline(StandardScaler(), Ridge(alpha=alpha)).fit(X, y) for alpha in ALPHAS]
    errors = [np.mean((model.predict(X_val) - y_val) ** 2) for model in models]
    probe = RidgeProbe(ALPHAS).fit(X, y, X_val, y_val)
    best = int(np.argmin(errors))
    assert probe.alpha_ == ALPHAS[best]
    np.testing.assert_allclose(probe.validation_mse_, errors, rtol=1e-6)
    np.testing.assert_allclose(probe.predict(X_val), models[best].predict(X_val), rtol=1e-7)
    probe.save(tmp_path / "p.json", {"task": "stars"})
    loaded, about = RidgeProbe.load(tmp_path / "p.json")
    np.testing.assert_array_equal(loaded.predict(X_val), probe.predict(X_val))
    assert about == {"task": "stars"} and loaded.alpha_ == probe.alpha_


def test_bad_input_is_one_clear_line() -> None:
    X, y, X_val, y_val = make(20, 4)
    with pytest.raises(ValueError, match=r"the grid of alpha is \(0\.0,\)"):
        RidgeProbe((0.0,)).fit(X, y, X_val, y_val)
    X[2, 2] = np.inf
    with pytest.raises(ValueError, match="training features hold values that are not finite"):
        RidgeProbe().fit(X, y, X_val, y_val)


def test_of_equally_good_alphas_the_largest_wins() -> None:
    X, y = np.zeros((6, 2)), np.arange(6.0)
    probe = RidgeProbe((1.0, 100.0, 10.0)).fit(X, y, X, y)
    assert probe.alpha_ == 100.0 and probe.intercept_ == 2.5 and not probe.coef_.any()
