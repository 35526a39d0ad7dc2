"""The probe against plain scikit-learn, its rule for C, its file, and what it refuses."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from bigbatch.sentiment.probe import PUBLISHED_CS, SentimentProbe, logistic_regression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.multiclass import OneVsRestClassifier

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_data(classes: int = 2, seed: int = 0, n: int = 300, units: int = 20) -> Data:
    """Features of which three carry the label, with noise; half for training, half for validation."""
    generator = np.random.default_rng(seed)
    y = generator.integers(classes, size=n)
    X = generator.normal(size=(n, units)).astype(np.float32)
    X[:, 4] += 1.2 * y
    X[:, 7] -= 0.8 * (y == 1)
    X[:, 9] += 0.5 * (y == 0)
    return X[: n // 2], y[: n // 2], X[n // 2 :], y[n // 2 :]


def plain_sklearn(data: Data) -> tuple[float, LogisticRegression | OneVsRestClassifier]:
    """The published protocol written with scikit-learn alone: score every C, keep the first best."""
    X, y, X_val, y_val = data
    scores, models = [], []
    for C in PUBLISHED_CS:
        model = logistic_regression(l1=True, C=C, solver="liblinear", random_state=42, max_iter=1000)
        if len(np.unique(y)) > 2:
            model = OneVsRestClassifier(model)
        models.append(model.fit(X.astype(np.float64), y))
        scores.append(model.score(X_val, y_val))
    best = int(np.argmax(scores))
    return PUBLISHED_CS[best], models[best]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_classes_equal_plain_scikit_learn(seed: int) -> None:
    data = make_data(seed=seed)
    C, model = plain_sklearn(data)
    probe = SentimentProbe().fit(*data)
    assert probe.C_ == C
    np.testing.assert_array_equal(probe.coef_, model.coef_)
    np.testing.assert_array_equal(probe.intercept_, model.intercept_)
    np.testing.assert_array_equal(probe.predict(data[2]), model.predict(data[2]))
    np.testing.assert_allclose(probe.predict_proba(data[2]), model.predict_proba(data[2]), atol=1e-9)
    assert probe.score(data[2], data[3]) == max(probe.validation_accuracy_)
    assert probe.n_nonzero_ == np.count_nonzero(model.coef_)


def test_three_classes_equal_one_against_rest() -> None:
    data = make_data(classes=3, n=600)
    C, model = plain_sklearn(data)
    probe = SentimentProbe().fit(*data)
    assert probe.C_ == C and probe.coef_.shape == (3, 20)
    np.testing.assert_array_equal(probe.predict(data[2]), model.predict(data[2]))
    np.testing.assert_allclose(probe.predict_proba(data[2]), model.predict_proba(data[2]), atol=1e-9)


def test_labels_need_not_count_from_zero() -> None:
    X, y, X_val, y_val = make_data()
    shifted = SentimentProbe().fit(X, 5 - 3 * y, X_val, 5 - 3 * y_val)
    assert shifted.classes_.tolist() == [2, 5]
    assert set(shifted.predict(X_val)) == {2, 5}
    assert shifted.score(X_val, 5 - 3 * y_val) == pytest.approx(
        SentimentProbe().fit(X, y, X_val, y_val).score(X_val, y_val)
    )


def test_of_equally_good_c_the_smallest_wins() -> None:
    generator = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = generator.normal(size=(200, 5)) * 0.1
    X[:, 2] += 10 * y - 5
    probe = SentimentProbe(Cs=(1.0, 0.25, 0.5)).fit(X, y, X, y)
    assert probe.validation_accuracy_ == [1.0, 1.0, 1.0]
    assert probe.C_ == 0.25


def test_validation_chooses_and_test_labels_play_no_part() -> None:
    X, y, X_val, y_val = make_data(n=120, units=60, seed=3)
    probe = SentimentProbe().fit(X, y, X_val, y_val)
    flipped = SentimentProbe().fit(X, y, X_val, 1 - y_val)
    assert probe.C_ != flipped.C_
    assert len(probe.validation_accuracy_) == len(PUBLISHED_CS)


def test_top_units_are_the_largest_weights() -> None:
    probe = SentimentProbe().fit(*make_data())
    top = probe.top_units(3)
    assert top[0]["unit"] == 4 and top[0]["weight"] > 0 and top[0]["label"] == 1
    assert [abs(unit["weight"]) for unit in top] == sorted((abs(w) for w in probe.coef_[0]), reverse=True)[:3]
    assert len(probe.top_units(1000)) == probe.n_nonzero_


def test_no_warning_of_any_kind() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe = SentimentProbe().fit(*make_data())
        assert probe.converged_
        assert not SentimentProbe(max_iter=1).fit(*make_data()).converged_


def test_file_round_trip_is_exact(tmp_path: Path) -> None:
    data = make_data(classes=3, n=600)
    probe = SentimentProbe().fit(*data)
    path = tmp_path / "probe" / "demo.json"
    probe.save(path, {"model_hash": "abc"})
    loaded, about = SentimentProbe.load(path)
    assert about == {"model_hash": "abc"} and loaded.C_ == probe.C_ and loaded.top_units() == probe.top_units()
    np.testing.assert_array_equal(loaded.predict_proba(data[2]), probe.predict_proba(data[2]))
    assert sorted(p.name for p in path.parent.iterdir()) == ["demo.json", "demo.safetensors"]


def test_a_file_of_before_calibration_is_read(tmp_path: Path) -> None:
    data = make_data()
    probe, path = SentimentProbe(max_iter=77).fit(*data), tmp_path / "demo.json"
    probe.save(path, {})
    content = json.loads(path.read_text())
    for name in ("criterion", "calibration", "validation_fraction", "n_iter", "fitted_calibration"):
        del content[name]
    path.write_text(json.dumps(content))
    loaded, _ = SentimentProbe.load(path)
    assert loaded.get_params() == probe.get_params() and loaded.calibration_ is None
    np.testing.assert_array_equal(loaded.predict_proba(data[2]), probe.predict_proba(data[2]))


def test_log_loss_chooses_by_log_loss() -> None:
    X, y, X_val, y_val = make_data(seed=3, n=120, units=60)
    probe = SentimentProbe(criterion="log_loss").fit(X, y, X_val, y_val)
    losses = []
    for C in PUBLISHED_CS:
        model = logistic_regression(l1=True, C=C, solver="liblinear", random_state=42, max_iter=1000)
        losses.append(log_loss(y_val, model.fit(X.astype(np.float64), y).predict_proba(X_val)))
    best = PUBLISHED_CS[int(np.argmin(losses))]
    assert best == probe.C_
    with pytest.raises(ValueError, match="criterion is 'auc'; choose one of accuracy, log_loss"):
        SentimentProbe(criterion="auc").fit(X, y, X_val, y_val)


def test_damaged_files_are_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    SentimentProbe().fit(*make_data()).save(path, {})
    weights = path.with_suffix(".safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8] + b"\0" * 8)
    with pytest.raises(ValueError, match="damaged or of another probe"):
        SentimentProbe.load(path)
    weights.write_bytes(whole)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"schema_version": 99}))
    with pytest.raises(ValueError, match="schema version 99"):
        SentimentProbe.load(path)
    path.write_text(json.dumps(content)[:50])
    with pytest.raises(ValueError, match="is not a probe"):
        SentimentProbe.load(path)


def test_bad_labels_are_one_clear_line() -> None:
    X, y, X_val, y_val = make_data()
    with pytest.raises(ValueError, match=r"training data has labels of one class only \(0\)"):
        SentimentProbe().fit(X, np.zeros_like(y), X_val, y_val)
    with pytest.raises(ValueError, match="validation data has no row of class 0"):
        SentimentProbe().fit(X, y, X_val, np.ones_like(y_val))
    with pytest.raises(ValueError, match="validation data has labels 7, but the training data only 0, 1"):
        SentimentProbe().fit(X, y, X_val, np.full_like(y_val, 7))
    with pytest.raises(ValueError, match="validation data has no labelled rows"):
        SentimentProbe().fit(X, y, X_val[:0], y_val[:0])
    with pytest.raises(ValueError, match="expecting 20 features"):
        SentimentProbe().fit(X, y, X_val, y_val).predict(X_val[:, :5])
    X_bad = X.copy()
    X_bad[3, 3] = np.nan
    with pytest.raises(ValueError, match="training features hold values that are not finite"):
        SentimentProbe().fit(X_bad, y, X_val, y_val)
