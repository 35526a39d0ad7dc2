"""Blends: against the rule in fractions, at every prefix, at any distance, and with weights that make no sense."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from bigbatch.data.blending import Blend, BlendedSamples

WEIGHTS = [[1.0], [0.5, 0.5], [0.7, 0.2, 0.1], [3, 0, 1, 2.5], [0.123456789, 0.3, 1e-3], [1] * 11]


def by_the_rule(weights: list[float], num_samples: int) -> list[int]:
    shares = [Fraction(str(weight)) for weight in weights]
    total, counts, chosen = sum(shares), [0] * len(weights), []
    for n in range(1, num_samples + 1):
        deficits = [share / total * n - count for share, count in zip(shares, counts)]
        chosen.append(max(range(len(weights)), key=lambda k: (deficits[k], -k)))
        counts[chosen[-1]] += 1
    return chosen


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_every_sample_comes_from_the_source_furthest_behind(weights: list[float]) -> None:
    blend, expected = Blend(weights), by_the_rule(weights, 300)
    counts = [0] * len(weights)
    for index, source in enumerate(expected):
        assert blend.locate(index) == (source, counts[source])
        counts[source] += 1
        assert blend.taken(index + 1) == counts


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_no_source_is_a_sample_off_its_share_at_any_prefix(weights: list[float]) -> None:
    blend, total = Blend(weights), sum(weights)
    for n in [*range(1, 400), 5_000, 9_999]:
        for weight, taken in zip(weights, blend.taken(n)):
            assert taken - n * weight / total < 1 + 1e-9
            assert n * weight / total - taken < 1 + 1e-9
            assert weight or not taken


def test_any_distance_is_reached_at_once_and_exactly() -> None:
    blend = Blend([0.7, 0.2, 0.1])
    assert blend.period == 10 and blend.taken(10**12) == [7 * 10**11, 2 * 10**11, 10**11]
    assert blend.locate(10**12) == (0, 7 * 10**11)
    # A long pattern read from its end first.
    fresh, other = Blend([0.123457, 0.876543]), Blend([0.123457, 0.876543])
    far = fresh.locate(20_000)
    assert [other.locate(index) for index in range(20_001)][-1] == far


def test_a_long_pattern_is_found_quickly() -> None:
    start = time.process_time()
    assert sum(Blend([0.123457, 0.376543, 0.5]).taken(199_999)) == 199_999
    assert time.process_time() - start < 10


class Source:
    def __init__(self, name: int, size: int) -> None:
        self.name, self.size = name, size

    def read(self, index: int) -> np.ndarray:
        return np.array([self.name, index])

    def epochs(self, num_samples: int) -> float:
        return num_samples / self.size


def test_samples_of_each_source_are_read_in_their_order() -> None:
    blended = BlendedSamples([Source(0, 30), Source(1, 5)], [0.75, 0.25])
    read = np.array([blended.read(index) for index in range(40)])
    for name, count in ((0, 30), (1, 10)):
        assert read[read[:, 0] == name, 1].tolist() == list(range(count))
    assert blended.epochs_of_sources(40) == [1.0, 2.0]
    blended.require(40, max_epochs=2)
    message = (
        r"source 1 of the blend is too small: 10 samples would read the corpus of source 1 2.00 times, more than the 1"
    )
    with pytest.raises(ValueError, match=message):
        blended.require(40, max_epochs=1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, -0.1], "weight 1 of the blend is -0.1: it must be a number of at least 0"),
        ([float("nan")], "weight 0 of the blend is nan"),
        ([float("inf"), 1], "weight 0 of the blend is inf"),
        ([0, 0.0], "the weights of the blend are all zero"),
        ([], "the weights of the blend are all zero"),
    ],
)
def test_weights_that_make_no_sense_are_named(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Blend(weights)


def test_one_weight_for_each_source() -> None:
    with pytest.raises(ValueError, match="the blend has 1 sources but 2 weights: give one for each"):
        BlendedSamples([Source(0, 1)], [1, 2])
