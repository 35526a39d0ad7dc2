"""Ratings: ridge regression on features, its strength chosen on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from .checks import check_given, check_numbers, holdout_mask
from .probe_file import RIDGE_KIND, read_probe, write_probe

ALPHAS = tuple(10.0**power for power in range(-3, 7))


class RidgeProbe(RegressorMixin, BaseEstimator):
    """Linear regression with an L2 penalty on units scaled to unit variance; alpha has the least validation error.

    Of several equally good ones the largest alpha wins. `fit(X, y)` alone holds a share out to choose alpha on, and fits
    it once more on all rows. All strengths are solved from one decomposition of the features.

    Args:
        alphas: Strengths to choose from, in units of a unit's variance times rows.
        seed: Of the share held out.
        validation_fraction: That share.

    Attributes:
        alpha_: The chosen one.
        coef_: Weights of the features as they are, fp64, shape (H,).
        intercept_: A number.
        validation_mse_: Mean squared error for each alpha, in the order of `alphas`.
        n_features_in_: H.
    """

    n_features_in_: int  # set by scikit-learn

    def __init__(self, alphas: tuple[float, ...] = ALPHAS, seed: int = 42, validation_fraction: float = 0.2) -> None:
        self.alphas = alphas
        self.seed = seed
        self.validation_fraction = validation_fraction

    def fit(
        self, X: np.ndarray, y: np.ndarray, X_val: np.ndarray | None = None, y_val: np.ndarray | None = None
    ) -> RidgeProbe:
        """Fits on (X, y), chooses alpha on (X_val, y_val), or on a share of (X, y) held out.

        Args:
            X: Features, shape (n, H).
            y: Numbers, shape (n,).
            X_val: Validation features, shape (m, H); None holds a share out.
            y_val: Validation numbers, shape (m,).

        Raises:
            ValueError: Fewer than two rows, an empty grid, or values that are not finite.
        """
        if not len(self.alphas) or min(self.alphas) <= 0:
            raise ValueError(f"the grid of alpha is {tuple(self.alphas)}: it needs at least one value, all above 0")
        X, y = check_numbers(self, X, y, reset=True)
        held = None
        X_fit, y_fit = X, y
        if X_val is None:
            held = holdout_mask(np.zeros(len(y)), self.validation_fraction, self.seed)
            X_fit, y_fit, X_val, y_val = X[~held], y[~held], X[held], y[held]
        else:
            X_val, y_val = check_numbers(self, X_val, y_val, reset=False)
        errors: dict[float, float] = {}
        for alpha, coef, intercept in _solve(X_fit, y_fit, sorted(self.alphas, reverse=True)):
            error = float(np.mean((X_val @ coef + intercept - y_val) ** 2))
            if not errors or error < min(errors.values()):
                self.alpha_, self.coef_, self.intercept_ = float(alpha), coef, intercept
            errors[alpha] = error
        self.validation_mse_ = [errors[alpha] for alpha in self.alphas]
        if held is not None:
            ((_, self.coef_, self.intercept_),) = _solve(X, y, [self.alpha_])
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Numbers, shape (n,)."""
        check_is_fitted(self)
        return check_given(self, X, "given", np.float64) @ self.coef_ + self.intercept_

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Writes `path` (JSON) and the weights beside it; arguments as in `SentimentProbe.save`."""
        content = {**self.get_params(), "alpha": self.alpha_, "validation_mse": self.validation_mse_}
        write_probe(path, RIDGE_KIND, {"coef": self.coef_, "intercept": np.array([self.intercept_])}, content, about)

    @classmethod
    def load(cls, path: Path) -> tuple[RidgeProbe, dict[str, Any]]:
        """Reads what `save` wrote: the probe and its `about`.

        Raises:
            ValueError: As `SentimentProbe.load`.
        """
        content, tensors = read_probe(path, RIDGE_KIND)
        probe = cls(tuple(content["alphas"]), content["seed"], content["validation_fraction"])
        probe.alpha_, probe.validation_mse_ = content["alpha"], content["validation_mse"]
        probe.coef_, probe.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        probe.n_features_in_ = len(probe.coef_)
        return probe, content["about"]


def _solve(X: np.ndarray, y: np.ndarray, alphas: list[float]) -> list[tuple[float, np.ndarray, float]]:
    """(alpha, weights, intercept) for each alpha, from the eigenvectors of the smaller Gram matrix."""
    mean, target = X.mean(axis=0), y.mean()
    spread = X.std(axis=0)
    spread = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, np.inf)  # a constant unit says nothing
    Z, r = (X - mean) / spread, y - target
    wide = Z.shape[1] > Z.shape[0]
    values, vectors = np.linalg.eigh(Z @ Z.T if wide else Z.T @ Z)
    projected = vectors.T @ (r if wide else Z.T @ r)
    found = []
    for alpha in alphas:
        solution = vectors @ (projected / (np.maximum(values, 0) + alpha))
        coef = (Z.T @ solution if wide else solution) / spread
        found.append((alpha, coef, float(target - mean @ coef)))
    return found
