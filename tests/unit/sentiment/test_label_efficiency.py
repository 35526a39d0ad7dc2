"""The curve: nested, stratified, seeded draws; every point is the probe that it says; files and picture agree."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from bigbatch.sentiment.label_efficiency import default_sizes, label_efficiency, nested_order, write_curve
from bigbatch.sentiment.probe import SentimentProbe
from bigbatch.sentiment.units import UnitProbe

from .test_probe import make_data


def splits(classes: int = 2) -> tuple[list[np.ndarray], list[np.ndarray]]:
    X, y, X_val, y_val = make_data(classes=classes, n=240, units=10)
    X_test, y_test, _, _ = make_data(classes=classes, n=120, units=10, seed=9)
    return [X, X_val[:50], X_test], [y, y_val[:50], y_test]


def test_sizes() -> None:
    assert default_sizes(6920) == [10, 30, 100, 300, 1000, 3000, 6920]
    assert default_sizes(100) == [10, 30, 100] and default_sizes(7) == [7]


def test_draws_are_nested_stratified_and_seeded() -> None:
    y = np.repeat([0, 1, 2], [600, 300, 100])
    order = nested_order(y, 3)
    assert sorted(order) == list(range(1000)) and sorted(y[order[:3]]) == [0, 1, 2]
    for size in (10, 100, 500):
        assert np.abs(np.bincount(y[order[:size]]) - size * np.array([0.6, 0.3, 0.1])).max() <= 2
    np.testing.assert_array_equal(order, nested_order(y, 3))
    assert (order != nested_order(y, 4)).any()


def test_a_point_is_the_probe_on_so_many_labels() -> None:
    (X, X_val, X_test), (y, y_val, y_test) = features, labels = splits()
    curve = label_efficiency(features, labels, sizes=[10, 120], seeds=3, seed=5, progress=False)
    first, last = curve["points"]
    assert (first["labels"], first["validation_labels"], last["validation_labels"]) == (10, 10, 50)
    assert len(first["probe"]["accuracies"]) == 3 and len(last["probe"]["accuracies"]) == 1
    for draw in range(3):
        rows, rows_val = nested_order(y, 5 + draw)[:10], nested_order(y_val, 5 + draw)[:10]
        part = X[rows], y[rows], X_val[rows_val], y_val[rows_val]
        assert first["probe"]["accuracies"][draw] == SentimentProbe(seed=5).fit(*part).score(X_test, y_test)
        assert first["unit"]["accuracies"][draw] == UnitProbe().fit(*part).score(X_test, y_test)
    found = np.array(first["probe"]["accuracies"])
    assert first["probe"]["mean"] == pytest.approx(found.mean()) and first["probe"]["sd"] == pytest.approx(
        found.std(ddof=1)
    )
    assert last["probe"]["sd"] is None and last["probe"]["mean"] > first["probe"]["mean"]
    assert label_efficiency(features, labels, sizes=[10, 120], seeds=3, seed=5, progress=False) == curve


def test_files_hold_the_curve(tmp_path: Path) -> None:
    curve = label_efficiency(*splits(classes=3), sizes=[3, 30], seeds=2, progress=False)
    assert "unit" not in curve["points"][0]
    (tmp_path / "results").mkdir()
    result = tmp_path / "results" / "shop.v2-abc.json"
    summary = {"task": "shop.v2", "model": {}, "features": {}, "data": {}, "baseline_majority": {"accuracy": 0.4}}
    stored, table, picture = write_curve(curve, result, summary)
    assert stored.name == "shop.v2-abc.label-efficiency.json" and picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(stored.read_text())
    assert content["kind"] == "label-efficiency" and content["points"] == curve["points"]
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["labels"], row["draw"]) for row in rows] == [("3", "0"), ("3", "1"), ("30", "0"), ("30", "1")]
    assert float(rows[2]["accuracy"]) == pytest.approx(curve["points"][1]["probe"]["accuracies"][0], abs=1e-6)


def test_bad_numbers_are_one_clear_line() -> None:
    features, labels = splits()
    with pytest.raises(ValueError, match="0 draws of a label-efficiency curve"):
        label_efficiency(features, labels, seeds=0, progress=False)
    with pytest.raises(ValueError, match=r"\[1, 10\] labels: each number has to lie between 2, the classes, and 120"):
        label_efficiency(features, labels, sizes=[10, 1], progress=False)
    with pytest.raises(ValueError, match=r"\[500\] labels"):
        label_efficiency(features, labels, sizes=[500], progress=False)
