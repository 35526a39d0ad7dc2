"""Transfers to targets other than one class a text: several labels (`multilabel.py`) or a number (`regression.py`).

The rules are those of `transfer.py`: all fitting is on train, every choice (C, alpha, thresholds, calibration) on
validation, test is scored once. Reading files is `data/targets.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.labelled import LabelledData
from ..evaluation.scores import multilabel_scores, regression_scores
from ..training.checkpoint import LoadedModel
from .calibration import CalibrationKind
from .multilabel import MultiLabelProbe
from .probe_file import write_atomic, write_json
from .regression import RidgeProbe
from .results import check_task, features_of, predictions_path, probe_about, summary_head, table_csv

MULTILABEL_TRANSFER, REGRESSION_TRANSFER = "transfer-labels", "transfer-regression"
HEADLINES = {
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "jaccard_samples": "Jaccard, mean over texts",
    "mcc_macro": "MCC, mean over labels",
    "exact_match": "all labels right",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mse": "mean squared error",
}


@dataclass(frozen=True)
class HeadResult:
    """What such a transfer found.

    Attributes:
        summary: JSON-able dictionary, the content of `path`.
        path: `results/<task>-<hash>.json`.
        probe: The fitted head.
        predicted: 0 or 1 of shape (n, K), or numbers of shape (n,), for the test texts.
    """

    summary: dict[str, Any]
    path: Path
    probe: MultiLabelProbe | RidgeProbe
    predicted: np.ndarray

    def table(self) -> str:
        """The scores as lines of text, each with interval and what the baseline has; one line without labels."""
        summary = self.summary
        if "scores" not in summary:
            return (
                f"{summary['data']['test']['n']:,} test texts without labels: predictions in {summary['predictions']}"
            )
        scores, baseline = summary["scores"], summary["baseline"]
        headlines = {key: name for key, name in HEADLINES.items() if key in scores}
        lines = [f"{'n = ' + format(summary['data']['test']['n'], ','):30}score     95 % interval      baseline"]
        for key, name in headlines.items():
            row = scores[key]
            lines.append(
                f"{name:30}{row['value']:.4f}    {row['low']:.4f} - {row['high']:.4f}   {baseline[key]['value']:.4f}"
            )
        for name, row in scores.get("per_label", {}).items():
            lines.append(
                f"{'F1 ' + name:30}{row['f1']:.4f}    precision {row['precision']:.4f}, recall {row['recall']:.4f}"
            )
        return "\n".join([*lines, f"baseline: {baseline['rule']}"])


def run_multilabel(
    loaded: LoadedModel,
    train: LabelledData,
    val: LabelledData,
    test: LabelledData,
    *,
    out_dir: Path | str,
    task: str,
    options: dict[str, Any],
    metric: str = "f1",
    calibration: CalibrationKind = "none",
    seed: int = 42,
    batch_size: int = 128,
    cache_dir: Path | str | None = None,
    progress: bool = True,
) -> HeadResult:
    """Features -> a probe for each label and thresholds -> result, table of predictions and probe in the run folder.

    Args:
        loaded: The model.
        train: Texts with labels (n, K), from `data.targets.load_multilabel`.
        val: The same, to choose C, thresholds and calibration on.
        test: The same, or without labels.
        out_dir: Run folder.
        task: Name of the task in file names.
        options: State, transform, layer and pooling, as `featurize` takes them.
        metric: See `search_thresholds`.
        calibration: See `SentimentProbe`.
        seed: Of liblinear.
        batch_size: See `featurize`.
        cache_dir: Folder of cached features; None for none.
        progress: Show a bar.

    Raises:
        ValueError: A bad task name, a part without labels, or a label that all texts of a part have, or none.
    """
    started, out_dir = time.perf_counter(), Path(out_dir)
    check_task(task)
    y, y_val = _labels(train, "training"), _labels(val, "validation")
    X, X_val, X_test = features_of(loaded, (train, val, test), options, batch_size, cache_dir, progress)
    names = train.classes
    probe = MultiLabelProbe(seed=seed, metric=metric, calibration=calibration, label_names=names)
    probe.fit(X, y, X_val, y_val)
    predicted, probability = probe.predict(X_test), probe.predict_proba(X_test)
    choices = {"seed": seed, "metric": metric, "calibration": calibration}
    parts = {"train": train, "val": val, "test": test}
    summary, path = summary_head(MULTILABEL_TRANSFER, task, loaded, parts, options, choices, out_dir)
    summary["classes"] = names
    summary["probe"] = {
        **choices,
        "Cs": dict(zip(names, probe.Cs_)),
        "thresholds": dict(zip(names, probe.thresholds_.tolist())),
        "validation_score": probe.validation_score_,
        "n_nonzero": probe.n_nonzero_,
        "num_units": X.shape[1],
        "converged": probe.converged_,
    }
    if test.labels is not None:
        summary["scores"] = multilabel_scores(test.labels, predicted, names, probability)
        summary["baseline"] = {
            "rule": "every label for every text",
            **multilabel_scores(test.labels, np.ones_like(test.labels), names),
        }
    truth = np.full(predicted.shape, "") if test.labels is None else test.labels
    header = [f"{kind}_{name}" for name in names for kind in ("label", "predicted", "probability")]
    rows = [[value for three in zip(*row) for value in three] for row in zip(truth, predicted, probability)]
    return _write(summary, path, out_dir, options, probe, predicted, header, rows, test, started)


def run_regression(
    loaded: LoadedModel,
    train: LabelledData,
    val: LabelledData,
    test: LabelledData,
    *,
    out_dir: Path | str,
    task: str,
    options: dict[str, Any],
    batch_size: int = 128,
    cache_dir: Path | str | None = None,
    progress: bool = True,
) -> HeadResult:
    """Features -> ridge regression -> result, table of predictions and probe in the run folder; arguments as above.

    Raises:
        ValueError: A bad task name or a part without labels.
    """
    started, out_dir = time.perf_counter(), Path(out_dir)
    check_task(task)
    y, y_val = _labels(train, "training"), _labels(val, "validation")
    X, X_val, X_test = features_of(loaded, (train, val, test), options, batch_size, cache_dir, progress)
    probe = RidgeProbe().fit(X, y, X_val, y_val)
    predicted = probe.predict(X_test)
    parts = {"train": train, "val": val, "test": test}
    summary, path = summary_head(REGRESSION_TRANSFER, task, loaded, parts, options, {}, out_dir)
    summary["classes"] = []
    summary["probe"] = {
        "alpha": probe.alpha_,
        "validation_mse": min(probe.validation_mse_),
        "num_units": X.shape[1],
    }
    if test.labels is not None:
        summary["scores"] = regression_scores(test.labels, predicted)
        mean = float(np.mean(y))
        summary["baseline"] = {
            "rule": f"{mean:.4f}, the mean of the training texts, for every text",
            **regression_scores(test.labels, np.full(len(test), mean)),
        }
    truth = np.full(len(test), "") if test.labels is None else test.labels
    return _write(
        summary, path, out_dir, options, probe, predicted, ["label", "predicted"], list(zip(truth, predicted)), test, started
    )  # fmt: skip


def _labels(data: LabelledData, name: str) -> np.ndarray:
    if data.labels is None or not len(data):
        raise ValueError(f"the {name} data has no labelled rows")
    return data.labels


def _write(
    summary: dict[str, Any],
    path: Path,
    out_dir: Path,
    options: dict[str, Any],
    probe: MultiLabelProbe | RidgeProbe,
    predicted: np.ndarray,
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    test: LabelledData,
    started: float,
) -> HeadResult:
    summary["seconds"] = round(time.perf_counter() - started, 2)
    numbers = test.rows or [""] * len(test)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ([index, number, *row] for index, (number, row) in enumerate(zip(numbers, rows)))
    write_atomic(predictions_path(path), table_csv(["index", "row", *header], lines))
    probe.save(out_dir / "probe" / f"{summary['task']}.json", probe_about(summary, options, path))
    write_json(path, summary)
    return HeadResult(summary, path, probe, predicted)
