"""`bigbatch units`: what it finds is what the parts find, and what it leaves behind can be read."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.cleaning import clean_review
from bigbatch.data.labelled import load_labelled
from bigbatch.scripts.cli import main
from bigbatch.scripts.units import text_table
from bigbatch.sentiment.classify import load_probed
from bigbatch.sentiment.featurize import cell_trace, featurize
from bigbatch.sentiment.report import read_transfers
from bigbatch.sentiment.transfer import run_transfer
from bigbatch.sentiment.unit_ranking import UnitRanking, ablation, correlations_of_units
from bigbatch.sentiment.unit_study import study_units
from bigbatch.training.checkpoint import load_model


@pytest.fixture
def transferred(run_dir: Path, files: dict[str, Path]) -> Path:
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    run_transfer(load_model(run_dir), *parts, out_dir=run_dir, task="shop", progress=False)
    return run_dir


def call(*argv: str | Path) -> int:
    return main(["units", *(str(word) for word in argv)])


def test_numbers_are_those_of_the_parts(transferred: Path, files: dict[str, Path]) -> None:
    loaded, probe, about = load_probed(transferred)
    data = load_labelled(files["test"])
    found = study_units(loaded, probe, about, data, transferred, top=4, min_count=2, progress=False)
    X = featurize(loaded.model, data.texts, progress=False)
    ranking = UnitRanking.measure(probe, X, data.labels, progress=False)  # type: ignore[arg-type]
    for name, order in ranking.orders().items():
        assert found["ranking"][name] == ranking.rows(order[:4])
    assert found["ablation"] == ablation(probe, X, data.labels)  # type: ignore[arg-type]
    top = ranking.orders()["weight"][:4]
    assert found["correlation"]["units"] == top.tolist()
    np.testing.assert_allclose(found["correlation"]["values"], correlations_of_units(X, top))
    unit = about["unit"]["index"]
    assert found["unit"]["unit"] == unit and found["unit"]["accuracy_here"] >= 0.5
    values = X[:, unit]
    assert [row["index"] for row in found["texts"]["highest"]] == np.argsort(-values, kind="stable")[:5].tolist()
    assert found["texts"]["lowest"][0]["value"] == values.min()
    assert found["texts"]["lowest"][0]["label"] == data.classes[data.labels[values.argmin()]]  # type: ignore[index]


def test_words_are_measured_on_the_traces(transferred: Path, files: dict[str, Path]) -> None:
    loaded, probe, about = load_probed(transferred)
    data = load_labelled(files["test"])
    found = study_units(loaded, probe, about, data, transferred, unit=3, min_count=2, span_texts=20, progress=False)
    chosen = np.unique(np.linspace(0, 79, 20).round().astype(int))
    changes: dict[str, list[float]] = {}
    for index in chosen:
        text = clean_review(data.texts[index])
        trace, position = cell_trace(loaded.model, data.texts[index], units=[3])[:, 0], 1
        for word in text.decode().split():
            end = position + len(word) + 1
            changes.setdefault(word.lower(), []).append(float(trace[end]) - float(trace[position]))
            position = end
    means = {word: np.mean(values) for word, values in changes.items() if len(values) >= 2}
    rising = [(word, mean) for word, mean in sorted(means.items(), key=lambda item: -item[1]) if mean > 0]
    assert found["span_texts"] == 20
    assert [
        (row["words"], pytest.approx(row["mean_change"], abs=1e-5)) for row in found["spans"]["1"]["rising"]
    ] == rising[:10]
    largest = found["occurrences"]["falling"][0]
    assert largest["change"] == pytest.approx(min(min(values) for values in changes.values()), abs=1e-5)
    assert f"[{largest['word']}]" in largest["context"].lower() and largest["index"] in chosen


def test_files(transferred: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--run-dir", transferred, "--data", files["test"], "--top", "5", "--min-count", "2") == 0
    out = capsys.readouterr().out
    for expected in (
        "units by the probe's weight, task shop, 80 texts",
        "speaks for",
        "without, at mean",
        "words that move unit",
    ):
        assert expected in out
    (result,) = (transferred / "results").glob("shop-units-*.json")
    stored = json.loads(result.read_text())
    assert stored["kind"] == "units" and stored["schema_version"] == 1 and "files" not in stored
    assert {path.name for path in (transferred / "units").iterdir()} == {
        "shop.html", "shop.csv", "shop-histogram.png", "shop-correlation.png",
    }  # fmt: skip
    assert all(str(path) in out for path in (transferred / "units").iterdir()) and str(result) in out
    with (transferred / "units" / "shop.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["unit"]) for row in rows] == list(range(24))
    assert sorted(int(row["rank_by_auc"]) for row in rows) == list(range(1, 25))
    page = (transferred / "units" / "shop.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\(|@import|<script|<link", page)
    assert page.count("data:image/png;base64,") == 2 and page.count('class="bb-text"') == 10
    assert len(read_transfers(transferred)) == 1  # a study is no transfer to the report
    assert call("--run-dir", transferred, "--data", files["test"], "--top", "5", "--min-count", "2") == 0
    assert len(list((transferred / "results").glob("shop-units-*.json"))) == 1
    assert (transferred / "cache").is_dir()


def test_hostile_text_stays_text(transferred: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    rows = "".join(f"{i % 2},<script>alert({i})</script> <b>lamp</b> \udcff\n" for i in range(12))
    path.write_bytes(("label,sentence\n" + rows).encode(errors="surrogateescape"))
    assert call("--run-dir", transferred, "--data", path, "--no-cache") == 0
    page = (transferred / "units" / "shop.html").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page and "<b>lamp" not in page
    assert not (transferred / "cache").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--unit", "24"], "unit 24 does not exist: the model has units 0 to 23"),
        (["--top", "0"], "top is 0; it must be at least 1"),
        (["--min-count", "0"], "min_count is 0"),
        (["--span-texts", "0"], "span_texts is 0"),
        (["--task", "other"], "no probe for task 'other'"),
        (["--label-key", "mark"], "no column 'mark'"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(
    argv: list[str], message: str, transferred: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--run-dir", transferred, "--data", files["test"], *argv) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (transferred / "units").exists()


def test_probes_that_cannot_be_studied(
    run_dir: Path, three_classes: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [load_labelled(three_classes[name]) for name in ("train", "val", "test")]
    run_transfer(load_model(run_dir), *parts, out_dir=run_dir, progress=False)
    assert call("--run-dir", run_dir, "--data", three_classes["test"]) == 2
    assert "task 'sentiment' has 3 classes; units are ranked for two" in capsys.readouterr().err


def test_a_layer_that_is_not_the_last(transferred: Path, files: dict[str, Path]) -> None:
    loaded, probe, about = load_probed(transferred)
    about["features"]["layer"] = 1
    with pytest.raises(ValueError, match="the probe is on layer 1; units are traced in the last layer only"):
        study_units(loaded, probe, about, load_labelled(files["test"]), transferred)


def test_table_lines_up() -> None:
    assert text_table(["a", "long"], [["wide", "1"], ["b", "23"]]) == "   a  long\nwide     1\n   b    23"
