"""From a trained model and labelled texts to a result: features, probe, best unit, baselines, one JSON file.

The order of events keeps test data out of every choice: all fitting is on train, C and the unit are chosen on
validation, test is scored once. Reading files is `data/labelled.py`; the page that shows a result is `report.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.labelled import LabelledData
from ..evaluation.scores import classification_scores
from ..evaluation.statistics import accuracy_interval, paired_difference
from ..training.checkpoint import LoadedModel
from .baselines import TfidfBaseline, majority_class
from .calibration import CalibrationKind
from .checks import check_labels, holdout_mask
from .featurize import StateKind, Transform
from .pooling import Pooling
from .probe import SentimentProbe
from .probe_file import write_atomic, write_json
from .results import check_task, features_of, predictions_path, probe_about, summary_head, table_csv
from .units import UnitProbe
from .visualize import probe_weights, unit_histogram


@dataclass(frozen=True)
class TransferResult:
    """What a transfer found.

    Attributes:
        summary: JSON-able dictionary, the content of `path`.
        path: `results/<task>-<hash>.json`.
        probe: The fitted probe.
        unit: The best single unit; None with more than two classes.
        predicted: The probe's class number for each test text, shape (n,).
        probability: The probe's probabilities, shape (n, K).
        unit_values: The best unit's feature for each test text, shape (n,); None without a unit.
        test: The test data, for examples.
        features: Of train, val and test, each of shape (n, H).
        labels: Class numbers of train, val and test; those of test may be None.
    """

    summary: dict[str, Any]
    path: Path
    probe: SentimentProbe
    unit: UnitProbe | None
    predicted: np.ndarray
    probability: np.ndarray
    unit_values: np.ndarray | None
    test: LabelledData
    features: list[np.ndarray]
    labels: list[np.ndarray | None]

    def table(self) -> str:
        """The accuracies as lines of text, each with n and interval; one line if the test data has no labels."""
        summary = self.summary
        if "accuracy" not in summary["probe"]:
            return (
                f"{summary['data']['test']['n']:,} test texts without labels: predictions in {summary['predictions']}"
            )
        unit = f"unit {summary['unit']['index']}" if summary["unit"] else None
        rows = [(f"probe ({summary['probe']['n_nonzero']} units)", summary["probe"])]
        rows += [(unit, summary["unit"])] if unit else []
        rows += [("TF-IDF + logistic regression", summary["baseline_tfidf"])]
        rows += [("majority class", summary["baseline_majority"])]
        lines = [f"{'':30}accuracy   95 % interval      n"]
        for name, row in rows:
            lines.append(f"{name:30}{row['accuracy']:.4f}     {row['low']:.4f} - {row['high']:.4f}   {row['n']:,}")
        gap = summary["probe_minus_tfidf"]
        lines.append(f"{'probe minus TF-IDF':30}{gap['difference']:+.4f}    {gap['low']:+.4f} - {gap['high']:+.4f}")
        scores = summary["scores"]
        more = [("macro F1", scores["f1_macro"]), ("MCC", scores["mcc"]), ("Brier", scores["calibration"]["brier"])]
        more.append(("calibration error", scores["calibration"]["ece"]))
        lines += [
            f"{f'probe: {name}':30}{row['value']:.4f}     {row['low']:.4f} - {row['high']:.4f}" for name, row in more
        ]
        return "\n".join(lines)


def split_validation(train: LabelledData, fraction: float = 0.1, seed: int = 0) -> tuple[LabelledData, LabelledData]:
    """Cuts a validation part off training data by seed, class by class where each text has one.

    Returns:
        What is left for training, and the validation part; both keep the order of the file.

    Raises:
        ValueError: A fraction out of range, no labels, or a class with fewer than two rows.
    """
    if train.labels is None:
        raise ValueError("the training data has no labels; name their column with --label-key")
    classes = train.labels.ndim == 1 and train.labels.dtype.kind != "f"
    chosen = holdout_mask(train.labels if classes else np.zeros(len(train)), fraction, seed)
    for label in np.unique(train.labels) if classes else ():
        if np.count_nonzero(train.labels == label) < 2:
            raise ValueError(
                f"class {train.classes[label]!r} has one training row; with --val a file of its own is used"
            )
    return _take(train, ~chosen), _take(train, chosen)


def _take(data: LabelledData, mask: np.ndarray) -> LabelledData:
    assert data.labels is not None
    texts = [text for text, keep in zip(data.texts, mask) if keep]
    rows = [row for row, chosen in zip(data.rows, mask) if chosen]
    return replace(data, texts=texts, labels=data.labels[mask], rows=rows, messages=[])


def run_transfer(
    loaded: LoadedModel,
    train: LabelledData,
    val: LabelledData,
    test: LabelledData,
    *,
    out_dir: Path | str,
    task: str = "sentiment",
    state: StateKind = "cell",
    transform: Transform = "raw",
    layer: int = -1,
    pooling: Pooling = "last",
    int8: bool = False,
    calibration: CalibrationKind = "none",
    batch_size: int = 128,
    seed: int = 42,
    cache_dir: Path | str | None = None,
    progress: bool = True,
) -> TransferResult:
    """Features of three splits -> probe, best unit and baselines -> files in the run folder.

    Writes `results/<task>-<hash>.json` and `.predictions.csv`, `probe/<task>.json` and `.safetensors`, and
    `plots/<task>-unit-histogram.png` and `<task>-probe-weights.png`. The hash covers model, data and options, so the
    same transfer overwrites its own file and no other.

    Args:
        loaded: The model, from `training.checkpoint.load_model`.
        train: Labelled texts to fit on.
        val: Labelled texts to choose C and unit, and to calibrate, on; class numbers as in `train`.
        test: Texts to score; without labels the result holds predictions only.
        out_dir: Run folder.
        task: Name of the task in file names: letters, digits, `-`, `_`, `.`.
        state: See `featurize`.
        transform: See `featurize`.
        layer: See `featurize`.
        pooling: See `featurize`.
        int8: See `featurize`; what uses the probe later reads in eight bits as well.
        calibration: Of the probe: see `SentimentProbe`.
        batch_size: See `featurize`.
        seed: Of liblinear.
        cache_dir: Folder of cached features; None for none.
        progress: Show a bar.

    Raises:
        ValueError: A name that is no file name, labels missing or of one class, a validation part that lacks a class.
    """
    started = time.perf_counter()
    check_task(task)
    y = check_labels(np.array([]) if train.labels is None else train.labels, "training")
    y_val = check_labels(np.array([]) if val.labels is None else val.labels, "validation", np.unique(y))
    options: dict[str, Any] = {"state": state, "transform": transform, "layer": layer, "pooling": pooling}
    options |= {"int8": True} if int8 else {}
    features = features_of(loaded, (train, val, test), options, batch_size, cache_dir, progress)
    X, X_val, X_test = features
    probe = SentimentProbe(seed=seed, calibration=calibration).fit(X, y, X_val, y_val)
    unit = UnitProbe().fit(X, y, X_val, y_val) if len(probe.classes_) == 2 else None
    predicted, probability = probe.predict(X_test), probe.predict_proba(X_test)
    choices: dict[str, Any] = {"seed": seed} | ({} if calibration == "none" else {"calibration": calibration})
    out_dir, parts = Path(out_dir), {"train": train, "val": val, "test": test}
    summary, path = summary_head("transfer", task, loaded, parts, options, choices, out_dir)
    summary["classes"] = train.classes
    summary["probe"] = {
        "C": probe.C_,
        "n_nonzero": probe.n_nonzero_,
        "num_units": X.shape[1],
        "validation_accuracy": max(probe.validation_accuracy_),
        "train_accuracy": float(probe.score(X, y)),
        "converged": probe.converged_,
        "calibration": calibration,
        "top_units": probe.top_units(10),
    }
    summary["unit"] = unit.to_dict() if unit else None
    if test.labels is not None:
        _score(summary, train, val, test, predicted, unit, X_test)
        summary["scores"] = classification_scores(test.labels, predicted, train.classes, probability)
    summary["seconds"] = round(time.perf_counter() - started, 2)

    path.parent.mkdir(parents=True, exist_ok=True)
    unit_values = X_test[:, unit.index_] if unit else None
    write_atomic(predictions_path(path), _predictions_csv(test, train.classes, predicted, probability, unit_values))
    probe.save(out_dir / "probe" / f"{task}.json", probe_about(summary, options, path))
    _plots(out_dir / "plots", summary, probe, unit, X_test, test)
    write_json(path, summary)
    return TransferResult(
        summary, path, probe, unit, predicted, probability, unit_values, test, features, [y, y_val, test.labels]
    )


def _score(
    summary: dict[str, Any],
    train: LabelledData,
    val: LabelledData,
    test: LabelledData,
    predicted: np.ndarray,
    unit: UnitProbe | None,
    X_test: np.ndarray,
) -> None:
    """Adds the accuracies on the test part, and those of the baselines, which are fitted for this only."""
    assert train.labels is not None and val.labels is not None and test.labels is not None
    truth = test.labels
    summary["probe"].update(accuracy_interval(predicted, truth).to_dict())
    if unit:
        summary["unit"].update(accuracy_interval(unit.predict(X_test), truth).to_dict())
    majority = majority_class(train.labels)
    summary["baseline_majority"] = {
        "label": train.classes[majority],
        **accuracy_interval(np.full_like(truth, majority), truth).to_dict(),
    }
    tfidf = TfidfBaseline.fit(train.texts, train.labels, val.texts, val.labels)
    tfidf_predicted = tfidf.predict(test.texts)
    summary["baseline_tfidf"] = {
        "C": tfidf.C,
        "num_features": tfidf.num_features,
        "validation_accuracy": tfidf.validation_accuracy,
        **accuracy_interval(tfidf_predicted, truth).to_dict(),
    }
    summary["probe_minus_tfidf"] = paired_difference(predicted, tfidf_predicted, truth).to_dict()


def _predictions_csv(
    test: LabelledData,
    classes: Sequence[str],
    predicted: np.ndarray,
    probability: np.ndarray,
    unit_values: np.ndarray | None,
) -> bytes:
    """One line for each test text: its number from 0, its row in its file (as messages count rows), label if there is one,
    prediction, probabilities, unit."""
    unit_column = [] if unit_values is None else ["unit"]
    header = ["index", "row", "label", "predicted", *(f"probability_{name}" for name in classes), *unit_column]
    rows = (
        [
            row,
            test.rows[row] if test.rows else "",
            "" if test.labels is None else classes[test.labels[row]],
            classes[predicted[row]],
            *probability[row],
            *([] if unit_values is None else [unit_values[row]]),
        ]
        for row in range(len(test))
    )
    return table_csv(header, rows)


def _plots(
    folder: Path,
    summary: dict[str, Any],
    probe: SentimentProbe,
    unit: UnitProbe | None,
    X_test: np.ndarray,
    test: LabelledData,
) -> None:
    task = summary["task"]
    best = unit.index_ if unit else None
    probe_weights(probe.coef_[-1], folder / f"{task}-probe-weights.png", best_unit=best)
    if unit and test.labels is not None:
        subtitle = f"test accuracy {summary['unit']['accuracy']:.3f} with one threshold"
        unit_histogram(
            X_test[:, unit.index_], test.labels, test.classes, folder / f"{task}-unit-histogram.png",
            unit=unit.index_, threshold=unit.threshold_, subtitle=subtitle,
        )  # fmt: skip
