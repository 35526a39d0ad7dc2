"""The gradient noise scale against gradients whose noise is known."""

from __future__ import annotations

import math

import pytest
import torch
from bigbatch.training.noise_scale import NoiseScale

SIZE, SMALL, BIG = 200, 4, 32


def test_it_finds_the_noise_scale_of_synthetic_gradients() -> None:
    torch.manual_seed(0)
    true = torch.full((SIZE,), 0.05, dtype=torch.float64)  # |G|^2 = 0.5
    deviation = 0.2  # S = 200 * 0.04 = 8: a noise scale of 16 samples
    estimate = NoiseScale()
    for _ in range(2000):
        samples = true + deviation * torch.randn(BIG, SIZE, dtype=torch.float64)
        parts = samples.view(BIG // SMALL, SMALL, SIZE).mean(1)
        estimate.add(float(parts.square().sum(1).mean()), float(samples.mean(0).square().sum()), SMALL, BIG)
    assert estimate.samples == pytest.approx(16.0, rel=0.1)
    assert estimate.signal / estimate.weight == pytest.approx(0.5, rel=0.1)
    assert estimate.noise / estimate.weight == pytest.approx(8.0, rel=0.1)


def test_an_overflow_or_nothing_at_all_gives_no_number() -> None:
    estimate = NoiseScale()
    assert math.isnan(estimate.samples)
    estimate.add(math.inf, 1.0, 1, 2)
    assert estimate == NoiseScale()
    estimate.add(0.5, 1.0, 1, 2)  # chance can make the small batch's gradient the shorter one
    assert math.isnan(estimate.samples)


def test_its_state_is_three_numbers_that_go_on() -> None:
    estimate = NoiseScale()
    for small, big in ((3.0, 1.0), (4.0, 1.5)):
        estimate.add(small, big, 2, 8)
    again = NoiseScale(**estimate.state())
    for each in (estimate, again):
        each.add(5.0, 1.0, 2, 8)
    assert again == estimate and again.samples > 0
