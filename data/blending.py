"""Mixes corpora in given proportions: which source each sample comes from, as a function of its number.

Every sample is taken from the source that is furthest behind its share, the first of them on a tie. Shares are exact
fractions, so nothing drifts: after any number of samples no source is a whole sample ahead of its share, and after one
period (the least number of samples that gives every share exactly) all are even and the pattern starts again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from .gpt_samples import require_epochs

_BLOCK = 1 << 12


class Samples(Protocol):
    """A source: samples by their number, and how often a number of them reads its corpus."""

    def read(self, index: int) -> np.ndarray: ...

    def epochs(self, num_samples: int) -> float: ...


class Blend:
    """Sources by weight.

    Args:
        weights: one for each source; only their proportions count. 0 leaves a source out.

    Raises:
        ValueError: no weights, a negative one or one that is no number, or all zero.

    Source: the rule of Megatron-LM's blended data set, there in floating point.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        for number, weight in enumerate(weights):
            if not math.isfinite(weight) or weight < 0:
                raise ValueError(f"weight {number} of the blend is {weight}: it must be a number of at least 0")
        if not any(weights):
            raise ValueError("the weights of the blend are all zero: give at least one source a share")
        # As they are written, so that 0.1 is a tenth.
        shares = [Fraction(str(weight)) for weight in weights]
        scale = math.lcm(*(share.denominator for share in shares))
        counts = [int(share * scale) for share in shares]
        common = math.gcd(*counts)
        self.counts = [count // common for count in counts]
        self.period = sum(self.counts)
        self._behind = [0] * len(self.counts)
        self._pattern = np.zeros(0, np.uint16)
        self._before = [np.zeros(len(self.counts), np.int64)]  # samples of each source before every block

    def locate(self, index: int) -> tuple[int, int]:
        """The source of sample `index`, and the number of that sample within it."""
        rounds, place = divmod(index, self.period)
        self._grow(place + 1)
        source = int(self._pattern[place])
        return source, rounds * self.counts[source] + self._count(source, place)

    def taken(self, num_samples: int) -> list[int]:
        """How many of the first `num_samples` come from each source."""
        rounds, place = divmod(num_samples, self.period)
        self._grow(place)
        return [rounds * count + self._count(source, place) for source, count in enumerate(self.counts)]

    def _count(self, source: int, place: int) -> int:
        block, rest = divmod(place, _BLOCK)
        begin = block * _BLOCK
        return int(self._before[block][source]) + int(np.count_nonzero(self._pattern[begin : begin + rest] == source))

    def _grow(self, wanted: int) -> None:
        """Extends the pattern to `wanted` samples, in whole blocks that at least double it."""
        have = len(self._pattern)
        if wanted <= have:
            return
        blocks = -(-max(wanted - have, have) // _BLOCK)
        behind, counts, period = self._behind, self.counts, self.period
        more = np.empty(blocks * _BLOCK, np.uint16)
        for place in range(len(more)):
            behind = [gap + count for gap, count in zip(behind, counts)]
            source = behind.index(max(behind))
            behind[source] -= period
            more[place] = source
        self._behind = behind
        for block in more.reshape(blocks, _BLOCK):
            self._before.append(self._before[-1] + np.bincount(block, minlength=len(counts)))
        self._pattern = np.concatenate((self._pattern, more))


class BlendedSamples:
    """Samples of several sources as those of one.

    Args:
        sources: the sources.
        weights: one for each.

    Raises:
        ValueError: as many weights as sources are not given, or see `Blend`.
    """

    def __init__(self, sources: Sequence[Samples], weights: Sequence[float]) -> None:
        if len(sources) != len(weights):
            raise ValueError(f"the blend has {len(sources)} sources but {len(weights)} weights: give one for each")
        self.sources, self.blend = list(sources), Blend(weights)

    def read(self, index: int) -> np.ndarray:
        """The sample `index` of the blend."""
        source, number = self.blend.locate(index)
        return self.sources[source].read(number)

    def epochs_of_sources(self, num_samples: int) -> list[float]:
        """How many times the first `num_samples` read each source."""
        return [source.epochs(taken) for source, taken in zip(self.sources, self.blend.taken(num_samples))]

    def require(self, num_samples: int, max_epochs: float) -> None:
        """Checks that every source suffices.

        Raises:
            ValueError: one would be read more than `max_epochs` times; names the first and says how many.
        """
        for number, epochs in enumerate(self.epochs_of_sources(num_samples)):
            try:
                require_epochs(epochs, max_epochs, self.blend.taken(num_samples)[number], f"source {number}")
            except ValueError as error:
                raise ValueError(f"source {number} of the blend is too small: {error}") from None
