"""The folder of a sweep: whose it is, and which cells it holds, in sweep.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..training.config import changed_keys, config_from_dict
from .sweeps import Sweep

FORMAT = 1


def claim_folder(sweep: Sweep, write: bool = True) -> None:
    """Takes the folder for this sweep and records its cells in sweep.json; a file that has grown keeps its folder.

    Raises:
        ValueError: the folder holds something else, or a cell of the same name and another configuration.
    """
    path = sweep.root / "sweep.json"
    if not path.is_file():
        if sweep.root.is_dir() and any(sweep.root.iterdir()):
            raise ValueError(f"{sweep.root} is not empty and holds no sweep (no sweep.json): choose another --out")
        stored: dict[str, Any] = {"cells": {}}
    else:
        stored = read_sweep(path.parent)
    known = stored["cells"]
    ours = {cell.name: cell.config.to_dict() for cell in sweep.cells}
    if known and not known.keys() & ours.keys():
        raise ValueError(
            f"{sweep.root} is the folder of another sweep ({stored.get('file')}, with cells such as {next(iter(known))}): choose "
            "another --out"
        )
    for name in known.keys() & ours.keys():
        try:
            changed = changed_keys(config_from_dict(known[name]).to_dict(), ours[name])
        except ValueError as error:
            raise ValueError(f"{sweep.root / name}: {error}: choose another --out") from None
        if changed:
            raise ValueError(
                f"{sweep.root} is the folder of another sweep: {name} has another configuration there ({'; '.join(changed)}): "
                "choose another --out"
            )
    if write:
        sweep.root.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(".sweep.json.partial")
        content = {"format": FORMAT, "file": sweep.file.name, "marks": sweep.marks, "cells": {**known, **ours}}
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
        partial.replace(path)


def read_sweep(root: Path) -> dict[str, Any]:
    """sweep.json of a sweep's folder: `file`, `marks`, and `cells` as name -> configuration.

    Raises:
        ValueError: it is damaged or of another version.
    """
    path = root / "sweep.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, or choose another --out") from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(stored.get("cells"), dict):
        raise ValueError(f"{path} is of another version of bigbatch: choose another --out")
    return stored
