"""`bigbatch finetune` from command to predictions: scores against an independent count, labels for new texts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.scripts.cli import main
from bigbatch.sentiment.finetuned import FinetunedClassifier, is_finetuned, score_run
from bigbatch.sentiment.multilabel import MultiLabelProbe
from bigbatch.training.tasks.classify import pad

SMALL = ["--schedule.samples", "480", "--optim.lr", "0.02", "--batch.global-batch-size", "16", "--log.progress", "false",
         "--schedule.decay", "constant", "--device", "cpu", "--precision", "fp32"]  # fmt: skip


@pytest.fixture
def finetuned(run_dir: Path, files: dict[str, Path], tmp_path: Path) -> Path:
    out = tmp_path / "runs" / "tuned"
    parts = [word for name, path in files.items() for word in (f"--task.{name}", str(path))]
    assert main(["finetune", "--encoder", str(run_dir), *parts, "--run-dir", str(out), *SMALL]) == 0
    return out


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_scores_and_predictions_are_those_of_the_best_checkpoint(finetuned: Path, files: dict[str, Path]) -> None:
    table = score_run(finetuned, progress=False)
    assert table.startswith("scored: step_") and "the best on validation (accuracy " in table
    assert "fine-tuned, accuracy" in table
    classifier = FinetunedClassifier.load(finetuned)
    test = rows_of(files["test"])
    texts = [row["sentence"] for row in test]
    with torch.no_grad():  # each by itself, padded by nothing
        scores = torch.cat([classifier.model(*pad([clean_review(t)], torch.device("cpu")))[0].mean(1) for t in texts])
    expected = torch.softmax(scores.double(), dim=1).numpy()
    np.testing.assert_allclose(classifier.predict_proba(texts), expected, atol=1e-5)
    predictions = rows_of(finetuned / "results" / "finetune.predictions.csv")
    names = ["negative", "positive"]
    assert (
        [row["predicted"] for row in predictions] == [names[k] for k in expected.argmax(1)] == classifier.predict(texts)
    )
    assert [row["label"] for row in predictions] == [row["label"] for row in test]
    accuracy = np.mean([row["label"] == row["predicted"] for row in predictions])
    result = json.loads((finetuned / "results" / "finetune.json").read_text())
    assert result["classifier"]["accuracy"] == pytest.approx(accuracy) and result["classifier"]["n"] == 80
    assert accuracy >= 0.9  # the words decide, and training has seen them all
    assert result["scores"]["accuracy"]["value"] == pytest.approx(accuracy)
    assert json.loads((finetuned / "result.json").read_text())["finetune"]["classifier"] == result["classifier"]


def test_several_labels_get_thresholds_from_validation(run_dir: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, n in (("train", 150), ("val", 80), ("test", 60)):
        flags = generator.integers(0, 2, (n, 2))
        lines = [f"a film {'dull ' * a}{'sweet ' * b}no {k},{a},{b}" for k, (a, b) in enumerate(flags)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence,dull,sweet", *lines]))
    out, parts = (
        tmp_path / "labels",
        [w for n in ("train", "val", "test") for w in (f"--task.{n}", str(tmp_path / f"{n}.csv"))],
    )
    argv = ["finetune", "--encoder", str(run_dir), *parts, "--task.label-keys", "dull", "sweet", "--run-dir", str(out)]
    assert main([*argv, "--task.metric", "f1", *SMALL]) == 0
    result = json.loads((out / "results" / "finetune.json").read_text())
    assert result["f1_micro"]["value"] > 0.85 and len(result["thresholds"]) == 2
    classifier = FinetunedClassifier.load(out)
    assert classifier.thresholds is not None and classifier.thresholds.tolist() == result["thresholds"]
    texts = [row["sentence"] for row in rows_of(tmp_path / "test.csv")]
    given = classifier.predict_proba(texts) >= classifier.thresholds
    assert classifier.predict(texts) == [",".join(n for n, g in zip(("dull", "sweet"), row) if g) for row in given]


def test_an_unlabelled_test_file_gets_predictions_only(finetuned: Path, tmp_path: Path, files: dict[str, Path]) -> None:
    (tmp_path / "new.csv").write_text("sentence\nThe film is superb\nThe lamp is dull\n")
    import yaml

    config = yaml.safe_load((finetuned / "config.yaml").read_text())
    config["task"]["test"] = [str(tmp_path / "new.csv")]
    (finetuned / "config.yaml").write_text(yaml.safe_dump(config))
    assert "2 test texts have no labels: predictions only" in score_run(finetuned, progress=False)
    assert [row["label"] for row in rows_of(finetuned / "results" / "finetune.predictions.csv")] == ["", ""]
    config["task"]["test"] = []
    (finetuned / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=r"was given no test files: .* --task.test"):
        score_run(finetuned)


def test_kinds_of_runs_are_told_apart(run_dir: Path, finetuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_finetuned(finetuned) and not is_finetuned(run_dir) and not is_finetuned(run_dir / "nothing")
    with pytest.raises(ValueError, match=r"holds a language model, no fine-tuned classifier: run `bigbatch finetune`"):
        FinetunedClassifier.load(run_dir)
    capsys.readouterr()
    assert main(["transfer", "--run-dir", str(finetuned), "--train", "a.csv", "--test", "a.csv"]) == 2
    assert main(["evaluate", "--run-dir", str(finetuned)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 2 and "holds a fine-tuned classifier" in error


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "--encoder is missing: name the run folder of a trained language model"),
        (["--encoder", "nowhere"], "--task.train is missing: name a file of labelled texts"),
        (["--encoder", "nowhere", "--task.train", "a.csv"], "nowhere does not exist: train a model first"),
        (["--encoder", "x", "--task.train", "a.csv", "--optim.l", "1"], "unrecognized arguments: --optim.l"),
        (["--encoder", "x", "--task.train", "a.csv", "--optim.layer-lr-decay", "0"], "--optim.layer_lr_decay is 0.0"),
    ],
)
def test_bad_options_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_classify_uses_a_fine_tuned_run(
    finetuned: Path, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.csv"
    capsys.readouterr()
    assert main(["classify", "--run-dir", str(finetuned), "--file", str(files["test"]), "--output", str(output)]) == 0
    expected = rows_of(finetuned / "results" / "finetune.predictions.csv")
    found = rows_of(output)
    assert [row["label"] for row in found] == [row["predicted"] for row in expected]
    for row, other in zip(found, expected):
        assert float(row["probability_positive"]) == pytest.approx(float(other["probability_positive"]), abs=2e-6)
    assert main(["classify", "--run-dir", str(finetuned), "--task", "shop", "superb"]) == 2
    assert "is a run of bigbatch finetune, which has one task: leave --task out" in capsys.readouterr().err


def test_classify_gives_several_labels_by_their_thresholds(run_dir: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, n in (("train", 150), ("val", 80), ("test", 60)):
        flags = generator.integers(0, 2, (n, 2))
        lines = [f"a film {'dull ' * a}{'sweet ' * b}no {k},{a},{b}" for k, (a, b) in enumerate(flags)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence,dull,sweet", *lines]))
    files = [word for n in ("train", "val", "test") for word in (f"--{n}", str(tmp_path / f"{n}.csv"))]
    assert main(["transfer", "--run-dir", str(run_dir), *files, "--label-keys", "dull,sweet", "--task", "both"]) == 0
    output = tmp_path / "out.csv"
    assert (
        main(["classify", "--run-dir", str(run_dir), "--file", str(tmp_path / "test.csv"), "--output", str(output)])
        == 0
    )
    thresholds = MultiLabelProbe.load(run_dir / "probe" / "both.json")[0].thresholds_
    for row in rows_of(output):
        given = [name for name, t in zip(("dull", "sweet"), thresholds) if float(row[f"probability_{name}"]) >= t]
        assert row["label"] == ",".join(given)
