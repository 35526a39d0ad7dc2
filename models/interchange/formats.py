"""Which layout a path holds, and the reader and writer of each. Our own folders are `training/checkpoint.py`'s."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from .nvidia import read_nvidia, write_nvidia
from .openai import is_openai, read_openai, write_openai
from .weights import Weights

log = logging.getLogger(__name__)


def recognise(path: Path) -> str:
    """ "bigbatch", "openai" or "nvidia", by what stands at `path`.

    Raises:
        ValueError: Nothing stands there, or nothing that is known.
    """
    if path.is_file():
        return "nvidia"
    if not path.is_dir():
        raise ValueError(f"{path} does not exist: name a run folder, a folder of OpenAI arrays or a .pt file")
    if is_openai(path):
        return "openai"
    if (path / "manifest.json").is_file() or (path / "checkpoints").is_dir():
        return "bigbatch"
    raise ValueError(
        f"{path} is neither a run folder or checkpoint of bigbatch (checkpoints/ or manifest.json), nor a folder of OpenAI "
        "arrays (0.npy and so on); a file of NVIDIA/sentiment-discovery is named itself"
    )


def read_foreign(path: Path, kind: str, gate_order: str | None = None, ignore: Collection[str] = ()) -> Weights:
    """Reads "openai" or "nvidia" and says what was recognised.

    Raises:
        ValueError: As the readers do.
    """
    weights = read_openai(path) if kind == "openai" else read_nvidia(path, gate_order, ignore)
    config = weights.config
    for note in weights.notes:
        log.info("%s: %s", path, note)
    log.info(
        "%s: V %d, E %d, H %d, L %d",
        path,
        config.vocab_size,
        config.embedding_size,
        config.hidden_size,
        config.num_layers,
    )
    return weights


def write_foreign(weights: Weights, path: Path, kind: str, gate_order: str | None = None) -> None:
    """Writes "openai" or "nvidia" and says what was written.

    Raises:
        ValueError: The target exists, or cannot hold this model.
        OSError: It cannot be written.
    """
    notes = write_openai(weights, path) if kind == "openai" else write_nvidia(weights, path, gate_order)
    for note in notes:
        log.info("%s: %s", path, note)
