"""A corpus on disk, a run of seconds over it, and `bigbatch` in processes that can be stopped and killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import runpy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).with_name("child.py"))
TIME_LIMIT_SECONDS = 120.0
SAMPLES = 240  # 30 steps of 8 lanes

CONFIG = """
model: {kind: mlstm, hidden_size: 16, embedding_size: 8}
data: {min_heldout_bytes: 1500}
batch: {global_batch_size: 8, seq_length: 16}
optim: {lr: 1.0e-2}
schedule: {samples: 240, warmup_samples: 16}
log: {interval_samples: 24, eval_interval_samples: 80, checkpoint_interval_samples: 40, eval_lanes: 4, progress: false}
device: cpu
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 30 kB of sentences that are no near-duplicates of one another."""
    generator = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(syllables[int(generator.random() * 60)] for _ in range(3)) for _ in range(400)]
    path = tmp_path_factory.mktemp("corpus") / "reviews.jsonl"
    with path.open("w") as file:
        for _ in range(300):
            sentence = " ".join(words[int(generator.random() * 400)] for _ in range(14))
            file.write(json.dumps({"text": sentence + "."}) + "\n")
    return path


@pytest.fixture(scope="session")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def arguments(config_file: Path, corpus: Path) -> Callable[..., list[str]]:
    """`bigbatch train` on the corpus into a folder, with further options."""

    def make(run_dir: Path, *options: str) -> list[str]:
        files = ["--config", str(config_file), "--data.paths", str(corpus), "--run-dir", str(run_dir)]
        return ["train", *files, *options]

    return make


@dataclass
class Child:
    """A running command."""

    process: Any
    output: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        """Its exit status; minus the signal's number if one ended it."""
        self.process.join(TIME_LIMIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            pytest.fail(f"not ended within {TIME_LIMIT_SECONDS:g} s: {self.stderr}")
        return self.process.exitcode

    @property
    def stdout(self) -> str:
        return Path(f"{self.output}.stdout").read_text()

    @property
    def stderr(self) -> str:
        return Path(f"{self.output}.stderr").read_text()


@pytest.fixture(scope="session")
def forkserver() -> Any:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    # Building an optimizer imports torch._dynamo, which takes longer than all of a test.
    context.set_forkserver_preload(["torch._dynamo", "bigbatch.training.run", "bigbatch.scripts.train", "pytest"])
    return context


@pytest.fixture
def start(forkserver: Any, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """`start(argv, hook)` runs `bigbatch ARGV` beside the test; what still runs at the end is killed."""
    children: list[Child] = []

    def run(argv: list[str], hook: str = "") -> Child:
        output = str(tmp_path / f"output{len(children)}")
        for name in ("stdout", "stderr"):
            Path(f"{output}.{name}").touch()
        process = forkserver.Process(
            target=runpy.run_path, args=(SCRIPT, {"ARGV": argv, "OUTPUT": output, "HOOK": hook}, "child")
        )
        process.start()
        children.append(Child(process, output))
        return children[-1]

    yield run
    for child in children:
        if child.process.is_alive():
            child.process.kill()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIME_LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {TIME_LIMIT_SECONDS:g} s for {what}")
        time.sleep(0.01)


@pytest.fixture
def wait_for_rows() -> Callable[[Path, int], None]:
    """Waits until metrics.jsonl of a run holds so many rows."""

    def wait(run_dir: Path, rows: int) -> None:
        path = run_dir / "metrics.jsonl"
        wait_until(lambda: path.is_file() and path.read_bytes().count(b"\n") >= rows, f"{rows} rows in {path}")

    return wait
