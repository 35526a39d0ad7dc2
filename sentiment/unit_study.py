"""A study of a probe's units on labelled texts: rankings, ablation, correlation, the words that move the best one.

Puts `unit_ranking.py` and `unit_spans.py` together and writes what they find into the run folder: numbers as JSON and CSV,
two pictures, and one page that loads nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..data.cleaning import clean_review
from ..data.labelled import LabelledData
from ..training.checkpoint import LoadedModel
from .featurize import check_unit, featurize, unit_traces
from .probe import SentimentProbe, write_atomic, write_json
from .unit_page import units_page
from .unit_ranking import UnitRanking, ablation, correlations_of_units
from .unit_spans import occurrence, spans, word_changes
from .units import fit_thresholds
from .visualize import unit_correlations, unit_histogram

SCHEMA_VERSION = 1
NUM_TEXTS, NUM_SPANS = 5, 10


def study_units(
    loaded: LoadedModel,
    probe: SentimentProbe,
    about: dict[str, Any],
    data: LabelledData,
    run_dir: Path,
    *,
    unit: int | None = None,
    top: int = 10,
    min_count: int = 3,
    span_texts: int = 1000,
    cache_dir: Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Ranks the units of a probe and looks closely at one.

    Writes `results/<task>-units-<hash>.json`, and into `units/` the page `<task>.html`, all units as `<task>.csv`, and the
    pictures `<task>-histogram.png` and `<task>-correlation.png`.

    Args:
        loaded: The model that the probe was fitted on.
        probe: Of two classes.
        about: What `transfer.py` recorded beside it.
        data: Texts with labels of the probe's classes, best not those that it was fitted on.
        run_dir: Run folder.
        unit: The unit to look at; the best single unit of the transfer if None.
        top: Units in tables and in the correlation.
        min_count: Occurrences that a run of words needs.
        span_texts: Texts whose words are looked at, evenly over the file.
        cache_dir: Folder of cached features; None for none.
        progress: Show bars.

    Returns:
        The content of the JSON file, and under `files` what was written.

    Raises:
        ValueError: More than two classes, too few texts, a unit the model lacks, a probe on another layer than the last, or
            a number below 1.
    """
    for name, value in (("top", top), ("min_count", min_count), ("span_texts", span_texts)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    config, features, task = loaded.model.config, about["features"], about["task"]
    if about["unit"] is None:
        raise ValueError(f"task {task!r} has {len(about['class_names'])} classes; units are ranked for two")
    if features["layer"] not in (-1, config.num_layers - 1):  # type: ignore[union-attr]
        raise ValueError(f"the probe is on layer {features['layer']}; units are traced in the last layer only")
    unit = about["unit"]["index"] if unit is None else check_unit(unit, config.hidden_size)  # type: ignore[union-attr]
    assert unit is not None
    labels = np.array([]) if data.labels is None else data.labels
    X = featurize(
        loaded.model, data.texts, cache_dir=cache_dir, model_hash=loaded.model_hash, progress=progress, **features
    )
    ranking = UnitRanking.measure(probe, X, labels, progress=progress)
    orders = ranking.orders()
    shown = orders["weight"][:top]
    key = [loaded.model_hash, task, features, unit, top, min_count, span_texts, data.texts, labels.tolist()]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    threshold, sign, accuracy = (values[0] for values in fit_thresholds(X[:, [unit]], labels == 1))
    summary: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "units",
        "task": task,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {"hash": loaded.model_hash, "samples": loaded.samples, "tokens": loaded.tokens},
        "data": {"files": [str(path) for path, _ in data.report.files], "n": len(data)},
        "classes": about["class_names"],
        "features": features,
        "ranking": {name: ranking.rows(order[:top]) for name, order in orders.items()},
        "ablation": ablation(probe, X, labels),
        "correlation": {"units": shown.tolist(), "values": _finite(correlations_of_units(X, shown))},
        "unit": {
            **ranking.rows(np.array([unit]))[0],
            "threshold_here": float(threshold), "sign_here": int(sign), "accuracy_here": float(accuracy),
        },
        **_words(loaded.model, data, unit, features, min_count, span_texts, progress),
        "texts": _extreme_texts(X[:, unit], data, about["class_names"]),
    }  # fmt: skip
    folder = run_dir / "units"
    files = {"json": run_dir / "results" / f"{task}-units-{digest}.json", "csv": folder / f"{task}.csv"}
    files |= {name: folder / f"{task}-{name}.png" for name in ("histogram", "correlation")}
    files["page"] = folder / f"{task}.html"
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(files["csv"], _csv(ranking.rows(np.arange(X.shape[1]))))
    unit_histogram(
        X[:, unit], labels, about["class_names"], files["histogram"], unit=unit, threshold=float(threshold),
        subtitle=f"accuracy {accuracy:.3f} with the best threshold on these texts",
    )  # fmt: skip
    unit_correlations(correlations_of_units(X, shown), shown.tolist(), files["correlation"])
    pictures = [
        (files["histogram"], f"Unit {unit} after each text, by label."),
        (files["correlation"], "Correlation over the texts of the units of largest weight."),
    ]
    write_atomic(files["page"], units_page(summary, loaded.model, about, pictures).encode(errors="replace"))
    write_json(files["json"], summary)
    return {**summary, "files": files}


def _finite(values: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if np.isfinite(value) else None for value in row] for row in values]


def _csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _extreme_texts(values: np.ndarray, data: LabelledData, class_names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The texts after which the unit is highest and lowest."""
    assert data.labels is not None
    order = np.argsort(-values, kind="stable")
    count = min(NUM_TEXTS, len(order))

    def row(index: int) -> dict[str, Any]:
        label = class_names[data.labels[index]]  # type: ignore[index]
        return {"index": int(index), "value": float(values[index]), "label": label, "text": data.texts[index]}

    return {"highest": [row(i) for i in order[:count]], "lowest": [row(i) for i in order[::-1][:count]]}


def _words(
    model: nn.Module,
    data: LabelledData,
    unit: int,
    features: dict[str, Any],
    min_count: int,
    limit: int,
    progress: bool,
) -> dict[str, Any]:
    """Runs of one to three words by their mean change of the unit, and the single words that moved it most."""
    chosen = np.unique(np.linspace(0, len(data) - 1, min(limit, len(data))).round().astype(int))
    texts = [data.texts[index] for index in chosen]
    options = {"state": features["state"], "transform": features["transform"]}
    traces = unit_traces(model, texts, unit, progress=progress, **options)
    cleaned = [clean_review(text) for text in texts]
    changes = [word_changes(text, trace) for text, trace in zip(cleaned, traces)]
    found: dict[str, Any] = {"span_texts": len(texts), "min_count": min_count, "spans": {}}
    for num_words in (1, 2, 3):
        ranked = [asdict(span) for span in spans(changes, num_words, min_count)]
        found["spans"][str(num_words)] = {
            "rising": [span for span in ranked[:NUM_SPANS] if span["mean_change"] > 0],
            "falling": [span for span in ranked[::-1][:NUM_SPANS] if span["mean_change"] < 0],
        }
    single = [(change, number) for number, words in enumerate(changes) for change in words]
    single.sort(key=lambda item: -item[0].change)

    def row(change: Any, number: int) -> dict[str, Any]:
        context = occurrence(cleaned[number], change)
        return {"index": int(chosen[number]), "word": change.word, "change": change.change, "context": context}

    found["occurrences"] = {
        "rising": [row(*item) for item in single[:NUM_SPANS] if item[0].change > 0],
        "falling": [row(*item) for item in single[::-1][:NUM_SPANS] if item[0].change < 0],
    }
    return found
