"""The live table: what it says about runs in every state, read from files alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from bigbatch.scripts import watch as module
from bigbatch.training.run import sole_user

ROW = {
    "samples": 100, "total_samples": 400, "tokens": 1_234_000, "lr": 5e-4, "loss_scale": 65536.0, "skipped_steps": 3,
    "bpc": 1.23456, "tokens_per_second": 2000.0,
}  # fmt: skip


def make_run(folder: Path, *rows: dict, age: float = 0.0, tail: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("model: {kind: mlstm}\n")
    path = folder / "metrics.jsonl"
    if rows:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
        os.utime(path, (time.time() - age,) * 2)
    return folder


def cells(run: Path) -> dict[str, str]:
    return dict(zip(module.HEADER, module.describe(run, time.time())))


def test_a_running_one(tmp_path: Path) -> None:
    evaluation = {"event": "eval", "samples": 100, "bpc": 1.5}
    run = make_run(tmp_path / "a", {**ROW, "tokens": 1_000_000, "samples": 80}, ROW, evaluation, tail='{"samples": 10')
    found = cells(run)
    assert found["state"] == "running" and found["done"] == "25 %" and found["chars"] == "1.2M"
    assert found["bpc"] == "1.235" and found["val"] == "1.500" and found["scale"] == "65536" and found["skipped"] == "3"
    # 300 samples of 12,340 bytes at 2,000 bytes a second.
    assert found["left"] == "31m" and found["char/s"] == "2.0k" and found["lr"] == "5.00e-04"


def test_one_that_writes_no_more_is_stopped_unless_its_folder_is_locked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {**ROW, "tokens": 1_200_000}, ROW, age=3600.0)
    assert cells(run)["state"] == "stopped" and cells(run)["left"] == "" and cells(run)["age"] == "60m"
    with sole_user(run):
        assert cells(run)["state"] == "running"
    assert cells(run)["state"] == "stopped"


def test_the_other_states(tmp_path: Path) -> None:
    finished = make_run(tmp_path / "finished", {**ROW, "samples": 400})
    (finished / "result.json").write_text(json.dumps({"train": {"samples": 400}}))
    assert cells(finished)["state"] == "finished" and cells(finished)["done"] == "100 %"
    starting = make_run(tmp_path / "starting")
    assert cells(starting)["state"] == "starting"
    os.utime(starting / "config.yaml", (1.0, 1.0))
    assert cells(starting)["state"] == "not started"
    (tmp_path / "other").mkdir()
    assert cells(tmp_path / "other")["state"] == "no run"
    diverged = make_run(tmp_path / "diverged", {**ROW, "bpc": None})
    assert cells(diverged)["bpc"] == "inf"


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", *({**ROW, "samples": n} for n in range(1, 2001)))
    assert (run / "metrics.jsonl").stat().st_size > module.TAIL_BYTES
    rows = module.tail_rows(run / "metrics.jsonl")
    assert rows[-1]["samples"] == 2000 and 100 < len(rows) < 1000


def test_it_goes_on_until_interrupted_and_sees_new_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    make_run(tmp_path / "a", ROW)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        make_run(tmp_path / f"b{len(pauses)}", ROW)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.watch([str(tmp_path / "*")], 7.0, once=False, sleep=sleep)
    tables = capsys.readouterr().out.split("run ")[1:]
    assert [table.count("1.2M") for table in tables] == [1, 2] and pauses == [7.0, 7.0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    make_run(tmp_path / "a-long-name", ROW)
    assert module.main([str(tmp_path / "a-long-name"), "--once"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.startswith("run ") and line.startswith("a-long-name  ") and len(header) == len(line)
    with pytest.raises(ValueError, match=r"no run folder under .*: `bigbatch train --run-dir runs/mine` makes one"):
        module.main([str(tmp_path / "none*"), "--once"])
    with pytest.raises(ValueError, match=r"--interval is 0.0: it must be above 0 seconds"):
        module.main(["--interval", "0"])
