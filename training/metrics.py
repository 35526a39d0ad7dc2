"""metrics.jsonl: one JSON object a line, appended as the run goes, cut back to the checkpoint when it resumes."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np


def bits_per_char(loss_nats: float) -> float:
    return loss_nats / math.log(2.0)


class MetricsWriter:
    """Appends rows to metrics.jsonl. A row is one `write` call and ends in a newline, so a kill leaves at most one half row.

    Args:
        path: the file.
        size_bytes: where to go on: everything after it belongs to steps that will be repeated, and is cut off.
        events: what `event_writer` returned: each number of a row goes there too.
    """

    def __init__(self, path: Path, size_bytes: int = 0, events: Any = None) -> None:
        self._path, self._events = path, events
        self._file = path.open("ab", buffering=0)  # unbuffered: nothing is left to be written when the disk is full
        if self._file.tell() > size_bytes:
            os.truncate(path, size_bytes)

    def write(self, row: dict) -> None:
        # JSON has no NaN or infinity: a diverged value is written as null.
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        try:
            line = json.dumps(clean).encode() + b"\n"
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(
                f"cannot write {self._path}: {error}; free some space: the same command then goes on from the last checkpoint"
            ) from error
        if self._events is not None:
            kind = "val" if clean.get("event") == "eval" else "train"
            for key, value in clean.items():
                if isinstance(value, (int, float)) and key not in ("samples", "event"):
                    self._events.add_scalar(f"{kind}/{key}", value, clean["samples"])

    @property
    def size_bytes(self) -> int:
        """Size of what has been written; goes into the checkpoint."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def event_writer(run_dir: Path, samples: int) -> Any:
    """A TensorBoard writer for RUN/tensorboard, over samples; what it held beyond `samples` is marked as repeated.

    Raises:
        ValueError: the extra `log` is not installed.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ValueError("--log.tensorboard needs one more package: pip install 'bigbatch[log]'") from None
    # The rows up to `samples` stay; those behind it are written again.
    return SummaryWriter(str(run_dir / "tensorboard"), purge_step=samples + 1 if samples else 0)


def read_metrics(run_dir: Path | str) -> list[dict]:
    """All complete rows of a run, in order; a row that a kill left unfinished at the end is left out."""
    path = Path(run_dir) / "metrics.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: is {run_dir} a run folder? `bigbatch train --run-dir` makes one"
        )
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


class RunningMeans:
    """Sums over the steps since the last line, kept as Python floats so that a checkpoint holds them exactly."""

    def __init__(self, state: dict | None = None) -> None:
        self.loss_sum = 0.0
        self.num_targets = 0.0
        self.num_tokens = 0
        self.grad_norms: list[float] = []
        self.seconds = 0.0
        if state:
            self.__dict__.update(state)

    def add(self, loss_sum: float, num_targets: float, num_tokens: int, grad_norm: float, seconds: float) -> None:
        self.loss_sum += loss_sum
        self.num_targets += num_targets
        self.num_tokens += num_tokens
        if math.isfinite(grad_norm):  # JSON, which the checkpoint is, has no infinity
            self.grad_norms.append(grad_norm)
        self.seconds += seconds

    def state(self) -> dict:
        return dict(self.__dict__)

    def row(self) -> dict:
        """loss in nats per target, mean gradient norm of the steps that were not skipped, tokens per second."""
        loss = self.loss_sum / (self.num_targets or 1)
        finite = [norm for norm in self.grad_norms if math.isfinite(norm)]
        return {
            "loss": loss,
            "grad_norm": float(np.mean(finite)) if finite else math.nan,
            "tokens_per_second": self.num_tokens / self.seconds if self.seconds else 0.0,
        }


def read_result(run_dir: Path | str) -> dict:
    """result.json of a run folder; empty if there is none yet."""
    path = Path(run_dir) / "result.json"
    if not path.is_file():
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): move it away, and what is missing is computed again") from None
    if not isinstance(result, dict):
        raise ValueError(f"{path} is damaged (no object): move it away, and what is missing is computed again")
    return result


def update_result(run_dir: Path | str, values: dict) -> dict:
    """Adds values to result.json, atomically, and takes out those that are None; returns the whole."""
    result = {key: value for key, value in {**read_result(run_dir), **values}.items() if value is not None}
    path = Path(run_dir) / "result.json"
    partial = path.with_name(".result.json.partial")
    partial.write_text(json.dumps(result, indent=1), encoding="utf-8")
    partial.replace(path)
    return result
