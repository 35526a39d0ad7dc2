"""The picture of rate by batch: its numbers from run folders that are known, and what it says when they are missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from bigbatch.analysis.figures import lr_batch
from bigbatch.analysis.sweep_folder import claim_folder
from bigbatch.analysis.sweeps import Sweep
from bigbatch.scripts.cli import main
from matplotlib.image import imread

RATES = (0.1, 0.2, 0.4)


@pytest.fixture
def sweep(sweep_of: Callable, end_cell: Callable) -> Sweep:
    """Two batches, three rates, two seeds: the best is 0.1 for batch 8 and 0.2 for 16; 0.4 diverges for one seed of 16."""
    grid = {"batch.global_batch_size": [8, 16], "optim.lr": list(RATES)}
    sweep = sweep_of(grid=grid, seeds=[1, 2], marks={"batch": 8, "lr": 0.1})
    claim_folder(sweep)
    bpc = [2.0, 2.0, 2.3, 2.3, 2.6, 2.6, 2.9, 2.9, 2.2, 2.2, 2.4, None]
    for at, value in enumerate(bpc):
        noise = 4.0 if at < 6 else 16.0
        end_cell(sweep, at, value, noise=noise, evals=((200, 3.0), (400, 2.4)))
    return sweep


def test_the_numbers(sweep: Sweep) -> None:
    data = lr_batch.load(sweep.root)
    assert [(row["batch"], row["lr"]) for row in data.batches] == [(8, 0.1), (16, 0.2)]
    # What the best rates of both batches reach: 2.2. Batch 8 falls from 2.4 at 400 to 2.0 at 800, so it is there at 600.
    assert data.target == pytest.approx(2.2)
    assert [row["samples_to_target"] for row in data.batches] == pytest.approx([600, 800])
    assert data.settings[-1]["n"] == 1 and data.settings[-1]["diverged"] == 1
    found = lr_batch.predicted(data)
    assert found is not None
    scale, least = found
    assert scale == pytest.approx(8.0) and least * (1 + 8 / scale) == pytest.approx(600)
    assert [data.rule("linear", 16), data.rule("sqrt", 16)] == pytest.approx([0.2, 0.1 * math.sqrt(2)])


def test_samples_to_a_target() -> None:
    assert lr_batch.samples_to(2.0, [(10, 3.0), (20, 1.0), (30, 5.0)]) == 15
    assert lr_batch.samples_to(2.0, [(10, 2.0)]) == 10
    assert math.isnan(lr_batch.samples_to(2.0, [(10, 3.0)]))


def test_picture_and_table(sweep: Sweep, tmp_path: Path) -> None:
    files = lr_batch.draw(lr_batch.load(sweep.root), tmp_path / "figures" / "lr_batch")
    assert [file.suffix for file in files] == [".png", ".svg", ".csv"] and all(file.is_file() for file in files)
    assert len(list((tmp_path / "figures").iterdir())) == 3
    assert imread(files[0]).std() > 0.01 and "<svg" in files[1].read_text()
    table = pd.read_csv(files[2])
    assert len(table) == 6 and table["linear_rule"].tolist() == [True, False, False, False, True, False]
    assert table["diverged"].tolist() == [0, 0, 0, 0, 0, 1] and table["n"].tolist() == [2, 2, 2, 2, 2, 1]


def test_the_command_draws_it(sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures"
    assert main(["figures", "lr-batch", "--ours", str(sweep.root), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["lr-batch.csv", "lr-batch.png", "lr-batch.svg"]
    assert main(["figures", "--list"]) == 0 and "lr-batch" in capsys.readouterr().out
    assert main(["figures", "lr-batch", "--ours", "a", "b"]) == 2
    assert main(["figures", "lr-batch", "--ours", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "lr-batch draws one sweep, and --ours names 2" in error and "make them with `bigbatch sweep" in error


def test_missing_runs_name_their_command(sweep: Sweep, tmp_path: Path, sweep_of: Callable) -> None:
    with pytest.raises(
        ValueError, match=r"are not in .*none: make them with `bigbatch sweep configs/sweeps/lr_batch.yaml"
    ):
        lr_batch.load(tmp_path / "none")
    (sweep.cells[3].run_dir / "result.json").unlink()
    with pytest.raises(
        ValueError, match=r"1 of 12 runs of this figure are missing in .* \(such as batch=8,lr=0.2,seed=2\)"
    ):
        lr_batch.load(sweep.root)


def test_another_sweep_is_refused(sweep_of: Callable, end_cell: Callable) -> None:
    sweep = sweep_of(grid={"schedule.decay": ["cosine", "wsd"]})
    claim_folder(sweep)
    for at in range(2):
        end_cell(sweep, at, 2.0)
    with pytest.raises(
        ValueError, match=r"cells of batch 8 and lr 0.0005 differ in more than the seed: draw another sweep"
    ):
        lr_batch.load(sweep.root)
