"""Top-k and top-p against a loop over sorted bytes; the draw against the distribution it inverts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bigbatch.inference.sampling import Sampling, draw, probabilities
from scipy.stats import chisquare


def by_hand(logits: list[float], temperature: float, top_k: int, top_p: float, allowed: list[bool]) -> list[float]:
    """The definition for one row, byte by byte, in Python floats."""
    weights = [math.exp(x / temperature) if ok else 0.0 for x, ok in zip(logits, allowed)]
    order = sorted(range(len(logits)), key=lambda byte: (-weights[byte], byte))
    if top_k:
        order = order[:top_k]
    total = math.fsum(weights[byte] for byte in order)
    kept, reached = [], 0.0
    for byte in order:
        if top_p < 1 and reached >= top_p:
            break
        kept.append(byte)
        reached += weights[byte] / total
    total = math.fsum(weights[byte] for byte in kept)
    return [weights[byte] / total if byte in kept else 0.0 for byte in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 3, 40])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.35, 1e-9])
@pytest.mark.parametrize("masked", [False, True])
def test_against_a_loop(temperature: float, top_k: int, top_p: float, masked: bool) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(12, 30)).astype(np.float32) * 3
    logits[3] = np.round(logits[3])  # many equal ones
    logits[4] = 0.0
    allowed = generator.random(logits.shape) < 0.5 if masked else np.ones(logits.shape, dtype=bool)
    allowed[:, 7] = True
    found = probabilities(logits, Sampling(temperature, top_k, top_p), allowed if masked else None)
    for row, expected_of in zip(found, zip(logits.tolist(), allowed.tolist())):
        expected = by_hand(expected_of[0], temperature, top_k, top_p, expected_of[1])
        np.testing.assert_allclose(row, expected, atol=1e-14)
        assert np.array_equal(row > 0, np.array(expected) > 0)


def test_top_k_and_top_p_keep_at_least_the_most_probable() -> None:
    logits = np.array([[0.0, 5.0, 1.0]], dtype=np.float32)
    for sampling in (Sampling(top_k=1), Sampling(top_p=1e-12), Sampling(top_k=3, top_p=1e-12)):
        assert probabilities(logits, sampling).tolist() == [[0.0, 1.0, 0.0]]
    assert probabilities(np.zeros((1, 4)), Sampling(top_k=2)).tolist() == [[0.5, 0.5, 0.0, 0.0]]
    assert probabilities(np.zeros((1, 4)), Sampling(top_p=0.5)).tolist() == [[0.5, 0.5, 0.0, 0.0]]


def test_temperature() -> None:
    logits = np.array([[1.0, 3.0, 3.0, -2.0]], dtype=np.float32)
    assert probabilities(logits, Sampling(temperature=0)).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    # Nothing overflows at a temperature that is nearly 0, and the two equal ones share.
    np.testing.assert_allclose(probabilities(logits * 1e4, Sampling(temperature=1e-300)), [[0, 0.5, 0.5, 0]])
    np.testing.assert_allclose(probabilities(logits, Sampling(temperature=1e9)), [[0.25] * 4], rtol=1e-8)
    mask = np.array([[True, False, False, True]])
    assert probabilities(logits, Sampling(temperature=0), mask).tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_draws_follow_the_distribution() -> None:
    logits = np.random.default_rng(1).normal(size=20)
    expected = np.exp(logits) / np.exp(logits).sum()
    n = 40_000
    rows = probabilities(np.tile(logits, (n, 1)), Sampling())
    counts = np.bincount(draw(rows, np.random.default_rng(2).random(n)), minlength=20)
    assert chisquare(counts, n * expected).pvalue > 1e-3
    # and the test could tell: another temperature does not pass
    other = probabilities(np.tile(logits, (n, 1)), Sampling(temperature=1.1))
    counts = np.bincount(draw(other, np.random.default_rng(2).random(n)), minlength=20)
    assert chisquare(counts, n * expected).pvalue < 1e-6


def test_draw_inverts_the_cumulative_distribution() -> None:
    row = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    uniforms = np.array([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53])
    assert draw(np.tile(row, (6, 1)), uniforms).tolist() == [1, 1, 3, 3, 4, 4]
    # A sum that is off by rounding never leads outside, nor to a byte without a chance.
    third = np.tile(np.array([1 / 3, 1 / 3, 1 / 3 - 1e-16, 0.0]), (1, 1))
    assert draw(third, np.array([1 - 2**-53])).tolist() == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1; it must be 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1; it must be at least 1, or 0 for all"),
        ({"top_p": 0.0}, r"top_p is 0\.0; it must lie above 0"),
        ({"top_p": 1.5}, r"top_p is 1\.5"),
        ({"top_p": math.nan}, "top_p is nan"),
    ],
)
def test_numbers_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


def test_logits_of_a_broken_model() -> None:
    with pytest.raises(ValueError, match="logits are not finite"):
        probabilities(np.array([[0.0, np.nan]]), Sampling())
