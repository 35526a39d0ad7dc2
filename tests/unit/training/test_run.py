"""Preparing a run folder: paths, stores, what is settled before ranks start."""

from __future__ import annotations

from pathlib import Path

import pytest
from bigbatch.data.config import DataConfig
from bigbatch.training.config import TrainConfig
from bigbatch.training.run import build_store, settle_config


def test_a_named_store_that_is_missing_is_not_replaced_by_the_embedded_corpus(tmp_path: Path) -> None:
    config = TrainConfig(data=DataConfig(store=str(tmp_path / "mine")), run_dir=str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"there is no token store .*/mine: build it with `bigbatch prepare"):
        build_store(settle_config(config))
    assert not list(tmp_path.iterdir()), "something was written"


def test_a_home_folder_is_found_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    data = DataConfig(paths=["~/a.jsonl", "demo"], store="~/store")
    config = settle_config(TrainConfig(data=data, run_dir="~/runs/mine"))
    assert config.data.paths == [str(tmp_path / "a.jsonl"), "demo"]
    assert config.data.store == str(tmp_path / "store")
    assert config.run_dir == str(tmp_path / "runs" / "mine")
