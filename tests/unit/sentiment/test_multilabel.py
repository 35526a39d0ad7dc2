"""Several labels: each is scikit-learn's logistic regression, thresholds are of validation, rows need not sum to 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bigbatch.evaluation.scores import calibration_scores
from bigbatch.sentiment.multilabel import MultiLabelProbe
from bigbatch.sentiment.probe import SentimentProbe, logistic_regression
from bigbatch.sentiment.thresholds import search_thresholds
from sklearn.base import clone
from sklearn.metrics import log_loss

CS = (0.05, 0.5, 5.0)


def make(n: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    Y = (generator.random((n, 3)) < [0.5, 0.3, 0.15]).astype(int)
    X = generator.normal(size=(n, 12)).astype(np.float32)
    X[:, :3] += 1.5 * Y
    half = n // 2
    return X[:half], Y[:half], X[half:], Y[half:]


def test_each_label_is_scikit_learns_with_the_least_log_loss() -> None:
    X, Y, X_val, Y_val = make()
    probe = MultiLabelProbe(Cs=CS).fit(X, Y, X_val, Y_val)
    probability = np.empty_like(Y_val, dtype=float)
    for k in range(3):
        models = [
            logistic_regression(l1=True, C=C, solver="liblinear", random_state=42, max_iter=1000).fit(
                X.astype(np.float64), Y[:, k]
            )
            for C in CS
        ]
        losses = [log_loss(Y_val[:, k], model.predict_proba(X_val)) for model in models]
        best = int(np.argmin(losses))
        assert probe.Cs_[k] == CS[best]
        np.testing.assert_array_equal(probe.coef_[k], models[best].coef_[0])
        probability[:, k] = models[best].predict_proba(X_val)[:, 1]
    np.testing.assert_allclose(probe.predict_proba(X_val), probability, atol=1e-9)
    thresholds, score = search_thresholds(probability, Y_val, "f1")
    np.testing.assert_array_equal(probe.thresholds_, thresholds)
    assert probe.validation_score_ == score and probe.converged_
    np.testing.assert_array_equal(probe.predict(X_val), probability >= thresholds)


def test_probabilities_are_no_row_to_be_normalised(tmp_path: Path) -> None:
    X, Y, X_val, Y_val = make()
    probe = MultiLabelProbe(Cs=CS, calibration="platt").fit(X, Y, X_val, Y_val)
    probability = probe.predict_proba(X_val)
    sums = probability.sum(axis=1)
    assert sums.min() < 0.8 and sums.max() > 1.2
    with pytest.raises(ValueError, match="those of a multi-label head do not"):
        calibration_scores(probability, Y_val.argmax(axis=1))
    probe.save(tmp_path / "p.json", {"task": "emotion"})
    loaded, about = MultiLabelProbe.load(tmp_path / "p.json")
    np.testing.assert_array_equal(loaded.predict_proba(X_val), probability)
    np.testing.assert_array_equal(loaded.predict(X_val), probe.predict(X_val))
    assert about == {"task": "emotion"} and loaded.n_nonzero_ == probe.n_nonzero_
    with pytest.raises(
        ValueError, match=r"p\.json holds a multi-label probe, .* a probability for each that do not sum"
    ):
        SentimentProbe.load(tmp_path / "p.json")


def test_without_validation_data_rows_are_held_out_and_weights_are_of_all() -> None:
    X, Y, _, _ = make()
    probe = MultiLabelProbe(Cs=CS).fit(X, Y)
    again = clone(probe).fit(X, Y)
    np.testing.assert_array_equal(probe.thresholds_, again.thresholds_)
    for k in range(3):
        alone = SentimentProbe(Cs=(probe.Cs_[k],)).fit(X, Y[:, k], X, Y[:, k])
        np.testing.assert_array_equal(probe.coef_[k], alone.coef_[0])


def test_bad_labels_are_one_clear_line() -> None:
    X, Y, X_val, Y_val = make()
    names = ["joy", "anger", "fear"]
    none = Y.copy()
    none[:, 1] = 0
    with pytest.raises(ValueError, match=r"label 'anger': the training data has labels of one class only \(0\)"):
        MultiLabelProbe(Cs=CS, label_names=names).fit(X, none, X_val, Y_val)
    with pytest.raises(ValueError, match="label 1: the validation data has no row of class 1"):
        MultiLabelProbe(Cs=CS).fit(X, Y, X, none)
    with pytest.raises(ValueError, match="the training labels have to be 0 or 1"):
        MultiLabelProbe(Cs=CS).fit(X, Y + 1, X_val, Y_val)
    with pytest.raises(ValueError, match="the validation data has 2 labels, the training data 3"):
        MultiLabelProbe(Cs=CS).fit(X, Y, X_val, Y_val[:, :2])
