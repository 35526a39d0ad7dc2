"""Several labels a text: an L1 probe for each label against its absence, and thresholds found on validation data.

Probabilities are one for each label and are not normalised: a text may have all labels or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from .calibration import CalibrationKind, sigmoid
from .checks import check_given, check_indicators, holdout_mask
from .probe import PUBLISHED_CS, SentimentProbe
from .probe_file import MULTILABEL_KIND, read_probe, write_probe
from .thresholds import search_thresholds


class MultiLabelProbe(ClassifierMixin, BaseEstimator):
    """One L1 logistic regression a label; its C has the least validation log loss, as labels tend to be rare.

    `fit(X, Y)` alone holds a share of the rows out to choose C and thresholds on, and fits the weights once more on all.

    Args:
        Cs: See `SentimentProbe`.
        seed: See `SentimentProbe`.
        max_iter: See `SentimentProbe`.
        metric: What thresholds maximise on validation data: see `search_thresholds`.
        calibration: Of each label by itself: see `SentimentProbe`.
        validation_fraction: Share that `fit(X, Y)` holds out.
        label_names: For messages; None numbers the labels.

    Attributes:
        coef_: Weights, fp64, shape (K, H).
        intercept_: Shape (K,).
        scale_: Calibration: log-odds times this ...
        shift_: ... plus this, both of shape (K,).
        thresholds_: A label is predicted where its probability reaches its threshold, shape (K,).
        Cs_: The chosen C of each label.
        converged_: False if liblinear stopped at `max_iter` for any label.
        validation_score_: Micro average of `metric` that the thresholds reach on validation data.
        n_features_in_: H.
    """

    n_features_in_: int  # set by scikit-learn

    def __init__(
        self,
        Cs: tuple[float, ...] = PUBLISHED_CS,
        seed: int = 42,
        max_iter: int = 1000,
        metric: str = "f1",
        calibration: CalibrationKind = "none",
        validation_fraction: float = 0.2,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.Cs = Cs
        self.seed = seed
        self.max_iter = max_iter
        self.metric = metric
        self.calibration: CalibrationKind = calibration
        self.validation_fraction = validation_fraction
        self.label_names = label_names

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        return tags

    def fit(
        self, X: np.ndarray, Y: np.ndarray, X_val: np.ndarray | None = None, Y_val: np.ndarray | None = None
    ) -> MultiLabelProbe:
        """Fits every label on (X, Y) and chooses on (X_val, Y_val), or on rows of (X, Y) held out.

        Args:
            X: Features, shape (n, H).
            Y: 0 or 1, shape (n, K).
            X_val: Validation features, shape (m, H); None holds rows out.
            Y_val: 0 or 1, shape (m, K).

        Raises:
            ValueError: Values other than 0 and 1, a label that no row of a part has, or that all have (the message
                names it), or what `SentimentProbe.fit` refuses.
        """
        X, Y = check_indicators(self, X, Y, reset=True)
        held = None
        if X_val is None:
            held = holdout_mask(np.zeros(len(Y)), self.validation_fraction, self.seed)
            X_fit, Y_fit, X_val, Y_val = X[~held], Y[~held], X[held], Y[held]
        else:
            X_fit, Y_fit = X, Y
            X_val, Y_val = check_indicators(self, X_val, Y_val, reset=False)
            if Y_val.shape[1] != Y.shape[1]:
                raise ValueError(f"the validation data has {Y_val.shape[1]} labels, the training data {Y.shape[1]}")
        probes = [self._fit_label(k, X_fit, Y_fit, X_val, Y_val) for k in range(Y.shape[1])]
        self._take(probes)
        scores = self._decide(X_val)
        self.thresholds_, self.validation_score_ = search_thresholds(sigmoid(scores), Y_val, self.metric)
        if held is not None:
            self._take([probe.refit(X, Y[:, k]) for k, probe in enumerate(probes)])
        return self

    def _fit_label(self, k: int, X: np.ndarray, Y: np.ndarray, X_val: np.ndarray, Y_val: np.ndarray) -> SentimentProbe:
        probe = SentimentProbe(self.Cs, self.seed, self.max_iter, "log_loss", self.calibration)
        try:
            return probe.fit(X, Y[:, k], X_val, Y_val[:, k])
        except ValueError as error:
            name = k if self.label_names is None else repr(self.label_names[k])
            raise ValueError(f"label {name}: {error}") from None

    def _take(self, probes: list[SentimentProbe]) -> None:
        self.coef_ = np.concatenate([probe.coef_ for probe in probes])
        self.intercept_ = np.concatenate([probe.intercept_ for probe in probes])
        fitted = [probe.calibration_ for probe in probes]
        self.scale_ = np.array([1.0 if each is None else each.scale[0] for each in fitted])
        self.shift_ = np.array([0.0 if each is None else each.shift[0] for each in fitted])
        self.Cs_ = [probe.C_ for probe in probes]
        self.converged_ = all(probe.converged_ for probe in probes)

    @property
    def n_nonzero_(self) -> int:
        """Units with a weight other than zero for any label."""
        return int(np.count_nonzero(self.coef_.any(axis=0)))

    def _decide(self, X: np.ndarray) -> np.ndarray:
        return (X @ self.coef_.T + self.intercept_) * self.scale_ + self.shift_

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        """Log-odds of each label, shape (n, K); thresholds are not in them."""
        check_is_fitted(self)
        return self._decide(check_given(self, X, "given", np.float64))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probability of each label, shape (n, K). Rows do not sum to 1."""
        return sigmoid(self.decision_function(X))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """0 or 1 for each label, by its threshold, shape (n, K)."""
        probability = self.predict_proba(X)
        return (probability >= self.thresholds_).astype(np.int64)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Writes `path` (JSON) and the weights beside it; arguments as in `SentimentProbe.save`."""
        tensors = {name: getattr(self, f"{name}_") for name in ("coef", "intercept", "scale", "shift", "thresholds")}
        content = {
            **self.get_params(),
            "chosen_Cs": self.Cs_,
            "converged": self.converged_,
            "validation_score": self.validation_score_,
            "n_nonzero": self.n_nonzero_,
        }
        write_probe(path, MULTILABEL_KIND, tensors, content, about)

    @classmethod
    def load(cls, path: Path) -> tuple[MultiLabelProbe, dict[str, Any]]:
        """Reads what `save` wrote: the probe and its `about`.

        Raises:
            ValueError: As `SentimentProbe.load`.
        """
        content, tensors = read_probe(path, MULTILABEL_KIND)
        parameters = {name: content[name] for name in cls().get_params()}
        probe = cls(**{**parameters, "Cs": tuple(content["Cs"])})
        for name, tensor in tensors.items():
            setattr(probe, f"{name}_", tensor)
        probe.Cs_, probe.converged_ = content["chosen_Cs"], content["converged"]
        probe.validation_score_, probe.n_features_in_ = content["validation_score"], tensors["coef"].shape[1]
        return probe, content["about"]
