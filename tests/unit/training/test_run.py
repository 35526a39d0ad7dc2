"""Preparing a run folder: paths, stores, what is settled before ranks start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bigbatch.data.config import DataConfig
from bigbatch.data.token_store import TokenStoreWriter
from bigbatch.models.config import MLSTMConfig
from bigbatch.training.config import LogConfig, OptimConfig, ParallelConfig, ScheduleConfig, TrainConfig
from bigbatch.training.run import build_store, check_config, load_splits, settle_config, split_source


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


def test_a_named_store_of_other_text_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name} good film"}}\n')
    config = TrainConfig(
        data=DataConfig(paths=[str(tmp_path / "a.jsonl")], store=str(tmp_path / "s")), run_dir=str(tmp_path / "run")
    )
    build_store(settle_config(config))
    before = (tmp_path / "s.bin").read_bytes()
    config.data.paths = [str(tmp_path / "b.jsonl")]
    with pytest.raises(ValueError, match=r"s was built from other files .* not rebuilt"):
        build_store(settle_config(config))
    assert (tmp_path / "s.bin").read_bytes() == before


def test_a_store_that_holds_no_bytes_is_refused(tmp_path: Path) -> None:
    with TokenStoreWriter(tmp_path / "s", np.uint16) as writer:
        writer.add(np.arange(300, 400, dtype=np.uint16))
    config = TrainConfig(data=DataConfig(paths=[], store=str(tmp_path / "s")), run_dir=str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"holds uint16 tokens, and this model reads bytes"):
        load_splits(config)


def test_held_out_text_of_another_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line number {n} of the text\n" for n in range(200)))
    data = DataConfig(paths=[str(tmp_path / "a.txt")], min_heldout_bytes=100, keep_duplicates_together=False)
    config = settle_config(TrainConfig(data=data, run_dir=str(tmp_path / "run")))
    build_store(config)
    store, _ = load_splits(config)
    assert split_source(config, "test", store.content_hash).num_tokens >= 100
    with pytest.raises(ValueError, match=r"is not the one that the model was trained on"):
        split_source(config, "test", "0" * 64)


@pytest.mark.parametrize(
    "options, world, message",
    [
        ({"log": LogConfig(noise_scale=True)}, 1, r"--log.noise_scale compares two batch sizes"),
        ({"log": LogConfig(noise_scale=True), "parallel": ParallelConfig(strategy="fsdp")}, 2, r"compares two batch sizes"),
        ({"log": LogConfig(noise_scale=True), "parallel": ParallelConfig(grad_exchange="powersgd")}, 2, r"compares two batch"),
        ({"schedule": ScheduleConfig(samples=100, warmup_samples=100)}, 1, r"warmup_samples is 100, but the run has 100"),
        ({"schedule": ScheduleConfig(lr_rule="sqrt_adam"), "optim": OptimConfig(kind="sgd")}, 1, r"which .* sgd does not have"),
        ({"model": MLSTMConfig(hidden_size=10**6)}, 1, r"has 5,000,5.* GiB, and this machine has .*: lower --model.hidden_size"),
        ({"init_from": "/nowhere/run"}, 1, r"/nowhere/run does not exist: train a model first"),
        ({"optim": OptimConfig(kind="lamb", backend="apex", weight_decay=0.1)}, 1, r"--optim.backend apex: it needs a CUDA device"),
    ],
)  # fmt: skip
def test_what_can_only_fail_later_is_refused_before_anything_starts(
    tmp_path: Path, options: dict, world: int, message: str
) -> None:
    config = replace(TrainConfig(run_dir=str(tmp_path / "run"), precision="fp32", device="cpu"), **options)
    with pytest.raises(ValueError, match=message):
        check_config(config, world)


def test_cards_are_counted_before_ranks_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = TrainConfig(run_dir=str(tmp_path / "run"), precision="fp32", device="cuda", nproc=4)
    with pytest.raises(ValueError, match=r"--nproc 4, but there are 2 CUDA devices here"):
        check_config(config, 4)
    with pytest.raises(ValueError, match=r"--device cuda:1 names one card for 2 ranks"):
        check_config(replace(config, device="cuda:1", nproc=2), 2)
    check_config(replace(config, nproc=2), 2)
