"""Which units carry a label: three rankings, what happens without the best ones, and how alike they are.

A probe says how much weight it gives a unit beside all others; AUC and mutual information look at each unit alone. Two
classes only. What moves a unit inside a text is `unit_spans.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.feature_selection import mutual_info_classif
from tqdm import tqdm

from ..evaluation.statistics import accuracy_interval
from .checks import check_labels
from .probe import SentimentProbe

_BLOCK_UNITS = 64


@dataclass(frozen=True)
class UnitRanking:
    """Three measures of every unit.

    Attributes:
        weight: Of the probe, fp64 (H,); its sign says which class larger values speak for.
        auc: Probability that a text of the second class has the larger value (ties count half), fp64 (H,); below 0.5 the
            unit speaks for the first one.
        information: Mutual information of value and label in bits, fp64 (H,); knows no direction.
    """

    weight: np.ndarray
    auc: np.ndarray
    information: np.ndarray

    @classmethod
    def measure(
        cls, probe: SentimentProbe, X: np.ndarray, y: np.ndarray, *, seed: int = 0, progress: bool = True
    ) -> UnitRanking:
        """Measures all units on labelled features.

        Args:
            probe: Fitted on two classes.
            X: Features, shape (n, H).
            y: Labels, shape (n,), the classes of the probe.
            seed: Of scikit-learn's estimate of mutual information, which adds noise against ties.
            progress: Show a bar on standard error, where that is a terminal.

        Raises:
            ValueError: A probe of more than two classes, labels that are not its own, or fewer than four texts of a class.
        """
        if len(probe.classes_) != 2:
            raise ValueError(f"units are ranked for two classes; the probe has {len(probe.classes_)}")
        positive = check_labels(y, "given", probe.classes_) == probe.classes_[1]
        if min(positive.sum(), (~positive).sum()) < 4:
            raise ValueError("units are ranked by at least four texts of each class; there are fewer")
        blocks = range(0, X.shape[1], _BLOCK_UNITS)
        bar = tqdm(blocks, desc="mutual information", disable=None if progress else True)
        information = [
            mutual_info_classif(X[:, start : start + _BLOCK_UNITS], positive, random_state=seed) for start in bar
        ]
        return cls(probe.coef_[0].copy(), auc_of_units(X, positive), np.concatenate(information) / np.log(2))

    def orders(self) -> dict[str, np.ndarray]:
        """Units from best to worst by each measure, int64 (H,); ties go to the lower unit."""
        strength = {"weight": np.abs(self.weight), "auc": np.abs(self.auc - 0.5), "information": self.information}
        return {name: np.argsort(-values, kind="stable") for name, values in strength.items()}

    def rows(self, units: np.ndarray) -> list[dict[str, Any]]:
        """All that is known of these units, with their rank from 1 by each measure; JSON-able."""
        ranks = {name: np.argsort(order) + 1 for name, order in self.orders().items()}
        return [
            {
                "unit": int(unit),
                "weight": float(self.weight[unit]),
                "weight_sign": int(np.sign(self.weight[unit])),
                "auc": float(self.auc[unit]),
                "auc_sign": int(np.sign(self.auc[unit] - 0.5)),
                "information": float(self.information[unit]),
                **{f"rank_by_{name}": int(rank[unit]) for name, rank in ranks.items()},
            }
            for unit in units
        ]


def auc_of_units(X: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of each column, fp64 (H,), by the Mann-Whitney statistic.

    Args:
        X: Values, shape (n, H).
        positive: True for the second class, shape (n,), some of both.
    """
    first, second = int((~positive).sum()), int(positive.sum())
    parts = []
    for start in range(0, X.shape[1], _BLOCK_UNITS):
        ranks = rankdata(X[:, start : start + _BLOCK_UNITS], axis=0)
        parts.append((ranks[positive].sum(axis=0) - second * (second + 1) / 2) / (first * second))
    return np.concatenate(parts)


def ablation(probe: SentimentProbe, X: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    """Accuracy of a probe, not fitted again, without its best units and with them alone.

    Args:
        probe: Fitted on two classes.
        X: Features, shape (n, H).
        y: Labels, shape (n,).

    Returns:
        For k = 0, 1, 2, 4, ... and all units that the probe uses, best by |weight| first: `k`, `units` (the k-th ones added)
        and four accuracies with n and interval. `without_zero` and `only_zero` set the units that are taken away to 0;
        `without_mean` and `only_mean` to their mean over these texts, which leaves the probe's threshold where it was.
    """
    order = np.argsort(-np.abs(probe.coef_[0]), kind="stable")
    used = int(np.count_nonzero(probe.coef_[0]))
    contribution = X[:, order[:used]].astype(np.float64) * probe.coef_[0][order[:used]]
    sums = np.concatenate([np.zeros((len(X), 1)), np.cumsum(contribution, axis=1)], axis=1)  # of the k best
    means, total = sums.mean(axis=0), sums[:, -1]
    ks = sorted({0, used, *(2**power for power in range(used.bit_length()))})
    rows = []
    for before, k in zip([0, *ks], ks):
        scores = {
            "without_zero": total - sums[:, k],
            "without_mean": total - sums[:, k] + means[k],
            "only_zero": sums[:, k],
            "only_mean": sums[:, k] + means[-1] - means[k],
        }
        accuracies = {
            name: accuracy_interval(probe.classes_[(score + probe.intercept_[0] > 0).astype(int)], y).to_dict()
            for name, score in scores.items()
        }
        rows.append({"k": k, "units": order[before:k].tolist(), **accuracies})
    return rows


def correlations_of_units(X: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Pearson's correlations of these units over the texts, fp64 (k, k); NaN where a unit is constant."""
    values = X[:, units].astype(np.float64)
    values -= values.mean(axis=0)
    scale = np.sqrt((values**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (values.T @ values) / np.outer(scale, scale)
