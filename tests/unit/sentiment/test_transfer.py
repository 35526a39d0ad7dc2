"""A whole transfer on a small model: every number recomputed from its parts, and what it refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.labelled import LabelledData, load_labelled
from bigbatch.evaluation.scores import classification_scores
from bigbatch.evaluation.statistics import accuracy_interval, paired_difference
from bigbatch.sentiment.baselines import TfidfBaseline
from bigbatch.sentiment.featurize import featurize
from bigbatch.sentiment.probe import SentimentProbe
from bigbatch.sentiment.transfer import run_transfer, split_validation
from bigbatch.sentiment.units import UnitProbe
from bigbatch.training.checkpoint import load_model

Splits = tuple[LabelledData, LabelledData, LabelledData]


@pytest.fixture
def splits(files: dict[str, Path]) -> Splits:
    train, val, test = (load_labelled(files[name]) for name in ("train", "val", "test"))
    return train, val, test


def test_every_number_is_that_of_its_part(run_dir: Path, splits: Splits) -> None:
    loaded, (train, val, test) = load_model(run_dir), splits
    result = run_transfer(loaded, *splits, out_dir=run_dir, task="shop", progress=False)
    X, X_val, X_test = (featurize(loaded.model, part.texts, progress=False) for part in splits)
    probe = SentimentProbe().fit(X, train.labels, X_val, val.labels)
    unit = UnitProbe().fit(X, train.labels, X_val, val.labels)
    tfidf = TfidfBaseline.fit(train.texts, train.labels, val.texts, val.labels).predict(test.texts)
    summary = result.summary
    expected = {
        "probe": accuracy_interval(probe.predict(X_test), test.labels),
        "unit": accuracy_interval(unit.predict(X_test), test.labels),
        "baseline_tfidf": accuracy_interval(tfidf, test.labels),
        "baseline_majority": accuracy_interval(np.zeros(80), test.labels),
    }
    for name, interval in expected.items():
        assert {key: summary[name][key] for key in ("accuracy", "n", "low", "high")} == {
            key: getattr(interval, key) for key in ("accuracy", "n", "low", "high")
        }, name
    assert summary["probe_minus_tfidf"] == paired_difference(probe.predict(X_test), tfidf, test.labels).to_dict()
    assert summary["scores"] == classification_scores(
        test.labels, probe.predict(X_test), train.classes, probe.predict_proba(X_test)
    )
    assert (summary["probe"]["C"], summary["probe"]["n_nonzero"]) == (probe.C_, probe.n_nonzero_)
    assert (summary["unit"]["index"], summary["unit"]["sign"]) == (unit.index_, unit.sign_)
    assert summary["model"]["hash"] == loaded.model_hash and summary["model"]["tokens"] == 6400
    assert summary["data"]["train"]["per_class"] == {"negative": 60, "positive": 60}
    assert summary["probe"]["accuracy"] > 0.8  # or the fixture proves nothing
    lines = result.table().splitlines()
    assert len(lines) == 10 and f"{summary['probe']['accuracy']:.4f}" in lines[1]


def test_files_of_the_run_folder(run_dir: Path, splits: Splits) -> None:
    result = run_transfer(load_model(run_dir), *splits, out_dir=run_dir, task="shop", progress=False)
    assert result.path.parent == run_dir / "results" and result.path.name.startswith("shop-")
    stored = json.loads(result.path.read_text())
    assert stored == result.summary and stored["schema_version"] == 1 and stored["kind"] == "transfer"
    made = {str(path.relative_to(run_dir)) for path in run_dir.rglob("shop*")}
    assert made == {
        f"results/{result.path.name}",
        stored["predictions"],
        "probe/shop.json",
        "probe/shop.safetensors",
        "plots/shop-unit-histogram.png",
        "plots/shop-probe-weights.png",
    }
    with (run_dir / stored["predictions"]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert np.mean([row["label"] == row["predicted"] for row in rows]) == stored["probe"]["accuracy"]
    probe, about = SentimentProbe.load(run_dir / "probe" / "shop.json")
    assert about["model_hash"] == stored["model"]["hash"] and about["unit"]["index"] == stored["unit"]["index"]
    assert stored["probe"]["C"] == probe.C_


def test_hash_names_the_question(run_dir: Path, splits: Splits) -> None:
    loaded, (train, val, test) = load_model(run_dir), splits

    def path(*parts: LabelledData, **options) -> Path:
        return run_transfer(loaded, *parts, out_dir=run_dir, progress=False, **options).path

    first = path(train, val, test)
    assert path(train, val, test, batch_size=7) == first
    assert path(train, val, test, transform="tanh") != first
    shorter = replace(test, texts=test.texts[:-2], labels=test.labels[:-2])
    assert path(train, val, shorter) != first
    assert path(replace(train, labels=1 - train.labels), val, test) != first


def test_unlabelled_test_gives_predictions_only(run_dir: Path, splits: Splits) -> None:
    train, val, test = splits
    unlabelled = replace(test, labels=None, classes=[])
    result = run_transfer(load_model(run_dir), train, val, unlabelled, out_dir=run_dir, progress=False)
    assert "accuracy" not in result.summary["probe"] and "baseline_tfidf" not in result.summary
    labelled = run_transfer(load_model(run_dir), *splits, out_dir=run_dir, task="with", progress=False)
    np.testing.assert_array_equal(result.predicted, labelled.predicted)
    with (run_dir / result.summary["predictions"]).open(newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == [""] * 80
    assert "without labels" in result.table()


def test_three_classes_have_no_single_unit(run_dir: Path, three_classes: dict[str, Path]) -> None:
    parts = [load_labelled(three_classes[name]) for name in ("train", "val", "test")]
    result = run_transfer(load_model(run_dir), *parts, out_dir=run_dir, progress=False)
    assert result.unit is None and result.summary["unit"] is None
    assert result.probability.shape == (150, 3) and result.summary["probe"]["accuracy"] > 0.5
    assert not (run_dir / "plots" / "sentiment-unit-histogram.png").exists()
    assert len(result.table().splitlines()) == 9 and "\nunit" not in result.table()


def test_bad_input_is_one_clear_line_and_writes_nothing(run_dir: Path, splits: Splits) -> None:
    loaded, (train, val, test) = load_model(run_dir), splits
    one = replace(val, labels=np.ones_like(val.labels))
    with pytest.raises(ValueError, match="validation data has no row of class 0"):
        run_transfer(loaded, train, one, test, out_dir=run_dir, progress=False)
    with pytest.raises(ValueError, match="one class only"):
        run_transfer(
            loaded, replace(train, labels=np.ones_like(train.labels)), val, test, out_dir=run_dir, progress=False
        )
    with pytest.raises(ValueError, match="training data has no labelled rows"):
        run_transfer(loaded, replace(train, labels=None), val, test, out_dir=run_dir, progress=False)
    with pytest.raises(ValueError, match="goes into file names"):
        run_transfer(loaded, train, val, test, out_dir=run_dir, task="../x", progress=False)
    assert [path.name for path in run_dir.iterdir()] == ["checkpoints"]


def test_split_validation_is_stratified_seeded_and_whole(splits: Splits) -> None:
    train = splits[0]
    first, second = split_validation(train, 0.1, seed=3), split_validation(train, 0.1, seed=3)
    assert [part.texts for part in first] == [part.texts for part in second]
    rest, val = first
    assert sorted(rest.texts + val.texts) == sorted(train.texts)
    assert np.bincount(val.labels).tolist() == [6, 6]
    truth = dict(zip(train.texts, train.labels))
    assert all(truth[text] == label for part in first for text, label in zip(part.texts, part.labels))
    assert split_validation(train, 0.1, seed=4)[1].texts != val.texts
    with pytest.raises(ValueError, match="between 0 and 1"):
        split_validation(train, 1.0)
    numbers = replace(train, labels=np.arange(120.0), classes=[])
    rest, val = split_validation(numbers, 0.25)
    assert len(val) == 30 and sorted([*rest.labels, *val.labels]) == list(range(120))
    lonely = replace(train, texts=train.texts[:3], labels=np.array([0, 0, 1]))
    with pytest.raises(ValueError, match="class 'positive' has one training row"):
        split_validation(lonely)
