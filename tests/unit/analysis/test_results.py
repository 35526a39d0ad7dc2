"""Frames of run folders against numbers worked out by hand and by SciPy's own tests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from bigbatch.analysis.results import by_setting, mean_interval, paired, run_frame
from bigbatch.analysis.sweep_report import report
from bigbatch.analysis.sweeps import Sweep
from bigbatch.scripts.results import main
from scipy import stats

BPC = {(0.1, 1): 2.0, (0.1, 2): 2.2, (0.1, 3): 2.1, (0.2, 1): 1.8, (0.2, 2): 2.1, (0.2, 3): None}


@pytest.fixture
def sweep(sweep_of: Callable, end_cell: Callable) -> Sweep:
    sweep = sweep_of(grid={"optim.lr": [0.1, 0.2]}, seeds=[1, 2, 3])
    for at, bpc in enumerate(BPC.values()):
        end_cell(sweep, at, bpc)
    return sweep


def test_interval_is_students() -> None:
    values = [2.0, 2.2, 2.1, 2.6]
    found = mean_interval([*values, math.nan])
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high, found.n) == pytest.approx((2.225, low, high, 4))
    one = mean_interval([3.0])
    assert one.mean == 3.0 and math.isnan(one.low) and str(one) == "3.0000 (n = 1)"
    assert mean_interval([]).n == 0 and str(mean_interval([])) == "- (n = 0)"


def test_a_row_a_run(sweep: Sweep) -> None:
    frame = run_frame([sweep.root])
    assert frame.attrs["settings"] == ["optim.lr", "seed"] and len(frame) == 6
    last = frame[frame["run"] == "lr=0.2,seed=3"].iloc[0]
    assert last["status"] == "Div" and math.isnan(last["bpc"]) and last["samples"] == 800 and last["skipped_steps"] == 1
    first = frame.iloc[0]
    assert first["bpc"] == 2.0 and first["bpc_n"] == 1000 and first["seconds"] == 2.5 and first["status"] == "finished"


def test_settings_and_pairs_use_seeds(sweep: Sweep) -> None:
    frame = run_frame([sweep.root])
    settings = by_setting(frame)
    assert settings["n"].tolist() == [3, 2] and settings["diverged"].tolist() == [0, 1]
    assert settings["bpc"].tolist() == pytest.approx([2.1, 1.95])
    low, high = stats.ttest_1samp([2.0, 2.2, 2.1], 0).confidence_interval(0.95)
    assert settings.loc[0, ["low", "high"]].tolist() == pytest.approx([low, high])
    # Seed 3 diverged in one of them: the pairs are those of seeds 1 and 2.
    gap = paired(frame).iloc[0]
    low, high = stats.ttest_rel([1.8, 2.1], [2.0, 2.2]).confidence_interval(0.95)
    assert (gap["n"], gap["difference"], gap["low"], gap["high"]) == pytest.approx((2, -0.15, low, high))
    assert paired(run_frame([sweep.cells[0].run_dir])).empty


def test_accuracies_come_with_n_and_interval(sweep: Sweep) -> None:
    run = sweep.cells[0].run_dir
    (run / "results").mkdir()
    score = {"accuracy": 0.75, "n": 40, "low": 0.6, "high": 0.86}
    (run / "results" / "sst-abc.json").write_text(json.dumps({"task": "sst", "probe": score, "unit": None}))
    frame = run_frame([sweep.root])
    row = frame.iloc[0]
    assert [row[f"sst.probe.{key}"] for key in score] == list(score.values())
    assert math.isnan(frame.iloc[1]["sst.probe.accuracy"]) and by_setting(frame, "sst.probe.accuracy")[
        "n"
    ].tolist() == [1, 0]
    (run / "results" / "sst-abc.json").write_text("{")
    with pytest.raises(ValueError, match=r"sst-abc.json is damaged .*: remove it, and run `bigbatch transfer` again"):
        run_frame([sweep.root])


def test_the_command_writes_every_format(sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    root = str(sweep.root)
    assert main([root]) == 0
    text = capsys.readouterr().out
    assert text.startswith("| run | optim.lr | seed | status |") and "| lr=0.2,seed=3 | 0.2 | 3 | Div |" in text
    assert main([root, "--to", "csv", "--output", str(tmp_path / "new" / "a.csv")]) == 0
    assert pd.read_csv(tmp_path / "new" / "a.csv")["bpc"].tolist()[:2] == [2.0, 2.2]
    pytest.importorskip("pyarrow")
    assert main([root, "--to", "parquet", "--output", str(tmp_path / "a.parquet"), "--table", "settings"]) == 0
    assert pd.read_parquet(tmp_path / "a.parquet")["n"].tolist() == [3, 2]
    assert main([root, "--table", "pairs"]) == 0 and "| 0.2 | 2 | -0.15 |" in capsys.readouterr().out


def test_bad_input(sweep: Sweep, tmp_path: Path) -> None:
    root = str(sweep.root)
    with pytest.raises(ValueError, match=r"--to parquet is not for the screen: name a file with --output"):
        main([root, "--to", "parquet"])
    with pytest.raises(ValueError, match=r"--metric 'accuracy' is no number of these runs: choose one of optim.lr"):
        main([root, "--table", "settings", "--metric", "accuracy"])
    with pytest.raises(ValueError, match=r"no run folder under .*none"):
        main([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty is not a run folder"):
        main([str(tmp_path / "empty")])
    config = sweep.cells[0].run_dir / "config.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "speed": 3}))
    with pytest.raises(
        ValueError, match=r"lr=0.1,seed=1: the stored configuration is of another version.*: leave this run out"
    ):
        main([root])


def test_report_of_a_grid(sweep_of: Callable, end_cell: Callable) -> None:
    sweep = sweep_of(grid={"batch.global_batch_size": [8, 16], "optim.lr": [0.1, 0.2]}, seeds=[1, 2])
    with pytest.raises(ValueError, match=r"no cell of .*mine.yaml has been started in .*: run `bigbatch sweep"):
        report(sweep)
    for at, bpc in enumerate([2.0, 2.2, 1.9, 1.7, 3.0, None, 2.5]):  # the last cell has not run
        end_cell(sweep, at, bpc)
    text = report(sweep)
    assert "8 cells (6 finished, 1 Div, 1 not started)" in text and "(at most 2)" in text
    half = stats.t.ppf(0.975, 1) * 0.1414213 / math.sqrt(2)
    assert f"| 8 | 2.100 ± {half:.3f} (n = 2) | 1.800 ± {half:.3f} (n = 2) |" in text
    assert "| 16 | 3.000 (n = 1), Div 1/2 | 2.500 (n = 1) |" in text
    assert "| 8 | 0.2 | 2 | 1.8 |" in text and "| 16 | 0.2 | 1 | 2.5 |" in text
    assert "- batch=16,lr=0.1,seed=2: Div: the loss is not a number at 8 samples" in text


def test_report_of_an_ablation_is_paired_by_seed(sweep_of: Callable, end_cell: Callable) -> None:
    sweep = sweep_of(ablate={"optim.lr": [0.1], "schedule.decay": ["cosine", "wsd"]}, seeds=[1, 2, 3])
    assert [cell.name for cell in sweep.cells][:4] == ["base,seed=1", "base,seed=2", "base,seed=3", "lr=0.1,seed=1"]
    base, worse = [2.0, 2.5, 3.0], [2.1, 2.7, 3.1]
    for at, bpc in enumerate([*base, *worse, *base, None, None, None]):
        end_cell(sweep, at, bpc)
    text = report(sweep)
    low, high = stats.ttest_rel(worse, base).confidence_interval(0.95)
    assert f"| optim.lr | lr=0.1 | 3 | 0 | 2.633 | +0.1333 | {low:+.4f} | {high:+.4f} |" in text
    assert "| schedule.decay | decay=cosine | 3 | 0 | 2.5 | +0.0000 | +0.0000 | +0.0000 |" in text
    assert "| schedule.decay | decay=wsd | 0 | 3 | - | - | - | - |" in text
    assert "Base: 2.5000" in text and "(n = 3)" in text


def test_report_of_more_factors_has_a_table_for_each(sweep_of: Callable, end_cell: Callable) -> None:
    grid = {"batch.global_batch_size": [8, 16], "optim.lr": [0.1, 0.2], "schedule.decay": ["cosine", "wsd"]}
    sweep = sweep_of(grid=grid)
    for at in range(8):
        end_cell(sweep, at, 2.0 + at / 10)
    text = report(sweep)
    assert "## decay, over everything else" in text and "| wsd | 4 | 4 | 0 | 2.4 | 2.1 |" in text
    assert "| 8 | 0.1 | cosine | 1 | 2 |" in text
