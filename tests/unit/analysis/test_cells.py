"""Cells of a sweep: how they end, what is run again, and who stops whom; with a training command of milliseconds."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bigbatch.analysis import sweep_runner
from bigbatch.analysis.cells import DIVERGED, CellJob, divergence, read_cell, run_cell, unigram_bpc
from bigbatch.analysis.sweep_folder import claim_folder
from bigbatch.analysis.sweep_runner import cell_environment, open_cells, run_local
from bigbatch.analysis.sweeps import Sweep
from bigbatch.data.token_store import TokenStore, TokenStoreWriter


def rows(*pairs: tuple[int, float | None]) -> list[dict]:
    return [{"samples": samples, "bpc": bpc, "total_samples": 1000} for samples, bpc in pairs]


def test_divergence_is_no_number_or_too_long_above_the_entropy_of_bytes() -> None:
    assert divergence(rows((10, 8.0), (400, 4.0), (1000, 2.0)), 4.5) is None
    assert divergence(rows((10, 3.0), (20, None)), 4.5) == "the loss is not a number at 20 samples"
    # Learned, then lost: below at 100 for the last time, a fifth of 1000 samples later still above.
    lost = rows((50, 5.0), (100, 3.0), (150, 6.0), (299, 7.0))
    assert divergence(lost, 4.5) is None
    assert divergence([*lost, *rows((300, 5.0))], 4.5) == (
        "above 4.500 bits, the entropy of single bytes, from 100 to 300 samples"
    )
    assert divergence([*lost, *rows((300, 5.0))], 4.5, samples=500) is None
    assert divergence(lost, 4.5, samples=199) is not None
    # Never learned: no new low after 10.
    assert divergence(rows((10, 5.0), (110, 5.5), (210, 5.2)), 4.5) is not None
    # Slow, but still falling: not lost.
    assert divergence(rows(*((n, 8 - n / 300) for n in range(0, 1001, 100))), 4.5) is None
    evaluation = [{"samples": 900, "bpc": 9.0, "event": "eval"}]
    assert divergence([*rows((10, 3.0)), *evaluation], 4.5) is None


def test_entropy_of_single_bytes(tmp_path: Path) -> None:
    data = [b"aab", b"\x00abc" * 5, b"\xff"]
    with TokenStoreWriter(tmp_path / "store") as writer:
        for document in data:
            writer.add(document)
    counts = np.unique(np.frombuffer(b"".join(data), np.uint8), return_counts=True)[1]
    expected = -sum(c / counts.sum() * math.log2(c / counts.sum()) for c in counts.tolist())
    store = TokenStore(tmp_path / "store")
    assert unigram_bpc(store) == pytest.approx(expected) and unigram_bpc(store, chunk=5) == pytest.approx(expected)


@pytest.fixture
def job_of(sweep_of: Callable, fake_command: tuple[str, ...]) -> Callable[[Any], CellJob]:
    def make(cell: Any) -> CellJob:
        return CellJob(str(cell.run_dir), cell.config.to_dict(), 4.5, command=fake_command, poll_seconds=0.02)

    return make


def starts(run_dir: Path) -> int:
    return len((run_dir / "starts.txt").read_text())


@pytest.mark.parametrize(
    ("lr", "status", "attempts", "started", "reason"),
    [
        (0.1, "finished", 1, 1, ""),
        (0.2, "finished", 2, 2, ""),  # crashes once
        (0.3, "failed", 2, 2, "Traceback: it always does"),
        (0.4, "failed", 1, 1, "bigbatch train: --optim.lr is odd"),  # a user's error comes again
        (0.5, "Div", 1, 1, "bigbatch train: the gradients were not finite for 50 steps"),
        (0.6, "Div", 1, 1, "the loss is not a number at 24 samples"),
        (0.7, "Div", 1, 1, "above 4.500 bits, the entropy of single bytes, from 100 to 300 samples"),
    ],
)
def test_how_a_cell_ends(
    sweep_of: Callable, job_of: Callable, lr: float, status: str, attempts: int, started: int, reason: str
) -> None:
    cell = sweep_of(grid={"optim.lr": [lr]}).cells[0]
    begun = time.monotonic()
    outcome = run_cell(job_of(cell))
    assert time.monotonic() - begun < 30  # those that sleep for a minute were ended
    assert outcome == {"status": status, "reason": reason, "attempts": attempts} and starts(cell.run_dir) == started
    assert read_cell(cell.run_dir) == {"format": 1, **outcome}


def test_a_stopped_cell_has_not_ended_and_goes_on(sweep_of: Callable, job_of: Callable) -> None:
    sweep = sweep_of(grid={"optim.lr": [0.8]})
    cell = sweep.cells[0]
    outcome = run_cell(job_of(cell), stop=(cell.run_dir / "ready").exists)
    assert outcome == {"status": "stopped", "reason": "", "attempts": 1} and read_cell(cell.run_dir) == {}
    assert open_cells(sweep) == [cell]
    assert run_cell(job_of(cell))["status"] == "finished" and starts(cell.run_dir) == 2
    assert open_cells(sweep) == []


def test_the_engine_says_what_is_looked_for(repo: Path) -> None:
    source = (repo / "training" / "engine.py").read_text()
    assert all(source.count(phrase) == 1 for phrase in DIVERGED)


def test_damaged_and_foreign_cell_files(tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text("{")
    with pytest.raises(ValueError, match=r"cell.json is damaged .*: remove it, and the cell is run again"):
        read_cell(tmp_path)
    (tmp_path / "cell.json").write_text('{"format": 7}')
    with pytest.raises(ValueError, match=r"cell.json is of another version of bigbatch"):
        read_cell(tmp_path)


def with_command(command: tuple[str, ...]) -> Callable:
    return lambda job, stop: run_cell(replace(job, command=command, poll_seconds=0.02), stop)


def unigrams(sweep: Sweep) -> dict[str, float]:
    return dict.fromkeys(sweep.sources, 4.5)


def test_a_sweep_runs_what_is_open_and_nothing_twice(sweep_of: Callable, fake_command: tuple[str, ...]) -> None:
    sweep = sweep_of(grid={"optim.lr": [0.1, 0.2, 0.3, 0.6]}, seeds=[1])
    claim_folder(sweep)
    told: list[str] = []
    run = with_command(fake_command)
    outcomes = run_local(sweep, unigrams(sweep), 3, lambda name, _: told.append(name), run=run, interval=0.05)
    assert sorted(told) == sorted(outcomes) == sorted(cell.name for cell in sweep.cells)
    assert [outcomes[cell.name]["status"] for cell in sweep.cells] == ["finished", "finished", "failed", "Div"]
    # Again: only the failed one, whose cause may have been mended.
    assert list(run_local(sweep, unigrams(sweep), 3, run=run, interval=0.05)) == ["lr=0.3,seed=1"]
    assert [starts(cell.run_dir) for cell in sweep.cells] == [1, 2, 4, 1]


def test_so_many_at_a_time_and_all_are_stopped_before_an_interruption_goes_on(sweep_of: Callable) -> None:
    sweep = sweep_of(grid={"seed": list(range(6))})
    running, most, lock = 0, 0, threading.Lock()

    def run(job: CellJob, stop: Callable[[], bool]) -> dict:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        end = time.monotonic() + 30
        while not stop() and time.monotonic() < end:
            time.sleep(0.01)
        with lock:
            running -= 1
        return {"status": "stopped", "reason": "", "attempts": 1}

    def draw() -> None:
        if running == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local(sweep, unigrams(sweep), 2, draw=draw, interval=0.05, run=run)
    assert running == 0 and most == 2


def test_an_error_of_the_runner_is_raised_where_it_is_seen(sweep_of: Callable) -> None:
    def run(job: CellJob, stop: Callable[[], bool]) -> dict:
        raise OSError("the disk is full")

    sweep = sweep_of(grid={"seed": [1, 2]})
    with pytest.raises(OSError, match="the disk is full"):
        run_local(sweep, unigrams(sweep), 1, run=run, interval=0.05)


def test_cores_and_cards_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cell_environment(0, jobs=2, num_cores=8, cards=0, nproc=1) == {"OMP_NUM_THREADS": "4"}
    assert cell_environment(0, jobs=4, num_cores=2, cards=0, nproc=1) == {"OMP_NUM_THREADS": "1"}
    assert cell_environment(0, jobs=2, num_cores=8, cards=0, nproc=2) == {"OMP_NUM_THREADS": "2"}
    assert cell_environment(5, jobs=8, num_cores=8, cards=4, nproc=1)["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in cell_environment(5, jobs=8, num_cores=8, cards=4, nproc=4)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cell_environment(0, jobs=2, num_cores=8, cards=0, nproc=1) == {}


def test_a_cluster_needs_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sweep_runner.importlib, "import_module", absent)
    with pytest.raises(ValueError, match=r"--cluster needs one more package: pip install 'bigbatch\[slurm\]'"):
        sweep_runner.check_submitit()


def test_submitit_runs_the_same_cells(
    sweep_of: Callable, fake_command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    sweep = sweep_of(grid={"optim.lr": [0.1, 0.6]}, slurm={"timeout_min": 2})
    claim_folder(sweep)
    real = sweep_runner.cell_job
    monkeypatch.setattr(sweep_runner, "cell_job", lambda *a: replace(real(*a), command=fake_command, poll_seconds=0.05))
    numbers = sweep_runner.submit(sweep, unigrams(sweep), 2, "local")
    assert list(numbers) == ["lr=0.1", "lr=0.6"]
    assert sweep_runner.submit(sweep, unigrams(sweep), 2, "local") == {}  # they wait or run already
    end = time.monotonic() + 120
    while open_cells(sweep) and time.monotonic() < end:
        time.sleep(0.05)
    assert [read_cell(cell.run_dir)["status"] for cell in sweep.cells] == ["finished", "Div"]
    assert set(json.loads((sweep.root / "submitit" / "jobs.json").read_text())) == set(numbers)
    bad = sweep_of(name="bad", grid={"optim.lr": [0.9]}, slurm={"no_such_parameter": 1})
    with pytest.raises(ValueError, match=r"bad.yaml: --cluster local: .*no_such_parameter"):
        sweep_runner.submit(bad, unigrams(bad), 2, "local")
