"""What the estimators of this folder ask of their input, and how a validation share is held out."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data

_validate: Any = validate_data  # its annotations say str where arrays are meant


def check_labels(labels: np.ndarray, name: str, known: np.ndarray | None = None) -> np.ndarray:
    """Labels as an array, if they can train (or with `known`: validate) a classifier.

    Args:
        labels: Labels, shape (n,).
        name: What they belong to, for the message.
        known: The classes of the training data; None when `labels` are these.

    Raises:
        ValueError: No labels, only one class, a class without a training example, or one that is missing.
    """
    labels = np.asarray(labels)
    if labels.size == 0:
        raise ValueError(f"the {name} data has no labelled rows; at least one of each class is needed")
    classes = np.unique(labels)
    if known is None:
        if len(classes) < 2:
            raise ValueError(f"the {name} data has labels of one class only ({classes[0]}); a probe needs at least two")
        return labels
    unknown, missing = np.setdiff1d(classes, known), np.setdiff1d(known, classes)
    if unknown.size:
        raise ValueError(f"the {name} data has labels {_listed(unknown)}, but the training data only {_listed(known)}")
    if missing.size:
        raise ValueError(f"the {name} data has no row of class {_listed(missing)}; it needs some of each class")
    return labels


def _listed(values: np.ndarray) -> str:
    return ", ".join(str(value) for value in values[:10])


def holdout_mask(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Which rows to set aside for validation: a share of each class, by seed.

    A class of at least two rows has at least one on either side; the only row of a class is not set aside.

    Returns:
        True for the rows set aside, shape (n,).

    Raises:
        ValueError: A fraction that is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the validation fraction is {fraction}; it must be between 0 and 1")
    # Ranks of `random()` rather than `permutation`, whose algorithm numpy may change.
    draws = np.random.default_rng(seed).random(len(y))
    chosen = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        chosen[members[np.argsort(draws[members], kind="stable")[:count]]] = True
    return chosen


def check_training(estimator: Any, X: Any, y: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, H) and labels (n,) of a classifier's `fit`; their width and names are noted in the estimator.

    Raises:
        ValueError: What scikit-learn refuses, labels that are no classes or of one class, values that are not finite.
    """
    X, y = _validate(estimator, X, y, dtype=dtype, order="C", ensure_all_finite=False)
    check_classification_targets(y)
    return _finite(X, "training"), check_labels(y, "training")


def check_validation(estimator: Any, X_val: Any, y_val: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The same for validation data, whose classes have to be those of the estimator."""
    y_val = check_labels(np.array([]) if y_val is None else y_val, "validation", estimator.classes_)
    X_val = check_given(estimator, X_val, "validation", dtype)
    check_consistent_length(X_val, y_val)
    return X_val, y_val


def check_indicators(estimator: Any, X: Any, Y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, H) and 0 or 1 for each of K labels (n, K).

    Raises:
        ValueError: What scikit-learn refuses, values other than 0 and 1, or features that are not finite.
    """
    name = "training" if reset else "validation"
    X, Y = _validate(
        estimator, X, Y, reset=reset, dtype=np.float64, order="C", ensure_all_finite=False, multi_output=True
    )
    Y = np.asarray(Y)
    if Y.ndim != 2 or not np.isin(Y, (0, 1)).all():
        raise ValueError(f"the {name} labels have to be 0 or 1 in an array (rows, labels), not {Y.dtype} {Y.shape}")
    return _finite(X, name), Y.astype(np.int64)


def check_numbers(estimator: Any, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, H) and numbers (n,) of a regression.

    Raises:
        ValueError: What scikit-learn refuses, fewer than two rows to train on, or values that are not finite.
    """
    name = "training" if reset else "validation"
    X, y = _validate(
        estimator, X, y, reset=reset, dtype=np.float64, ensure_all_finite=False, y_numeric=True,
        ensure_min_samples=2 if reset else 1,
    )  # fmt: skip
    return _finite(X, name), np.asarray(y, dtype=np.float64)


def check_given(estimator: Any, X: Any, name: str, dtype: Any) -> np.ndarray:
    """Features (n, H) for a fitted estimator.

    Raises:
        ValueError: Another number of units than in `fit`, or values that are not finite.
    """
    return _finite(_validate(estimator, X, reset=False, dtype=dtype, ensure_all_finite=False), name)


def _finite(X: np.ndarray, name: str) -> np.ndarray:
    if not np.isfinite(X).all():
        raise ValueError(
            f"the {name} features hold values that are not finite (NaN or inf); was the model's training stable?"
        )
    return X
