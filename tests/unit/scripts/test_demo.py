"""The demo is what its configuration file says, and its printed next steps are real commands."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bigbatch.scripts.cli import COMMANDS
from bigbatch.scripts.demo import demo_config, next_steps, precision_config
from bigbatch.scripts.train import parse
from bigbatch.training.config import flatten


def test_config_file_says_what_the_demo_trains(repo: Path) -> None:
    from_file = parse(["--config", str(repo / "configs" / "mlstm" / "demo.yaml")])
    assert from_file == demo_config("runs/demo")


def test_precision_runs_differ_in_precision_only() -> None:
    fp32, fp16 = (precision_config("runs/x", name, "store") for name in ("fp32", "fp16"))
    assert replace(fp32, precision="fp16") == fp16
    assert flatten(fp16.to_dict())["model.hidden_size"] <= 64


def test_next_steps_can_be_typed_where_the_demo_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def commands() -> list[list[str]]:
        return [line.split() for line in next_steps().splitlines()[1:]]

    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv" / "bin" / "bigbatch"), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert [words[0] for words in commands()] == [".venv/bin/bigbatch"] * 3
    (tmp_path / "bigbatch").write_text("#!/bin/sh\n")
    (tmp_path / "bigbatch").chmod(0o755)
    assert [words[0] for words in commands()] == ["bigbatch"] * 3
    assert {words[1] for words in commands()} == {"train", "transfer", "classify"} <= set(COMMANDS)
