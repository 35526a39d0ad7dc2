"""A real sweep: two cells of a second, one of which diverges in training itself, then the report and the table of results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from bigbatch.scripts import cli


@pytest.fixture
def sweep_file(config_file: Path, corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "real.yaml"
    train = {"data": {"paths": [str(corpus)]}, "precision": "fp16", "loss_scale": {"init_scale": 1024.0}}
    content = {"base": str(config_file), "train": train, "grid": {"optim.lr": [1.0e-2, 1.0e6]}, "seeds": [1]}
    path.write_text(yaml.safe_dump(content))
    return path


def test_two_cells_with_one_store(sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["sweep", str(sweep_file), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--jobs", "2", "--interval", "0.1"]) == 0
    text = capsys.readouterr().out
    assert (
        "2 of 2 done, 1 Div, 0 failed" in text
        and f"`bigbatch sweep {sweep_file} --out {tmp_path / 'out'} --report`" in text
    )
    good, lost = (tmp_path / "out" / f"lr={name},seed=1" for name in ("0.01", "1e+06"))
    assert json.loads((good / "cell.json").read_text())["status"] == "finished"
    assert json.loads((lost / "cell.json").read_text())["status"] == "Div"
    assert not (good / "data").exists() and len(list((tmp_path / "out" / "data").glob("*.bin"))) == 1
    # A finished sweep starts nothing.
    before = (good / "train.log").read_bytes()
    assert cli.main(command) == 0 and (good / "train.log").read_bytes() == before
    assert cli.main([*command, "--report"]) == 0
    assert "2 cells (1 finished, 1 Div)" in capsys.readouterr().out
    assert cli.main([*command, "--list"]) == 0
    assert "lr=1e+06,seed=1  Div" in capsys.readouterr().out
    assert cli.main(["results", str(tmp_path / "out"), "--to", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("run,optim.lr,status,samples,tokens,bpc,bpc_n")


def test_a_bad_sweep_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("grid: {optim.lrr: [1]}\n")
    assert cli.main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bigbatch sweep: ") and "did you mean optim.lr" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_sigterm_leaves_checkpoints_and_the_same_command_goes_on(
    sweep_file: Path, tmp_path: Path, start: Callable, wait_for_rows: Callable
) -> None:
    content = yaml.safe_load(sweep_file.read_text())
    content["grid"] = {"optim.lr": [1.0e-2]}
    content["train"] |= {"precision": "fp32", "schedule": {"samples": 24_000}}
    sweep_file.write_text(yaml.safe_dump(content))
    command = ["sweep", str(sweep_file), "--out", str(tmp_path / "out"), "--interval", "0.1"]
    child = start(command, hook="import signal\nsignal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))")
    run = tmp_path / "out" / "lr=0.01,seed=1"
    wait_for_rows(run, 4)
    child.process.terminate()
    assert child.wait() == 143
    assert not (run / "cell.json").exists() and list((run / "checkpoints").glob("step_*"))
    assert "stopped at" in (run / "train.log").read_text()
