"""The linear probe: L1 logistic regression on features, its strength chosen on validation data.

Features come from `featurize.py`; what is reported about a probe is put together in `transfer.py`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

from .calibration import CALIBRATIONS, Calibration, CalibrationKind, class_probabilities, fit_calibration
from .checks import check_given, check_training, check_validation, holdout_mask
from .probe_file import PROBE_KIND, read_probe, write_probe
from .probe_file import write_atomic as write_atomic
from .probe_file import write_json as write_json

PUBLISHED_CS = tuple(2.0**power for power in range(-8, 1))
CRITERIA = ("accuracy", "log_loss")
# `penalty=` is deprecated from scikit-learn 1.8 on, where l1_ratio=1 means the same.
_NEW_SKLEARN = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)


def logistic_regression(l1: bool, **options: Any) -> LogisticRegression:
    """scikit-learn's logistic regression with an L1 or L2 penalty, spelled as the installed version wants it."""
    if _NEW_SKLEARN:
        return LogisticRegression(l1_ratio=1.0 if l1 else 0.0, **options)
    return LogisticRegression(penalty="l1" if l1 else "l2", **options)


class SentimentProbe(ClassifierMixin, BaseEstimator):
    """L1 logistic regression by liblinear; C is the one that does best on validation data.

    With validation data at hand, each C is fitted on the training data alone, and so is the final probe (as published:
    validation data is not added). `fit(X, y)` alone holds out a share of each class, chooses C and calibration on it,
    and fits that C once more on all rows. Of several equally good ones the smallest C wins, which has the fewest units.
    More than two classes are fitted one against the rest, because liblinear has no other way. Only the fitted numbers
    are kept, no scikit-learn object.

    Args:
        Cs: Inverse strengths to choose from.
        seed: Seed of liblinear's coordinate order and of the share held out.
        max_iter: Limit on liblinear's iterations.
        criterion: What C is chosen by: "accuracy" (published) or "log_loss", for classes of very unequal size.
        calibration: "none", or how the log-odds are corrected on validation data: see `calibration.py`.
        validation_fraction: Share that `fit(X, y)` holds out.

    Attributes:
        C_: The chosen C.
        classes_: Labels in ascending order, shape (K,).
        coef_: Weights, fp64, shape (1, H) for two classes and (K, H) for more.
        intercept_: Shape (1,) or (K,).
        n_nonzero_: Units with a weight other than zero in any class.
        validation_accuracy_: For each C, in the order of `Cs`.
        converged_: False if liblinear stopped at `max_iter` for the chosen C.
        n_iter_: liblinear's iterations for the chosen C, the most of any class.
        calibration_: `Calibration`, or None; applied by `decision_function`, `predict` and `predict_proba` alike.
        n_features_in_: H.

    Source:
        Radford et al. 2017; `train_with_reg_cv` of openai/generating-reviews-discovering-sentiment.
    """

    n_features_in_: int  # set by scikit-learn

    def __init__(
        self,
        Cs: tuple[float, ...] = PUBLISHED_CS,
        seed: int = 42,
        max_iter: int = 1000,
        criterion: str = "accuracy",
        calibration: CalibrationKind = "none",
        validation_fraction: float = 0.2,
    ) -> None:
        self.Cs = Cs
        self.seed = seed
        self.max_iter = max_iter
        self.criterion = criterion
        self.calibration: CalibrationKind = calibration
        self.validation_fraction = validation_fraction

    def fit(
        self, X: np.ndarray, y: np.ndarray, X_val: np.ndarray | None = None, y_val: np.ndarray | None = None
    ) -> SentimentProbe:
        """Fits on (X, y), chooses C and calibration on (X_val, y_val), or on a share of (X, y) held out.

        Args:
            X: Features, shape (n, H).
            y: Labels, shape (n,), of at least two classes.
            X_val: Validation features, shape (m, H); None holds a share out.
            y_val: Validation labels, of the same classes.

        Raises:
            ValueError: Labels of one class, an empty grid, a validation set that lacks a class, values that are not
                finite, an unknown criterion or calibration.
        """
        self._check_options()
        # liblinear computes in fp64; converting once here instead of at every C saves time, not accuracy.
        X, y = check_training(self, X, y, np.float64)
        self.classes_ = np.unique(y)
        if X_val is None:
            held = holdout_mask(y, self.validation_fraction, self.seed)
            if not held.any():
                raise ValueError(f"the training data has {len(y)} rows, none of which can be held out to choose C")
            self._choose(X[~held], y[~held], X[held], y[held])
            return self.refit(X, y)
        self._choose(X, y, *check_validation(self, X_val, y_val, np.float64))
        return self

    def refit(self, X: np.ndarray, y: np.ndarray) -> SentimentProbe:
        """Fits the chosen C once more on other rows of the same classes; C and calibration stay as they are."""
        X, y = check_validation(self, X, y, np.float64)
        self.coef_, self.intercept_, self.n_iter_ = self._fit_one(X, y, self.C_)
        self.converged_ = self.n_iter_ < self.max_iter
        return self

    def _check_options(self) -> None:
        if not len(self.Cs) or min(self.Cs) <= 0:
            raise ValueError(f"the grid of C is {tuple(self.Cs)}: it needs at least one value, all above 0")
        if self.criterion not in CRITERIA:
            raise ValueError(f"criterion is {self.criterion!r}; choose one of {', '.join(CRITERIA)}")
        if self.calibration not in CALIBRATIONS:
            raise ValueError(f"calibration is {self.calibration!r}; choose one of {', '.join(CALIBRATIONS)}")

    def _choose(self, X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> None:
        """Fits every C on (X, y), keeps the best on (X_val, y_val), calibrates it there."""
        targets = np.searchsorted(self.classes_, y_val)
        best, accuracies, self.calibration_ = -np.inf, {}, None
        for C in sorted(self.Cs):
            coef, intercept, n_iter = self._fit_one(X, y, C)
            scores = self._decide(X_val, coef, intercept)
            accuracies[C] = quality = float(np.mean(self._labels(scores) == y_val))
            if self.criterion == "log_loss":
                chances = class_probabilities(scores)[np.arange(len(targets)), targets]
                quality = float(np.mean(np.log(np.maximum(chances, 1e-300))))
            if quality > best:
                best, best_scores = quality, scores
                self.C_, self.converged_, self.n_iter_ = float(C), n_iter < self.max_iter, n_iter
                self.coef_, self.intercept_ = coef, intercept
        self.validation_accuracy_ = [accuracies[C] for C in self.Cs]
        self.calibration_ = fit_calibration(self.calibration, best_scores, targets)

    def _fit_one(self, X: np.ndarray, y: np.ndarray, C: float) -> tuple[np.ndarray, np.ndarray, int]:
        """Weights, intercepts and the number of iterations (the most of any class)."""
        targets = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        coefs, intercepts, n_iter = [], [], 1
        for target in targets:
            model = logistic_regression(
                l1=True, C=C, solver="liblinear", random_state=self.seed, max_iter=self.max_iter
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # reported as `converged_`
                model.fit(X, y == target)
            n_iter = max(n_iter, int(np.max(model.n_iter_)))
            coefs.append(model.coef_.ravel())
            intercepts.append(np.ravel(model.intercept_)[0])
        return np.array(coefs), np.array(intercepts), n_iter

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
        """Log-odds, shape (n,) for two classes (of the second one) and (n, K) for more; calibrated if the probe is."""
        check_is_fitted(self)
        return self._decide(check_given(self, X, "given", np.float64), self.coef_, self.intercept_)

    def _decide(self, X: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        scores = X @ coef.T + intercept
        if self.calibration_ is not None:
            scores = scores * self.calibration_.scale + self.calibration_.shift
        return scores[:, 0] if len(coef) == 1 else scores

    def _labels(self, scores: np.ndarray) -> np.ndarray:
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Labels, shape (n,)."""
        return self._labels(self.decision_function(X))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities in the order of `classes_`, shape (n, K); one-against-rest ones are divided by their sum."""
        return class_probabilities(self.decision_function(X))

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Writes `path` (JSON, last) and the weights beside it (`.safetensors`).

        Args:
            path: The JSON file; its folder is made.
            about: What the probe belongs to (model hash, feature options, class names), JSON-able.
        """
        calibration = self.calibration_
        content = {
            "C": self.C_,
            **self.get_params(),
            "converged": self.converged_,
            "n_iter": self.n_iter_,
            "fitted_calibration": calibration and {name: values.tolist() for name, values in vars(calibration).items()},
            "validation_accuracy": self.validation_accuracy_,
            "n_nonzero": self.n_nonzero_,
            "labels": self.classes_.tolist(),
        }
        write_probe(path, PROBE_KIND, {"coef": self.coef_, "intercept": self.intercept_}, content, about)

    @classmethod
    def load(cls, path: Path) -> tuple[SentimentProbe, dict[str, Any]]:
        """Reads what `save` wrote: the probe and its `about`.

        Raises:
            ValueError: A file that is not such a probe, or weights that are not the ones it was written with.
        """
        content, tensors = read_probe(path, PROBE_KIND)
        # A probe of an earlier version lacks the parameters that came later: it has their defaults.
        parameters: dict[str, Any] = {name: content[name] for name in cls().get_params() if name in content}
        probe = cls(**{**parameters, "Cs": tuple(content["Cs"])})
        probe.C_, probe.converged_, probe.n_iter_ = content["C"], content["converged"], content.get("n_iter", 1)
        probe.classes_, probe.validation_accuracy_ = np.array(content["labels"]), content["validation_accuracy"]
        probe.coef_, probe.intercept_ = tensors["coef"], tensors["intercept"]
        fitted = content.get("fitted_calibration")
        probe.calibration_ = fitted and Calibration(**{name: np.array(values) for name, values in fitted.items()})
        probe.n_features_in_ = probe.coef_.shape[1]
        return probe, content["about"]
