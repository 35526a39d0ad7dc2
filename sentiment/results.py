"""What all results of a transfer share: the question they answer, the hash that names it, and how data is described."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..data.cleaning import CLEANING_VERSION
from ..data.labelled import LabelledData
from ..training.checkpoint import LoadedModel
from .featurize import featurize

SCHEMA_VERSION = 1


def check_task(task: str) -> str:
    """The name of a task, if it can be part of a file name.

    Raises:
        ValueError: It cannot.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", task):
        raise ValueError(
            f"the task name is {task!r}; letters, digits, '-', '_' and '.' only, as it goes into file names"
        )
    return task


def features_of(
    loaded: LoadedModel,
    parts: Iterable[LabelledData],
    options: dict[str, Any],
    batch_size: int,
    cache_dir: Path | str | None,
    progress: bool,
) -> list[np.ndarray]:
    """Features of each part, shape (n, H)."""
    return [
        featurize(
            loaded.model, part.texts, batch_size=batch_size, cache_dir=cache_dir, model_hash=loaded.model_hash,
            progress=progress, **options,
        )
        for part in parts
    ]  # fmt: skip


def summary_head(
    kind: str,
    task: str,
    loaded: LoadedModel,
    parts: dict[str, LabelledData],
    options: dict[str, Any],
    choices: dict[str, Any],
    out_dir: Path,
) -> tuple[dict[str, Any], Path]:
    """The beginning of a result, and where it goes: `results/<task>-<hash>.json`.

    The hash covers model, data and options, so the same transfer overwrites its own file and no other.

    Args:
        kind: Of the result.
        task: Name of the task.
        loaded: The model.
        parts: The data by the names of its parts.
        options: Of `featurize`.
        choices: What else the numbers depend on, such as the seed.
        out_dir: Run folder.
    """
    data = {name: describe(part) for name, part in parts.items()}
    asked = {key: value for key, value in options.items() if (key, value) != ("pooling", "last")}
    key = {"schema": SCHEMA_VERSION, "model": loaded.model_hash, "options": asked, "data": data, **choices}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    path = out_dir / "results" / f"{task}-{digest}.json"
    summary = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "task": task,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "hash": loaded.model_hash,
            "checkpoint": relative(loaded.path, out_dir),
            "samples": loaded.samples,
            "tokens": loaded.tokens,
            "config": loaded.config.get("model", {}),
        },
        "features": {**options, "position": _position(options), "cleaning_version": CLEANING_VERSION},
        "data": data,
        "predictions": f"results/{predictions_path(path).name}",
    }
    return summary, path


def _position(options: dict[str, Any]) -> str:
    if options["pooling"] == "last":
        return "after the trailing space"
    return f"{options['pooling']} over all bytes, from the leading newline to the trailing space"


def predictions_path(path: Path) -> Path:
    """The table of predictions that belongs to a result."""
    return path.with_suffix(".predictions.csv")


def probe_about(summary: dict[str, Any], options: dict[str, Any], path: Path) -> dict[str, Any]:
    """What a probe's file says of where it belongs; `classify.py` reads it."""
    return {
        "task": summary["task"],
        "class_names": summary["classes"],
        "features": options,
        "model_hash": summary["model"]["hash"],
        "checkpoint": summary["model"]["checkpoint"],
        "unit": summary.get("unit"),
        "result": f"results/{path.name}",
    }


def relative(path: Path, folder: Path) -> str:
    """`path` as seen from the run folder where it lies inside, so that the folder can be moved."""
    path, folder = Path(path).resolve(), folder.resolve()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def describe(data: LabelledData) -> dict[str, Any]:
    """Names, size and content hash of a split (texts and labels as they were used)."""
    digest = hashlib.sha256()
    for text in data.texts:
        raw = text.encode("utf-8", errors="surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    counts = None
    if data.labels is not None:
        dtype = "<f8" if data.labels.dtype.kind == "f" else "<i8"
        digest.update(np.ascontiguousarray(data.labels, dtype=dtype).tobytes())
        if data.labels.ndim == 2:
            counts = {name: int(column.sum()) for name, column in zip(data.classes, data.labels.T)}
        elif data.labels.dtype.kind != "f":
            counts = {name: int(np.count_nonzero(data.labels == index)) for index, name in enumerate(data.classes)}
    return {
        "files": [str(path) for path, _ in data.report.files],
        "n": len(data),
        "per_class": counts,
        "sha256": digest.hexdigest(),
    }


def table_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A table as CSV; floats with six digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([f"{value:.6f}" if isinstance(value, (float, np.floating)) else value for value in row])
    return out.getvalue().encode()
