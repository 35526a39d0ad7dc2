"""Sweep files, run folders whose numbers are known, and a training command of a millisecond."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from bigbatch.analysis.sweeps import Sweep, load_sweep
from bigbatch.scripts.sweep import validator

TRAIN = {
    "model": {"hidden_size": 8, "embedding_size": 4},
    "data": {"paths": ["demo"], "min_heldout_bytes": 1500},
    "batch": {"global_batch_size": 8, "seq_length": 16},
    "schedule": {"samples": 800},
    "device": "cpu",
}

# What it does is decided by the learning rate of the configuration; its starts are counted in starts.txt.
FAKE = """
import json, pathlib, shutil, signal, sys, time, yaml
config = yaml.safe_load(open(sys.argv[1]))
run, lr = pathlib.Path(config["run_dir"]), config["optim"]["lr"]
shutil.copy(sys.argv[1], run / "config.yaml")
with open(run / "starts.txt", "a") as file: file.write("x")
starts = len((run / "starts.txt").read_text())
metrics = open(run / "metrics.jsonl", "w", buffering=1)
def row(samples, bpc, **more):
    numbers = {"samples": samples, "tokens": 16 * samples, "total_samples": 800, "step": samples // 8, "bpc": bpc}
    metrics.write(json.dumps(numbers | more) + "\\n")
def stop(number, frame): sys.exit(143)
signal.signal(signal.SIGTERM, stop)
row(8, 8.0)
if lr == 0.2: sys.exit("Traceback: the disk fell out") if starts == 1 else None
if lr == 0.3: sys.exit("Traceback: it always does")
if lr == 0.4: print("bigbatch train: --optim.lr is odd", file=sys.stderr); sys.exit(2)
if lr == 0.5: print("bigbatch train: the gradients were not finite for 50 steps", file=sys.stderr); sys.exit(2)
if lr == 0.6: row(16, 3.0); row(24, None); time.sleep(60)
if lr == 0.7: row(100, 6.0); row(300, 6.5); time.sleep(60)
if lr == 0.8 and starts == 1: (run / "ready").touch(); time.sleep(60)
row(800, 2.5)
val = {"bpc": 2.0 + lr + 0.01 * config["seed"], "num_targets": 1000}
row(800, val["bpc"], event="eval")
train = {"samples": 800, "tokens": 12800, "seconds": 1.0, "skipped_steps": 0, "val": val, "best_bpc": val["bpc"]}
(run / "result.json").write_text(json.dumps({"train": train}))
"""


@pytest.fixture
def train_options() -> dict:
    return TRAIN


@pytest.fixture(scope="session")
def validate() -> Callable[[dict[str, Any]], Any]:
    return validator()


@pytest.fixture
def sweep_of(tmp_path: Path, validate: Callable) -> Callable[..., Sweep]:
    """`sweep_of(grid={...}, name="a")`: writes a file with these sections and loads it."""

    def make(name: str = "mine", train: dict | None = None, **sections: Any) -> Sweep:
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"train": TRAIN if train is None else train, **sections}, sort_keys=False))
        return load_sweep(file, validate, tmp_path / "out")

    return make


@pytest.fixture
def fake_command(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return (sys.executable, str(path))


@pytest.fixture
def end_cell() -> Callable[..., None]:
    """Writes a run folder that has ended: finished with a BPC, or diverged without one."""

    def end(sweep: Sweep, at: int, bpc: float | None, noise: float | None = None, evals: tuple = ()) -> None:
        cell = sweep.cells[at]
        cell.run_dir.mkdir(parents=True)
        (cell.run_dir / "config.yaml").write_text(yaml.safe_dump(cell.config.to_dict()))
        rows: list[dict] = [
            {
                "samples": 800,
                "tokens": 12800,
                "total_samples": 800,
                "bpc": 3.0,
                "noise_scale": noise,
                "skipped_steps": 1,
            }
        ]
        rows += [{"event": "eval", "samples": samples, "bpc": value} for samples, value in (*evals, (800, bpc))]
        (cell.run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if bpc is None:
            ended = {"format": 1, "status": "Div", "reason": "the loss is not a number at 8 samples", "attempts": 1}
            (cell.run_dir / "cell.json").write_text(json.dumps(ended))
            return
        val = {"bpc": bpc, "num_targets": 1000}
        train = {"samples": 800, "tokens": 12800, "seconds": 2.5, "skipped_steps": 1, "val": val, "best_bpc": bpc}
        (cell.run_dir / "result.json").write_text(json.dumps({"train": train}))

    return end
