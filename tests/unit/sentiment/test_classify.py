"""The classifier of a run folder, and what is said where something is missing or does not belong together."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.labelled import load_labelled
from bigbatch.sentiment.classify import Classifier, find_run
from bigbatch.sentiment.featurize import featurize
from bigbatch.sentiment.transfer import run_transfer
from bigbatch.training.checkpoint import load_model


@pytest.fixture
def transferred(run_dir: Path, files: dict[str, Path]) -> Path:
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    run_transfer(load_model(run_dir), *parts, out_dir=run_dir, task="shop", transform="tanh", progress=False)
    return run_dir


def test_probabilities_are_those_of_the_probe_on_its_features(transferred: Path) -> None:
    classifier, texts = Classifier.load(transferred), ["The lamp is superb", "", "The lamp is dreadful", "NA"]
    probabilities = classifier.predict_proba(texts)
    features = featurize(load_model(transferred).model, texts, transform="tanh", progress=False)
    np.testing.assert_array_equal(probabilities, classifier.probe.predict_proba(features))
    assert classifier.class_names == ["negative", "positive"]
    assert classifier.predict(texts) == [classifier.class_names[i] for i in probabilities.argmax(axis=1)]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_a_moved_run_folder_still_works(transferred: Path, tmp_path: Path) -> None:
    before = Classifier.load(transferred).predict_proba(["The lamp is superb"])
    shutil.move(transferred, tmp_path / "elsewhere")
    np.testing.assert_array_equal(Classifier.load(tmp_path / "elsewhere").predict_proba(["The lamp is superb"]), before)


def test_probe_keeps_its_checkpoint_when_training_goes_on(transferred: Path) -> None:
    before = Classifier.load(transferred).predict_proba(["The lamp is superb"])
    _later_checkpoint(transferred)
    np.testing.assert_array_equal(Classifier.load(transferred).predict_proba(["The lamp is superb"]), before)


def _later_checkpoint(run_dir: Path, keep_first: bool = True) -> None:
    """A checkpoint with other weights: the first one's, changed."""
    from bigbatch.training.checkpoint import Checkpoint, checkpoint_dirs, save_checkpoint
    from safetensors.torch import load_file

    (first,) = checkpoint_dirs(run_dir)
    weights = load_file(first / "model.safetensors")
    weights = {name: tensor + 0.01 for name, tensor in weights.items()}
    save_checkpoint(run_dir, Checkpoint(weights, {"samples": 200, "tokens": 1}), load_model(run_dir).config)
    if not keep_first:
        shutil.rmtree(first)


def test_probe_of_a_checkpoint_that_is_gone(transferred: Path) -> None:
    _later_checkpoint(transferred, keep_first=False)
    with pytest.raises(
        ValueError, match=r"belongs to another checkpoint than step_0+200 .*bigbatch transfer --run-dir"
    ):
        Classifier.load(transferred)


def test_before_anything_is_trained(tmp_path: Path, run_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing under .*bigbatch demo.*bigbatch train .*bigbatch transfer"):
        find_run(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"no run folder .*bigbatch train .*bigbatch transfer"):
        Classifier.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no probe yet: run `bigbatch transfer --run-dir"):
        Classifier.load(run_dir)


def test_newest_probe_and_named_task(transferred: Path, files: dict[str, Path]) -> None:
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    run_transfer(load_model(transferred), *parts, out_dir=transferred, task="later", progress=False)
    os.utime(transferred / "probe" / "shop.json", (1, 1))
    assert Classifier.load(transferred).about["task"] == "later"
    assert Classifier.load(transferred, "shop").about["task"] == "shop"
    with pytest.raises(ValueError, match="no probe for task 'imdb'; it has shop, later"):
        Classifier.load(transferred, "imdb")
    assert find_run(transferred.parent) == transferred


def test_missing_checkpoints(transferred: Path) -> None:
    shutil.rmtree(transferred / "checkpoints")
    with pytest.raises(ValueError, match="bigbatch train"):
        Classifier.load(transferred)
