"""Checkpoints: one directory a save, tensors as safetensors, the rest as JSON, `manifest.json` written last.

A save is built in a hidden directory beside its place and renamed when complete, so a kill, a full disk or a crash
leaves either the whole checkpoint or none. Loading verifies every file against the manifest; a damaged newest
checkpoint is set aside with a message and the one before is used. Nothing here is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..models.build import build_model
from ..models.config import LSTMConfig, MLSTMConfig
from ..models.transformer_config import BERTConfig, GPTConfig

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
FILES = ("model.safetensors", "optimizer.safetensors", "state.safetensors", "trainer.json")
# Of a model that was converted or published: enough to read text with, not to go on training from.
WEIGHTS_ONLY_FILES = ("model.safetensors", "trainer.json")
_PREFIX = "step_"
_CONFIGS: dict[str, type] = {"mlstm": MLSTMConfig, "lstm": LSTMConfig, "gpt": GPTConfig, "bert": BERTConfig}
RECURRENT = ("mlstm", "lstm")


@dataclass
class Checkpoint:
    """What a save holds.

    Attributes:
        model: parameters by name, fp32.
        optimizer: optimizer state by name.
        state: recurrent state in global lane order, `hidden` (L, B, H) and `cell` (L, B, H).
        trainer: everything else, JSON-able: samples, position, loss scale, sums of the running log line.
    """

    model: dict[str, torch.Tensor]
    trainer: dict
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedModel:
    """A trained model for evaluation, features or generation.

    Attributes:
        model: fp32 module in eval mode.
        config: the run's configuration as a nested dictionary.
        samples: samples it was trained on.
        tokens: bytes it was trained on.
        model_hash: sha256 of the weights file; keys feature caches.
        path: the checkpoint directory.
        data_hash: of the token store it was trained on.
    """

    model: nn.Module
    config: dict
    samples: int
    tokens: int
    model_hash: str
    path: Path
    data_hash: str = ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_dirs(run_dir: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = (run_dir / "checkpoints").glob(f"{_PREFIX}*")
    return sorted(path for path in found if (path / "manifest.json").is_file())


def save_checkpoint(run_dir: Path, checkpoint: Checkpoint, config: dict, keep: int = 2, best: bool = False) -> Path:
    """Writes one checkpoint atomically, then deletes the oldest ones beyond `keep` (never the best).

    Raises:
        OSError: if the disk is full or not writable; earlier checkpoints stay as they are.
    """
    root = run_dir / "checkpoints"
    name = _name(checkpoint.trainer["samples"])
    final, building = root / name, root / f".{name}.partial"
    for left_over in root.glob(f".{_PREFIX}*.partial"):  # of a save that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        building.mkdir(parents=True)
        for file, tensors in (
            ("model", checkpoint.model),
            ("optimizer", checkpoint.optimizer),
            ("state", checkpoint.state),
        ):
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, building / f"{file}.safetensors")
        _seal(building, checkpoint.trainer, config)
        if final.exists():
            shutil.rmtree(final)
        building.rename(final)
        _fsync(root)
        if best:
            mark_best(run_dir, checkpoint.trainer["samples"])
    except Exception as error:
        shutil.rmtree(building, ignore_errors=True)
        # safetensors reports a full disk as an exception of its own
        raise OSError(
            f"cannot write the checkpoint {final}: {error}; free some space or choose another --run-dir: "
            "the same command then goes on from the last complete checkpoint"
        ) from error
    _delete_old(run_dir, keep, name)
    return final


def _seal(building: Path, trainer: dict, config: dict, **more: bool) -> None:
    """Writes trainer.json and, last, the manifest over all files of a checkpoint; all of it is on the disk then."""
    (building / "trainer.json").write_text(json.dumps(trainer), encoding="utf-8")
    files = sorted(building.iterdir())
    for path in files:
        _fsync(path)
    manifest = {
        "format_version": FORMAT_VERSION,
        "samples": trainer["samples"],
        **more,
        "config": config,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files},
    }
    (building / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _fsync(building / "manifest.json")


def save_weights(run_dir: Path, model: Path | Mapping[str, torch.Tensor], config: dict, trainer: dict) -> Path:
    """Makes a run folder that holds a model and nothing to go on training from.

    Args:
        run_dir: the folder, which appears whole or not at all; it must not exist, or be empty.
        model: fp32 parameters by name, or the weights file of a checkpoint, copied byte for byte.
        config: nested dictionary with the model's configuration below `model`.
        trainer: `samples` and `tokens` the model was trained on, 0 if not known, and what else is to be kept.

    Returns:
        The checkpoint directory in it.

    Raises:
        ValueError: the folder holds something.
        OSError: it cannot be written.
    """
    if run_dir.is_file() or (run_dir.is_dir() and any(run_dir.iterdir())):
        raise ValueError(f"{run_dir} exists and is not an empty folder: name another one")
    building = run_dir.parent / f".{run_dir.name}.partial"
    shutil.rmtree(building, ignore_errors=True)  # of one that was killed
    name = Path("checkpoints") / _name(trainer["samples"])
    try:
        (building / name).mkdir(parents=True)
        weights = building / name / "model.safetensors"
        if isinstance(model, Path):
            shutil.copyfile(model, weights)
        else:
            save_file({k: v.detach().cpu().contiguous() for k, v in model.items()}, weights)
        _seal(building / name, trainer, config, weights_only=True)
        building.replace(run_dir)
    except Exception as error:
        shutil.rmtree(building, ignore_errors=True)
        raise OSError(f"cannot write {run_dir}: {error}; free some space or name another folder") from error
    return run_dir / name


def _name(samples: int) -> str:
    return f"{_PREFIX}{samples:012d}"


def mark_best(run_dir: Path, samples: int) -> None:
    """Makes the checkpoint of these samples the one that "best" means."""
    root = run_dir / "checkpoints"
    partial = root / ".best.partial"
    partial.write_text(_name(samples), encoding="utf-8")
    _fsync(partial)
    partial.replace(root / "best")


def best_name(run_dir: Path) -> str | None:
    path = run_dir / "checkpoints" / "best"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _delete_old(run_dir: Path, keep: int, newest: str) -> None:
    """Deletes all but the newest `keep` and the best. What claims to be newer than `newest` was damaged and passed over."""
    best = best_name(run_dir)
    paths = checkpoint_dirs(run_dir)
    current = [path for path in paths if path.name <= newest]
    for path in paths:
        if path.name > newest or (path not in current[-keep:] and path.name != best):
            # manifest first: a half-deleted directory must not look complete
            (path / "manifest.json").unlink()
            shutil.rmtree(path)
    for path in (run_dir / "checkpoints").glob(f"{_PREFIX}*"):  # of a deletion that was killed
        if not (path / "manifest.json").exists():
            shutil.rmtree(path, ignore_errors=True)


def verify(path: Path) -> dict:
    """Reads the manifest and compares every file with it.

    Raises:
        ValueError: if a file is missing, truncated or altered, or the format is newer than this code.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        version = manifest["format_version"]
        files = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
        needed = WEIGHTS_ONLY_FILES if manifest.get("weights_only") else FILES
        whole = set(needed) <= files.keys() and isinstance(manifest["config"], dict)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"checkpoint {path}: manifest.json cannot be read ({error!r})") from None
    if version != FORMAT_VERSION:
        raise ValueError(f"checkpoint {path} has format version {version}, this bigbatch reads {FORMAT_VERSION}")
    if not whole:
        raise ValueError(
            f"checkpoint {path}: manifest.json does not name all files; the checkpoint is damaged, use another one"
        )
    for name, (length, digest) in files.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else -1
        if size != length:
            state = "is missing" if size < 0 else f"has {size:,} of {length:,} bytes"
            raise ValueError(f"checkpoint {path}: {name} {state}; the checkpoint is damaged, use another one")
        if _sha256(file) != digest:
            raise ValueError(
                f"checkpoint {path}: {name} does not match its checksum; the checkpoint is damaged, use another one"
            )
    return manifest


def load_checkpoint(path: Path) -> tuple[Checkpoint, dict]:
    """Reads one checkpoint after verifying it; returns it with its manifest."""
    manifest = verify(path)
    tensors = {name: load_file(path / f"{name}.safetensors") for name in ("model", "optimizer", "state")}
    trainer = json.loads((path / "trainer.json").read_text(encoding="utf-8"))
    return Checkpoint(tensors["model"], trainer, tensors["optimizer"], tensors["state"]), manifest


def newest_checkpoint(run_dir: Path) -> tuple[Checkpoint, dict, Path] | None:
    """The newest checkpoint that is whole. A damaged one is passed over with a warning.

    Raises:
        ValueError: if there are checkpoints and all are damaged.
    """
    paths = checkpoint_dirs(run_dir)
    for path in reversed(paths):
        try:
            return *load_checkpoint(path), path
        except ValueError as error:
            log.warning("%s; trying the one before", error)
    if paths:
        raise ValueError(f"all {len(paths)} checkpoints in {run_dir} are damaged: start again in another --run-dir")
    return None


def check_resumable(run_dir: Path) -> None:
    """Refuses a run folder whose newest checkpoint holds weights only, before anything is written into it.

    Raises:
        ValueError: saying how to start from them.
    """
    for path in checkpoint_dirs(run_dir)[-1:]:
        if '"weights_only": true' in (path / "manifest.json").read_text("utf-8", errors="replace"):
            raise ValueError(
                f"{run_dir} holds the weights of a model, converted or published, and no training to go on with: start from "
                f"them with --init-from {run_dir} and another --run-dir"
            )


def load_weights(model: nn.Module, tensors: Mapping[str, torch.Tensor], where: str, assign: bool = False) -> None:
    """Loads parameters by name, all of them and nothing else.

    Args:
        model: of the same shapes.
        tensors: parameters by name.
        where: what the message calls them.
        assign: make them the parameters, instead of copying into those that are there.

    Raises:
        ValueError: naming the first difference, if the checkpoint is of another model.
    """
    own = model.state_dict()
    for name in [*own, *tensors]:
        ours, theirs = own.get(name), tensors.get(name)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            shapes = [("absent" if t is None else str(tuple(t.shape))) for t in (theirs, ours)]
            raise ValueError(
                f"{where} is of another model: {name} is {shapes[0]} there and {shapes[1]} in this configuration; choose another "
                "--run-dir, or the model options it was trained with"
            )
    model.load_state_dict(dict(tensors), assign=assign)


def find_checkpoint(path: Path, which: str = "best") -> Path:
    """The checkpoint directory meant by a run folder or by the directory itself.

    Raises:
        ValueError: if there is none; the message says how to make one.
    """
    if (path / "manifest.json").is_file():
        return path
    if path.is_file():
        raise ValueError(
            f"{path} is a file: name a run folder, or a checkpoint folder in it (runs/x/checkpoints/step_...)"
        )
    if not path.is_dir():
        raise ValueError(
            f"{path} does not exist: train a model first with `bigbatch train --run-dir {path}`, or see runs/"
        )
    paths = checkpoint_dirs(path)
    if not paths:
        raise ValueError(f"{path} holds no checkpoint: train first with `bigbatch train --run-dir {path}`")
    named = {p.name: p for p in paths}
    return named.get(best_name(path) or "", paths[-1]) if which == "best" else paths[-1]


def load_initial_weights(model: nn.Module, path: Path) -> Path:
    """Loads the weights of another run's best checkpoint, and nothing else, into a new model; returns the checkpoint.

    Raises:
        ValueError: if there is none, it is damaged, or it is of another model.
    """
    directory = find_checkpoint(path)
    verify(directory)
    load_weights(model, load_file(directory / "model.safetensors"), str(directory))
    return directory


def load_model(
    path: Path | str, device: str = "cpu", which: str = "best", kinds: tuple[str, ...] = RECURRENT
) -> LoadedModel:
    """Loads a trained model from a run folder or a checkpoint directory.

    Args:
        path: run folder or checkpoint directory.
        device: where the model goes.
        which: "best" (lowest validation BPC; the newest if none was validated) or "latest", for a run folder.
        kinds: families that the caller can use.

    Raises:
        ValueError: if there is no checkpoint, it is damaged, it is of another model than its configuration says, or of
            another family.
    """
    directory = find_checkpoint(Path(path), which)
    manifest = verify(directory)
    model_config = dict(manifest["config"]["model"])
    config_class = _CONFIGS.get(model_config["kind"]) if model_config["kind"] in kinds else None
    if model_config["kind"] == "classifier":
        raise ValueError(
            f"{path} holds a fine-tuned classifier, no language model: `bigbatch classify --run-dir {path}` uses it; for the rest "
            "name the language model it was made from"
        )
    if config_class is None:
        raise ValueError(
            f"checkpoint {directory} holds a model of kind {model_config['kind']!r}; what is needed here is one of "
            f"{', '.join(kinds)}"
        )
    try:
        with torch.device("meta"):  # initial values would be drawn for nothing: minutes of QR at 4096 units
            model = build_model(config_class(**model_config))
    except TypeError as error:
        raise ValueError(f"checkpoint {directory} is of another version of bigbatch: {error}") from None
    # Copied, so that the parameters lie in memory of their own, aligned like those of any model, and not in the file.
    stored = load_file(directory / "model.safetensors")
    tensors = {name: tensor.to(torch.float32, copy=True) for name, tensor in stored.items()}
    load_weights(model, tensors, str(directory), assign=True)
    trainer = json.loads((directory / "trainer.json").read_text(encoding="utf-8"))
    return LoadedModel(
        model=model.to(device).eval(),
        config=manifest["config"],
        samples=trainer["samples"],
        tokens=trainer["tokens"],
        model_hash=manifest["files"]["model.safetensors"]["sha256"],
        path=directory,
        data_hash=trainer.get("data_hash", ""),
    )
