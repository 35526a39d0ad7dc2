"""What is drawn is what the files say: lines, bars and labels are read back from the figure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from bigbatch.analysis import curves
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they were saved."""
    figures: list[Figure] = []
    original = curves.save_figure

    def save(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return original(figure, path)

    monkeypatch.setattr(curves, "save_figure", save)
    return figures


def line(axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = [entry for entry in axes.get_lines() if entry.get_label() == label]
    return list(found.get_xdata()), list(found.get_ydata())


def write_metrics(run_dir: Path, rows: list[dict]) -> Path:
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


def row(step: int, **more: object) -> dict:
    values = {"samples": step * 8, "tokens": step * 1_000_000, "step": step, "bpc": 4.0 / step, "lr": step / 100}
    return {**values, "loss_scale": 1.0, "skipped_steps": 0, "global_batch_size": 8, **more}


def test_training_curve(tmp_path: Path, drawn: list[Figure]) -> None:
    evaluation = {"event": "eval", "tokens": 2_000_000, "samples": 16, "bpc": 2.5}
    run = write_metrics(tmp_path / "run", [row(1), row(2, bpc=None), evaluation, row(3)])
    path = curves.plot_training(run, tmp_path / "plots" / "a.png", {"gzip": 3.0})
    assert path.read_bytes().startswith(b"\x89PNG")
    upper, lower = drawn[0].get_axes()
    x, y = line(upper, "training")
    assert x == [1.0, 2.0, 3.0] and y[0] == 4.0 and math.isnan(y[1]) and y[2] == 4.0 / 3
    assert line(upper, "validation") == ([2.0], [2.5])
    assert line(upper, "gzip 3.000")[1] == [3.0, 3.0]
    assert list(lower.get_lines()[0].get_ydata()) == [0.01, 0.02, 0.03]


def test_the_noise_scale_is_drawn_beside_the_batch_where_it_was_logged(tmp_path: Path, drawn: list[Figure]) -> None:
    rows = [row(1, noise_scale=None), row(2, noise_scale=40.0), row(3, noise_scale=55.0, global_batch_size=16)]
    curves.plot_training(write_metrics(tmp_path / "run", rows), tmp_path / "a.png")
    axes = drawn[0].get_axes()
    assert len(axes) == 3 and axes[2].get_yscale() == "log" and axes[2].get_xlabel() == "million characters read"
    _, y = line(axes[2], "gradient noise scale")
    assert math.isnan(y[0]) and y[1:] == [40.0, 55.0]
    assert line(axes[2], "global batch")[1] == [8, 8, 16]


def test_precision_curves_show_the_scale_only_of_runs_that_have_one(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {
        "fp32": write_metrics(tmp_path / "fp32", [row(1), row(2)]),
        "fp16": write_metrics(tmp_path / "fp16", [row(1, loss_scale=4.0), row(2, loss_scale=2.0, skipped_steps=1)]),
    }
    curves.plot_precision(runs, tmp_path / "a.png")
    upper, lower = drawn[0].get_axes()
    assert line(upper, "fp32") == line(upper, "fp16") == ([8, 16], [4.0, 2.0])
    assert len(lower.get_lines()) == 1 and line(lower, "fp16: 1 of 2 steps skipped")[1] == [4.0, 2.0]


def result(tokens: int, probe: float) -> dict:
    def accuracy(value: float) -> dict:
        return {"accuracy": value, "low": value - 0.02, "high": value + 0.03, "n": 1821}

    names = {"probe": probe, "unit": probe - 0.1, "baseline_tfidf": 0.8, "baseline_majority": 0.5}
    return {"model": {"tokens": tokens}, **{name: accuracy(value) for name, value in names.items()}}


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., list[Path]]:
    def write(*contents: dict) -> list[Path]:
        paths = [tmp_path / f"{index}.json" for index in range(len(contents))]
        for path, content in zip(paths, contents):
            path.write_text(json.dumps(content))
        return paths

    return write


def test_accuracy_over_characters(results: Callable, tmp_path: Path, drawn: list[Figure]) -> None:
    curves.plot_transfer(results(result(9_000_000, 0.7), result(3_000_000, 0.6)), tmp_path / "a.png", "SST")
    (axes,) = drawn[0].get_axes()
    probe, unit = axes.containers
    assert list(probe.lines[0].get_xdata()) == [3.0, 9.0] and list(probe.lines[0].get_ydata()) == [0.6, 0.7]  # pyright: ignore
    assert list(unit.lines[0].get_ydata()) == pytest.approx([0.5, 0.6])  # pyright: ignore
    bars = probe.lines[2][0].get_segments()  # pyright: ignore
    assert [tuple(bar[:, 1]) for bar in bars] == [pytest.approx((0.58, 0.63)), pytest.approx((0.68, 0.73))]
    assert "n = 1,821" in axes.get_ylabel() and axes.get_title() == "SST"
    assert line(axes, "TF-IDF + logistic regression")[1] == [0.8, 0.8]


def test_results_without_accuracies_are_refused(results: Callable, tmp_path: Path) -> None:
    unlabelled = {"model": {"tokens": 1}, "probe": {"C": 1.0}}
    with pytest.raises(ValueError, match=r"score a test file with labels"):
        curves.plot_transfer(results(unlabelled), tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"run `bigbatch transfer` on several checkpoints first"):
        curves.plot_transfer([], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
