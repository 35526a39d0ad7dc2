"""A sweep file to its cells: one YAML that varies keys of a training configuration, one run folder a cell.

Nothing is run here. Every cell is validated before any starts; running is `cells.py` and `sweep_runner.py`, one-at-a-time
plans are `ablation.py`, reports `sweep_report.py`. The format is docs/sweeps.md.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ..data.config import DataConfig
from ..models.config import LSTMConfig
from ..training.config import TrainConfig, changed_keys, flatten
from .ablation import BASE, ablation_variants

SECTIONS = ("base", "train", "grid", "list", "ablate", "seeds", "out", "diverge_samples", "marks", "slurm")
# A sweep decides these itself, or they are no property of a run.
OWN_KEYS = ("run_dir", "data.store", "resume", "profile")
# Where the last word of a key says too little, or too much.
SHORT_NAMES = {"batch.global_batch_size": "batch", "schedule.lr_rule": "rule", "schedule.warmup_samples": "warmup"}
LABELS = ("recipe", "setting")  # shown by their value alone
LONGEST_NAME = 200

Validate = Callable[[dict[str, Any]], TrainConfig]
Variant = tuple[dict[str, Any], dict[str, Any]]  # what names the cell (None: the validated value), and dotted overrides


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: of its folder, made of the varied keys, such as `batch=32,lr=0.001,seed=1`.
        values: varied key -> value, in the order of the file; `recipe` and `setting` stand for several keys.
        config: what is trained; its store is the sweep's.
    """

    name: str
    values: dict[str, Any]
    config: TrainConfig

    @property
    def run_dir(self) -> Path:
        return Path(self.config.run_dir)


@dataclass(frozen=True)
class Sweep:
    """All cells of a file.

    Attributes:
        file: the sweep file.
        root: folder of the run folders.
        cells: in the order in which they are started.
        sources: prefix of each token store -> what it is built from (no paths: it must be there).
        diverge_samples: samples above the data's unigram entropy after which a cell is `Div`; 0: a fifth of the run.
        marks: `batch` and `lr` from which figures draw the scaling rules; empty for none.
        alternatives: of an ablation: setting -> factor; empty for a grid or list.
        slurm: parameters of the submitted jobs.
    """

    file: Path
    root: Path
    cells: tuple[Cell, ...]
    sources: dict[str, DataConfig]
    diverge_samples: int
    marks: dict[str, float]
    alternatives: dict[str, str]
    slurm: dict[str, Any]

    @property
    def factors(self) -> list[str]:
        """Varied keys in the order of the file, the seed left out."""
        return [key for key in self.cells[0].values if key != "seed"]


def load_sweep(file: Path | str, validate: Validate, out: Path | str | None = None) -> Sweep:
    """Reads a sweep file and validates all of its cells.

    Args:
        file: YAML with the sections of `SECTIONS`.
        validate: nested training options -> a configuration; raises ValueError for what cannot be.
        out: folder of the sweep; by default the file's `out`, else runs/sweeps/STEM.

    Raises:
        FileNotFoundError, ValueError: one line that names the file and what is wrong in it.
    """
    file = Path(file)
    content = _read(file)
    root = Path(out or content.get("out") or Path("runs/sweeps") / file.stem).expanduser().absolute()
    base = _base(file, content)
    variants, alternatives = _variants(file, content)
    cells, sources = [], {}
    for shown, overrides in variants:
        where = f"{file}: {describe(overrides) or BASE}"
        config, source = _configured(where, _merge(base, _expand(overrides)), root, validate)
        flat = flatten(config.to_dict())
        values = {key: flat[key] if value is None and key in flat else value for key, value in shown.items()}
        name = cell_name(values)
        if len(name) > LONGEST_NAME:
            raise ValueError(
                f"{file}: the name {name[:60]}... of a cell has {len(name)} characters: use list with name:"
            )
        cells.append(Cell(name, values, replace(config, run_dir=str(root / name))))
        sources[str(config.data.store)] = source
    _check_names(file, cells)
    _check_alternatives(file, cells, alternatives)
    numbers = _numbers(file, content)
    return Sweep(
        file, root, tuple(cells), sources, numbers[0], numbers[1], alternatives, dict(content.get("slurm") or {})
    )


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such sweep file; ready ones are in configs/sweeps/")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a sweep: a mapping of {', '.join(SECTIONS)} is expected")
    unknown = [str(key) for key in content if key not in SECTIONS]
    if unknown:
        raise ValueError(f"{file}: there is no section {unknown[0]!r}{near(unknown[0], SECTIONS)}")
    for name, kind in (
        ("train", dict),
        ("grid", dict),
        ("list", list),
        ("ablate", dict),
        ("seeds", list),
        ("slurm", dict),
    ):
        if not isinstance(content.get(name, kind()), kind):
            raise ValueError(f"{file}: {name} is {content[name]!r}, not a {'mapping' if kind is dict else 'list'}")
    return content


def near(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: those that look like it, or all there are if they are few."""
    tails = {key.rpartition(".")[2]: key for key in known}
    found = difflib.get_close_matches(name, known, 3, 0.6)
    found += [tails[tail] for tail in difflib.get_close_matches(name.rpartition(".")[2], list(tails), 3, 0.7)]
    if found:
        return f": did you mean {', '.join(dict.fromkeys(found))}?"
    return f": choose one of {', '.join(known)}" if len(known) < 15 else ": `bigbatch train --help` lists the keys"


def _base(file: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The training options that all cells share, nested."""
    base: dict[str, Any] = {}
    if content.get("base"):
        path = file.parent / str(content["base"])
        if not path.is_file():
            raise FileNotFoundError(
                f"{file}: base {path} does not exist: name a training YAML relative to the sweep file"
            )
        try:
            base = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(base, dict):
            raise ValueError(f"{path} is not a YAML mapping of option names to values")
        base.pop("run_dir", None)
    return _merge(_expand(base), _expand(content.get("train") or {}))


def _expand(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"optim.lr": 1}` -> `{"optim": {"lr": 1}}`, at every depth."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(str(key).split(".")):
            value = {part: _expand(value) if isinstance(value, Mapping) else value}
        nested = _merge(nested, value)
    return nested


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _variants(file: Path, content: dict[str, Any]) -> tuple[list[Variant], dict[str, str]]:
    """All combinations of a file before they are validated, and the alternatives of an ablation."""
    seeds = content.get("seeds")
    axes: list[list[Variant]] = []
    alternatives: dict[str, str] = {}
    if "ablate" in content:
        if "grid" in content or "list" in content:
            raise ValueError(
                f"{file}: ablate varies one factor at a time and goes with seeds alone: take out grid and list"
            )
        factors = [(key, linked_values(file, key, values)) for key, values in content["ablate"].items()]
        variants, alternatives = ablation_variants(file, factors, cell_name)
        axes.append(variants)
    if "list" in content:
        axes.append([_recipe(file, entry) for entry in content["list"]])
    axes += [
        [({next(iter(linked)): None}, linked) for linked in linked_values(file, key, values)]
        for key, values in (content.get("grid") or {}).items()
    ]
    if not any(axes):
        raise ValueError(f"{file} varies nothing: give grid, list or ablate at least one key with values")
    if seeds is not None:
        if not seeds:
            raise ValueError(f"{file}: seeds has no values: leave it out, or name one or more")
        axes.append([({"seed": None}, {"seed": seed}) for seed in seeds])
    return [
        (_union(file, shown), _union(file, set_))
        for shown, set_ in (zip(*choice) for choice in itertools.product(*axes))
    ], alternatives


def _union(file: Path, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All parts in one; a key may stand in one of them only."""
    keys = [key for part in parts for key in part]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ValueError(f"{file}: {twice[0]} is varied in two places: leave one of them")
    return {key: value for part in parts for key, value in part.items()}


def linked_values(file: Path, key: str, values: Any) -> list[dict[str, Any]]:
    """The settings of one axis; `a, b: [[1, 2], [3, 4]]` moves two keys together.

    Raises:
        ValueError: no values, or not as many as keys.
    """
    keys = [part.strip() for part in str(key).split(",")]
    if not isinstance(values, list) or not values:
        raise ValueError(f"{file}: {key} has no values: give a list, such as [1, 2], or leave the key out")
    if len(keys) == 1:
        return [{keys[0]: value} for value in values]
    for value in values:
        if not isinstance(value, list) or len(value) != len(keys):
            raise ValueError(
                f"{file}: {key} are {len(keys)} keys that move together: {value!r} is no list of so many values"
            )
    return [dict(zip(keys, value)) for value in values]


def _recipe(file: Path, entry: Any) -> Variant:
    """One entry of `list`: named by its keys, or by `name` where there is one."""
    if not isinstance(entry, dict) or not entry:
        raise ValueError(f"{file}: {entry!r} in list is no mapping of keys to values")
    overrides = {key: value for key, value in entry.items() if key != "name"}
    if "name" in entry:
        return {"recipe": str(entry["name"])}, overrides
    return dict.fromkeys(overrides), overrides


def _configured(where: str, values: dict[str, Any], root: Path, validate: Validate) -> tuple[TrainConfig, DataConfig]:
    """The configuration of one cell, with the sweep's token store, and what the store is built from."""
    _check_keys(where, values)
    try:
        config = validate({**values, "run_dir": str(root / "cell")})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    data = config.data
    paths = [path if path == "demo" else _path(where, path) for path in data.paths]
    if data.store:  # the embedded corpus is only the default
        source = replace(data, paths=[] if paths == ["demo"] else paths, store=_path(where, data.store))
    else:
        of = json.dumps([paths, data.text_key, data.cleaning, data.on_bad_row])
        name = f"corpus-{hashlib.sha256(of.encode()).hexdigest()[:8]}"
        source = replace(data, paths=paths, store=str(root / "data" / name))
    # Cells read the store only, so that a node needs no text.
    return replace(config, data=replace(source, paths=[])), source


def _path(where: str, path: str) -> str:
    path = os.path.expandvars(os.path.expanduser(path))
    unset = re.search(r"\$\{?(\w+)", path)
    if unset:
        raise ValueError(f"{where}: {path} names ${unset[1]}, which is not set: export {unset[1]}=/path/to/it")
    return str(Path(path).absolute())


def _check_keys(where: str, values: dict[str, Any]) -> None:
    own = [key for key in flatten(values) if key in OWN_KEYS and key != "data.store"]
    if own:
        raise ValueError(f"{where}: {own[0]} is not varied or set here: a sweep gives each cell a folder of its own")
    model = values.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    known = flatten((TrainConfig(model=LSTMConfig()) if kind == "lstm" else TrainConfig()).to_dict())
    sections = {key.partition(".")[0] for key in known if "." in key}
    for key, value in values.items():
        if key in sections and not isinstance(value, dict):
            raise ValueError(f"{where}: {key} is {value!r}, not a mapping of names to values")
    unknown = [key for key in flatten(values) if key not in known]
    if unknown:
        raise ValueError(f"{where}: there is no key {unknown[0]!r}{near(unknown[0], list(known))}")


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last word of each key, or the whole where two would be the same."""
    short = {key: SHORT_NAMES.get(key, key.rpartition(".")[2]) for key in keys}
    words = list(short.values())
    return {key: word if words.count(word) == 1 else key for key, word in short.items()}


def text(value: Any) -> str:
    """A value as it stands in names and tables: files without their folders, numbers as short as they can be."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return "+".join(map(text, value))
    return re.sub(r"[^\w.+-]", "_", Path(value).name if isinstance(value, str) else str(value))


def cell_name(values: Mapping[str, Any]) -> str:
    short = short_names(list(values))
    return ",".join(
        str(value) if key == "setting" else text(value) if key in LABELS else f"{short[key]}={text(value)}"
        for key, value in values.items()
    )


def describe(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _check_names(file: Path, cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        if cell.name in seen:
            raise ValueError(
                f"{file}: two cells have the name {cell.name}: a value stands there twice, or keys that move together begin with "
                "the same one: name recipes in list"
            )
        seen[cell.name] = cell


def _check_alternatives(file: Path, cells: Sequence[Cell], alternatives: Mapping[str, str]) -> None:
    """An alternative that is what the base is would be compared with itself."""
    bases = {cell.values.get("seed"): cell for cell in cells if cell.values.get("setting") == BASE}
    for cell in cells:
        setting = cell.values.get("setting")
        base = bases.get(cell.values.get("seed"))
        if setting in alternatives and base and not changed_keys(base.config.to_dict(), cell.config.to_dict()):
            raise ValueError(f"{file}: {setting} is what the base has: leave it out of ablate, or change train")


def _numbers(file: Path, content: dict[str, Any]) -> tuple[int, dict[str, float]]:
    samples, marks = content.get("diverge_samples", 0), content.get("marks") or {}
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(
            f"{file}: diverge_samples is {samples!r}: give a number of samples, or 0 for a fifth of the run"
        )
    numbers = isinstance(marks, dict) and all(isinstance(v, (int, float)) and v > 0 for v in marks.values())
    if marks and not (numbers and set(marks) == {"batch", "lr"}):
        raise ValueError(f"{file}: marks is {marks!r}: give batch and lr, from which the scaling rules are drawn")
    return samples, {key: float(value) for key, value in marks.items()}
