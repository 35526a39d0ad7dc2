"""Train, evaluate, transfer, publish, and classify with the folder alone, as a user does it."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


def test_from_text_to_a_folder_that_labels_text_elsewhere(
    arguments: Callable[..., list[str]], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "shop"

    def call(*words: str | Path) -> str:
        child = start([str(word) for word in words])
        assert child.wait() == 0, child.stderr
        return child.stdout

    call(*arguments(run))
    call("evaluate", "--run-dir", run, "--lanes", "4")
    for name in ("train", "val", "test"):
        rows = [f"{i % 2},The lamp number {i} is {('dull', 'superb')[i % 2]}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("label,sentence\n" + "\n".join(rows) + "\n")
    files = [word for name in ("train", "val", "test") for word in (f"--{name}", tmp_path / f"{name}.csv")]
    call("transfer", "--run-dir", run, *files, "--task", "shop")
    text = "The lamp is superb"
    before = call("classify", "--run-dir", run, text)
    printed = call("publish", "--run-dir", run, "--out", out, "--licence", "CC0")
    assert "has no" not in printed
    card = (out / "README.md").read_text()
    assert "test split of the run's own text" in card and "| trained on | reviews.jsonl |" in card
    assert "Licence: CC0" in card and "| probe on all units | " in card and "training data, sha256" in card
    (tmp_path / "elsewhere").mkdir()
    shutil.move(out, tmp_path / "elsewhere" / "mine")
    shutil.rmtree(run)
    monkeypatch.chdir(tmp_path / "elsewhere")
    after = call("classify", "--model", tmp_path / "elsewhere" / "mine", text)
    assert after == before and next(csv.DictReader(after.splitlines()))["text"] == text
