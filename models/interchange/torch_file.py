"""Files of `torch.save`: the only place that reads or writes a pickle, and it reads without executing anything."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load_torch_file(path: Path) -> Any:
    """The content of a `.pt` file: tensors, containers, numbers, strings, and the options HEAD saves beside them.

    Raises:
        ValueError: It is no such file, or holds code.
    """
    try:
        # A Namespace, HEAD's `args`, has fields and nothing that could run.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"it calls {found[1]}" if found else "it is no PyTorch file, or holds more than tensors"
        raise ValueError(f"{path} is refused: {what}; nothing in it was executed") from None
    except OSError:
        raise
    except Exception as error:  # bytes that only look like a file can fail anywhere in the reader
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} cannot be read as a PyTorch file ({first})") from None


def flatten(content: Any, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Nested dictionaries as dotted names: the tensors, and everything else."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    if isinstance(content, (list, tuple)) and any(isinstance(item, Tensor) for item in content):
        content = dict(enumerate(content))
    if isinstance(content, Mapping):
        for key, value in content.items():
            inner, other = flatten(value, f"{prefix}.{key}" if prefix else str(key))
            tensors |= inner
            rest |= other
    elif isinstance(content, Tensor):
        tensors[prefix] = content
    else:
        rest[prefix] = content
    return tensors, rest


def save_torch_file(content: dict[str, Any], path: Path) -> None:
    """Writes a file that gets its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        torch.save(content, partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
