"""`bigbatch train` from files to a run folder, and from any kind of end back to where it was."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bigbatch.scripts.cli import main
from bigbatch.training.checkpoint import checkpoint_dirs, load_model, newest_checkpoint
from bigbatch.training.metrics import read_metrics, read_result

# Slow enough to be caught at a chosen row; near its end the run waits for the signal, however slow the machine is.
SLOW_STEPS = """
import time
from bigbatch.training.engine import Engine
from bigbatch.training.tasks.char_lm import CharLMTask as Task
advance, request_stop, asked = Task.advance, Engine.request_stop, []
def noting(self):
    asked.append(None)
    request_stop(self)
def slow(self):
    end = time.monotonic() + (60 if self.stream.position.window >= 27 else 0.03)
    while not asked and time.monotonic() < end:
        time.sleep(0.01)
    advance(self)
Task.advance, Engine.request_stop = slow, noting
"""

KILL_IN_ACCUMULATION = """
import os, signal
from bigbatch.training.tasks.char_lm import CharLMTask as Task
loss, calls = Task.loss, []
def dying(self, model, micro_step):
    calls.append(micro_step)
    if len(calls) > {calls} and micro_step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(self, model, micro_step)
Task.loss = dying
"""

KILL_IN_SAVE = """
import os, signal
from bigbatch.training import checkpoint
original, calls = checkpoint.{stage}, []
def dying(*args, **kwargs):
    calls.append(None)
    if len(calls) == {calls}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
checkpoint.{stage} = dying
"""

FULL_DISK = """
import errno, os
from bigbatch.training import checkpoint
original, calls = checkpoint.save_file, []
def full(tensors, path):
    calls.append(None)
    if len(calls) > 4:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    original(tensors, path)
checkpoint.save_file = full
"""


def rows(run_dir: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in read_metrics(run_dir)]


def assert_same_end(run_dir: Path, reference: Path) -> None:
    """The same metrics, timing aside, and the same last checkpoint, bit for bit."""
    assert rows(run_dir) == rows(reference)
    found, expected = newest_checkpoint(run_dir), newest_checkpoint(reference)
    assert found is not None and expected is not None
    for part in ("model", "optimizer", "state"):
        got, wanted = getattr(found[0], part), getattr(expected[0], part)
        assert got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted), part
    assert found[0].trainer["position"] == expected[0].trainer["position"]
    left_over = [path.name for path in (run_dir / "checkpoints").iterdir() if path.name.startswith(".")]
    assert not left_over
    got, wanted = (read_result(folder)["train"] for folder in (run_dir, reference))
    assert {**got, "seconds": 0} == {**wanted, "seconds": 0}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, config_file: Path, corpus: Path) -> dict[int, Path]:
    """Uninterrupted runs by micro batch."""
    runs = {}
    for micro in (0, 2):
        runs[micro] = tmp_path_factory.mktemp("reference") / f"micro{micro}"
        argv = ["--config", str(config_file), "--data.paths", str(corpus), "--run-dir", str(runs[micro])]
        assert main(["train", *argv, "--batch.micro-batch-size", str(micro)]) == 0
    return runs


def test_a_run_leaves_its_folder(reference: dict[int, Path], corpus: Path) -> None:
    run = reference[0]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["paths"] == [str(corpus)] and config["precision"] == "fp32" and config["optim"]["lr"] == 0.01
    train = [row for row in rows(run) if "event" not in row]
    assert [row["samples"] for row in train] == list(range(24, 241, 24)) and train[-1]["tokens"] == 240 * 16
    assert train[-1]["loss"] < train[0]["loss"] - 0.8
    result = read_result(run)["train"]
    assert result["status"] == "finished" and result["samples"] == 240 and result["skipped_steps"] == 0
    assert result["val"]["bpc"] == min(row["bpc"] for row in rows(run) if row.get("event")) == result["best_bpc"]
    assert [path.name[-3:] for path in checkpoint_dirs(run)] == ["200", "240"]
    assert load_model(run).samples == 240
    assert not list(run.rglob("*.pt")) and not list(run.rglob("*.pkl"))


def test_a_finished_run_says_so(reference: dict[int, Path], start: Callable) -> None:
    before = {path: path.read_bytes() for path in reference[0].rglob("*") if path.is_file()}
    child = start(["train", "--run-dir", str(reference[0])])
    assert child.wait() == 0
    assert "is finished (240 samples): for another run choose another --run-dir" in child.stderr
    assert {path: path.read_bytes() for path in reference[0].rglob("*") if path.is_file()} == before


def test_a_run_is_repeated_from_its_folder_alone(reference: dict[int, Path], tmp_path: Path) -> None:
    config = reference[0] / "config.yaml"
    assert main(["train", "--config", str(config), "--run_dir", str(tmp_path / "again")]) == 0
    assert_same_end(tmp_path / "again", reference[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_at_a_random_step_it_resumes_to_the_bit(
    reference: dict[int, Path],
    arguments: Callable,
    start: Callable,
    wait_for_rows: Callable,
    tmp_path: Path,
    number: int,
) -> None:
    run, chance = tmp_path / "run", random.Random()
    for wanted_rows in (chance.randrange(1, 6), chance.randrange(7, 11)):
        child = start(arguments(run), SLOW_STEPS)
        wait_for_rows(run, wanted_rows)
        time.sleep(0.1 * chance.random())
        os.kill(child.pid, number)
        if number == signal.SIGTERM:
            assert child.wait() == 143, child.stderr
            assert "with a checkpoint: the same command goes on from there" in child.stderr
        else:
            assert child.wait() == -signal.SIGKILL
    assert main(arguments(run)) == 0
    assert_same_end(run, reference[0])


def test_ctrl_c_stops_with_a_checkpoint(
    reference: dict[int, Path], arguments: Callable, start: Callable, wait_for_rows: Callable, tmp_path: Path
) -> None:
    child = start(arguments(tmp_path / "run"), SLOW_STEPS)
    wait_for_rows(tmp_path / "run", 2)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait() == 143
    # Gone on with from the folder alone.
    assert main(["train", "--run-dir", str(tmp_path / "run")]) == 0
    assert_same_end(tmp_path / "run", reference[0])


@pytest.mark.parametrize("calls", [1, 70])
def test_killed_inside_accumulation(
    reference: dict[int, Path], arguments: Callable, start: Callable, tmp_path: Path, calls: int
) -> None:
    argv = arguments(tmp_path / "run", "--batch.micro_batch_size", "2")
    child = start(argv, KILL_IN_ACCUMULATION.format(calls=calls))
    assert child.wait() == -signal.SIGKILL
    assert main(argv) == 0
    assert_same_end(tmp_path / "run", reference[2])


# A save calls save_file three times, then _fsync six times (five files and the folder) and _sha256 four times.
@pytest.mark.parametrize("stage, calls", [("save_file", 1), ("save_file", 8), ("_sha256", 6), ("_fsync", 17)])
def test_killed_inside_a_save(
    reference: dict[int, Path], arguments: Callable, start: Callable, tmp_path: Path, stage: str, calls: int
) -> None:
    child = start(arguments(tmp_path / "run"), KILL_IN_SAVE.format(stage=stage, calls=calls))
    assert child.wait() == -signal.SIGKILL
    assert list((tmp_path / "run" / "checkpoints").glob(".*.partial"))
    assert main(arguments(tmp_path / "run")) == 0
    assert_same_end(tmp_path / "run", reference[0])


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    reference: dict[int, Path], arguments: Callable, start: Callable, tmp_path: Path
) -> None:
    child = start(arguments(tmp_path / "run"), FULL_DISK)
    assert child.wait() == 2
    lines = [line for line in child.stderr.splitlines() if line.startswith("bigbatch train: ")]
    assert len(lines) == 1 and "No space left on device; free some space" in lines[0]
    assert "Traceback" not in child.stderr and child.stderr.splitlines()[-1] == lines[0]
    assert [path.name[-3:] for path in checkpoint_dirs(tmp_path / "run")] == ["040"]
    assert main(arguments(tmp_path / "run")) == 0
    assert_same_end(tmp_path / "run", reference[0])


@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json"])
def test_a_truncated_checkpoint_is_passed_over(
    reference: dict[int, Path], arguments: Callable, start: Callable, wait_for_rows: Callable, tmp_path: Path, file: str
) -> None:
    run = tmp_path / "run"
    child = start(arguments(run), SLOW_STEPS)
    wait_for_rows(run, 6)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 143
    newest = checkpoint_dirs(run)[-1] / file
    os.truncate(newest, newest.stat().st_size // 2)
    child = start(arguments(run))
    assert child.wait() == 0
    assert f"{file}" in child.stderr and "trying the one before" in child.stderr and "Traceback" not in child.stderr
    assert_same_end(run, reference[0])


def test_all_checkpoints_damaged_is_one_line(
    reference: dict[int, Path], start: Callable, tmp_path: Path, arguments: Callable, corpus: Path
) -> None:
    run = tmp_path / "run"
    assert main(arguments(run)) == 0
    for path in checkpoint_dirs(run):
        os.truncate(path / "optimizer.safetensors", 10)
    child = start(arguments(run))
    assert child.wait() == 2
    assert "checkpoints in" in child.stderr.splitlines()[-1] and "are damaged" in child.stderr.splitlines()[-1]


def test_resume_never_refuses_a_run_and_can_be_gone_on_with(
    reference: dict[int, Path],
    arguments: Callable,
    start: Callable,
    wait_for_rows: Callable,
    tmp_path: Path,
    capsys: Any,
) -> None:
    run = tmp_path / "run"
    child = start(arguments(run, "--resume", "never"), SLOW_STEPS)
    wait_for_rows(run, 2)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 143
    assert main(arguments(run, "--resume", "never")) == 2
    assert "holds a run already and --resume is never: choose another --run-dir" in capsys.readouterr().err
    assert main(["train", "--run-dir", str(run)]) == 0
    assert_same_end(run, reference[0])


def test_a_folder_has_one_run_at_a_time(
    arguments: Callable, start: Callable, wait_for_rows: Callable, tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    child = start(arguments(run), SLOW_STEPS)
    wait_for_rows(run, 1)
    assert main(arguments(run)) == 2
    assert f"another process trains in {run}: wait until it ends" in capsys.readouterr().err
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 143
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["samples"] == 24
