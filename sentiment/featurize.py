"""Turns texts into features: the recurrent state a byte language model has after reading each one.

The feature is the state after the last byte of the cleaned text, which is a space, or its mean or maximum over all bytes
(`pooling.py`). Texts are read in order of length,
in batches that lose a row when its text ends, and in windows of limited length with the state carried over: next to
nothing is spent on padding, and memory does not grow with the longest text. Training the model and what is done with
the features (probes, single units) lie elsewhere.

Rows of a batch do not influence one another, but a matrix product of one to three rows takes another routine than one
of many and rounds differently. So short batches are filled up to eight rows. With that, features were equal to the bit
at all batch sizes where it was tried (MKL on x86); elsewhere count on about 1e-6 in fp32.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import nn
from tqdm import tqdm

from ..data.cleaning import clean_review
from .pooling import POOLINGS, Pooling, StatePool

logger = logging.getLogger(__name__)

StateKind = Literal["cell", "hidden"]
Transform = Literal["raw", "tanh"]
STATES, TRANSFORMS = ("cell", "hidden"), ("raw", "tanh")
CACHE_FORMAT = 2
WINDOW_ELEMENTS = 2**24  # states kept per window: time steps * rows * units, 64 MB in fp32
MIN_WINDOW, MAX_WINDOW = 4, 256
MIN_ROWS = 8  # see above


def featurize(
    model: nn.Module,
    texts: Sequence[str],
    *,
    state: StateKind = "cell",
    transform: Transform = "raw",
    layer: int = -1,
    pooling: Pooling = "last",
    batch_size: int = 128,
    cache_dir: str | Path | None = None,
    model_hash: str | None = None,
    progress: bool = True,
    int8: bool = False,
) -> np.ndarray:
    """Features of texts: the model's state after the last byte of each.

    Args:
        model: Byte language model (`MLSTM`, `LSTM`) on its device; it is run in eval mode and left as it was.
        texts: n texts as they are; each is cleaned by `clean_review`, as in training.
        state: "cell" (the published feature) or "hidden".
        transform: "raw" (as OpenAI's released code reads the cell) or "tanh" (as its paper says).
        layer: Which layer of a stack; -1 is the last.
        pooling: "last" (the published feature), or "mean" or "max" of the transformed states over all bytes of the
            cleaned text, padding left out; of the last layer only.
        batch_size: Rows read at once; speed only.
        cache_dir: Folder of cached features; None for no cache. A file is named by the hash of model, texts and
            options, so features of another model or text cannot be taken for these.
        model_hash: Hash that identifies the weights, if known; computed from them if None.
        progress: Show a bar on standard error, where that is a terminal.
        int8: Read with recurrent weights rounded to eight bits (see `RecurrentLanguageModel.frozen`): faster, and the
            features are near those in fp32, not equal.

    Returns:
        Features in the order of `texts`, shape (n, H), float32.

    Raises:
        ValueError: An unknown option, a layer that the model lacks or that cannot be pooled, a single string instead of
            texts, something that is no string, a model that does not read bytes, or `int8` on a
            machine without such products.

    Source:
        Radford et al. 2017, section 3; https://github.com/openai/generating-reviews-discovering-sentiment.
    """
    layer = _check_options(model, state, transform, layer, batch_size, pooling)
    cleaned = [clean_review(text) for text in check_texts(texts)]
    path, key = None, ""
    if cache_dir is not None:
        options = {"state": state, "transform": transform, "layer": layer, "format": CACHE_FORMAT}
        options |= {"int8": True} if int8 else {}
        options |= {"pooling": pooling} if pooling != "last" else {}
        key = _cache_key(cleaned, model_hash or hash_model(model), options)
        path = Path(cache_dir) / f"features-{key}.safetensors"
        features = _read_cache(path, key, (len(cleaned), int(_config(model).hidden_size)))
        if features is not None:
            logger.info("features of %d texts read from %s", len(cleaned), path)
            return features
    pool = None if pooling == "last" else partial(StatePool, pooling, transform == "tanh")
    features = _read_texts(model, cleaned, state, layer, batch_size, progress, int8, pool)
    if transform == "tanh" and pooling == "last":
        np.tanh(features, out=features)
    if path is not None:
        _write_cache(path, key, features)
    return features


def cell_trace(
    model: nn.Module,
    text: str | bytes,
    *,
    units: Sequence[int] | None = None,
    state: StateKind = "cell",
    transform: Transform = "raw",
) -> np.ndarray:
    """State of the last layer after every byte of a text, for heatmaps.

    Args:
        model: Byte language model.
        text: One text, read as `clean_review(text)`; or bytes, read as they are.
        units: Keep these units only (a long text times all units may not fit in memory); None for all.
        state: "cell" or "hidden".
        transform: "raw" or "tanh".

    Returns:
        Values, shape (num_bytes, H) or (num_bytes, len(units)), float32. The last row is the feature of the text.

    Raises:
        ValueError: An unknown option, a unit index out of range, or no bytes.
    """
    _check_options(model, state, transform, -1, 1)
    data = clean_review(text) if isinstance(text, str) else text
    if not data:
        raise ValueError("there are no bytes to trace a unit through")
    hidden_size = _config(model).hidden_size
    columns = list(range(hidden_size)) if units is None else [check_unit(unit, hidden_size) for unit in units]
    tokens = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
    device = next(model.parameters()).device
    pieces, carried = [], None
    with _evaluating(model):
        for piece in tokens.split(_window_length(model, MIN_ROWS)):
            rows = piece.to(device).expand(MIN_ROWS, -1)
            hidden, carried, cells = _encode(model, rows, carried, None, return_cells=True)
            values = (cells if state == "cell" else hidden)[0][:, columns]
            pieces.append(values.float().cpu().numpy())
    trace = np.concatenate(pieces)
    return np.tanh(trace) if transform == "tanh" else trace


def unit_traces(
    model: nn.Module,
    texts: Sequence[str],
    unit: int,
    *,
    state: StateKind = "cell",
    transform: Transform = "raw",
    batch_size: int = 64,
    progress: bool = True,
) -> list[np.ndarray]:
    """One unit of the last layer after every byte of each cleaned text: `cell_trace` for many texts side by side.

    Args:
        model: Byte language model.
        texts: n texts, each read as `clean_review(text)`.
        unit: The unit.
        state: "cell" or "hidden".
        transform: "raw" or "tanh".
        batch_size: Texts read at once; speed only.
        progress: Show a bar on standard error, where that is a terminal.

    Returns:
        For each text its values, shape (num_bytes,), float32.

    Raises:
        ValueError: An unknown option or a unit that the model lacks.
    """
    _check_options(model, state, transform, -1, batch_size)
    check_unit(unit, _config(model).hidden_size)
    cleaned = [clean_review(text) for text in texts]
    order = sorted(range(len(cleaned)), key=lambda row: -len(cleaned[row]))
    device = next(model.parameters()).device
    found: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(cleaned)
    bar = tqdm(total=len(order), unit="text", desc="trace", disable=None if progress else True)
    with bar, _evaluating(model):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            tokens = np.zeros((max(len(rows), MIN_ROWS), len(cleaned[rows[0]])), dtype=np.uint8)
            for line, row in zip(tokens, rows):
                line[: len(cleaned[row])] = np.frombuffer(cleaned[row], dtype=np.uint8)
            pieces, carried = [], None
            for piece in torch.from_numpy(tokens).split(_window_length(model, len(tokens)), dim=1):
                hidden, carried, cells = _encode(model, piece.to(device), carried, None, return_cells=True)
                pieces.append((cells if state == "cell" else hidden)[:, :, unit].float().cpu().numpy())
            values = np.concatenate(pieces, axis=1)
            for line, row in zip(np.tanh(values) if transform == "tanh" else values, rows):
                found[row] = line[: len(cleaned[row])].copy()
            bar.update(len(rows))
    return found


def check_texts(texts: Sequence[str]) -> Sequence[str]:
    """The texts as they are.

    Raises:
        ValueError: One string, whose letters would be taken for texts, or something among them that is no string.
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError("a single text was given where a list of texts is expected; write [text]")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {row} is no string but {type(text).__name__}; drop it or turn it into text first")
    return texts


def hash_model(model: nn.Module) -> str:
    """SHA-256 over the configuration and all weights (names, shapes, dtypes, bytes), as hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(asdict(_config(model)), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_unit(unit: int, hidden_size: int) -> int:
    """The index of a unit if the model has it.

    Raises:
        ValueError: An index out of range.
    """
    if not 0 <= unit < hidden_size:
        raise ValueError(f"unit {unit} does not exist: the model has units 0 to {hidden_size - 1}")
    return int(unit)


def _config(model: nn.Module) -> Any:
    return model.config


def _check_options(
    model: nn.Module, state: str, transform: str, layer: int, batch_size: int, pooling: str = "last"
) -> int:
    """Checks the options; returns the layer counted from 0."""
    choices = {"state": (state, STATES), "transform": (transform, TRANSFORMS), "pooling": (pooling, POOLINGS)}
    for name, (value, known) in choices.items():
        if value not in known:
            raise ValueError(f"{name} is {value!r}; choose one of {', '.join(known)}")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    config = _config(model)
    if config.vocab_size < 256:
        raise ValueError(f"the model has a vocabulary of {config.vocab_size}; featurising reads bytes and needs 256")
    if not -config.num_layers <= layer < config.num_layers:
        raise ValueError(
            f"layer {layer} does not exist: the model has {config.num_layers} (0 is the first, -1 the last)"
        )
    layer %= config.num_layers
    if pooling != "last" and layer != config.num_layers - 1:
        raise ValueError(f"pooling {pooling} reads the last layer, {config.num_layers - 1}; layer is {layer}")
    return layer


@contextmanager
def _evaluating(model: nn.Module, int8: bool = False) -> Iterator[None]:
    """Dropout off, no gradients and weights prepared once inside; the model's mode is put back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), model.frozen(int8):  # type: ignore[operator]
            yield
    finally:
        model.train(was_training)


def _window_length(model: nn.Module, rows: int) -> int:
    return max(MIN_WINDOW, min(MAX_WINDOW, WINDOW_ELEMENTS // (rows * _config(model).hidden_size)))


def _encode(model: nn.Module, tokens: torch.Tensor, state: Any, lengths: torch.Tensor | None, **options: bool) -> Any:
    return model.encode(tokens, state=state, lengths=lengths, **options)  # type: ignore[operator]


def _read_texts(
    model: nn.Module,
    cleaned: list[bytes],
    kind: StateKind,
    layer: int,
    batch_size: int,
    progress: bool,
    int8: bool,
    make_pool: Callable[[], StatePool] | None,
) -> np.ndarray:
    features = np.empty((len(cleaned), _config(model).hidden_size), dtype=np.float32)
    lengths = np.array([len(data) for data in cleaned], dtype=np.int64)
    # Longest first: the largest allocations come at once, the bar's estimate errs on the safe side, and in each batch
    # the rows still being read are a prefix.
    order = np.argsort(-lengths, kind="stable")
    bar = tqdm(
        total=int(lengths.sum()), unit="B", unit_scale=True, desc="featurize", disable=None if progress else True
    )
    with bar, _evaluating(model, int8):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            pool = make_pool() if make_pool else None
            for done, state in _read_batch(model, [cleaned[row] for row in rows], bar, kind, pool):
                if pool is not None:
                    features[rows[done]] = pool.take(done)
                    continue
                values = (state.cell if kind == "cell" else state.hidden)[layer]
                features[rows[done]] = values.float().cpu().numpy()
    return features


def _read_batch(
    model: nn.Module, batch: list[bytes], bar: tqdm, kind: StateKind = "cell", pool: StatePool | None = None
) -> Iterator[tuple[slice, Any]]:
    """Reads texts sorted from long to short; yields (rows that have ended, their state) window by window.

    What lies in between goes to `pool`, if there is one.
    """
    device = next(model.parameters()).device
    lengths = np.array([len(data) for data in batch], dtype=np.int64)
    window = _window_length(model, max(len(batch), MIN_ROWS))
    position, alive, state = 0, len(batch), None
    while alive:
        # Up to where some rows will have ended, so that little is computed for rows that have; but not for less than
        # MIN_WINDOW steps, as every call costs something.
        width = max(int(lengths[alive * 7 // 8]) - position, MIN_WINDOW)
        width = min(width, window, int(lengths[0]) - position)
        tokens = np.zeros((max(alive, MIN_ROWS), width), dtype=np.uint8)
        for row in range(alive):
            piece = batch[row][position : position + width]
            tokens[row, : len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        left = np.minimum(lengths[:alive] - position, width)
        # Only a window in which a text ends early has to hold states back.
        held = None
        if left.min() < width:
            held = torch.from_numpy(np.pad(left, (0, len(tokens) - alive))).to(device)
        wanted = {"return_cells": True} if pool is not None and kind == "cell" else {}
        hidden, state, *cells = _encode(model, torch.from_numpy(tokens).to(device), state, held, **wanted)
        if pool is not None:
            pool.add((cells[0] if cells else hidden)[:alive], left)
        bar.update(int(left.sum()))
        position += width
        still = int(np.count_nonzero(lengths > position))
        if still < alive:
            yield slice(still, alive), state.select(torch.arange(still, alive, device=device))
            state = state.select(torch.arange(max(still, MIN_ROWS), device=device))
        alive = still


def _cache_key(cleaned: list[bytes], model_hash: str, options: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps({"model": model_hash, **options}, sort_keys=True).encode())
    for data in cleaned:
        digest.update(len(data).to_bytes(8, "little"))  # so that moving a byte to the next text changes the hash
        digest.update(data)
    return digest.hexdigest()


def _read_cache(path: Path, key: str, shape: tuple[int, int]) -> np.ndarray | None:
    """Cached features; None, with a warning, for a file that is damaged or, whatever its name, of another question."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            found, features = (file.metadata() or {}).get("key"), file.get_tensor("features")
    except (SafetensorError, OSError) as error:
        logger.warning("the cached features in %s cannot be read (%s) and are computed again", path, error)
        return None
    if found != key:
        logger.warning("the cached features in %s are of another model or other texts and are computed again", path)
        return None
    if features.shape != shape or features.dtype != np.float32:
        logger.warning("the cached features in %s have another shape and are computed again", path)
        return None
    return features


def _write_cache(path: Path, key: str, features: np.ndarray) -> None:
    """Writes beside the target and renames, so that a reader sees a whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        os.close(handle)
        try:
            save_file({"features": features}, name, metadata={"key": key})
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, SafetensorError) as error:  # the features are good without their cache
        logger.warning("features could not be cached in %s: %s", path.parent, error)
