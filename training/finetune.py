"""From labelled files and a trained language model to a fine-tuning task: what `run.py` asks for in place of a token store."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..data.cleaning import clean_review
from ..data.labelled import LabelledData, load_labelled
from ..data.targets import load_multilabel
from ..models.config import ClassifierConfig, ModelConfig, model_config
from .checkpoint import checkpoint_dirs, find_checkpoint, verify
from .distributed import Ranks
from .finetune_config import FinetuneConfig, TaskConfig
from .tasks.classify import ClassifyTask, TextSet

log = logging.getLogger(__name__)


def build_task(config: FinetuneConfig, ranks: Ranks) -> tuple[ClassifyTask, str]:
    """The task of a run, and a hash of its data.

    Raises:
        FileNotFoundError, ValueError: bad input, in one line.
    """
    train, val = load_parts(config.task, config.seed)
    classes = train.classes
    model = ClassifierConfig(encoder_config(config), config.head, classes, bool(config.task.label_keys))
    parts = [text_set(part) for part in (train, val)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.labels.tobytes())
        for text in part.texts:
            digest.update(len(text).to_bytes(8, "little") + text)
    return ClassifyTask(config, model, ranks, *parts), digest.hexdigest()


def encoder_config(config: FinetuneConfig) -> ModelConfig:
    """Sizes of the encoder: from this run's own checkpoint if it has one, else from the model it starts from."""
    own = checkpoint_dirs(Path(config.run_dir))
    stored = verify(own[-1] if own else find_checkpoint(Path(config.encoder)))["config"]["model"]
    if own:
        return model_config(stored["encoder"])
    if stored.get("kind") == "classifier":
        raise ValueError(
            f"--encoder {config.encoder} is a fine-tuned classifier: name the language model it was made from"
        )
    return model_config(stored)


def check_files(config: FinetuneConfig) -> None:
    """Reads everything once before anything is written or started, and logs what was guessed, dropped or cut off.

    Raises:
        FileNotFoundError, ValueError: bad input, in one line.
    """
    encoder_config(config)
    train, val = load_parts(config.task, config.seed)
    parts = [train, val, load_test(config.task, train)] if config.task.test else [train, val]
    for message in dict.fromkeys(message for part in parts for message in part.messages):
        log.info("%s", message.replace("--text-key, --label-key", "--task.text_key, --task.label_key"))
    if not config.task.val:
        log.info("no --task.val: %s of the training texts are set aside for it (seed %d)", f"{len(val):,}", config.seed)


def load_parts(task: TaskConfig, seed: int) -> tuple[LabelledData, LabelledData]:
    """Training and validation texts; a part of the training texts is cut off where no validation files are named."""
    train = _load(task, task.train)
    if task.val:
        return train, _load(task, task.val, train)
    return split_by_class(train, task.val_fraction, seed)


def load_test(task: TaskConfig, train: LabelledData) -> LabelledData:
    """Test texts, numbered by the classes of the training texts; labels may be missing."""
    return _load(task, task.test, train, allow_unlabelled=True)


def _load(
    task: TaskConfig, paths: list[str], train: LabelledData | None = None, allow_unlabelled: bool = False
) -> LabelledData:
    if task.label_keys:
        data = load_multilabel(paths, task.label_keys, task.text_key, task.on_bad_row, allow_unlabelled)
    else:
        known = {} if train is None else {"classes": train.classes, "stars": train.stars}
        data = load_labelled(paths, task.text_key, task.label_key, task.on_bad_row, allow_unlabelled, **known)
    if not len(data):
        raise ValueError(f"{', '.join(paths)}: no texts to use")
    return data


def split_by_class(data: LabelledData, fraction: float, seed: int) -> tuple[LabelledData, LabelledData]:
    """Cuts a part of every class off (of all rows, where a text may have several labels).

    Raises:
        ValueError: a class with a single row cannot be on both sides.
    """
    assert data.labels is not None
    strata = data.labels if data.labels.ndim == 1 else np.zeros(len(data), np.int64)
    draws = np.random.Generator(np.random.PCG64(seed)).random(len(data))
    cut = np.zeros(len(data), dtype=bool)
    for value in np.unique(strata):
        (rows,) = np.nonzero(strata == value)
        if len(rows) < 2:
            raise ValueError(
                f"class {data.classes[value]} has one row only, which cannot be on both sides: name validation files with "
                "--task.val"
            )
        number = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        cut[rows[np.argsort(draws[rows], kind="stable")[:number]]] = True
    return _rows(data, ~cut), _rows(data, cut)


def _rows(data: LabelledData, keep: np.ndarray) -> LabelledData:
    assert data.labels is not None
    texts, rows = [text for text, k in zip(data.texts, keep) if k], [row for row, k in zip(data.rows, keep) if k]
    return replace(data, texts=texts, labels=data.labels[keep], rows=rows)


def text_set(data: LabelledData) -> TextSet:
    """Texts cleaned as in training the language model."""
    assert data.labels is not None
    return TextSet([clean_review(text) for text in data.texts], data.labels)
