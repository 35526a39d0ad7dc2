"""Files of fitted probes: JSON for what a reader may want to know, safetensors beside it for the numbers.

`probe.py`, `multilabel.py` and `regression.py` say what is in them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

SCHEMA_VERSION = 1
PROBE_KIND, MULTILABEL_KIND, RIDGE_KIND = "l1-logistic-regression", "multi-label", "ridge"
_MEANING = {
    PROBE_KIND: "gives each text one class, with probabilities that sum to 1",
    MULTILABEL_KIND: "gives each text any number of labels, with a probability for each that do not sum to 1",
    RIDGE_KIND: "gives each text a number",
}


def write_probe(
    path: Path, kind: str, tensors: dict[str, np.ndarray], content: dict[str, Any], about: dict[str, Any]
) -> None:
    """Writes the weights (`.safetensors`) and then `path` (JSON), which holds their hash; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    head = {"schema_version": SCHEMA_VERSION, "kind": kind}
    tail = {"weights_sha256": hashlib.sha256(weights).hexdigest(), "about": about}
    write_atomic(path.with_suffix(".safetensors"), weights)
    write_json(path, {**head, **content, **tail})


def read_probe(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `write_probe` wrote: the JSON and the weights.

    Raises:
        ValueError: A file that is not such a probe, a probe of another kind, or weights that are not the ones it was
            written with.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        weights_path = path.with_suffix(".safetensors")
        weights = weights_path.read_bytes()
        version, expected, found = content["schema_version"], content["weights_sha256"], content["kind"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a probe written by bigbatch transfer ({error!r}); run it again") from None
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, this release reads {SCHEMA_VERSION}; run transfer again"
        )
    if found != kind:
        raise ValueError(
            f"{path} holds a {found} probe, which {_MEANING.get(found, 'is not known here')}; one is needed that "
            f"{_MEANING[kind]}: choose another with --task"
        )
    if hashlib.sha256(weights).hexdigest() != expected:
        raise ValueError(f"{weights_path} is damaged or of another probe than {path.name}; run bigbatch transfer again")
    return content, load(weights)


def probe_kind(path: Path) -> str:
    """Which kind of probe a file says it holds; empty if it says nothing."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8")).get("kind", ""))
    except (OSError, ValueError, AttributeError):
        return ""


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
