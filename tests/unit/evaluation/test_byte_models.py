"""The byte models against a dict of counts, the sum rule, and cases small enough to do by hand."""

from __future__ import annotations

import gzip
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from bigbatch.evaluation.byte_models import WittenBell, gzip_bpc

PHRASES = [b"not bad at all. ", b"really good value ", b"broke after a week, ", b"\xc3\xa9t\xc3\xa9 ", b"\n the film "]


def sample_text(seed: int, phrases: int) -> bytes:
    generator = np.random.default_rng(seed)
    return b"".join(PHRASES[i] for i in generator.integers(len(PHRASES), size=phrases))


class SlowWittenBell:
    """The definition with dictionaries and recursion: the obvious reference."""

    def __init__(self, order: int, train: bytes) -> None:
        self.order = order
        self.counts: dict[bytes, Counter[int]] = defaultdict(Counter)
        for position, byte in enumerate(train):
            for length in range(min(order, position) + 1):
                self.counts[train[position - length : position]][byte] += 1

    def probability(self, context: bytes, byte: int) -> float:
        lower = self.probability(context[1:], byte) if context else 1 / 256
        counts = self.counts.get(context)
        if not counts:
            return lower
        return (counts[byte] + len(counts) * lower) / (counts.total() + len(counts))

    def bits_per_byte(self, data: bytes) -> float:
        bits = [-math.log2(self.probability(data[max(0, i - self.order) : i], byte)) for i, byte in enumerate(data)]
        return sum(bits) / len(bits)


@pytest.mark.parametrize("order", [0, 1, 3, 5, 7])
def test_equals_the_dictionary_reference(order: int) -> None:
    train, held_out = sample_text(0, 200), sample_text(1, 40) + bytes(range(250, 256)) + b"good good"
    fast = WittenBell(order).fit(train).bits_per_byte(held_out)
    assert fast == pytest.approx(SlowWittenBell(order, train).bits_per_byte(held_out), rel=1e-12)


@pytest.mark.parametrize("train", [b"a", b"ab", b"aaaaaaaaaa", sample_text(3, 1)[:4]])
def test_training_text_shorter_than_a_context(train: bytes) -> None:
    model, slow = WittenBell(5).fit(train), SlowWittenBell(5, train)
    for data in (b"a", b"abab", b"zzaab"):
        assert model.bits_per_byte(data) == pytest.approx(slow.bits_per_byte(data), rel=1e-12)


def test_one_byte_by_hand() -> None:
    # Order 0 after "aab": N = 3, T = 2, so P(a) = (2 + 2/256) / 5.
    assert WittenBell(0).fit(b"aab").probabilities(b"a")[0] == pytest.approx((2 + 2 / 256) / 5, rel=1e-15)


@pytest.mark.parametrize("context", [b"", b"d", b"not b", b"xyzzy", b"zz go", b"not bad at all"])
def test_probabilities_sum_to_one(context: bytes) -> None:
    model = WittenBell(5).fit(sample_text(0, 200))
    distribution = model.distribution(context)
    assert distribution.min() > 0
    assert distribution.sum() == pytest.approx(1.0, abs=1e-12)
    following = np.array([model.probabilities(context + bytes([byte]))[-1] for byte in range(256)])
    np.testing.assert_allclose(distribution, following, rtol=1e-13)


def test_cap_on_training_bytes_is_a_prefix() -> None:
    train, held_out = sample_text(0, 200), sample_text(1, 20)
    capped = WittenBell(5, max_train_bytes=500).fit(train)
    assert capped.num_train_bytes_ == 500
    assert capped.bits_per_byte(held_out) == WittenBell(5).fit(train[:500]).bits_per_byte(held_out)
    assert capped.bits_per_byte(held_out) != WittenBell(5).fit(train).bits_per_byte(held_out)


def test_longer_contexts_help_on_repetitive_text() -> None:
    train, held_out = sample_text(0, 2000), sample_text(1, 400)
    bits = [WittenBell(order).fit(train).bits_per_byte(held_out) for order in (0, 2, 5)]
    assert bits[0] > bits[1] > bits[2]


def test_bytes_and_arrays_are_the_same() -> None:
    train, held_out = sample_text(0, 50), sample_text(1, 10)
    array = np.frombuffer(held_out, dtype=np.uint8)
    model = WittenBell(3).fit(np.frombuffer(train, dtype=np.uint8))
    assert model.bits_per_byte(array) == WittenBell(3).fit(train).bits_per_byte(held_out)
    assert gzip_bpc(array) == gzip_bpc(held_out)


def test_gzip_is_the_size_of_the_file() -> None:
    text = sample_text(0, 300)
    assert gzip_bpc(text) == 8 * len(gzip.compress(text, 9, mtime=0)) / len(text)
    assert gzip_bpc(text, level=1) > gzip_bpc(text, level=9)


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="no bytes"):
        gzip_bpc(b"")
    with pytest.raises(ValueError, match="training text has no bytes"):
        WittenBell(5).fit(b"")
    with pytest.raises(ValueError, match="held-out text has no bytes"):
        WittenBell(5).fit(b"a").bits_per_byte(b"")
    with pytest.raises(ValueError, match="0 to 7"):
        WittenBell(8)
    with pytest.raises(ValueError, match="uint8"):
        WittenBell(5).fit(np.array([1, 300]))
