"""A trained model and one probe as a folder that can be handed on: weights, configuration, probe, model card.

The folder is laid out like a run folder with weights only, so whatever reads a model reads it, wherever it lies; it
holds no text, no path of the machine it comes from, and nothing to go on training with. Which numbers stand in the card
is decided here; they are copied from what evaluate and transfer recorded, never computed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..training.checkpoint import LoadedModel, save_weights
from ..training.metrics import read_metrics, read_result
from .card import model_card
from .classify import PUBLISHED as ABOUT
from .classify import load_probed
from .probe import SentimentProbe, write_atomic, write_json

SCHEMA_VERSION = 1
NOT_STATED = "not stated"


def publish(
    run_dir: Path | str, out: Path | str, task: str | None = None, licence: str = NOT_STATED, code_version: str = ""
) -> dict[str, Any]:
    """Writes the folder, whole or not at all.

    Args:
        run_dir: Run folder with a probe.
        out: The new folder; it must not exist, or be empty.
        task: Which probe; the newest if None.
        licence: Of the weights, as the owner states it.
        code_version: Of bigbatch.

    Returns:
        The content of `published.json`, which the card shows.

    Raises:
        ValueError: No model or probe, a probe of another model, or `out` holds something.
        OSError: It cannot be written.
    """
    run_dir, out = Path(run_dir), Path(out)
    loaded, probe, probe_about = load_probed(run_dir, task)
    about = describe(run_dir, probe, probe_about, loaded)
    about |= {"licence": licence}
    about["provenance"]["code_version"] = code_version or None
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ValueError(f"--out {out} exists and is not an empty folder: name another one")
    building = out.parent / f".{out.name}.publishing"
    shutil.rmtree(building, ignore_errors=True)  # of one that was killed
    config = without_places(loaded.config)
    record = {"samples": loaded.samples, "tokens": loaded.tokens, "data_hash": loaded.data_hash}
    record |= {"converted_from": converted} if (converted := _converted_from(loaded)) else {}
    try:
        checkpoint = save_weights(building, loaded.path / "model.safetensors", config, record)
        place = checkpoint.relative_to(building).as_posix()
        path = building / "probe" / f"{probe_about['task']}.json"
        probe.save(path, {**probe_about, "checkpoint": place, "result": ABOUT})
        write_json(building / "config.json", config)
        write_json(building / ABOUT, about)
        write_atomic(building / "README.md", model_card(about).encode())
        building.replace(out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return about


def describe(run_dir: Path, probe: SentimentProbe, about: dict[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """What is known about a model and its probe, JSON-able; what is not known is None."""
    result = _transfer_result(run_dir, about, loaded)
    config = without_places(loaded.config)
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "licence": NOT_STATED,
        "task": about["task"],
        "classes": about["class_names"],
        "features": about["features"],
        "model": loaded.config["model"],
        "samples": loaded.samples,
        "tokens": loaded.tokens,
        "training_data": config.get("data", {}).get("paths", []),
        "bpc": held_out_bpc(run_dir, loaded),
        "probe": {"C": probe.C_, "num_units": probe.n_nonzero_, "best_unit": about["unit"]},
        "scores": _scores(result),
        "task_data": _task_data(result),
        "provenance": {
            "code_version": None,
            "config_sha256": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
            "data_sha256": loaded.data_hash or None,
            "model_sha256": loaded.model_hash,
            "converted_from": _converted_from(loaded),
        },
    }


def without_places(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with names of files and folders instead of their places on this machine."""
    public = copy.deepcopy(config)
    for key in ("run_dir", "init_from"):
        if public.get(key):
            public[key] = Path(public[key]).name
    data = public.get("data", {})
    if data.get("store"):
        data["store"] = Path(data["store"]).name
    if data.get("paths"):
        data["paths"] = [Path(path).name for path in data["paths"]]
    return public


def held_out_bpc(run_dir: Path, loaded: LoadedModel) -> dict[str, Any] | None:
    """Bits per character that were measured on exactly this checkpoint: the test split, else the validation of training.

    Returns:
        `bpc`, `num_targets` (bytes it divides by) and `split`; None if no number belongs to this checkpoint.
    """
    result = read_result(run_dir)
    split = re.match(r"the (test|val) split of ", str(result.get("bpc_of", "")))
    if split and result.get("bpc_trained_bytes") == loaded.tokens:
        return {"bpc": result["bpc"], "num_targets": result["bpc_bytes"], "split": split[1]}
    rows = read_metrics(run_dir) if (run_dir / "metrics.jsonl").is_file() else []
    for row in reversed(rows):
        if row.get("event") == "eval" and row["samples"] == loaded.samples:
            return {key: row[key] for key in ("bpc", "num_targets", "split")}
    return None


def _converted_from(loaded: LoadedModel) -> dict[str, Any] | None:
    return json.loads((loaded.path / "trainer.json").read_text(encoding="utf-8")).get("converted_from")


def _transfer_result(run_dir: Path, about: dict[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """The result file of the transfer that fitted the probe; empty if it is gone or of another model."""
    path = run_dir / about["result"]
    if not path.is_file():
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return result if result["model"]["hash"] == loaded.model_hash else {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result of bigbatch transfer ({error!r}): run it again") from None


def _scores(result: dict[str, Any]) -> dict[str, Any] | None:
    """Accuracies on the test part with n and interval; None where it had no labels."""
    if "accuracy" not in result.get("probe", {}):
        return None
    named = {name: result.get(name) for name in ("probe", "unit", "baseline_tfidf", "baseline_majority")}
    fields = ("accuracy", "n", "low", "high", "confidence")
    return {name: {field: score[field] for field in fields} for name, score in named.items() if score}


def _task_data(result: dict[str, Any]) -> dict[str, Any]:
    """Size and hash of each part that the probe was fitted, chosen and scored on, with names of files only."""
    parts = result.get("data", {})
    return {name: {**part, "files": [Path(file).name for file in part["files"]]} for name, part in parts.items()}
