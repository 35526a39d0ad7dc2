"""The gradient noise scale, estimated while training from two batch sizes that come for free.

A gradient averaged over B samples has E|G_B|^2 = |G|^2 + S / B, with |G|^2 the squared norm of the true gradient and S the
trace of the covariance of one sample's gradient. Two sizes give both; S / |G|^2 is the "simple" noise scale, which
predicts the batch beyond which more samples a step save few steps (the critical batch size).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass
class NoiseScale:
    """Running estimate; two exponential averages, so that a checkpoint holds it as three numbers.

    Attributes:
        signal: average of the unbiased estimates of |G|^2.
        noise: average of the unbiased estimates of S.
        weight: what the averages have seen, 0 at the start and 1 in the long run; cancels in their ratio.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1.
    """

    signal: float = 0.0
    noise: float = 0.0
    weight: float = 0.0
    decay: float = 0.99

    def add(self, small_square: float, big_square: float, small_batch: float, big_batch: float) -> None:
        """Takes one step into account.

        Args:
            small_square: mean |gradient|^2 of batches of `small_batch` samples.
            big_square: |gradient|^2 of the whole batch.
            small_batch: samples in a small batch.
            big_batch: samples in the whole batch, more than `small_batch`.
        """
        if not (math.isfinite(small_square) and math.isfinite(big_square)):
            return
        signal = (big_batch * big_square - small_batch * small_square) / (big_batch - small_batch)
        noise = (small_square - big_square) / (1.0 / small_batch - 1.0 / big_batch)
        keep = self.decay
        self.signal = keep * self.signal + (1.0 - keep) * signal
        self.noise = keep * self.noise + (1.0 - keep) * noise
        self.weight = keep * self.weight + (1.0 - keep)

    @property
    def samples(self) -> float:
        """The noise scale in samples; NaN where the averages are not (yet) both positive."""
        return self.noise / self.signal if self.signal > 0 and self.noise > 0 else math.nan

    def state(self) -> dict[str, float]:
        return asdict(self)
