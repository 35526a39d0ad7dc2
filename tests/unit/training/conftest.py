"""A corpus in memory, a run small enough for milliseconds, and engines over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from bigbatch.fp16.config import LossScaleConfig
from bigbatch.models.config import MLSTMConfig
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ScheduleConfig, TrainConfig
from bigbatch.training.distributed import Ranks
from bigbatch.training.engine import Engine
from bigbatch.training.tasks.char_lm import CharLMTask


@dataclass
class ArraySource:
    """A byte stream held in memory."""

    data: np.ndarray
    shard_starts: np.ndarray

    @property
    def num_tokens(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.data[start:stop]


def make_text(length: int, seed: int = 0) -> ArraySource:
    """Sentences of a small vocabulary: a model of 16 units learns something of it within a few steps."""
    words = np.random.Generator(np.random.PCG64(seed)).integers(0, 6, length)
    text = b" ".join([b"the", b"good", b"film", b"was", b"bad", b"and"][w] for w in words)[:length]
    return ArraySource(np.frombuffer(text, np.uint8), np.asarray([0, length // 3]))


@pytest.fixture(scope="session")
def train_source() -> ArraySource:
    return make_text(8 * 16 * 9 + 3)  # nine full windows of 8 lanes, then one of three targets


@pytest.fixture(scope="session")
def val_source() -> ArraySource:
    return make_text(700, seed=1)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """15 steps of 8 lanes x 16 bytes: one and a half epochs."""
    return TrainConfig(
        model=MLSTMConfig(embedding_size=8, hidden_size=16),
        batch=BatchConfig(global_batch_size=8, seq_length=16),
        optim=OptimConfig(lr=1e-2),
        schedule=ScheduleConfig(samples=120, warmup_samples=16),
        loss_scale=LossScaleConfig(init_scale=2.0**10),
        log=LogConfig(
            interval_samples=24, eval_interval_samples=40, checkpoint_interval_samples=32, eval_lanes=4, progress=False
        ),
        run_dir=str(tmp_path / "run"),
        precision="fp32",
        device="cpu",
    )


EngineOf = Callable[[TrainConfig], Engine]


@pytest.fixture
def engine_of(train_source: ArraySource, val_source: ArraySource) -> EngineOf:
    """An engine on the corpus above, in the folder of its configuration."""

    def make(config: TrainConfig, data_hash: str = "corpus") -> Engine:
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        return Engine(config, Ranks(), CharLMTask(config, Ranks(), train_source, val_source), data_hash)

    return make


@pytest.fixture
def in_folder() -> Callable[[TrainConfig, Path], TrainConfig]:
    """The same run in another folder."""
    return lambda config, folder: replace(config, run_dir=str(folder))
