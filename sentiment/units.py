"""The single-unit probe: one threshold on one unit, as in "the sentiment neuron".

For every unit the threshold and direction of best training accuracy are found exactly, all units of a block at once.
The unit is then chosen by validation accuracy; test data plays no part. Two classes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .probe import check_labels

_BLOCK_ELEMENTS = 2**22  # values sorted at once; bounds the memory beside the features


@dataclass(frozen=True)
class UnitProbe:
    """A fitted single-unit classifier for labels 0 and 1 of `classes`.

    Attributes:
        index: The unit.
        sign: +1 if larger values mean `classes[1]`, -1 if they mean `classes[0]`.
        threshold: Values above it (below it for sign -1) are predicted as `classes[1]`.
        train_accuracy: Of this unit.
        validation_accuracy: Of this unit, the highest of all units.
        classes: The two labels in ascending order.
        all_validation_accuracies: Of every unit, shape (H,), for plots.
    """

    index: int
    sign: int
    threshold: float
    train_accuracy: float
    validation_accuracy: float
    classes: np.ndarray
    all_validation_accuracies: np.ndarray

    @classmethod
    def fit(cls, X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> UnitProbe:
        """Finds the best unit.

        Rule: each unit gets the threshold and sign of highest training accuracy (ties: sign +1 first, then the lowest
        threshold). Of all units the one with the highest validation accuracy wins; ties go to the higher training
        accuracy, then to the lower index. The threshold stays the one of the training data.

        Args:
            X: Features, shape (n, H).
            y: Labels of two classes, shape (n,).
            X_val: Validation features, shape (m, H).
            y_val: Validation labels, shape (m,).

        Raises:
            ValueError: Not exactly two classes, or a validation set that lacks one.

        Source:
            Radford et al. 2017, section 4: "simply fitting a threshold to this single unit".
        """
        y = check_labels(y, "training")
        classes = np.unique(y)
        if len(classes) != 2:
            raise ValueError(f"the single-unit probe tells two classes apart; the training data has {len(classes)}")
        y_val = check_labels(y_val, "validation", classes)
        thresholds, signs, train_accuracies = fit_thresholds(X, y == classes[1])
        predicted = (X_val - thresholds) * signs > 0
        accuracies = np.mean(predicted == (y_val == classes[1])[:, None], axis=0)
        # lexsort: the last key counts most.
        index = int(np.lexsort((np.arange(X.shape[1]), -train_accuracies, -accuracies))[0])
        return cls(
            index=index,
            sign=int(signs[index]),
            threshold=float(thresholds[index]),
            train_accuracy=float(train_accuracies[index]),
            validation_accuracy=float(accuracies[index]),
            classes=classes,
            all_validation_accuracies=accuracies,
        )

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Signed distance from the threshold, shape (n,); above 0 means `classes[1]`."""
        return self.sign * (X[:, self.index].astype(np.float64) - self.threshold)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Labels, shape (n,)."""
        return self.classes[(self.decision_function(X) > 0).astype(int)]

    def to_dict(self) -> dict[str, Any]:
        """What a result file holds of the probe."""
        return {
            "index": self.index,
            "sign": self.sign,
            "threshold": self.threshold,
            "train_accuracy": self.train_accuracy,
            "validation_accuracy": self.validation_accuracy,
        }


def fit_thresholds(X: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best threshold and sign of each column by training accuracy.

    Args:
        X: Values, shape (n, H).
        positive: True for the second class, shape (n,).

    Returns:
        Thresholds (H,) fp64, halfway between two neighbouring values (or half a unit outside them all); signs (H,), +1
        or -1; accuracies (H,).
    """
    n, units = X.shape
    block = max(1, _BLOCK_ELEMENTS // n)
    parts = [_fit_block(X[:, start : start + block], positive) for start in range(0, units, block)]
    thresholds, signs, accuracies = (np.concatenate(values) for values in zip(*parts))
    return thresholds, signs, accuracies


def _fit_block(X: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, units = X.shape
    order = np.argsort(X, axis=0, kind="stable")
    values = np.take_along_axis(X, order, axis=0).astype(np.float64)
    # right[k] = items right when the k smallest are called negative and the others positive, k = 0 .. n.
    step = np.where(positive[order], -1, 1)
    right = np.empty((n + 1, units), dtype=np.int64)
    right[0] = np.count_nonzero(positive)
    np.cumsum(step, axis=0, out=right[1:])
    right[1:] += right[0]
    # A cut between equal values is none: no threshold separates them.
    tied = np.zeros((n + 1, units), dtype=bool)
    tied[1:n] = values[1:] == values[:-1]
    upward = np.where(tied, -1, right)
    downward = np.where(tied, -1, n - right)
    cut_up, cut_down = upward.argmax(axis=0), downward.argmax(axis=0)
    best_up = np.take_along_axis(upward, cut_up[None], axis=0)[0]
    best_down = np.take_along_axis(downward, cut_down[None], axis=0)[0]
    signs = np.where(best_up >= best_down, 1, -1)
    cut = np.where(signs == 1, cut_up, cut_down)
    padded = np.concatenate([values[:1] - 1, values, values[-1:] + 1])
    below = np.take_along_axis(padded, cut[None], axis=0)[0]
    above = np.take_along_axis(padded, cut[None] + 1, axis=0)[0]
    return (below + above) / 2, signs, np.maximum(best_up, best_down) / n
