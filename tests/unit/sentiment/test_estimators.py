"""scikit-learn's own checks on each estimator, and the featurizer in pipelines, searches, copies and tables."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from bigbatch.sentiment.featurize import featurize
from bigbatch.training.checkpoint import load_model
from sklearn.base import BaseEstimator, clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from bigbatch import MLSTMFeaturizer, SentimentProbe, UnitProbe

from .conftest import add_checkpoint

TEXTS = [f"The lamp number {i} is {word}" for i in range(10) for word in ("dull", "superb", "sweet", "dreadful")]
LABELS = np.array(["bad", "good", "good", "bad"] * 10)


@parametrize_with_checks([SentimentProbe(), UnitProbe()])
def test_probes_pass_every_check(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        try:
            check(estimator)
        except SkipTest:  # only the check for other array libraries may skip itself
            assert "array_api" in str(check)


@pytest.mark.parametrize("options", [{"calibration": "platt"}, {"criterion": "log_loss", "calibration": "temperature"}])
def test_probes_with_options_pass_every_check(options: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        check_estimator(SentimentProbe(**options))


def test_the_featurizer_passes_what_is_possible_for_text(run_dir: Path) -> None:
    # scikit-learn has no checks that call fit with strings; it says so and ends.
    with pytest.warns(SkipTestWarning, match="Can't test estimator MLSTMFeaturizer"):
        check_estimator(MLSTMFeaturizer())
    for name in (
        "check_estimator_cloneable",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_mixin_order",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
    ):
        getattr(estimator_checks, name)("MLSTMFeaturizer", MLSTMFeaturizer(run_dir))
    unfitted = MLSTMFeaturizer(run_dir)
    with pytest.raises(NotFittedError):
        unfitted.transform(TEXTS)
    fitted = unfitted.fit(TEXTS)
    assert fitted is unfitted and fitted.transform(TEXTS[:3]).dtype == np.float32
    before = dict(vars(fitted))
    np.testing.assert_array_equal(fitted.transform(TEXTS), fitted.fit_transform(TEXTS))
    assert {key: before[key] for key in fitted.get_params()} == fitted.get_params()


def test_features_are_those_of_featurize(run_dir: Path) -> None:
    model = load_model(run_dir).model
    for options in ({}, {"state": "hidden", "pooling": "mean"}, {"state_transform": "tanh", "pooling": "max"}):
        mine = MLSTMFeaturizer(run_dir, batch_size=7, **options).fit(TEXTS).transform(TEXTS)
        renamed = {key.removeprefix("state_") if key == "state_transform" else key: v for key, v in options.items()}
        np.testing.assert_array_equal(mine, featurize(model, TEXTS, batch_size=7, progress=False, **renamed))


def test_a_pipeline_can_be_searched_cloned_and_pickled(run_dir: Path) -> None:
    pipeline = make_pipeline(MLSTMFeaturizer(str(run_dir)), LogisticRegression(C=100.0))
    grid = {"mlstmfeaturizer__pooling": ["last", "mean"], "logisticregression__C": [1.0, 100.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(TEXTS, LABELS)
    assert search.best_score_ > 0.8 and set(search.best_params_) == set(grid)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), search.predict_proba(TEXTS))
    copy = clone(pipeline).set_params(mlstmfeaturizer__state="hidden")
    assert copy[0].get_params()["state"] == "hidden" and pipeline[0].state == "cell"
    assert cross_val_score(make_pipeline(MLSTMFeaturizer(run_dir), SentimentProbe()), TEXTS, LABELS, cv=2).min() > 0.7
    assert make_pipeline(MLSTMFeaturizer(run_dir), UnitProbe()).fit(TEXTS, LABELS).score(TEXTS, LABELS) > 0.7


def test_a_pickle_holds_no_weights_and_refuses_others(run_dir: Path) -> None:
    fitted = MLSTMFeaturizer(run_dir).fit(TEXTS)
    weights = (fitted.checkpoint_ / "model.safetensors").stat().st_size
    data = pickle.dumps(fitted)
    assert len(data) < weights / 4
    shutil.rmtree(fitted.checkpoint_)
    add_checkpoint(run_dir, samples=100, seed=1)
    with pytest.raises(ValueError, match="holds other weights than this featurizer was fitted with"):
        pickle.loads(data).transform(TEXTS)


def test_arrays_series_and_tables(run_dir: Path) -> None:
    featurizer = MLSTMFeaturizer(run_dir).fit(TEXTS)
    expected = featurizer.transform(TEXTS)
    for texts in (np.array(TEXTS), np.array(TEXTS, dtype=object), pd.Series(TEXTS), tuple(TEXTS)):
        np.testing.assert_array_equal(featurizer.transform(texts), expected)
    table = featurizer.set_output(transform="pandas").transform(TEXTS)
    assert list(table.columns[:2]) == ["unit0", "unit1"] and table.shape == (40, 24)
    frame = pd.DataFrame({"body": TEXTS, "stars": 1.0})
    both = make_column_transformer((MLSTMFeaturizer(run_dir), "body"), ("passthrough", ["stars"])).fit_transform(frame)
    np.testing.assert_array_equal(both[:, :24], expected)


def test_bad_input_is_one_clear_line(run_dir: Path, tmp_path: Path) -> None:
    featurizer = MLSTMFeaturizer(run_dir)
    with pytest.raises(ValueError, match=r"a single text was given where a list of texts is expected; write \[text\]"):
        featurizer.fit("one text")
    with pytest.raises(ValueError, match="no texts were given"):
        featurizer.fit([])
    with pytest.raises(ValueError, match=r"texts of shape \(2, 1\): one column of texts is expected"):
        featurizer.fit(np.array([["a"], ["b"]]))
    with pytest.raises(ValueError, match="text 1 is no string but float"):
        featurizer.fit(TEXTS).transform(pd.Series(["a", float("nan")], dtype=object))
    with pytest.raises(ValueError, match="pooling is 'median'; choose one of last, mean, max"):
        featurizer.set_params(pooling="median").fit(TEXTS).transform(TEXTS)
    with pytest.raises(ValueError, match="nowhere"):
        MLSTMFeaturizer(tmp_path / "nowhere").fit(TEXTS)
    assert np.isfinite(featurizer.set_params(pooling="mean").transform(["", "a"])).all()


def test_probes_hold_out_their_own_validation_share() -> None:
    generator = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 60, 6])
    X = generator.normal(size=(126, 8)).astype(np.float32)
    X[:, 3] += 2 * y
    probe = SentimentProbe().fit(X, y)
    same, other = SentimentProbe().fit(X, y), SentimentProbe(seed=1).fit(X, y)
    np.testing.assert_array_equal(probe.coef_, same.coef_)
    assert probe.validation_accuracy_ == same.validation_accuracy_ != other.validation_accuracy_
    # 12 + 12 + 1 rows are held out: the accuracies are multiples of 1/25; the weights are those of all rows.
    assert all(round(25 * value, 6) == round(25 * value) for value in probe.validation_accuracy_)
    given = SentimentProbe(Cs=(probe.C_,)).fit(X, y, X, y)
    np.testing.assert_array_equal(probe.coef_, given.coef_)
    two = y < 2
    unit = UnitProbe().fit(X[two], y[two])
    assert unit.index_ == 3 and unit.train_accuracy_ == np.mean(unit.predict(X[two]) == y[two])
    with pytest.raises(ValueError, match=r"the validation fraction is 1\.5; it must be between 0 and 1"):
        SentimentProbe(validation_fraction=1.5).fit(X, y)
    with pytest.raises(ValueError, match="2 rows, none of which can be held out to choose C"):
        SentimentProbe().fit(X[[0, 60]], y[[0, 60]])
    with pytest.raises(ValueError, match="2 rows, none of which can be held out to choose a unit"):
        UnitProbe().fit(X[[0, 60]], y[[0, 60]])
