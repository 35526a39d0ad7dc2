"""The PNGs: written, of the promised size, the same for the same numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from bigbatch.sentiment.heatmap import PALETTE
from bigbatch.sentiment.visualize import probe_weights, unit_correlations, unit_histogram
from matplotlib.image import imread


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph is one
        yield


def colors_in(path: Path) -> set[tuple[int, int, int]]:
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {(r, g, b) for r, g, b in np.unique(pixels, axis=0).tolist()}


def test_histogram_shows_both_labels(tmp_path: Path) -> None:
    labels = np.arange(400) % 2
    values = np.random.default_rng(0).normal(size=400) + 6.0 * labels
    for name in ("one.png", "two.png"):
        unit_histogram(values, labels, ["no", "yes"], tmp_path / "plots" / name, unit=7, threshold=3.0)
    first, second = (tmp_path / "plots" / name for name in ("one.png", "two.png"))
    assert first.read_bytes() == second.read_bytes()
    assert imread(first).shape[:2] == (570, 960)
    flat = np.array(sorted(colors_in(first)))
    assert np.any((flat[:, 0] > 200) & (flat[:, 2] < 150)) and np.any((flat[:, 2] > 180) & (flat[:, 0] < 150))


def test_histogram_of_a_constant_unit(tmp_path: Path) -> None:
    unit_histogram(np.zeros(10), np.arange(10) % 2, ["no", "yes"], tmp_path / "h.png", unit=0, threshold=0.5)
    assert (tmp_path / "h.png").stat().st_size > 1000


@pytest.mark.parametrize("coef", [np.zeros(8), np.array([0, 0, 3.0, -1.0])])
def test_weights(coef: np.ndarray, tmp_path: Path) -> None:
    probe_weights(coef, tmp_path / "w.png", best_unit=2)
    assert imread(tmp_path / "w.png").shape[:2] == (570, 960)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_correlations(size: int, tmp_path: Path) -> None:
    values = np.eye(size) * 2 - 1
    values[0, 0] = np.nan if size > 1 else 1.0
    unit_correlations(values, range(100, 100 + size), tmp_path / "c.png")
    assert imread(tmp_path / "c.png").shape[:2] == (690, 810)
    assert PALETTE[-1] in colors_in(tmp_path / "c.png")
