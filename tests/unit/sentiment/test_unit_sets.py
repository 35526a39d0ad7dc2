"""Probes on chosen, dropped and random units are plain probes on those columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bigbatch.evaluation.statistics import paired_difference
from bigbatch.sentiment.probe import SentimentProbe
from bigbatch.sentiment.unit_sets import score_unit_sets, unit_sets_table, write_unit_sets

from .test_label_efficiency import splits


@pytest.mark.parametrize("classes", [2, 3])
def test_sets_are_probes_on_their_columns(classes: int, tmp_path: Path) -> None:
    (X, X_val, X_test), (y, y_val, truth) = features, labels = splits(classes)
    probe = SentimentProbe().fit(X, y, X_val, y_val)
    scored = score_unit_sets(probe, 4 if classes == 2 else None, features, labels, [3, 1, 3], draws=2, seed=7)
    assert [(row["kind"], row["k"]) for row in scored["sets"]] == [
        ("without", 9), ("best", 1), ("random", 1), ("random", 1), ("best", 3), ("random", 3), ("random", 3),
    ]  # fmt: skip
    ranking = sorted(range(10), key=lambda unit: (-np.abs(probe.coef_[:, unit]).max(), unit))
    assert scored["sets"][4]["units"] == ranking[:3] and scored["sets"][0]["units"] == [
        4 if classes == 2 else ranking[0]
    ]
    for row in scored["sets"]:
        chosen = [u for u in range(10) if u != row["units"][0]] if row["kind"] == "without" else row["units"]
        fitted = SentimentProbe().fit(X[:, chosen], y, X_val[:, chosen], y_val)
        predicted = fitted.predict(X_test[:, chosen])
        assert (row["accuracy"], row["C"]) == (np.mean(predicted == truth), fitted.C_)
        assert row["minus_all"] == paired_difference(predicted, probe.predict(X_test), truth).to_dict()
    assert scored["sets"][2]["units"] != scored["sets"][3]["units"] or classes == 3
    again = score_unit_sets(probe, 4 if classes == 2 else None, features, labels, [1, 3], draws=2, seed=7)
    assert again == scored
    table = unit_sets_table(scored).splitlines()
    assert len(table) == 6 and table[1].startswith("without unit 4" if classes == 2 else "without unit")
    summary = {"task": "t", "model": {}, "features": {}, "data": {}}
    path = write_unit_sets(scored, tmp_path / "t-abc.json", summary)
    assert path.name == "t-abc.unit-sets.json" and json.loads(path.read_text())["sets"] == scored["sets"]


def test_sizes_out_of_range_are_one_clear_line() -> None:
    features, labels = splits()
    probe = SentimentProbe().fit(features[0], labels[0], features[1], labels[1])
    for ks in ([0], [11]):
        with pytest.raises(ValueError, match=rf"sets of {ks[0]} units: each size has to lie between 1 and 10"):
            score_unit_sets(probe, None, features, labels, ks)
