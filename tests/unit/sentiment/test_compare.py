"""A paired comparison from stored predictions alone, and the files it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bigbatch.evaluation.statistics import paired_difference
from bigbatch.sentiment.compare import compare_results, comparison_line, write_comparison
from scipy.stats import binomtest

TRUTH = np.array(["no", "yes"] * 30)


def store(path: Path, predicted: np.ndarray, **changes: Any) -> Path:
    result = {
        "kind": "transfer", "schema_version": 1, "task": path.stem, "model": {"hash": "abc"},
        "features": {"pooling": "last"}, "data": {"test": {"sha256": "same"}},
        "probe": {"accuracy": float(np.mean(predicted == TRUTH)), "n": 60},
    }  # fmt: skip
    path.write_text(json.dumps(result | changes))
    rows = [f"{i},{i + 2},{label},{said}" for i, (label, said) in enumerate(zip(TRUTH, predicted))]
    path.with_suffix(".predictions.csv").write_text("\n".join(["index,row,label,predicted", *rows]) + "\n")
    return path


def other(count: int, start: int = 0) -> np.ndarray:
    """Predictions that are wrong on `count` items from `start` on."""
    predicted = TRUTH.copy()
    predicted[start : start + count] = np.where(TRUTH[start : start + count] == "yes", "no", "yes")
    return predicted


def test_the_comparison_is_that_of_the_predictions(tmp_path: Path) -> None:
    first, second = store(tmp_path / "a-1.json", other(5)), store(tmp_path / "b-2.json", other(17, start=3))
    comparison = compare_results(first, second)
    expected = paired_difference(other(5), other(17, start=3), TRUTH).to_dict()
    assert {key: comparison[key] for key in expected} == expected
    assert (comparison["only_a"], comparison["only_b"], comparison["n"]) == (15, 3, 60)
    assert comparison["p_value"] == pytest.approx(binomtest(3, 18).pvalue)
    assert comparison["first"]["accuracy"] == 55 / 60 and comparison["second"]["model"] == "abc"
    path = write_comparison(comparison, first, second)
    assert path.name == "a-1.vs-b-2.json" and json.loads(path.read_text()) == comparison
    line = comparison_line(comparison)
    assert "minus b-2.json: +0.2000" in line and "in that one alone 3" in line and "p = 0.0075" in line


def test_what_cannot_be_compared_is_one_clear_line(tmp_path: Path) -> None:
    first = store(tmp_path / "a-1.json", other(5))
    cases: dict[str, Any] = {
        "have other test data": {"data": {"test": {"sha256": "another"}}},
        "is a transfer-labels of version 1": {"kind": "transfer-labels"},
        "of version 99": {"schema_version": 99},
        "its test data had no labels": {"probe": {"n": 60}},
        "are not those of b-2.json": {"probe": {"accuracy": 0.5, "n": 60}},
    }
    for message, changes in cases.items():
        second = store(tmp_path / "b-2.json", other(9), **changes)
        with pytest.raises(ValueError, match=message):
            compare_results(first, second)
    second = store(tmp_path / "b-2.json", other(9))
    second.with_suffix(".predictions.csv").unlink()
    with pytest.raises(ValueError, match=r"b-2\.predictions\.csv of b-2\.json cannot be read"):
        compare_results(first, second)
    second.write_text("no JSON")
    with pytest.raises(ValueError, match=r"b-2\.json is no result"):
        compare_results(first, second)
    with pytest.raises(ValueError, match=r"there is no result .*c\.json; name a results/TASK-HASH\.json"):
        compare_results(first, tmp_path / "c.json")
