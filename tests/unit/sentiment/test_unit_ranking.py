"""Rankings against scikit-learn and NumPy; ablation against a probe whose features are changed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from bigbatch.sentiment import unit_ranking as module
from bigbatch.sentiment.probe import SentimentProbe
from bigbatch.sentiment.unit_ranking import UnitRanking, ablation, auc_of_units, correlations_of_units
from sklearn.feature_selection import mutual_info_classif
from sklearn.metrics import accuracy_score, roc_auc_score


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    y = (generator.random(160) < 0.4).astype(int)
    X = generator.normal(size=(160, 10)).astype(np.float32)
    X[:, 3] += 2.0 * y
    X[:, 6] -= 1.2 * y
    X[:, 8] = np.round(X[:, 8])  # ties
    X[:, 9] = 0.5
    return X, y


@pytest.fixture(scope="module")
def probe(data: tuple[np.ndarray, np.ndarray]) -> SentimentProbe:
    return SentimentProbe(Cs=(1.0,)).fit(*data, *data)


def test_auc_is_scikit_learns(data: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data
    monkeypatch.setattr(module, "_BLOCK_UNITS", 4)
    expected = [roc_auc_score(y, X[:, unit]) for unit in range(10)]
    np.testing.assert_allclose(auc_of_units(X, y == 1), expected, atol=1e-12)
    assert expected[9] == 0.5


def test_three_measures_find_the_units_that_matter(data: tuple[np.ndarray, np.ndarray], probe: SentimentProbe) -> None:
    X, y = data
    ranking = UnitRanking.measure(probe, X, y, seed=3, progress=False)
    np.testing.assert_array_equal(ranking.weight, probe.coef_[0])
    np.testing.assert_allclose(ranking.information, mutual_info_classif(X, y, random_state=3) / np.log(2))
    orders = ranking.orders()
    assert [order[0] for order in orders.values()] == [3, 3, 3]
    assert orders["weight"][1] == orders["auc"][1] == 6
    top, second = ranking.rows(np.array([3, 6]))
    assert (top["unit"], top["weight_sign"], top["auc_sign"]) == (3, 1, 1) and top["auc"] > 0.85
    assert (second["unit"], second["weight_sign"], second["auc_sign"]) == (6, -1, -1) and second["auc"] < 0.3
    assert [top[f"rank_by_{name}"] for name in orders] == [1, 1, 1] and second["rank_by_weight"] == 2
    # In bits: a value that is the label holds as much as the label does.
    share = y.mean()
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    copy = UnitRanking.measure(probe, np.where(np.arange(10) == 2, y[:, None] * 1.0, X), y, progress=False)
    assert copy.information[2] == pytest.approx(entropy, abs=0.1)


def test_ablation_is_the_probe_on_changed_features(data: tuple[np.ndarray, np.ndarray], probe: SentimentProbe) -> None:
    X, y = data
    X = X + 3.0  # means matter
    used = probe.n_nonzero_
    order = sorted(range(10), key=lambda unit: -abs(probe.coef_[0, unit]))
    rows = ablation(probe, X, y)
    assert [row["k"] for row in rows] == sorted({0, 1, 2, 4, *([8] if used >= 8 else []), used})
    assert [unit for row in rows for unit in row["units"]] == order[:used]
    for row in rows:
        best, rest = order[: row["k"]], order[row["k"] :]
        for name, units in (("without", best), ("only", rest)):
            for level, values in (("zero", 0.0), ("mean", X[:, units].mean(axis=0))):
                changed = X.astype(np.float64)
                changed[:, units] = values
                found = row[f"{name}_{level}"]
                assert found["accuracy"] == pytest.approx(accuracy_score(y, probe.predict(changed)))
                assert found["n"] == 160 and found["low"] <= found["accuracy"] <= found["high"]
    assert rows[0]["without_zero"]["accuracy"] == probe.score(X, y) == rows[-1]["only_zero"]["accuracy"]
    centred = ablation(probe, data[0], y)
    assert centred[1]["without_mean"]["accuracy"] < centred[0]["without_mean"]["accuracy"] - 0.05


def test_correlations_are_numpys(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, _ = data
    found = correlations_of_units(X, np.array([3, 6, 8]))
    np.testing.assert_allclose(found, np.corrcoef(X[:, [3, 6, 8]].T), atol=1e-6)
    with_constant = correlations_of_units(X, np.array([3, 9]))
    assert np.isnan(with_constant[1]).all() and with_constant[0, 0] == pytest.approx(1)


def test_what_cannot_be_ranked(data: tuple[np.ndarray, np.ndarray], probe: SentimentProbe) -> None:
    X, y = data
    three = SentimentProbe(Cs=(1.0,)).fit(X, np.arange(160) % 3, X, np.arange(160) % 3)
    with pytest.raises(ValueError, match="units are ranked for two classes; the probe has 3"):
        UnitRanking.measure(three, X, y)
    few = np.r_[np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:3]]
    with pytest.raises(ValueError, match="at least four texts of each class"):
        UnitRanking.measure(probe, X[few], y[few])
    with pytest.raises(ValueError, match="the given data has no labelled rows"):
        UnitRanking.measure(probe, X[:0], y[:0])
    with pytest.raises(ValueError, match="no row of class 1"):
        UnitRanking.measure(probe, X[y == 0], y[y == 0])
