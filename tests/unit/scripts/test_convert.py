"""`bigbatch convert` as a user calls it: between the three layouts, and on to the commands that take the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig
from bigbatch.scripts.cli import main
from bigbatch.sentiment.featurize import featurize
from bigbatch.training.checkpoint import Checkpoint, load_model, save_checkpoint

CONFIG = MLSTMConfig(hidden_size=12, embedding_size=6, num_layers=2)


def call(*argv: str | Path) -> int:
    return main([str(word) for word in argv])


def make_run(path: Path, config: MLSTMConfig | LSTMConfig = CONFIG) -> Path:
    torch.manual_seed(1)
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():  # also biases and gains apart from their starting values
            parameter += 0.3 * torch.randn_like(parameter)
    trainer = {"samples": 70, "tokens": 4480, "data_hash": "abc"}
    save_checkpoint(path, Checkpoint(dict(model.state_dict()), trainer), {"model": asdict(config)})
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def assert_same(a: Path, b: Path) -> None:
    ours, theirs = (load_model(path).model.state_dict() for path in (a, b))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].numpy().tobytes() == theirs[name].numpy().tobytes() for name in ours)


def test_round_the_three_layouts_and_back_to_the_bit(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[str, ...]] = [("a.pt",), ("b", "--to-format", "openai"), ("c.pth",), ("d",), ("e.pt",), ("f",)]
    at: Path = run_dir
    for name, *options in steps:
        assert call("convert", "--from", at, "--to", tmp_path / name, *options) == 0
        at = tmp_path / name
    assert_same(run_dir, tmp_path / "d")
    assert_same(run_dir, at)
    assert "model folder:" in capsys.readouterr().out
    record = json.loads(next((at / "checkpoints").glob("*/trainer.json")).read_text())
    assert record["converted_from"]["file"] == "e.pt" and record["converted_from"]["layout"] == "nvidia"
    assert load_model(at).samples == 0  # their files do not say


def test_a_copy_of_our_own_keeps_what_is_known(run_dir: Path, tmp_path: Path) -> None:
    assert call("convert", "--from", run_dir, "--to", tmp_path / "copy", "--to-format", "bigbatch") == 0
    assert_same(run_dir, tmp_path / "copy")
    copied = load_model(tmp_path / "copy")
    assert (copied.samples, copied.tokens, copied.data_hash) == (70, 4480, "abc")


def test_it_says_what_it_recognised(run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="bigbatch")
    call("convert", "--from", run_dir, "--to", tmp_path / "lm.pt")
    call("convert", "--from", tmp_path / "lm.pt", "--to", tmp_path / "own")
    call("convert", "--from", tmp_path / "own", "--to", tmp_path / "arrays", "--to-format", "openai")
    call("convert", "--from", tmp_path / "arrays", "--to", tmp_path / "again")
    said = "\n".join(record.getMessage() for record in caplog.records)
    for expected in (
        "language model of NVIDIA's v0.3 to HEAD, gates i, f, g, o",
        "layout v0.3 to HEAD below encoder",
        "2 layer(s), weight norm",
        "gates i, f, g, o: the file says so",
        "V 256, E 6, H 12, L 2",
        "27 OpenAI arrays: gates i, f, o, u; weight norm",
        "their encoder.py builds one",
    ):
        assert expected in said, expected


def test_the_folder_goes_on_to_the_other_commands(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    call("convert", "--from", run_dir, "--to", tmp_path / "lm.pt")
    call("convert", "--from", tmp_path / "lm.pt", "--to", own)
    for name in ("train", "val", "test"):
        rows = [f"{i % 2},The lamp number {i} is {('dull', 'superb')[i % 2]}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("label,sentence\n" + "\n".join(rows) + "\n")
    files = [word for name in ("train", "val", "test") for word in (f"--{name}", tmp_path / f"{name}.csv")]
    assert call("transfer", "--run-dir", own, *files, "--task", "shop", "--no-cache") == 0
    assert call("classify", "--run-dir", own, "The lamp is superb") == 0
    assert call("heatmap", "--run-dir", own, "superb", "--output", tmp_path / "m.html") == 0
    assert call("evaluate", "--run-dir", own, "--data", tmp_path / "test.csv", "--lanes", "2") == 0
    assert call("publish", "--run-dir", own, "--out", tmp_path / "shop") == 0
    card = (tmp_path / "shop" / "README.md").read_text()
    assert "| converted from | lm.pt (nvidia) |" in card and "| read | not recorded |" in card
    assert call("classify", "--model", tmp_path / "shop", "The lamp is superb") == 0
    assert call("train", "--run-dir", own, "--data.paths", "demo") == 2
    assert f"start from them with --init-from {own}" in capsys.readouterr().err
    assert not (own / "config.yaml").exists() and not (own / "data").exists()


def test_a_model_with_a_padding_row_reads_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", MLSTMConfig(hidden_size=12, embedding_size=6, vocab_size=257))
    assert call("convert", "--from", run, "--to", tmp_path / "lm.pt") == 0
    theirs = torch.load(tmp_path / "lm.pt", weights_only=True)["encoder"]["encoder"]["weight"]
    assert torch.equal(theirs[0], load_model(run).model.get_parameter("embedding.weight")[256])
    assert call("convert", "--from", tmp_path / "lm.pt", "--to", tmp_path / "own") == 0
    assert_same(run, tmp_path / "own")
    (tmp_path / "text.csv").write_text("sentence\n" + "a dull lamp\nbyte \xff too\n" * 5)
    assert call("evaluate", "--run-dir", tmp_path / "own", "--data", tmp_path / "text.csv", "--lanes", "2") == 0
    features = [featurize(load_model(path).model, ["a lamp", "é"], progress=False) for path in (run, tmp_path / "own")]
    np.testing.assert_array_equal(*features)


def test_folding_is_asked_for_and_said(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("convert", "--from", run_dir, "--to", tmp_path / "plain.pt", "--fold-weight-norm") == 0
    assert "weight norm folded into the matrices: rounded once" in capsys.readouterr().out
    assert call("convert", "--from", tmp_path / "plain.pt", "--to", tmp_path / "plain") == 0
    plain, normed = load_model(tmp_path / "plain").model, load_model(run_dir).model
    assert not plain.config.weight_norm
    v, g = (normed.state_dict()[f"layers.1.wh.{leaf}"].double().numpy() for leaf in "vg")
    expected = g[:, None] * v / np.linalg.norm(v, axis=1, keepdims=True)
    np.testing.assert_allclose(plain.state_dict()["layers.1.wh.v"].numpy(), expected, rtol=1e-6)
    tokens = torch.arange(60).view(2, 30)
    np.testing.assert_allclose(plain(tokens)[0].detach(), normed(tokens)[0].detach(), atol=1e-5)
    assert call("convert", "--from", tmp_path / "plain", "--to", tmp_path / "q.pt", "--fold-weight-norm") == 0
    assert "there is no weight norm to fold" in capsys.readouterr().out


class Opener:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def test_bad_input_is_one_line_and_leaves_nothing(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("convert", "--from", run_dir, "--to", tmp_path / "lm.pt")
    content = torch.load(tmp_path / "lm.pt", weights_only=True)
    del content["gate_order"]
    torch.save(content, tmp_path / "untold.pt")
    torch.save({"a": Opener(str(tmp_path / "mark"))}, tmp_path / "evil.pt")
    lstm = make_run(tmp_path / "lstm", LSTMConfig(hidden_size=4, embedding_size=3))
    odd = make_run(tmp_path / "odd", MLSTMConfig(hidden_size=4, embedding_size=3, vocab_size=300))
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    before = sorted(path.name for path in tmp_path.iterdir())
    new = ["--to", tmp_path / "new"]
    cases: list[tuple[list[str | Path], str]] = [
        (["--from", tmp_path / "untold.pt", *new], "does not tell the order of its gates"),
        (["--from", tmp_path / "evil.pt", *new], "is refused: it calls"),
        (["--from", tmp_path / "nothing", *new], "does not exist: name a run folder"),
        (["--from", tmp_path / "empty", *new], "is neither a run folder or checkpoint of bigbatch"),
        (["--from", lstm, "--to", tmp_path / "new.pt"], "is of kind lstm: only mLSTMs are converted"),
        (["--from", odd, "--to", tmp_path / "new.pt"], "a vocabulary of 300; the layout has 256, or 257"),
        (["--from", run_dir, *new], "name a file in .pt for NVIDIA's layout, or give --to-format openai"),
        (["--from", run_dir, "--to", tmp_path / "lm.pt"], "lm.pt exists: name another file"),
        (["--from", tmp_path / "lm.pt", "--to", run_dir], "exists and is not an empty folder"),
        (["--from", run_dir, "--to", lstm, "--to-format", "openai"], "lstm is not empty"),
        (["--from", run_dir, "--to", tmp_path / "new.pt", "--ignore", "decoder"], "--ignore is about files of NVIDIA"),
        (["--from", run_dir, *new, "--to-format", "openai", "--gate-order", "ifgo"], "--gate-order is about files of"),
    ]
    for options, message in cases:
        assert call("convert", *options) == 2, options
        error = capsys.readouterr().err
        assert message in error and len(error.strip().splitlines()) == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["convert", "publish"])
def test_help_shows_an_example_and_needs_no_torch(command: str) -> None:
    code = (
        "import sys\nfrom bigbatch.scripts.cli import main\n"
        f"try:\n    main(['{command}', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'matplotlib', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and f"  bigbatch {command} " in done.stdout
