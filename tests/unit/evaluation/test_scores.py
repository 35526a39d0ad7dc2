"""Scores against scikit-learn, loops and hand-made cases; intervals against a plain bootstrap."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from bigbatch.evaluation.scores import (
    calibration_scores,
    classification_scores,
    multilabel_scores,
    regression_scores,
)
from scipy import stats
from sklearn import metrics


def draw(classes: int, n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = generator.integers(classes, size=n)
    return truth, np.where(generator.random(n) < 0.7, truth, generator.integers(classes, size=n))


def plain_bootstrap(score, *arrays: np.ndarray, repeats: int = 400) -> tuple[float, float]:
    """Percentiles of the score of resampled items, one after the other."""
    generator = np.random.default_rng(5)
    n = len(arrays[0])
    values = []
    for _ in range(repeats):
        rows = generator.integers(n, size=n)
        values.append(score(*(array[rows] for array in arrays)))
    return tuple(np.quantile(values, [0.025, 0.975]))


@pytest.mark.parametrize("classes", [2, 4])
def test_classes_equal_scikit_learn(classes: int) -> None:
    truth, predicted = draw(classes)
    names = [f"c{k}" for k in range(classes)]
    scores = classification_scores(truth, predicted, names)
    expected = {
        "accuracy": metrics.accuracy_score(truth, predicted),
        "f1_macro": metrics.f1_score(truth, predicted, average="macro"),
        "f1_micro": metrics.f1_score(truth, predicted, average="micro"),
        "mcc": metrics.matthews_corrcoef(truth, predicted),
        "jaccard_macro": metrics.jaccard_score(truth, predicted, average="macro"),
    }
    if classes == 2:
        expected["f1"] = metrics.f1_score(truth, predicted)
    assert set(scores) == {*expected, "per_class"}
    for name, value in expected.items():
        assert scores[name]["value"] == pytest.approx(value), name
        assert scores[name]["n"] == 400 and scores[name]["low"] < value < scores[name]["high"]
    report = metrics.classification_report(truth, predicted, output_dict=True)
    for k, name in enumerate(names):
        mine = scores["per_class"][name]
        assert mine["precision"] == pytest.approx(report[str(k)]["precision"])
        assert mine["recall"] == pytest.approx(report[str(k)]["recall"])
        assert mine["f1"] == pytest.approx(report[str(k)]["f1-score"])
        assert mine["support"] == report[str(k)]["support"]
        assert mine["jaccard"] == pytest.approx(metrics.jaccard_score(truth == k, predicted == k))


def test_intervals_equal_a_plain_bootstrap() -> None:
    truth, predicted = draw(3)
    scores = classification_scores(truth, predicted, ["a", "b", "c"])
    for name, score in (
        ("f1_macro", lambda t, p: metrics.f1_score(t, p, average="macro")),
        ("mcc", metrics.matthews_corrcoef),
        ("jaccard_macro", lambda t, p: metrics.jaccard_score(t, p, average="macro")),
    ):
        low, high = plain_bootstrap(score, truth, predicted)
        assert (scores[name]["low"], scores[name]["high"]) == pytest.approx((low, high), abs=0.015), name
    assert classification_scores(truth, predicted, ["a", "b", "c"]) == scores


def test_a_class_that_is_not_there_counts_as_zero_and_warns_of_nothing() -> None:
    truth, predicted = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = classification_scores(truth, predicted, ["a", "b", "c"])
        alone = classification_scores(np.zeros(5, int), np.zeros(5, int), ["a", "b"])
    assert scores["f1_macro"]["value"] == pytest.approx(2 / 3) and scores["accuracy"]["value"] == 1.0
    assert scores["per_class"]["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "jaccard": 0.0, "support": 0}
    assert alone["mcc"]["value"] == 0.0 and alone["f1"]["value"] == 0.0
    with pytest.raises(ValueError, match="at least one item"):
        classification_scores(np.array([], int), np.array([], int), ["a", "b"])


def test_several_labels_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    truth = (generator.random((300, 4)) < [0.5, 0.3, 0.1, 0.0]).astype(int)
    predicted = truth ^ (generator.random(truth.shape) < 0.15)
    scores = multilabel_scores(truth, predicted, list("abcd"))
    expected = {
        "exact_match": metrics.accuracy_score(truth, predicted),
        "f1_macro": metrics.f1_score(truth, predicted, average="macro", zero_division=0),
        "f1_micro": metrics.f1_score(truth, predicted, average="micro"),
        "jaccard_samples": metrics.jaccard_score(truth, predicted, average="samples", zero_division=0),
        "mcc_macro": np.mean([metrics.matthews_corrcoef(truth[:, k], predicted[:, k]) for k in range(4)]),
    }
    for name, value in expected.items():
        assert scores[name]["value"] == pytest.approx(value), name
        assert scores[name]["low"] < value < scores[name]["high"]
    for name, score in (
        ("f1_micro", lambda t, p: metrics.f1_score(t, p, average="micro")),
        ("jaccard_samples", lambda t, p: metrics.jaccard_score(t, p, average="samples", zero_division=0)),
    ):
        low, high = plain_bootstrap(score, truth, predicted, repeats=200)
        assert (scores[name]["low"], scores[name]["high"]) == pytest.approx((low, high), abs=0.02), name
    assert scores["per_label"]["b"]["f1"] == pytest.approx(metrics.f1_score(truth[:, 1], predicted[:, 1]))
    assert scores["per_label"]["d"]["support"] == 0


def test_numbers_equal_scipy() -> None:
    generator = np.random.default_rng(0)
    truth = generator.integers(1, 6, size=200).astype(float)
    predicted = truth + generator.normal(size=200)
    scores = regression_scores(truth, predicted)
    assert scores["pearson"]["value"] == pytest.approx(stats.pearsonr(truth, predicted).statistic)
    assert scores["spearman"]["value"] == pytest.approx(stats.spearmanr(truth, predicted).statistic)
    assert scores["mse"]["value"] == pytest.approx(metrics.mean_squared_error(truth, predicted))
    low, high = plain_bootstrap(lambda t, p: np.corrcoef(t, p)[0, 1], truth, predicted)
    assert (scores["pearson"]["low"], scores["pearson"]["high"]) == pytest.approx((low, high), abs=0.015)
    assert scores["mse"]["low"] < scores["mse"]["value"] < scores["mse"]["high"]
    # A large mean must not eat up the digits.
    shifted = regression_scores(truth + 1e6, predicted)
    assert shifted["pearson"]["value"] == pytest.approx(scores["pearson"]["value"], abs=1e-9)


def test_what_is_constant_correlates_with_nothing() -> None:
    scores = regression_scores(np.full(5, 3.7), np.arange(5.0))
    assert scores["pearson"]["value"] == scores["spearman"]["value"] == 0.0
    with pytest.raises(ValueError, match="at least one item"):
        regression_scores(np.array([]), np.array([]))


def slow_ece(probability: np.ndarray, truth: np.ndarray, bins: int) -> float:
    total = 0.0
    for number in range(bins):
        gaps = []
        for row, label in zip(probability, truth):
            confidence = row.max()
            inside = number / bins <= confidence < (number + 1) / bins or (number == bins - 1 and confidence == 1)
            if inside:
                gaps.append((row.argmax() == label) - confidence)
        total += abs(sum(gaps))
    return total / len(truth)


@pytest.mark.parametrize("classes", [2, 3])
def test_calibration_by_its_definition(classes: int) -> None:
    generator = np.random.default_rng(0)
    probability = generator.dirichlet([0.5] * classes, size=300)
    probability[0] = np.eye(classes)[0]
    truth = generator.integers(classes, size=300)
    scores = calibration_scores(probability, truth)
    assert scores["ece"]["value"] == pytest.approx(slow_ece(probability, truth, 10))
    one_hot = np.eye(classes)[truth]
    expected = np.mean(np.sum((probability - one_hot) ** 2, axis=1)) / (2 if classes == 2 else 1)
    assert scores["brier"]["value"] == pytest.approx(expected)
    if classes == 2:
        assert scores["brier"]["value"] == pytest.approx(metrics.brier_score_loss(truth, probability[:, 1]))
    table = scores["reliability"]
    assert sum(row["n"] for row in table) == 300 and len(table) == 10 and "accuracy" not in table[0]
    ece = sum(row["n"] * abs(row["accuracy"] - row["probability"]) for row in table if row["n"]) / 300
    assert ece == pytest.approx(scores["ece"]["value"])


def test_probabilities_of_a_multi_label_head_are_refused_as_a_row() -> None:
    with pytest.raises(ValueError, match=r"do not sum to 1 \(those of a multi-label head do not"):
        classification_scores(np.array([0, 1]), np.array([0, 1]), ["a", "b"], np.array([[0.9, 0.8], [0.1, 0.3]]))
    truth = np.array([[1, 0], [0, 1], [1, 1]])
    probability = np.array([[0.9, 0.8], [0.1, 0.3], [0.6, 0.7]])
    scores = multilabel_scores(truth, truth, ["a", "b"], probability)
    brier = np.mean((probability[:, 0] - truth[:, 0]) ** 2)
    assert scores["per_label"]["a"]["calibration"]["brier"]["value"] == pytest.approx(brier)
