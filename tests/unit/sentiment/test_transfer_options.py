"""`bigbatch transfer` with its further options, as a user calls it: other targets, more about a result, bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from bigbatch.evaluation.scores import multilabel_scores, regression_scores
from bigbatch.models import mlstm_cpu
from bigbatch.scripts.cli import main
from bigbatch.sentiment.classify import Classifier
from bigbatch.sentiment.multilabel import MultiLabelProbe
from bigbatch.sentiment.probe import SentimentProbe
from bigbatch.sentiment.regression import RidgeProbe

from .conftest import WORDS

Capture = pytest.CaptureFixture[str]


def call(run_dir: Path, files: dict[str, Path], *more: str | Path) -> int:
    options = [str(word) for name, path in files.items() for word in (f"--{name}", path)]
    return main(["transfer", "--run-dir", str(run_dir), *options, *(str(word) for word in more)])


def results(run_dir: Path, pattern: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((run_dir / "results").glob(pattern))]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def several(tmp_path: Path) -> dict[str, Path]:
    """Texts that may be sad, merry, both or neither, and have stars."""
    files = {}
    for seed, (name, n) in enumerate((("train", 120), ("val", 60), ("test", 60))):
        generator = np.random.default_rng(seed)
        lines = ["text,sad,merry,stars"]
        for row in range(n):
            sad, merry = (int(value) for value in generator.integers(2, size=2))
            words = [WORDS["negative"][row % 2]] * sad + [WORDS["positive"][row % 2]] * merry
            lines.append(f"It was {' and '.join(words) or 'there'},{sad},{merry},{3 - 2 * sad + 2 * merry}")
        files[name] = tmp_path / f"{name}-several.csv"
        files[name].write_text("\n".join(lines) + "\n")
    return files


def test_all_about_a_result(run_dir: Path, files: dict[str, Path], capsys: Capture) -> None:
    assert call(run_dir, files, "--task", "plain") == 0
    (plain,) = (run_dir / "results").glob("plain-*.json")
    options = ["--task", "shop", "--features", "mean", "--calibrate", "--label-efficiency", "2", "--units-k", "1", "3"]
    capsys.readouterr()
    assert call(run_dir, files, *options, "--compare", plain) == 0
    out = capsys.readouterr().out
    for expected in (
        "without unit",
        "best 3",
        "random 1, 5 draws",
        "10 labels",
        "120 labels",
        "McNemar's exact p",
        "Brier",
    ):
        assert expected in out
    (result,) = [r for r in results(run_dir, "shop-*.json") if r["kind"] == "transfer"]
    assert result["features"]["pooling"] == "mean" and result["probe"]["calibration"] == "platt"
    assert result["scores"]["accuracy"]["value"] == result["probe"]["accuracy"]
    kinds = {r["kind"]: r for r in results(run_dir, "shop-*.json")}
    assert set(kinds) == {"transfer", "unit-sets", "label-efficiency", "comparison"}
    last = kinds["label-efficiency"]["points"][-1]
    assert last["labels"] == 120 and last["validation_labels"] == 60
    assert kinds["comparison"]["difference"] == pytest.approx(
        result["probe"]["accuracy"] - results(run_dir, plain.name)[0]["probe"]["accuracy"]
    )
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert (run_dir / "plots" / "shop-label-efficiency.png").is_file() and "number of training labels" in page
    # classify reads the same features and the same corrected probabilities
    classifier = Classifier.load(run_dir, "shop")
    rows, texts = table(run_dir / result["predictions"]), [row["sentence"] for row in table(files["test"])]
    mine = classifier.predict_proba(texts)
    np.testing.assert_allclose(mine[:, 1], [float(row["probability_positive"]) for row in rows], atol=1e-5)
    assert SentimentProbe.load(run_dir / "probe" / "shop.json")[0].calibration_ is not None


def test_several_labels(run_dir: Path, several: dict[str, Path], capsys: Capture) -> None:
    assert call(run_dir, several, "--label-keys", "sad,merry", "--task", "mood") == 0
    out = capsys.readouterr().out
    assert "macro F1" in out and "F1 merry" in out and "baseline: every label for every text" in out
    (result,) = results(run_dir, "mood-*.json")
    rows, truth = table(run_dir / result["predictions"]), table(several["test"])
    labels = np.array([[int(row["sad"]), int(row["merry"])] for row in truth])
    predicted = np.array([[int(row["predicted_sad"]), int(row["predicted_merry"])] for row in rows])
    again = multilabel_scores(labels, predicted, ["sad", "merry"])
    assert again["f1_macro"] == result["scores"]["f1_macro"] and again["exact_match"] == result["scores"]["exact_match"]
    assert again["f1_macro"]["value"] > result["baseline"]["f1_macro"]["value"] + 0.1
    assert result["data"]["test"]["per_class"] == {"sad": labels[:, 0].sum(), "merry": labels[:, 1].sum()}
    probe, about = MultiLabelProbe.load(run_dir / "probe" / "mood.json")
    assert about["class_names"] == ["sad", "merry"]
    assert result["probe"]["thresholds"] == dict(zip(("sad", "merry"), probe.thresholds_))
    for row in rows:
        assert (float(row["probability_sad"]) >= probe.thresholds_[0] - 1e-6) or row["predicted_sad"] == "0"
    assert "Scores: mood" in (run_dir / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["classify", "--run-dir", str(run_dir), "It was dull"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    given = [n for n, t in zip(("sad", "merry"), probe.thresholds_) if float(row[f"probability_{n}"]) >= t]
    assert row["label"] == ",".join(given)
    assert main(["heatmap", "--run-dir", str(run_dir), "It was dull"]) == 2
    assert "has more than two classes and no best unit; name one with --unit" in capsys.readouterr().err


def test_numbers(run_dir: Path, several: dict[str, Path], capsys: Capture) -> None:
    del several["val"]
    assert call(run_dir, several, "--kind", "regression", "--task", "stars", "--features", "max") == 0
    out = capsys.readouterr().out
    assert "Pearson" in out and "mean squared error" in out and "24 of the training texts are set aside" not in out
    assert "12 of the training texts are set aside" in out
    (result,) = results(run_dir, "stars-*.json")
    rows = table(run_dir / result["predictions"])
    truth = np.array([float(row["stars"]) for row in table(several["test"])])
    again = regression_scores(truth, np.array([float(row["predicted"]) for row in rows]))
    for name in ("pearson", "spearman", "mse"):
        assert again[name]["value"] == pytest.approx(result["scores"][name]["value"], abs=1e-4)
    assert result["scores"]["pearson"]["value"] > 0.5 and result["baseline"]["pearson"]["value"] == 0.0
    assert RidgeProbe.load(run_dir / "probe" / "stars.json")[0].alpha_ == result["probe"]["alpha"]


def test_texts_without_labels_get_predictions(
    run_dir: Path, several: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    several["test"] = tmp_path / "new.csv"
    several["test"].write_text("text,stars\nIt was dull,3\nIt was superb,\n")
    assert call(run_dir, several, "--label-keys", "sad,merry", "--task", "mood") == 0
    out = capsys.readouterr().out
    assert "no column 'sad' in the test data: taken as unlabelled" in out and "2 test texts without labels" in out
    (result,) = results(run_dir, "mood-*.json")
    assert "scores" not in result
    assert [row["label_sad"] for row in table(run_dir / result["predictions"])] == ["", ""]
    assert call(run_dir, several, "--label-key", "sad", "--compare", "results/x.json") == 2
    assert "need labels in the --test data, which has none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "regression", "--label-keys", "sad"], "--kind regression and --label-keys were both given"),
        (["--label-key", "sad", "--label-keys", "sad"], "--label-key and --label-keys were both given"),
        (["--kind", "regression", "--calibrate"], "--calibrate is for probabilities"),
        (["--kind", "regression", "--label-efficiency"], "--label-efficiency is for one class a text"),
        (["--label-keys", "sad", "--units-k", "2"], "--units-k is for one class a text"),
        (["--label-keys", "sad", "--compare", "x"], "--compare is for one class a text"),
        (["--label-keys", "sad,glad"], "no column 'glad' for the label"),
        (["--kind", "regression", "--label-key", "text"], "is no number; regression needs numbers"),
        (["--label-key", "sad", "--compare", "nowhere.json"], "there is no result nowhere.json"),
        (["--label-key", "sad", "--task", "../x"], "goes into file names"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    options: list[str], message: str, run_dir: Path, several: dict[str, Path], capsys: Capture
) -> None:
    assert call(run_dir, several, *options) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert [path.name for path in run_dir.iterdir() if path.name != "cache"] == ["checkpoints"]


def test_labels_that_training_lacks_are_named(run_dir: Path, files: dict[str, Path], capsys: Capture) -> None:
    for name in ("val", "test"):
        whole = files[name].read_text()
        files[name].write_text(whole + "odd,The lamp is weird\n")
        assert call(run_dir, files) == 2
        assert f"{files[name]}: label 'odd' is not among the classes negative, positive" in capsys.readouterr().err
        files[name].write_text(whole)


def test_a_part_with_one_class(run_dir: Path, several: dict[str, Path], capsys: Capture) -> None:
    lines = several["val"].read_text().splitlines()
    several["val"].write_text("\n".join([lines[0], *[line for line in lines[1:] if line.split(",")[2] == "0"]]) + "\n")
    assert call(run_dir, several, "--label-keys", "sad,merry") == 2
    assert "label 'merry': the validation data has no row of class 1" in capsys.readouterr().err
    assert call(run_dir, several, "--label-key", "merry") == 2
    assert "labels of one class only (negative)" in capsys.readouterr().err


def test_reading_in_eight_bits_goes_with_the_probe(
    run_dir: Path, files: dict[str, Path], capsys: Capture, tmp_path: Path
) -> None:
    if not mlstm_cpu.has_int8():
        assert call(run_dir, files, "--int8") == 2
        assert "AVX512-VNNI" in capsys.readouterr().err
        return
    assert call(run_dir, files, "--task", "whole") == 0 and call(run_dir, files, "--task", "bits", "--int8") == 0
    texts = ["The lamp is superb", "The film is dull"]
    whole, bits = Classifier.load(run_dir, "whole"), Classifier.load(run_dir, "bits")
    assert "int8" not in whole.about["features"] and bits.about["features"]["int8"] is True
    features = bits.features(texts)
    assert not np.array_equal(features, whole.features(texts))
    np.testing.assert_allclose(features, whole.features(texts), atol=0.05)
    np.testing.assert_array_equal(bits.predict_proba(texts), bits.probe.predict_proba(features))
