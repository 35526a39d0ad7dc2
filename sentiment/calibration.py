"""Calibration of a probe's log-odds on validation data: one scale, or a scale and a shift for each class.

Both keep the order of texts (scales are positive), and a changed log-odds changes decision and probability together, so
the two never disagree. How good probabilities are is measured by `evaluation/scores.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import minimize, minimize_scalar

CalibrationKind = Literal["none", "platt", "temperature"]
CALIBRATIONS = ("none", "platt", "temperature")
_LOG_SCALE = 6.0  # log of the largest scale or its inverse, so that classes told apart perfectly do not run to infinity


@dataclass(frozen=True)
class Calibration:
    """`scale * log-odds + shift` for each row of a probe's weights.

    Attributes:
        scale: Above 0, shape (R,): R is 1 for two classes and K for more.
        shift: Shape (R,).
    """

    scale: np.ndarray
    shift: np.ndarray


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-scores)) without overflow."""
    return np.exp(-np.logaddexp(0, -scores))


def class_probabilities(scores: np.ndarray) -> np.ndarray:
    """Rows that sum to 1 from log-odds of shape (n,) or (n, K); one-against-rest ones are divided by their sum."""
    probability = sigmoid(scores)
    if probability.ndim == 1:
        return np.stack([1 - probability, probability], axis=1)
    total = probability.sum(axis=1, keepdims=True)
    # Where every class is ruled out so firmly that nothing is left to divide, the least unlikely one takes it all.
    best = np.eye(probability.shape[1])[scores.argmax(axis=1)]
    return np.where(total > 0, probability / np.where(total > 0, total, 1), best)


def fit_calibration(kind: CalibrationKind, scores: np.ndarray, y: np.ndarray) -> Calibration | None:
    """Fits on held-out log-odds.

    Args:
        kind: "platt": a scale and a shift for each class against the rest. "temperature": one scale for all, the
            inverse of the temperature. "none": nothing.
        scores: Log-odds of held-out texts, shape (n,) for two classes and (n, K) for more.
        y: Class number of each text, shape (n,).

    Raises:
        ValueError: A kind that is not known.

    Source:
        Platt 1999, with its targets (N+ + 1) / (N+ + 2) and 1 / (N- + 2); Guo et al. 2017 for the temperature.
    """
    if kind not in CALIBRATIONS:
        raise ValueError(f"calibration is {kind!r}; choose one of {', '.join(CALIBRATIONS)}")
    if kind == "none":
        return None
    columns = scores[:, None] if scores.ndim == 1 else scores
    if kind == "temperature":
        scale = np.full(columns.shape[1], _fit_temperature(scores, y))
        return Calibration(scale, np.zeros_like(scale))
    targets = [1] if scores.ndim == 1 else range(columns.shape[1])
    fitted = [_fit_platt(column, y == target) for column, target in zip(columns.T, targets)]
    return Calibration(np.array([scale for scale, _ in fitted]), np.array([shift for _, shift in fitted]))


def _fit_temperature(scores: np.ndarray, y: np.ndarray) -> float:
    """The scale of least log loss of the normalised probabilities."""

    def loss(log_scale: float) -> float:
        probability = class_probabilities(np.exp(log_scale) * scores)[np.arange(len(y)), y]
        return -float(np.log(np.maximum(probability, 1e-300)).mean())

    found = minimize_scalar(loss, bounds=(-_LOG_SCALE, _LOG_SCALE), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))  # type: ignore[attr-defined]


def _fit_platt(scores: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Scale and shift of least cross-entropy with Platt's targets."""
    ones = int(np.count_nonzero(positive))
    target = np.where(positive, (ones + 1) / (ones + 2), 1 / (len(positive) - ones + 2))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        scale = np.exp(parameters[0])
        logits = scale * scores + parameters[1]
        value = np.mean(np.logaddexp(0, logits) - target * logits)
        error = sigmoid(logits) - target
        return float(value), np.array([np.mean(error * scale * scores), np.mean(error)])

    start = np.array([0.0, 0.0])
    bounds = [(-_LOG_SCALE, _LOG_SCALE), (None, None)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-9})
    return float(np.exp(found.x[0])), float(found.x[1])
