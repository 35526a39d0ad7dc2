"""The linear probe: L1 logistic regression on features, its strength chosen on validation data.

Features come from `featurize.py`; what is reported about a probe is put together in `transfer.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from safetensors.numpy import load_file, save
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

PUBLISHED_CS = tuple(2.0**power for power in range(-8, 1))
SCHEMA_VERSION = 1
# `penalty=` is deprecated from scikit-learn 1.8 on, where l1_ratio=1 means the same.
_NEW_SKLEARN = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)


def logistic_regression(l1: bool, **options: Any) -> LogisticRegression:
    """scikit-learn's logistic regression with an L1 or L2 penalty, spelled as the installed version wants it."""
    if _NEW_SKLEARN:
        return LogisticRegression(l1_ratio=1.0 if l1 else 0.0, **options)
    return LogisticRegression(penalty="l1" if l1 else "l2", **options)


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


class SentimentProbe(BaseEstimator, ClassifierMixin):
    """L1 logistic regression by liblinear; C is the one with the best validation accuracy.

    Each C is fitted on the training data alone, and so is the final probe (as published: validation data is not added).
    Of several equally good ones the smallest C wins, which has the fewest units. More than two classes are fitted one
    against the rest, because liblinear has no other way. Only the fitted numbers are kept, no scikit-learn object.

    Args:
        Cs: Inverse strengths to choose from.
        seed: Seed of liblinear's coordinate order.
        max_iter: Limit on liblinear's iterations.

    Attributes:
        C_: The chosen C.
        classes_: Labels in ascending order, shape (K,).
        coef_: Weights, fp64, shape (1, H) for two classes and (K, H) for more.
        intercept_: Shape (1,) or (K,).
        n_nonzero_: Units with a weight other than zero in any class.
        validation_accuracy_: For each C, in the order of `Cs`.
        converged_: False if liblinear stopped at `max_iter` for the chosen C.

    Source:
        Radford et al. 2017; `train_with_reg_cv` of openai/generating-reviews-discovering-sentiment.
    """

    def __init__(self, Cs: tuple[float, ...] = PUBLISHED_CS, seed: int = 42, max_iter: int = 1000) -> None:
        self.Cs = Cs
        self.seed = seed
        self.max_iter = max_iter

    def fit(self, X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> SentimentProbe:
        """Fits on (X, y), chooses C by accuracy on (X_val, y_val).

        Args:
            X: Features, shape (n, H).
            y: Labels, shape (n,), of at least two classes.
            X_val: Validation features, shape (m, H).
            y_val: Validation labels, of the same classes.

        Raises:
            ValueError: Labels of one class, an empty grid, a validation set that lacks a class, or values that are not
                finite.
        """
        if not len(self.Cs) or min(self.Cs) <= 0:
            raise ValueError(f"the grid of C is {tuple(self.Cs)}: it needs at least one value, all above 0")
        y = check_labels(y, "training")
        self.classes_ = np.unique(y)
        y_val = check_labels(y_val, "validation", self.classes_)
        for name, values in (("training", X), ("validation", X_val)):
            if not np.isfinite(values).all():
                raise ValueError(
                    f"the {name} features hold values that are not finite; was the model's training stable?"
                )
        # liblinear computes in fp64; converting once here instead of at every C saves time, not accuracy.
        X = np.asarray(X, dtype=np.float64, order="C")
        self.validation_accuracy_ = []
        best = -1.0
        for C in sorted(self.Cs):
            coef, intercept, converged = self._fit_one(X, y, C)
            accuracy = float(np.mean(self._predict(X_val, coef, intercept) == y_val))
            self.validation_accuracy_.append(accuracy)
            if accuracy > best:
                best, self.C_, self.converged_ = accuracy, float(C), converged
                self.coef_, self.intercept_ = coef, intercept
        by_c = dict(zip(sorted(self.Cs), self.validation_accuracy_))
        self.validation_accuracy_ = [by_c[C] for C in self.Cs]
        return self

    def _fit_one(self, X: np.ndarray, y: np.ndarray, C: float) -> tuple[np.ndarray, np.ndarray, bool]:
        targets = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        coefs, intercepts, converged = [], [], True
        for target in targets:
            model = logistic_regression(
                l1=True, C=C, solver="liblinear", random_state=self.seed, max_iter=self.max_iter
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # reported as `converged_`
                model.fit(X, y == target)
            converged &= bool(np.max(model.n_iter_) < self.max_iter)
            coefs.append(model.coef_.ravel())
            intercepts.append(np.ravel(model.intercept_)[0])
        return np.array(coefs), np.array(intercepts), converged

    @property
    def n_nonzero_(self) -> int:
        return int(np.count_nonzero(self.coef_.any(axis=0)))

    def top_units(self, k: int = 10) -> list[dict[str, Any]]:
        """The k units of largest |weight|, largest first; for several classes each with the class it speaks for."""
        strength = np.abs(self.coef_).max(axis=0)
        top = []
        for unit in np.argsort(-strength, kind="stable")[:k]:
            if strength[unit] == 0:
                break
            row = int(np.abs(self.coef_[:, unit]).argmax())
            target = self.classes_[1] if len(self.classes_) == 2 else self.classes_[row]
            top.append({"unit": int(unit), "weight": float(self.coef_[row, unit]), "label": target.item()})
        return top

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Log-odds, shape (n,) for two classes (of the second one) and (n, K) for more."""
        return self._decide(X, self.coef_, self.intercept_)

    @staticmethod
    def _decide(X: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        if X.ndim != 2 or X.shape[1] != coef.shape[1]:
            raise ValueError(f"features of shape {X.shape} given to a probe on {coef.shape[1]} units")
        scores = np.asarray(X, dtype=np.float64) @ coef.T + intercept
        return scores[:, 0] if len(coef) == 1 else scores

    def _predict(self, X: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        scores = self._decide(X, coef, intercept)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Labels, shape (n,)."""
        return self._predict(X, self.coef_, self.intercept_)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities in the order of `classes_`, shape (n, K); one-against-rest ones are divided by their sum."""
        scores = self.decision_function(X)
        probability = np.exp(-np.logaddexp(0, -scores))  # a sigmoid without overflow
        if probability.ndim == 1:
            return np.stack([1 - probability, probability], axis=1)
        return probability / probability.sum(axis=1, keepdims=True)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Writes `path` (JSON, last) and the weights beside it (`.safetensors`).

        Args:
            path: The JSON file; its folder is made.
            about: What the probe belongs to (model hash, feature options, class names), JSON-able.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = save({"coef": np.ascontiguousarray(self.coef_), "intercept": self.intercept_})
        content = {
            "schema_version": SCHEMA_VERSION,
            "kind": "l1-logistic-regression",
            "C": self.C_,
            "Cs": list(self.Cs),
            "seed": self.seed,
            "max_iter": self.max_iter,
            "converged": self.converged_,
            "validation_accuracy": self.validation_accuracy_,
            "n_nonzero": self.n_nonzero_,
            "labels": self.classes_.tolist(),
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "about": about,
        }
        write_atomic(path.with_suffix(".safetensors"), weights)
        write_json(path, content)

    @classmethod
    def load(cls, path: Path) -> tuple[SentimentProbe, dict[str, Any]]:
        """Reads what `save` wrote: the probe and its `about`.

        Raises:
            ValueError: A file that is not such a probe, or weights that are not the ones it was written with.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            weights_path = path.with_suffix(".safetensors")
            digest = hashlib.sha256(weights_path.read_bytes()).hexdigest()
            version, expected = content["schema_version"], content["weights_sha256"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a probe written by bigbatch transfer ({error!r}); run it again") from None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"{path} has schema version {version}, this release reads {SCHEMA_VERSION}; run transfer again"
            )
        if digest != expected:
            raise ValueError(
                f"{weights_path} is damaged or of another probe than {path.name}; run bigbatch transfer again"
            )
        tensors = load_file(weights_path)
        probe = cls(Cs=tuple(content["Cs"]), seed=content["seed"], max_iter=content["max_iter"])
        probe.C_, probe.converged_ = content["C"], content["converged"]
        probe.classes_, probe.validation_accuracy_ = np.array(content["labels"]), content["validation_accuracy"]
        probe.coef_, probe.intercept_ = tensors["coef"], tensors["intercept"]
        return probe, content["about"]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON so that a reader sees the whole file or the old one."""
    write_atomic(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_atomic(path: Path, data: bytes) -> None:
    """Writes bytes beside `path` and renames; a disk that fills up leaves nothing behind."""
    partial = path.with_name(path.name + ".tmp")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
