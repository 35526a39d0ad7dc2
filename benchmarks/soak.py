"""Forty kills: one training, struck at random again and again, must end as the one that nobody touched.

`python -m bigbatch.benchmarks.soak` trains a small model on four ranks twice. The first run is left alone. The second is
struck at random moments: a rank is killed with SIGKILL (the launcher starts all ranks again), the launcher is killed, or
SIGTERM asks it to stop; whenever it has ended, the same command is given again. Then a third run changes its number of
ranks from 4 to 2 to 1. It prints a table and returns 1 if the second run's losses or weights differ in a single bit, or
the third run's samples, schedule or order of data differ at all.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

import torch

from ..data.config import DataConfig
from ..data.prepare import prepare_store
from ..training.checkpoint import newest_checkpoint
from ..training.metrics import read_metrics, read_result

RANKS = 4
BLOWS = ("a rank killed", "the launcher killed", "SIGTERM to the launcher")
OPTIONS = {
    "model.hidden_size": 32, "model.embedding_size": 16, "data.min_heldout_bytes": 2000, "batch.global_batch_size": 16,
    "batch.seq_length": 32, "optim.lr": 5e-3, "log.interval_samples": 64, "log.eval_lanes": 4, "log.progress": "false",
    "device": "cpu",
}  # fmt: skip


def write_corpus(path: Path, documents: int, seed: int) -> Path:
    """Sentences of random words: text enough to train on, no near-duplicates."""
    generator = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letters[int(generator.random() * 26)] for _ in range(4)) for _ in range(300)]
    with path.open("w", encoding="ascii") as file:
        for _ in range(documents):
            file.write(" ".join(words[int(generator.random() * 300)] for _ in range(20)) + ".\n")
    return path


class Trial:
    """One run folder and the command that makes or continues it."""

    def __init__(self, run_dir: Path, store: Path, samples: int, checkpoint_samples: int) -> None:
        self.run_dir = run_dir
        self.started: list[subprocess.Popen] = []
        self.log = run_dir.with_suffix(".log")
        options = {
            **OPTIONS, "data.paths": "[]", "data.store": store, "schedule.samples": samples, "run_dir": run_dir,
            "log.checkpoint_interval_samples": checkpoint_samples, "log.eval_interval_samples": samples // 4,
        }  # fmt: skip
        self.command = [sys.executable, "-m", "bigbatch.scripts.cli", "train"]
        self.command += [f"--{name}={value}" for name, value in options.items()]

    def start(self, ranks: int) -> subprocess.Popen:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [*self.command, f"--nproc={ranks}"], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kills what still runs."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    @property
    def finished(self) -> bool:
        return "train" in read_result(self.run_dir) if self.run_dir.is_dir() else False

    @property
    def rows(self) -> list[dict]:
        if not (self.run_dir / "metrics.jsonl").is_file():
            return []
        return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in read_metrics(self.run_dir)]

    def weights(self) -> dict[str, torch.Tensor]:
        found = newest_checkpoint(self.run_dir)
        assert found is not None
        return {**found[0].model, **found[0].optimizer, **found[0].state}


def rank_processes(launcher: int) -> list[int]:
    """Process numbers of the ranks that a launcher has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"\0RANK=" in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def strikes(generator: random.Random) -> Iterator[str]:
    """Which blow comes next: mostly a single rank's death."""
    while True:
        draw = generator.random()
        yield BLOWS[0] if draw < 0.7 else BLOWS[1] if draw < 0.85 else BLOWS[2]


def soak(trial: Trial, kills: int, generator: random.Random, patience: float) -> Counter[str]:
    """Strikes a run `kills` times and lets it finish; counts what happened.

    Raises:
        RuntimeError: the run made no progress for `patience` seconds.
    """
    counts: Counter[str] = Counter()
    blows = strikes(generator)
    process = trial.start(RANKS)
    counts["starts of the command"] += 1
    struck_ranks: set[int] = set()
    while not trial.finished or process.poll() is None:
        if process.poll() is not None:
            process = trial.start(RANKS)
            counts["starts of the command"] += 1
        if sum(counts[blow] for blow in BLOWS) >= kills:
            process.wait(patience)
            continue
        ranks = _wait_for_new_ranks(process, struck_ranks, patience)
        if not ranks:
            continue
        if generator.random() < 0.8:  # within training; the others while the ranks are still starting
            _wait_for_rows(trial, process, patience)
        time.sleep(generator.random() * 3.0)
        if process.poll() is not None or trial.finished:
            if trial.finished:
                raise RuntimeError("the run was finished before all kills were done: give it more --samples")
            continue
        blow = next(blows)
        target = generator.choice(ranks) if blow == "a rank killed" else process.pid
        try:
            os.kill(target, signal.SIGTERM if blow.startswith("SIGTERM") else signal.SIGKILL)
        except ProcessLookupError:
            continue
        counts[blow] += 1
        done = trial.rows[-1]["samples"] if trial.rows else 0
        print(
            f"\r{sum(counts[b] for b in BLOWS)} of {kills} blows, {done:,} samples ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if blow == "a rank killed":
            struck_ranks.update(ranks)
        else:
            process.wait(patience)
            _wait_until_gone(ranks, patience)
    print(file=sys.stderr)
    return counts


def _wait_for_new_ranks(process: subprocess.Popen, known: set[int], patience: float) -> list[int]:
    """All ranks of the present attempt, once they are there; none if the command ends first."""
    end = time.monotonic() + patience
    while process.poll() is None:
        ranks = [pid for pid in rank_processes(process.pid) if pid not in known]
        if len(ranks) == RANKS:
            return ranks
        if time.monotonic() > end:
            raise RuntimeError(f"no {RANKS} ranks within {patience:g} s: see the log beside the run folder")
        time.sleep(0.05)
    return []


def _wait_for_rows(trial: Trial, process: subprocess.Popen, patience: float) -> None:
    """Waits until the present attempt has written a line of its own."""
    path = trial.run_dir / "metrics.jsonl"
    size, end = path.stat().st_size if path.is_file() else 0, time.monotonic() + patience
    while process.poll() is None and (not path.is_file() or path.stat().st_size <= size):
        if time.monotonic() > end:
            raise RuntimeError(f"no line in metrics.jsonl within {patience:g} s")
        if path.is_file():  # a resumed attempt cuts the file back first
            size = min(size, path.stat().st_size)
        time.sleep(0.02)


def _wait_until_gone(pids: list[int], patience: float) -> None:
    """Waits for ranks whose launcher is dead: they stop by themselves, with a checkpoint."""
    end = time.monotonic() + patience
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > end:
            raise RuntimeError(f"ranks outlived their launcher for {patience:g} s")
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def change_ranks(trial: Trial, generator: random.Random, patience: float) -> list[int]:
    """Runs with 4, then 2, then 1 rank, each stopped by SIGTERM at a random moment; returns the samples at the stops."""
    stops = []
    for ranks in (4, 2):
        process = trial.start(ranks)
        before = len(trial.rows)
        end = time.monotonic() + patience
        while len(trial.rows) < before + 4 and process.poll() is None:
            if time.monotonic() > end:
                raise RuntimeError(f"no progress on {ranks} ranks within {patience:g} s")
            time.sleep(0.05)
        time.sleep(generator.random())
        process.terminate()
        process.wait(patience)
        found = newest_checkpoint(trial.run_dir)
        assert found is not None
        stops.append(found[0].trainer["samples"])
    trial.start(1).wait(patience)
    if not trial.finished:
        raise RuntimeError("the run on one rank did not finish: see the log beside the run folder")
    return stops


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument(
        "--samples", type=int, default=48_000, help="length of the runs; more if it ends before all kills"
    )
    parser.add_argument("--checkpoint-samples", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds without progress that count as a hang")
    args = parser.parse_args()
    generator = random.Random(args.seed)
    root, trials = Path(tempfile.mkdtemp(prefix="bigbatch-soak-")), []
    try:
        store = root / "store"
        prepare_store(DataConfig(paths=[str(write_corpus(root / "text.txt", 2000, args.seed))]), store, progress=False)
        names = ("whole", "struck", "moved")
        whole, struck, moved = trials = [
            Trial(root / name, store, args.samples, args.checkpoint_samples) for name in names
        ]
        started = time.monotonic()
        whole.start(RANKS).wait()
        counts = soak(struck, args.kills, generator, args.patience)
        stops = change_ranks(moved, generator, args.patience)
        same_rows = whole.rows == struck.rows
        a, b = whole.weights(), struck.weights()
        same_weights = a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        keys = ("samples", "tokens", "epoch", "lr", "loss_scale")
        same_order = [[row.get(k) for k in keys] for row in whole.rows] == [
            [row.get(k) for k in keys] for row in moved.rows
        ]
        largest = max(abs(x["bpc"] - y["bpc"]) for x, y in zip(whole.rows, moved.rows))
        seconds = time.monotonic() - started
    except RuntimeError as error:
        print(f"\n{error}; runs and logs are left in {root}", file=sys.stderr)
        return 1
    finally:
        for trial in trials:
            trial.end()
    print(
        f"{date.today().isoformat()}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {seconds:.0f} s\n"
    )
    print("| what | |\n|---|---|")
    for name in (*BLOWS, "starts of the command"):
        print(f"| {name} | {counts[name]} |")
    print(f"| metrics.jsonl of struck and untouched run equal to the bit | {same_rows} |")
    print(f"| weights, optimizer and recurrent state equal to the bit | {same_weights} |")
    print(
        f"| 4 -> 2 -> 1 ranks (stopped at {stops[0]:,} and {stops[1]:,} samples): same samples, epochs, lr | {same_order} |"
    )
    print(f"| largest difference in BPC of any line there | {largest:.2e} |")
    if not (same_rows and same_weights and same_order):
        print(f"runs and logs are left in {root}", file=sys.stderr)
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
