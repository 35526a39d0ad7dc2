"""The demo is what its configuration file says, and its printed next steps are real commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bigbatch.scripts.cli import COMMANDS
from bigbatch.scripts.demo import NEXT_STEPS, demo_config, precision_config
from bigbatch.scripts.train import parse
from bigbatch.training.config import flatten


def test_config_file_says_what_the_demo_trains(repo: Path) -> None:
    from_file = parse(["--config", str(repo / "configs" / "mlstm" / "demo.yaml")])
    assert from_file == demo_config("runs/demo")


def test_precision_runs_differ_in_precision_only() -> None:
    fp32, fp16 = (precision_config("runs/x", name, "store") for name in ("fp32", "fp16"))
    assert replace(fp32, precision="fp16") == fp16
    assert flatten(fp16.to_dict())["model.hidden_size"] <= 64


def test_next_steps_name_real_commands() -> None:
    commands = [line.split()[1] for line in NEXT_STEPS.splitlines() if line.strip().startswith("bigbatch ")]
    assert len(commands) == 3
    assert set(commands) <= set(COMMANDS)
