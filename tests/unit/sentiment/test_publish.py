"""A published folder: complete, free of this machine, and the same classifier wherever it lies."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bigbatch.data.config import DataConfig
from bigbatch.data.labelled import load_labelled
from bigbatch.scripts.cli import main
from bigbatch.sentiment.classify import Classifier
from bigbatch.sentiment.publish import held_out_bpc, publish, without_places
from bigbatch.sentiment.transfer import run_transfer
from bigbatch.training.checkpoint import load_model
from bigbatch.training.config import TrainConfig
from bigbatch.training.metrics import update_result

TEXTS = ["The lamp is superb", "The film is dreadful", "é", "A cable"]


def call(*argv: str | Path) -> int:
    return main([str(word) for word in argv])


def transfer(run_dir: Path, files: dict[str, Path], task: str = "shop", **options: Any) -> Any:
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    return run_transfer(load_model(run_dir), *parts, out_dir=run_dir, task=task, progress=False, **options)


@pytest.fixture
def transferred(run_dir: Path, files: dict[str, Path]) -> Path:
    transfer(run_dir, files, transform="tanh")
    return run_dir


@pytest.fixture
def published(transferred: Path, tmp_path: Path) -> Path:
    publish(transferred, tmp_path / "out" / "shop", licence="CC BY 4.0", code_version="9.9")
    return tmp_path / "out" / "shop"


def test_a_moved_folder_is_the_same_classifier_to_the_bit(
    published: Path, transferred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    expected = Classifier.load(transferred).predict_proba(TEXTS)
    far = tmp_path / "far" / "away"
    far.parent.mkdir()
    shutil.move(published, far)
    shutil.rmtree(transferred.parent)  # no training folder, no data
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    np.testing.assert_array_equal(Classifier.load(far).predict_proba(TEXTS), expected)
    monkeypatch.chdir(far.parent)
    assert call("classify", "--model", "away", *TEXTS) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["probability_positive"]) for row in rows] == pytest.approx(expected[:, 1], abs=1e-6)
    assert call("heatmap", "superb", "--run-dir", far, "--output", tmp_path / "m.html") == 0


def test_what_the_folder_holds(transferred: Path, tmp_path: Path) -> None:
    (manifest,) = transferred.glob("checkpoints/*/manifest.json")
    content = json.loads(manifest.read_text())
    data = DataConfig(paths=[str(tmp_path / "reviews.jsonl")], store=str(tmp_path / "stores" / "reviews"))
    whole = TrainConfig(run_dir=str(transferred), init_from=str(tmp_path / "large"), data=data).to_dict()
    content["config"] = {**whole, "model": content["config"]["model"]}
    manifest.write_text(json.dumps(content))
    published = tmp_path / "out" / "shop"
    publish(transferred, published)
    assert "| trained on | reviews.jsonl |" in (published / "README.md").read_text()
    (weights,) = published.glob("checkpoints/*/model.safetensors")
    (trained,) = transferred.glob("checkpoints/*/model.safetensors")
    assert weights.read_bytes() == trained.read_bytes()
    names = {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    place = weights.parent.relative_to(published).as_posix()
    inside = {f"{place}/{name}" for name in ("model.safetensors", "manifest.json", "trainer.json")}
    assert names == {"README.md", "config.json", "published.json", "probe/shop.json", "probe/shop.safetensors", *inside}
    for path in published.rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path
    assert [path.name for path in published.parent.iterdir()] == ["shop"]


def test_the_card_says_what_was_measured_and_only_that(
    transferred: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    result = transfer(transferred, files, transform="tanh").summary
    loaded = load_model(transferred)
    update_result(transferred, {
        "bpc": 2.34567, "bpc_bytes": 98765, "bpc_of": f"the test split of {transferred}",
        "bpc_trained_bytes": loaded.tokens,
    })  # fmt: skip
    about = publish(transferred, tmp_path / "shop", "shop", "CC BY 4.0", "9.9")
    card = (tmp_path / "shop" / "README.md").read_text()
    assert json.loads((tmp_path / "shop" / "published.json").read_text()) == about
    config = json.loads((tmp_path / "shop" / "config.json").read_text())
    config_hash = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    rows = [f"| {name} | {s['accuracy']:.4f} | {s['low']:.4f} to {s['high']:.4f} | {s['n']} |" for name, s in (
        ("probe on all units", result["probe"]), ("best single unit", result["unit"]),
        ("TF-IDF + logistic regression", result["baseline_tfidf"]), ("majority class", result["baseline_majority"]),
    )]  # fmt: skip
    expected = [
        *rows, "95% interval (Wilson)", "Licence: CC BY 4.0", "| by bigbatch | 9.9 |", loaded.model_hash, config_hash,
        "100 samples (windows), 6,400 bytes", "2.3457 bits per character over 98,765 bytes (test split",
        f"| test | test.csv | 80 | `{result['data']['test']['sha256']}` |", "negative or positive", "cell state (tanh)",
        f"uses {result['probe']['n_nonzero']} units", "| trained on | not recorded |",
    ]  # fmt: skip
    for text in expected:
        assert text in card, text
    assert result["probe"]["n"] == 80


def test_a_score_of_other_weights_is_not_in_the_card(
    transferred: Path, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_model(transferred)
    score = {"bpc": 2.0, "bpc_bytes": 9, "bpc_of": f"the test split of {transferred}", "bpc_trained_bytes": 1}
    update_result(transferred, score)
    assert held_out_bpc(transferred, loaded) is None
    update_result(transferred, {"bpc_of": "other.txt", "bpc_trained_bytes": loaded.tokens})
    assert held_out_bpc(transferred, loaded) is None
    row = {"event": "eval", "split": "val", "samples": 100, "tokens": 6400, "loss": 1.0, "bpc": 1.5, "num_targets": 70}
    lines = [{**row, "samples": 50}, row, {"samples": 100, "bpc": 1.2}, {**row, "samples": 200, "bpc": 1.4}]
    (transferred / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert held_out_bpc(transferred, loaded) == {"bpc": 1.5, "num_targets": 70, "split": "val"}
    (transferred / "metrics.jsonl").unlink()
    (result,) = (transferred / "results").glob("*.json")
    result.write_text(result.read_text().replace(loaded.model_hash, "0" * 64))
    assert call("publish", "--run-dir", transferred, "--out", tmp_path / "bare") == 0
    out = capsys.readouterr().out
    assert "the card has no held-out score" in out and "the card has no accuracies" in out
    card = (tmp_path / "bare" / "README.md").read_text()
    assert "not measured on these weights" in card and "Accuracy: not measured" in card
    assert "Licence: not stated" in card and re.search(r"by bigbatch \| \d", card)


def test_several_classes_and_a_named_task(
    run_dir: Path, three_classes: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> None:
    transfer(run_dir, three_classes, task="three")
    transfer(run_dir, files, task="two")
    assert call("publish", "--run-dir", run_dir, "--task", "three", "--out", tmp_path / "three") == 0
    card = (tmp_path / "three" / "README.md").read_text()
    assert "negative or odd or positive" in card and "best single unit" not in card
    assert Classifier.load(tmp_path / "three").class_names == ["negative", "odd", "positive"]
    assert call("publish", "--run-dir", run_dir, "--task", "four", "--out", tmp_path / "four") == 2
    assert not (tmp_path / "four").exists()


def test_a_probe_of_another_model_is_refused(published: Path, tmp_path: Path, files: dict[str, Path]) -> None:
    from bigbatch.training.checkpoint import save_weights

    (checkpoint,) = published.glob("checkpoints/*")
    loaded = load_model(published)
    other = {name: tensor + 0.01 for name, tensor in loaded.model.state_dict().items()}
    changed = save_weights(tmp_path / "other", other, loaded.config, {"samples": loaded.samples, "tokens": 1})
    shutil.rmtree(checkpoint)
    shutil.move(changed, checkpoint)
    with pytest.raises(
        ValueError, match=r"'shop' in .* belongs to another model than the one beside it: .*take the whole"
    ):
        Classifier.load(published)


@pytest.mark.parametrize("name", ["model.safetensors", "shop.safetensors"])
def test_damaged_weights_are_refused(name: str, published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = published.rglob(name)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert call("classify", "--model", published, "good") == 2
    assert "damaged" in capsys.readouterr().err


def test_which_folder_classify_takes(
    published: Path, transferred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        (["--model", published, "--run-dir", transferred], "--run-dir and --model were both given; choose one"),
        (["--model", transferred], "is no folder of bigbatch publish (it has no published.json)"),
        (["--model", tmp_path / "nowhere"], "is no folder of bigbatch publish"),
    ]
    for options, message in cases:
        assert call("classify", "good", *options) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.strip().splitlines()) == 1
    assert call("classify", "good", "--model", published, "--task", "imdb") == 2
    assert "no probe for task 'imdb'; it has shop" in capsys.readouterr().err


def test_nothing_is_overwritten_or_left_half_written(
    transferred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "shop"
    out.mkdir(parents=True)
    (out / "mine.txt").write_text("x")
    assert call("publish", "--run-dir", transferred, "--out", out) == 2
    assert "exists and is not an empty folder: name another one" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["mine.txt"]

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("bigbatch.sentiment.publish.write_json", full)
    assert call("publish", "--run-dir", transferred, "--out", tmp_path / "made" / "two") == 2
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["shop"]


@pytest.mark.parametrize("spoil", [lambda text: text[:40], lambda text: "[]"])
def test_a_damaged_result_is_one_line(
    spoil: Callable[[str], str], transferred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = (transferred / "results").glob("*.json")
    result.write_text(spoil(result.read_text()))
    assert call("publish", "--run-dir", transferred, "--out", tmp_path / "shop") == 2
    assert "is no result of bigbatch transfer" in capsys.readouterr().err


def test_training_cannot_go_on_in_a_published_folder(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in published.iterdir())
    assert call("train", "--run-dir", published, "--data.paths", "demo", "--model.hidden-size", "24") == 2
    assert f"start from them with --init-from {published}" in capsys.readouterr().err
    assert sorted(path.name for path in published.iterdir() if path.name != ".lock") == before


def test_places_are_taken_out_of_a_configuration(tmp_path: Path) -> None:
    whole = TrainConfig(run_dir=str(tmp_path / "runs" / "mine"), init_from=str(tmp_path / "large")).to_dict()
    whole["data"] |= {"paths": [str(tmp_path / "reviews.jsonl"), "demo"], "store": str(tmp_path / "stores" / "s")}
    public = without_places(whole)
    assert str(tmp_path) not in json.dumps(public) and str(tmp_path) in json.dumps(whole)
    assert public["data"]["paths"] == ["reviews.jsonl", "demo"] and public["data"]["store"] == "s"
    assert (public["run_dir"], public["init_from"]) == ("mine", "large")
    assert without_places({"model": {"kind": "mlstm"}}) == {"model": {"kind": "mlstm"}}
