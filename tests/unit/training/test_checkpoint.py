"""Checkpoints: whole or absent, verified when read, kept and deleted by rule, and never a pickle among them."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig
from bigbatch.training import checkpoint as module
from bigbatch.training.checkpoint import (
    Checkpoint,
    best_name,
    check_resumable,
    checkpoint_dirs,
    find_checkpoint,
    load_checkpoint,
    load_initial_weights,
    load_model,
    load_weights,
    mark_best,
    newest_checkpoint,
    save_checkpoint,
    save_weights,
    verify,
)

MODEL = MLSTMConfig(embedding_size=4, hidden_size=8)
CONFIG = {"model": asdict(MODEL), "seed": 3}


def make(samples: int) -> Checkpoint:
    torch.manual_seed(samples)
    model = build_model(MODEL)
    optimizer = {f"exp_avg.{name}": torch.randn_like(p) for name, p in model.named_parameters()}
    state = {"hidden": torch.randn(1, 4, 8, dtype=torch.float16), "cell": torch.randn(1, 4, 8)}
    trainer = {"samples": samples, "tokens": 10 * samples, "position": {"epoch": 0}, "loss": 0.1}
    return Checkpoint(dict(model.state_dict()), trainer, optimizer, state)


def save(run: Path, samples: int, keep: int = 9, best: bool = False) -> Path:
    return save_checkpoint(run, make(samples), CONFIG, keep, best)


def names(run: Path) -> list[str]:
    return [path.name[-3:] for path in checkpoint_dirs(run)]


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    path = save(tmp_path, 100)
    loaded, manifest = load_checkpoint(path)
    original = make(100)
    for part in ("model", "optimizer", "state"):
        got, expected = getattr(loaded, part), getattr(original, part)
        assert got.keys() == expected.keys()
        assert all(got[name].dtype == t.dtype and torch.equal(got[name], t) for name, t in expected.items())
    assert loaded.trainer == original.trainer
    assert manifest["config"] == CONFIG and manifest["format_version"] == 1 and manifest["samples"] == 100


def test_nothing_is_pickled(tmp_path: Path) -> None:
    path = save(tmp_path, 100, best=True)
    files = {file.name for file in path.iterdir()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.safetensors", "trainer.json", "manifest.json"}
    for file in path.glob("*.json"):
        json.loads(file.read_text())
    for file in path.glob("*.safetensors"):
        raw = file.read_bytes()
        json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])  # safetensors: a length, then a JSON header


# What a kill would interrupt: between any two of these the directory must not look complete.
STAGES = ["save_file", "_fsync", "_sha256"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("call", [0, 2])
def test_a_kill_inside_a_save_leaves_no_complete_looking_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, call: int
) -> None:
    class Killed(BaseException):
        """Like a kill: no handler of the product sees it."""

    save(tmp_path, 100)
    original, calls = getattr(module, stage), []

    def dying(*args, **kwargs):
        calls.append(None)
        if len(calls) > call:
            raise Killed
        return original(*args, **kwargs)

    monkeypatch.setattr(module, stage, dying)
    with pytest.raises(Killed):
        save(tmp_path, 200, best=True)
    monkeypatch.undo()
    assert names(tmp_path) == ["100"] and best_name(tmp_path) is None
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0].trainer["samples"] == 100
    save(tmp_path, 300)  # the next save removes what the killed one left behind
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_000000000100", "step_000000000300"]


def test_a_directory_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 100)
    (save(tmp_path, 200) / "manifest.json").unlink()
    assert names(tmp_path) == ["100"]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def remove(path: Path) -> None:
    path.unlink()


FILES = ["model.safetensors", "optimizer.safetensors", "state.safetensors", "trainer.json"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage, word", [(truncate, "bytes"), (flip_a_bit, "checksum"), (remove, "is missing")])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: Callable[[Path], None], word: str
) -> None:
    save(tmp_path, 100)
    path = save(tmp_path, 200)
    damage(path / file)
    with caplog.at_level(logging.WARNING, logger="bigbatch"):
        found = newest_checkpoint(tmp_path)
    assert found is not None and found[0].trainer["samples"] == 100 and found[2].name.endswith("100")
    assert len(caplog.messages) == 1
    assert file in caplog.messages[0] and word in caplog.messages[0] and "trying the one before" in caplog.messages[0]


@pytest.mark.parametrize("content", ["", '{"format_version": 1, "fi', "[]", '{"format_version": 2}', "\udce9"])
def test_a_damaged_manifest_is_passed_over(tmp_path: Path, content: str) -> None:
    save(tmp_path, 100)
    path = save(tmp_path, 200)
    (path / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0].trainer["samples"] == 100
    with pytest.raises(ValueError, match=str(path)):
        verify(path)


def test_all_damaged_is_an_error_of_one_line(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for samples in (100, 200):
        truncate(save(tmp_path, samples) / "model.safetensors")
    with pytest.raises(ValueError, match=r"^all 2 checkpoints in .* are damaged: start again in another --run-dir$"):
        newest_checkpoint(tmp_path)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for samples in range(100, 900, 100):
        save(tmp_path, samples, keep=2, best=samples in (200, 300))
    assert names(tmp_path) == ["300", "700", "800"]
    assert find_checkpoint(tmp_path).name == "step_000000000300"
    assert find_checkpoint(tmp_path, "latest").name == "step_000000000800"
    mark_best(tmp_path, 800)
    save(tmp_path, 900, keep=1)
    assert names(tmp_path) == ["800", "900"]
    assert find_checkpoint(tmp_path).name == "step_000000000800"


def test_without_a_best_the_newest_is_meant(tmp_path: Path) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200)
    assert find_checkpoint(tmp_path, "best").name == "step_000000000200"
    mark_best(tmp_path, 50)  # was deleted by hand
    assert find_checkpoint(tmp_path, "best").name == "step_000000000200"


@pytest.mark.parametrize("call", range(3))
def test_a_full_disk_leaves_earlier_checkpoints_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    save(tmp_path, 100)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    original, calls = module.save_file, []

    def full(tensors: dict, path: Path) -> None:
        calls.append(path)
        if len(calls) > call:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(tensors, path)

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*000200: .*No space left.*free some space"):
        save(tmp_path, 200, keep=1, best=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_000000000100"]


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(OSError, match=r"^cannot write the checkpoint [^\n]+$"):
        save(tmp_path, 100)


def test_saving_where_a_damaged_one_lies_replaces_it(tmp_path: Path) -> None:
    truncate(save(tmp_path, 100) / "model.safetensors")
    save(tmp_path, 100)
    assert newest_checkpoint(tmp_path) is not None


@pytest.mark.parametrize(
    "other, message",
    [
        (MLSTMConfig(embedding_size=4, hidden_size=9), r"embedding|\(\d+"),
        (MLSTMConfig(embedding_size=5, hidden_size=8), r"embedding.weight is \(256, 4\) there and \(256, 5\)"),
        (MLSTMConfig(embedding_size=4, hidden_size=8, num_layers=2), r"is absent there and \("),
        (LSTMConfig(embedding_size=4, hidden_size=8), r"absent"),
    ],
)
def test_a_checkpoint_of_another_model_names_the_first_difference(
    tmp_path: Path, other: MLSTMConfig | LSTMConfig, message: str
) -> None:
    loaded, _ = load_checkpoint(save(tmp_path, 100))
    model = build_model(other)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(model, loaded.model, "the checkpoint")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("the checkpoint is of another model: ")
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_load_model_gives_the_weights_in_eval_mode(tmp_path: Path) -> None:
    save(tmp_path, 100, best=True)
    save(tmp_path, 200)
    loaded = load_model(tmp_path)
    assert (loaded.samples, loaded.tokens, loaded.config) == (100, 1000, CONFIG)
    assert not loaded.model.training and loaded.path.name == "step_000000000100"
    assert all(torch.equal(t, make(100).model[name]) for name, t in loaded.model.state_dict().items())
    latest = load_model(tmp_path, which="latest")
    assert latest.samples == 200 and latest.model_hash != loaded.model_hash
    shutil.copytree(loaded.path, tmp_path / "copy")
    assert load_model(tmp_path / "copy").model_hash == loaded.model_hash


def test_load_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: train a model first with `bigbatch train"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no checkpoint: train first"):
        load_model(tmp_path)
    truncate(save(tmp_path, 100) / "model.safetensors")
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        load_model(tmp_path)


def test_a_damaged_newest_one_never_outlives_what_follows_it(tmp_path: Path) -> None:
    for samples in (200, 300):
        save_checkpoint(tmp_path, make(samples), CONFIG, keep=5)
    (tmp_path / "checkpoints" / "step_000000000300" / "model.safetensors").write_bytes(b"")
    # Passed over, the run went on from 200 and saves again.
    save_checkpoint(tmp_path, make(210), CONFIG, keep=1)
    assert [path.name for path in checkpoint_dirs(tmp_path)] == ["step_000000000210"]
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0].trainer["samples"] == 210


def test_what_a_killed_deletion_left_is_cleared(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make(100), CONFIG)
    (tmp_path / "checkpoints" / "step_000000000100" / "manifest.json").unlink()
    save_checkpoint(tmp_path, make(200), CONFIG)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000000000200"]


def test_initial_weights_are_those_of_the_best_checkpoint(tmp_path: Path) -> None:
    one, other = (make(samples) for samples in (100, 200))
    other.model = {name: value + 1 for name, value in other.model.items()}
    save_checkpoint(tmp_path, one, CONFIG, best=True)
    save_checkpoint(tmp_path, other, CONFIG)
    model = build_model(MODEL)
    assert load_initial_weights(model, tmp_path).name == "step_000000000100"
    assert all(torch.equal(value, one.model[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"is of another model: .*; choose another --run-dir, or the model options"):
        load_initial_weights(build_model(MLSTMConfig(hidden_size=5, embedding_size=3)), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ("sha256", "sha257"),
        ('"files"', '"filez"'),
        ('"bytes"', '"bytez"'),
        ('"config"', '"confih"'),
        ("model.safetensors", "nodel.safetensors"),
    ],
    ids=str,
)
def test_a_bit_flipped_in_a_manifest_is_a_damaged_checkpoint(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "step_1"
    path.mkdir()
    files = {}
    for name in module.FILES:
        (path / name).write_text("content")
        files[name] = {"bytes": 7, "sha256": hashlib.sha256(b"content").hexdigest()}
    manifest = json.dumps({"format_version": 1, "files": files, "config": {}})
    (path / "manifest.json").write_text(manifest)
    assert verify(path)["format_version"] == 1
    (path / "manifest.json").write_text(manifest.replace(*change))
    with pytest.raises(ValueError, match=r"step_1: manifest\.json"):
        verify(path)


def test_a_folder_of_weights_is_read_and_not_trained_on(tmp_path: Path) -> None:
    original = save(tmp_path / "run", 100)
    loaded = load_model(tmp_path / "run")
    record = {"samples": 100, "tokens": 7, "data_hash": "abc"}
    given = save_weights(tmp_path / "deep" / "given", loaded.model.state_dict(), CONFIG, record)
    copied = save_weights(tmp_path / "copied", original / "model.safetensors", CONFIG, record)
    for path in (given, copied):
        again = load_model(path.parent.parent)
        assert (again.path, again.samples, again.tokens, again.data_hash) == (path, 100, 7, "abc")
        state = again.model.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in loaded.model.state_dict().items())
        assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "model.safetensors", "trainer.json"]
        with pytest.raises(ValueError, match=r"no training to go on with: start from them with --init-from"):
            check_resumable(path.parent.parent)
    assert again.model_hash == loaded.model_hash  # a copy is the same file
    check_resumable(tmp_path / "run")
    check_resumable(tmp_path / "nothing")
    fresh = build_model(MODEL)
    load_initial_weights(fresh, tmp_path / "copied")
    assert torch.equal(fresh.embedding.weight, loaded.model.get_parameter("embedding.weight"))
    (copied / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        load_model(tmp_path / "copied")


def test_a_folder_of_weights_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"samples": 0, "tokens": 0}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("full", "file"):
        with pytest.raises(ValueError, match=f"{name} exists and is not an empty folder"):
            save_weights(tmp_path / name, {}, CONFIG, record)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*new: .*No space left"):
        save_weights(tmp_path / "new", {}, CONFIG, record)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


def test_a_whole_checkpoint_still_needs_all_its_files(tmp_path: Path) -> None:
    path = save(tmp_path, 100)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"]["optimizer.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="does not name all files"):
        verify(path)


def test_loading_a_model_draws_no_initial_values(tmp_path: Path) -> None:
    save(tmp_path, 100)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = load_model(tmp_path).model
    assert torch.equal(torch.get_rng_state(), before)
    kinds = {(parameter.device.type, parameter.dtype, parameter.requires_grad) for parameter in model.parameters()}
    assert kinds == {("cpu", torch.float32, True)}
