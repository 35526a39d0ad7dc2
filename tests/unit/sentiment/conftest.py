"""A run folder with a small untrained model in it: enough for features that tell two words apart."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from bigbatch.data.labelled import load_labelled
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.sentiment.transfer import run_transfer
from bigbatch.training.checkpoint import Checkpoint, load_model, save_checkpoint

NOUNS = ("kettle", "film", "cable", "novel", "lamp")
WORDS = {"negative": ("dull", "dreadful"), "positive": ("superb", "sweet"), "odd": ("weird", "queer")}


def add_checkpoint(run_dir: Path, samples: int, seed: int) -> Path:
    config = MLSTMConfig(hidden_size=24, embedding_size=8)
    torch.manual_seed(seed)
    state = {name: tensor.detach() for name, tensor in MLSTM(config).state_dict().items()}
    trainer = {"samples": samples, "tokens": 64 * samples}
    return save_checkpoint(run_dir, Checkpoint(state, trainer), {"model": asdict(config)})


def write_reviews(path: Path, n: int, seed: int, classes: tuple[str, ...] = ("negative", "positive")) -> Path:
    generator = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "sentence"])
        for row in range(n):
            name = classes[row % len(classes)]
            writer.writerow(
                [name, f"The {NOUNS[generator.integers(5)]} number {row} is {WORDS[name][generator.integers(2)]}"]
            )
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "mine"
    add_checkpoint(run, samples=100, seed=0)
    return run


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """train, val and test of two classes."""
    sizes = {"train": 120, "val": 60, "test": 80}
    return {name: write_reviews(tmp_path / f"{name}.csv", n, seed) for seed, (name, n) in enumerate(sizes.items())}


@pytest.fixture
def three_classes(tmp_path: Path) -> dict[str, Path]:
    names = ("negative", "odd", "positive")
    return {
        name: write_reviews(tmp_path / f"{name}3.csv", 150, seed, names)
        for seed, name in enumerate(("train", "val", "test"))
    }


@pytest.fixture
def transferred(run_dir: Path, files: dict[str, Path]) -> Path:
    """The run folder after a transfer named `shop`."""
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    run_transfer(load_model(run_dir), *parts, out_dir=run_dir, task="shop", progress=False)
    return run_dir
