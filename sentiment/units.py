"""The single-unit probe: one threshold on one unit, as in "the sentiment neuron".

For every unit the threshold and direction of best training accuracy are found exactly, all units of a block at once.
The unit is then chosen by validation accuracy; test data plays no part. Two classes only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from .checks import check_given, check_training, check_validation, holdout_mask

_BLOCK_ELEMENTS = 2**22  # values sorted at once; bounds the memory beside the features
_DTYPES = (np.float32, np.float64)


class UnitProbe(ClassifierMixin, BaseEstimator):
    """A single-unit classifier: one threshold on one unit, with a sign.

    Args:
        seed: Of the share held out by `fit(X, y)`.
        validation_fraction: That share.

    Attributes:
        index_: The unit.
        sign_: +1 if larger values mean `classes_[1]`, -1 if they mean `classes_[0]`.
        threshold_: Values above it (below it for sign -1) are predicted as `classes_[1]`.
        train_accuracy_: Of this unit, on the rows its threshold was fitted on.
        validation_accuracy_: Of this unit, the highest of all units.
        classes_: The two labels in ascending order.
        all_validation_accuracies_: Of every unit, shape (H,), for plots.
        n_features_in_: H.
    """

    def __init__(self, seed: int = 42, validation_fraction: float = 0.2) -> None:
        self.seed = seed
        self.validation_fraction = validation_fraction

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_class = False
        return tags

    def fit(
        self, X: np.ndarray, y: np.ndarray, X_val: np.ndarray | None = None, y_val: np.ndarray | None = None
    ) -> UnitProbe:
        """Finds the best unit.

        Rule: each unit gets the threshold and sign of highest training accuracy (ties: sign +1 first, then the lowest
        threshold). Of all units the one with the highest validation accuracy wins; ties go to the higher training
        accuracy, then to the lower index. The threshold stays the one of the training data. `fit(X, y)` alone holds out
        a share of each class to choose the unit on, and then fits that unit's threshold once more on all rows.

        Args:
            X: Features, shape (n, H).
            y: Labels of two classes, shape (n,).
            X_val: Validation features, shape (m, H); None holds a share out.
            y_val: Validation labels, shape (m,).

        Raises:
            ValueError: Not exactly two classes, a validation set that lacks one, or values that are not finite.

        Source:
            Radford et al. 2017, section 4: "simply fitting a threshold to this single unit".
        """
        X, y = check_training(self, X, y, _DTYPES)
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise ValueError(
                "Only binary classification is supported: the single-unit probe tells two classes apart, and the "
                f"training data has {len(self.classes_)}"
            )
        if X_val is None:
            held = holdout_mask(y, self.validation_fraction, self.seed)
            if not held.any():
                raise ValueError(f"the training data has {len(y)} rows, none of which can be held out to choose a unit")
            self._choose(X[~held], y[~held], X[held], y[held])
            threshold, sign, accuracy = fit_thresholds(X[:, [self.index_]], y == self.classes_[1])
            self.threshold_, self.sign_ = float(threshold[0]), int(sign[0])
            self.train_accuracy_ = float(accuracy[0])
            return self
        self._choose(X, y, *check_validation(self, X_val, y_val, _DTYPES))
        return self

    def _choose(self, X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> None:
        thresholds, signs, train_accuracies = fit_thresholds(X, y == self.classes_[1])
        predicted = (X_val - thresholds) * signs > 0
        accuracies = np.mean(predicted == (y_val == self.classes_[1])[:, None], axis=0)
        # lexsort: the last key counts most.
        index = int(np.lexsort((np.arange(X.shape[1]), -train_accuracies, -accuracies))[0])
        self.index_, self.sign_, self.threshold_ = index, int(signs[index]), float(thresholds[index])
        self.train_accuracy_, self.validation_accuracy_ = float(train_accuracies[index]), float(accuracies[index])
        self.all_validation_accuracies_ = accuracies

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Signed distance from the threshold, shape (n,); above 0 means `classes_[1]`."""
        check_is_fitted(self)
        return self.sign_ * (
            check_given(self, X, "given", _DTYPES)[:, self.index_].astype(np.float64) - self.threshold_
        )

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Labels, shape (n,)."""
        above = self.decision_function(X) > 0
        return self.classes_[above.astype(int)]

    def to_dict(self) -> dict[str, Any]:
        """What a result file holds of the probe."""
        return {
            "index": self.index_,
            "sign": self.sign_,
            "threshold": self.threshold_,
            "train_accuracy": self.train_accuracy_,
            "validation_accuracy": self.validation_accuracy_,
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
