"""GPT on two ranks against one process: the same samples, the same losses, the same validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.splits import Splits, make_order
from bigbatch.data.token_store import TokenStore, TokenStoreWriter
from bigbatch.models.transformer_config import GPTConfig
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ParallelConfig, ScheduleConfig, TrainConfig
from bigbatch.training.distributed import Ranks
from bigbatch.training.engine import Engine
from bigbatch.training.metrics import read_metrics
from bigbatch.training.tasks.gpt import GPTTask

SMALL = {"loss": 1e-4, "bpc": 1e-4, "grad_norm": 1e-3}


def pretrain(rank: int, world: int, folder: str, name: str, strategy: str = "ddp") -> str:
    config = TrainConfig(
        model=GPTConfig(
            vocab_size=256, max_position_embeddings=16, hidden_size=16, num_layers=2, num_attention_heads=2, dropout=0.0,
            attention_dropout=0.0,
        ),
        batch=BatchConfig(global_batch_size=8, seq_length=16, micro_batch_size=2),
        optim=OptimConfig(lr=1e-2),
        schedule=ScheduleConfig(samples=64, decay="constant"),
        parallel=ParallelConfig(strategy=strategy),  # pyright: ignore[reportArgumentType]
        log=LogConfig(interval_samples=8, eval_interval_samples=32, checkpoint_interval_samples=10**6, progress=False),
        run_dir=f"{folder}/{name}", precision="fp32", device="cpu",
    )  # fmt: skip
    Path(config.run_dir).mkdir(exist_ok=True)
    store, ranks = TokenStore(f"{folder}/store"), Ranks(rank, world)
    ids = np.arange(store.num_documents)
    splits = Splits(*(make_order(store, part) for part in (ids[5:], ids[2:5], ids[:2])))
    return Engine(config, ranks, GPTTask(config, ranks, store, splits), store.content_hash).run().status


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_are_one_process(run_ranks: Callable, tmp_path: Path, strategy: str) -> None:
    with TokenStoreWriter(tmp_path / "store") as writer:
        for number in range(30):  # validation has five windows: three batches for two ranks
            writer.add(f"\nfilm {number} is {'good' if number % 3 else 'bad'}.  ".encode())
    assert pretrain(0, 1, str(tmp_path), "one") == "finished"
    assert run_ranks("pretrain", folder=str(tmp_path), name="two", strategy=strategy) == ["finished", "finished"]
    for one, two in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True):
        for key in one.keys() & SMALL.keys():
            assert two[key] == pytest.approx(one[key], rel=SMALL[key]), key
        assert (one["samples"], one["tokens"]) == (two["samples"], two["tokens"])
