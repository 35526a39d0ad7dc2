"""Fine-tuning on two ranks against one process: the same texts, the same losses, the same validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from bigbatch.models.config import HeadConfig, MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.training.checkpoint import save_weights
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ParallelConfig, ScheduleConfig
from bigbatch.training.distributed import Ranks
from bigbatch.training.engine import Engine
from bigbatch.training.finetune import build_task
from bigbatch.training.finetune_config import FinetuneConfig, TaskConfig
from bigbatch.training.metrics import read_metrics

ENCODER = MLSTMConfig(embedding_size=8, hidden_size=16)
SMALL = {"loss": 1e-4, "accuracy": 1e-6, "f1": 1e-6, "grad_norm": 1e-3}


def finetune(rank: int, world: int, folder: str, name: str, strategy: str = "ddp") -> str:
    config = FinetuneConfig(
        encoder=f"{folder}/encoder",
        task=TaskConfig(train=[f"{folder}/train.csv"], val=[f"{folder}/val.csv"], class_weights="balanced"),
        head=HeadConfig(hidden_sizes=[6]),
        batch=BatchConfig(global_batch_size=8),
        optim=OptimConfig(lr=1e-2),
        schedule=ScheduleConfig(samples=64, decay="constant"),
        parallel=ParallelConfig(strategy=strategy),  # pyright: ignore[reportArgumentType]
        log=LogConfig(interval_samples=8, eval_interval_samples=32, checkpoint_interval_samples=10**6, progress=False),
        run_dir=f"{folder}/{name}", precision="fp32", device="cpu",
    )  # fmt: skip
    Path(config.run_dir).mkdir(exist_ok=True)
    ranks = Ranks(rank, world)
    return Engine(config, ranks, *build_task(config, ranks)).run().status


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_are_one_process(run_ranks: Callable, tmp_path: Path, strategy: str) -> None:
    torch.manual_seed(0)
    config = {"model": asdict(ENCODER)}
    save_weights(tmp_path / "encoder", MLSTM(ENCODER).state_dict(), config, {"samples": 0, "tokens": 0})
    for name, n in (
        ("train", 45),
        ("val", 70),
    ):  # three classes as frequent as 3 : 1 : 1, and three batches of validation for two ranks
        words = ["awful", "awful", "awful", "superb", "odd"]
        lines = [f"{words[k % 5][0]},{'a long ' * (k % 3)}film {k} is {words[k % 5]}" for k in range(n)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["label,sentence", *lines]))
    assert finetune(0, 1, str(tmp_path), "one") == "finished"
    assert run_ranks("finetune", folder=str(tmp_path), name="two", strategy=strategy) == ["finished", "finished"]
    for one, two in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True):
        for key in one.keys() & SMALL.keys():
            assert two[key] == pytest.approx(one[key], rel=SMALL[key]), key
        assert (one["samples"], one["tokens"]) == (two["samples"], two["tokens"])
