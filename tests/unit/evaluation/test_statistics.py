"""Intervals against published values, a bootstrap, and their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bigbatch.evaluation.statistics import (
    accuracy_interval,
    bootstrap_interval,
    mcnemar_exact,
    paired_difference,
    wilson_interval,
)
from scipy.stats import binomtest


def predictions(both: int, only_a: int, only_b: int, neither: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    right_a = np.repeat([1, 1, 0, 0], [both, only_a, only_b, neither])
    right_b = np.repeat([1, 0, 1, 0], [both, only_a, only_b, neither])
    return right_a, right_b, np.ones(len(right_a), dtype=int)


def test_wilson_solves_its_equation() -> None:
    # The ends are where |share - p| = z * sqrt(p (1 - p) / n).
    for successes, n in ((81, 263), (15, 148), (1670, 1821)):
        for end in wilson_interval(successes, n):
            assert abs(successes / n - end) == pytest.approx(1.959963985 * math.sqrt(end * (1 - end) / n), rel=1e-7)


def test_wilson_known_values() -> None:
    # Newcombe 1998 (single proportions), table I, method 3.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(20, 20)[1] == 1.0


def test_accuracy_counts() -> None:
    result = accuracy_interval(np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1]))
    assert (result.accuracy, result.n) == (0.75, 4)
    assert result.low < 0.75 < result.high
    assert set(result.to_dict()) == {"accuracy", "n", "low", "high", "confidence"}
    with pytest.raises(ValueError, match="at least one item"):
        accuracy_interval(np.array([]), np.array([]))


def test_paired_difference_is_antisymmetric() -> None:
    a, b, labels = predictions(700, 120, 60, 120)
    forward, backward = paired_difference(a, b, labels), paired_difference(b, a, labels)
    assert forward.difference == pytest.approx(0.06)
    assert (forward.only_a, forward.only_b, forward.n) == (120, 60, 1000)
    assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low))


def test_paired_difference_agrees_with_a_bootstrap() -> None:
    a, b, labels = predictions(700, 120, 60, 120)
    gain = (a == labels).astype(float) - (b == labels)
    generator = np.random.default_rng(0)
    means = gain[generator.integers(len(gain), size=(4000, len(gain)))].mean(axis=1)
    result = paired_difference(a, b, labels)
    assert (result.low, result.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=2e-3)


def test_pairing_narrows_the_interval() -> None:
    # Same accuracies; the first pair of classifiers errs on the same items.
    alike = paired_difference(*predictions(780, 40, 20, 160))
    unlike = paired_difference(*predictions(640, 180, 160, 20))
    assert alike.difference == unlike.difference
    assert alike.high - alike.low < 0.6 * (unlike.high - unlike.low)


def test_identical_classifiers_differ_by_nothing() -> None:
    result = paired_difference(*predictions(90, 0, 0, 10))
    assert result.difference == 0 and result.low < 0 < result.high


def test_coverage_of_the_paired_interval() -> None:
    generator = np.random.default_rng(1)
    tables = generator.multinomial(200, [0.75, 0.13, 0.06, 0.06], size=400)
    covered = 0
    for table in tables:
        result = paired_difference(*predictions(*table))
        covered += result.low <= 0.07 <= result.high
    assert 0.92 <= covered / len(tables) <= 0.985


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for only_a, only_b in ((0, 0), (1, 0), (3, 11), (60, 120), (2000, 1900)):
        expected = binomtest(only_a, only_a + only_b, 0.5).pvalue if only_a + only_b else 1.0
        assert mcnemar_exact(only_a, only_b) == pytest.approx(expected, rel=1e-9)
        assert mcnemar_exact(only_b, only_a) == mcnemar_exact(only_a, only_b)


@pytest.mark.parametrize("few_kinds", [True, False])
def test_bootstrap_of_a_mean_is_the_normal_interval(few_kinds: bool) -> None:
    generator = np.random.default_rng(0)
    values = generator.random(500) < 0.3 if few_kinds else generator.normal(size=500)
    low, high = bootstrap_interval(values[:, None], lambda sums: sums[:, 0] / 500, repeats=8000)
    half = 1.959964 * values.std() / math.sqrt(500)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.06 * half)


def test_bootstrap_is_seeded_and_wants_items() -> None:
    values = np.random.default_rng(0).normal(size=(50, 1))

    def interval(**options) -> tuple[float, float]:
        return bootstrap_interval(values, lambda sums: sums[:, 0], repeats=200, **options)

    assert interval(seed=1) == interval(seed=1) != interval(seed=2)
    wide, narrow = interval(confidence=0.99), interval(confidence=0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    with pytest.raises(ValueError, match="at least one item"):
        bootstrap_interval(np.empty((0, 1)), lambda sums: sums[:, 0])
