"""From logits to a byte: temperature, top-k, top-p, and a draw that one uniform number decides.

Done in fp64 with NumPy, row by row, so that what a stream draws depends on its own logits and its own number alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How the next byte is chosen.

    Args:
        temperature: Divides the logits; 0 takes the most probable byte, the lowest of equally probable ones.
        top_k: Only the k most probable bytes; 0 for all.
        top_p: Only the most probable bytes that together reach this probability, after `top_k`; 1 for all.
        valid_utf8: Bytes that cannot come next in UTF-8 have no chance, so that whole characters come out and nothing
            else.

    Raises:
        ValueError: A number out of range.

    Source:
        top-p: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    valid_utf8: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (the most probable byte) or above")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1, or 0 for all bytes")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must lie above 0 and at most at 1, which takes all bytes")


def probabilities(logits: np.ndarray, sampling: Sampling, allowed: np.ndarray | None = None) -> np.ndarray:
    """The distribution that a byte is drawn from.

    Args:
        logits: Shape (B, V).
        sampling: What to do with them.
        allowed: Bool (B, V), at least one True in each row; the others get probability 0. None for all.

    Returns:
        fp64 (B, V), each row with sum 1 up to rounding. Of equally probable bytes at the edge of top-k or top-p the
        lower ones stay.

    Raises:
        ValueError: Logits that are not finite.
    """
    scores = logits.astype(np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("the model's logits are not finite; was its training stable?")
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    if sampling.temperature == 0:
        chosen = np.zeros_like(scores)
        chosen[np.arange(len(scores)), scores.argmax(axis=1)] = 1.0
        return chosen
    # The largest is subtracted before the division, which a tiny temperature would make overflow.
    values = np.exp((scores - scores.max(axis=1, keepdims=True)) / sampling.temperature)
    values /= values.sum(axis=1, keepdims=True)
    if sampling.top_k == 0 and sampling.top_p == 1:
        return values
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    if sampling.top_k:
        ranked[:, sampling.top_k :] = 0.0
    ranked /= ranked.sum(axis=1, keepdims=True)
    if sampling.top_p < 1:
        before = np.cumsum(ranked, axis=1) - ranked
        ranked[before >= sampling.top_p] = 0.0  # the first has nothing before it and always stays
        ranked /= ranked.sum(axis=1, keepdims=True)
    np.put_along_axis(values, order, ranked, axis=1)
    return values


def draw(distribution: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """One byte of each row, by inverting its cumulative distribution.

    Args:
        distribution: Shape (B, V).
        uniforms: In [0, 1), shape (B,).

    Returns:
        Bytes of probability above 0, int64 (B,).
    """
    cumulative = np.cumsum(distribution, axis=1)
    below = cumulative <= (uniforms * cumulative[:, -1])[:, None]
    last = distribution.shape[1] - 1 - (distribution[:, ::-1] > 0).argmax(axis=1)
    return np.minimum(below.sum(axis=1), last)  # u * total can round up to the total
