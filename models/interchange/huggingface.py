"""GPT and BERT exchanged with Hugging Face: folders of config.json, safetensors and tokenizer files, both ways.

Post-norm BERT is their `bert`, pre-norm BERT their `megatron-bert`. Tokenizer files pass as bytes: what is in them is
`data/tokenizers.py`. Names and configurations are translated in `huggingface_names.py`. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..bert import BERT
from ..build import build_model, load_weights
from ..gpt import GPT
from .huggingface_names import from_huggingface, read_config, to_huggingface, write_config

WEIGHTS, PICKLED, CONFIG = "model.safetensors", "pytorch_model.bin", "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)


def load_huggingface(folder: str | os.PathLike[str], **changes: Any) -> GPT | BERT:
    """Builds the model of a Hugging Face folder, in fp32.

    Args:
        folder: a local folder with config.json and weights (safetensors, whole or in parts, or pytorch_model.bin).
        changes: fields of the configuration to set, such as dropout or recompute. With another `head` the encoder is the
            folder's, and what the folder has no weights for stays as it is drawn.

    Raises:
        ValueError: no such folder or file, damaged files, a model that is neither GPT-2 nor BERT or has an option that
            ours has not, weights that do not fit the configuration (names the first).
    """
    folder = Path(folder)
    config = read_config(_read_json(folder / CONFIG), str(folder / CONFIG))
    padding = changes.get("vocab_multiple", config.vocab_multiple)
    tensors = from_huggingface(_read_weights(folder), replace(config, vocab_multiple=padding))
    new_head = any(changes.get(name, getattr(config, name, None)) != getattr(config, name, None) for name in _HEAD)
    config = replace(config, **changes)
    model = build_model(config)
    if isinstance(model, BERT):
        own = dict(model.named_parameters())
        # Folders often hold more heads than their configuration names.
        tensors = {name: tensor for name, tensor in tensors.items() if name in own or _is_body(name)}
        if new_head:
            drawn = {name: parameter.detach() for name, parameter in own.items() if not _is_body(name)}
            tensors = {**drawn, **{n: t for n, t in tensors.items() if n not in drawn or t.shape == drawn[n].shape}}
    load_weights(model, tensors, str(folder))
    return model


def save_huggingface(
    model: GPT | BERT, folder: str | os.PathLike[str], tokenizer_files: Mapping[str, bytes] | None = None
) -> None:
    """Writes a folder that `transformers.AutoModel` opens, with the vocabulary at its true size; whole or not at all.

    Args:
        model: the model, whose weights are written in fp32.
        folder: must not exist, or be empty.
        tokenizer_files: files by name that go beside it, as `read_tokenizer_files` gives them.

    Raises:
        ValueError: the folder holds something, or a file's name is none of a tokenizer.
    """
    folder, files = Path(folder), dict(tokenizer_files or {})
    for name in files:
        if name not in TOKENIZER_FILES:
            raise ValueError(f"{name!r} is no tokenizer file: the names are {', '.join(TOKENIZER_FILES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already: write to a new or an empty folder")
    tensors = to_huggingface(dict(model.named_parameters()), model.config)
    files[CONFIG] = json.dumps(write_config(model.config), indent=2).encode() + b"\n"
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, content in files.items():
            (building / name).write_bytes(content)
        safetensors.torch.save_file(tensors, building / WEIGHTS, metadata={"format": "pt"})
        building.chmod(0o755)
        building.replace(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def read_tokenizer_files(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """The tokenizer files of a folder, by name."""
    return {name: path.read_bytes() for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()}


_HEAD = ("head", "sentence_head", "num_labels")


def _is_body(name: str) -> bool:
    return name.startswith("encoder.") and not name.startswith("encoder.pooler.")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; a Hugging Face folder has {CONFIG} and {WEIGHTS}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged, it holds no JSON object: copy the folder again")
    return content


def _read_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / f"{WEIGHTS}.index.json"
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file() and index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    if names == [WEIGHTS] and not (folder / WEIGHTS).is_file() and (folder / PICKLED).is_file():
        return _read_pickled(folder / PICKLED)
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: no such file; a Hugging Face folder has {CONFIG} and {WEIGHTS}")
        try:
            tensors.update(safetensors.torch.load_file(path))
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path}: damaged ({error}): copy the folder again") from None
    return tensors


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ValueError(
            f"{path}: damaged, or it holds more than weights, which is not read: convert it to {WEIGHTS}"
        ) from None
