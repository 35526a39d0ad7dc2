"""One cell of a sweep: a `bigbatch train` of its own, watched from outside, ended early where it has diverged.

The same function runs on this machine and, through submitit, on a node of a cluster. How a cell ended is cell.json in its
run folder; a cell that was stopped has none and goes on from its checkpoint.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..data.token_store import TokenStore
from ..training.metrics import read_metrics, read_result
from ..training.run import EXIT_STOPPED
from .sweeps import Cell, Sweep

FORMAT = 1
# How `training.engine.Diverged` begins, on any number of ranks.
DIVERGED = ("the gradients were not finite for", "the run has ended without a usable model")
USER_ERROR = 2
INTERRUPTED = (EXIT_STOPPED, 130, -signal.SIGTERM, -signal.SIGINT)
ATTEMPTS = 2
TRAIN = (sys.executable, "-m", "bigbatch.scripts.cli", "train", "--config")


@dataclass(frozen=True)
class CellJob:
    """What it takes to run a cell, anywhere.

    Attributes:
        run_dir: of the cell.
        config: its training configuration, nested.
        unigram_bpc: entropy of single bytes of the data: a model above it knows nothing.
        diverge_samples: samples above it after which the cell is `Div`; 0: a fifth of the run.
        environment: added to the environment of the training process.
        command: to which the file of the configuration is appended.
        poll_seconds: between two looks at metrics.jsonl.
    """

    run_dir: str
    config: dict[str, Any]
    unigram_bpc: float
    diverge_samples: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = TRAIN
    poll_seconds: float = 1.0


def unigram_bpc(store: TokenStore, chunk: int = 1 << 24) -> float:
    """Entropy of the single bytes of a store, bits."""
    import numpy as np

    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, store.num_tokens, chunk):
        counts += np.bincount(store.tokens[start : start + chunk], minlength=256)[:256]
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def divergence(rows: Iterable[dict[str, Any]], unigram: float, samples: int = 0) -> str | None:
    """Why a run counts as diverged, from the rows of its metrics.jsonl; None if it does not.

    It has diverged when a loss is not a number, or when the training loss has stayed above the entropy of single bytes for
    `samples` samples (0: a fifth of the run) without a new low: a run that still falls is slow, not lost.
    """
    lowest, since = float("inf"), 0
    for row in rows:
        if row.get("bpc") is None:
            return f"the loss is not a number at {row['samples']:,} samples"
        if "event" in row:
            continue
        if row["bpc"] <= unigram or row["bpc"] < lowest:
            since = row["samples"]
        lowest = min(lowest, row["bpc"])
        limit = samples or row.get("total_samples", 0) // 5
        if limit and row["samples"] - since >= limit:
            return (
                f"above {unigram:.3f} bits, the entropy of single bytes, from {since:,} to {row['samples']:,} samples"
            )
    return None


def read_cell(run_dir: Path) -> dict[str, Any]:
    """How a cell ended: `status` (finished, Div, failed), `reason`, `attempts`; empty while it has not.

    Raises:
        ValueError: cell.json is damaged or of another version.
    """
    path = run_dir / "cell.json"
    if not path.is_file():
        return {"status": "finished", "reason": "", "attempts": 1} if read_result(run_dir).get("train") else {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and the cell is run again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is of another version of bigbatch: choose another --out, or remove the folder")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)


def cell_job(sweep: Sweep, cell: Cell, unigrams: dict[str, float], environment: dict[str, str]) -> CellJob:
    unigram = unigrams[str(cell.config.data.store)]
    return CellJob(str(cell.run_dir), cell.config.to_dict(), unigram, sweep.diverge_samples, environment)


def run_cell(
    job: CellJob,
    stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> dict[str, Any]:
    """Trains a cell to its end; goes on where its run folder stopped.

    A crash is tried once more. An error that the training tells in one line (status 2) is not: it would come again.

    Args:
        job: the cell.
        stop: asked all the time; once true, the training writes a checkpoint and ends.
        on_start: is given each training process.

    Returns:
        `status` (finished, Div, failed, or stopped), `reason` and `attempts`; all but stopped are in cell.json too.
    """
    run_dir = Path(job.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "cell.json").unlink(missing_ok=True)  # of a failure that is tried anew
    config, log = run_dir / "cell.yaml", run_dir / "train.log"
    config.write_text(yaml.safe_dump(job.config, sort_keys=False), encoding="utf-8")
    outcome: dict[str, Any] = {"status": "stopped", "reason": "", "attempts": 0}
    while outcome["attempts"] < ATTEMPTS and not stop():
        outcome["attempts"] += 1
        begun = log.stat().st_size if log.is_file() else 0
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*job.command, str(config)], stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **job.environment},
            )  # fmt: skip
            on_start(process)
            try:
                reason = _watch(process, job, stop)
            finally:
                _end(process)
        message = _last_line(log, begun)
        outcome |= _judge(process.returncode, reason, message, stop())
        if outcome["status"] != "crashed":
            break
    if outcome["status"] == "crashed":
        outcome["status"] = "failed"
    if outcome["status"] != "stopped":
        write_json(run_dir / "cell.json", {"format": FORMAT, **outcome})
    return outcome


def _watch(process: subprocess.Popen[bytes], job: CellJob, stop: Callable[[], bool]) -> str | None:
    """Waits for the process; ends it when asked to, or when its metrics say that it has diverged (the reason)."""
    path = Path(job.run_dir) / "metrics.jsonl"
    seen = -1
    while True:
        ended = process.poll() is not None
        size = path.stat().st_size if path.is_file() else 0
        if size != seen:
            seen = size
            reason = divergence(read_metrics(job.run_dir), job.unigram_bpc, job.diverge_samples) if size else None
            if reason:
                return reason
        if ended or stop():
            return None
        try:
            process.wait(job.poll_seconds)
        except subprocess.TimeoutExpired:
            pass


def _end(process: subprocess.Popen[bytes], patience_seconds: float = 120.0) -> None:
    """Asks a process that still runs to write its checkpoint and end; kills it, with its ranks, where it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(log: Path, begun: int) -> str:
    with log.open("rb") as file:
        file.seek(begun)
        lines = [
            line.strip()
            for line in file.read().decode(errors="replace").replace("\r", "\n").split("\n")
            if line.strip()
        ]
    return lines[-1] if lines else ""


def _judge(code: int, reason: str | None, message: str, stopping: bool) -> dict[str, Any]:
    if reason:
        return {"status": "Div", "reason": reason}
    if any(start in message for start in DIVERGED):
        return {"status": "Div", "reason": message}
    if code == 0:
        return {"status": "finished", "reason": ""}
    if code == USER_ERROR:
        return {"status": "failed", "reason": message}
    if stopping or code in INTERRUPTED:
        return {"status": "stopped", "reason": ""}
    return {"status": "crashed", "reason": message or f"ended with status {code} and no message"}


class SubmittedCell:
    """A cell as a job of submitit, which calls `checkpoint` ahead of a time limit and queues the job again."""

    def __init__(self, job: CellJob) -> None:
        self.job = job
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> dict[str, Any]:
        return run_cell(self.job, on_start=self._take)

    def _take(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def checkpoint(self) -> Any:
        """Stops the training with a checkpoint, and returns the job to queue. Runs within a signal handler."""
        if self._process is not None:
            _end(self._process)
        return importlib.import_module("submitit").helpers.DelayedSubmission(SubmittedCell(self.job))
