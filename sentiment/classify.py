"""Labels and probabilities for new texts from a run folder or a published one: the model and the probe fitted on it.

`transfer.py` and `publish.py` write what is loaded here. Reading and writing files of texts is left to `scripts/classify.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..training.checkpoint import LoadedModel, load_model
from .featurize import featurize
from .finetuned import FinetunedClassifier, is_finetuned
from .multilabel import MultiLabelProbe
from .probe import SentimentProbe
from .probe_file import MULTILABEL_KIND, PROBE_KIND, probe_kind

PUBLISHED = "published.json"  # what `publish.py` says about a folder
HOW_TO_TRAIN = (
    "run `bigbatch demo`, or `bigbatch train --data.paths reviews.jsonl --run-dir runs/mine` and then "
    "`bigbatch transfer --run-dir runs/mine --train train.csv --val val.csv --test test.csv`"
)


@dataclass(frozen=True)
class Classifier:
    """A model with its probe.

    Attributes:
        model: Byte language model in eval mode.
        probe: Fitted on features of exactly this model.
        class_names: Name of each class number.
        about: What `transfer.py` recorded about the probe: task, feature options, best unit, checkpoint.
        run_dir: Where it came from.
    """

    model: nn.Module
    probe: SentimentProbe | MultiLabelProbe
    class_names: list[str]
    about: dict[str, Any]
    run_dir: Path

    @classmethod
    def load(cls, run_dir: Path | str, task: str | None = None, device: str = "cpu") -> Classifier:
        """Loads a run folder's model and probe.

        Args:
            run_dir: Run folder in which `bigbatch transfer` (or `bigbatch demo`) has been run, or a folder written by
                `bigbatch publish`.
            task: Which probe, by the task's name; the newest if None.
            device: Where the model goes.

        Raises:
            ValueError: No model, no probe, a damaged file, or a probe fitted on a checkpoint that is gone; the message
                names the command to run.
        """
        run_dir = Path(run_dir)
        path = _probe_path(run_dir, task, (PROBE_KIND, MULTILABEL_KIND))
        probe, about = (MultiLabelProbe if probe_kind(path) == MULTILABEL_KIND else SentimentProbe).load(path)
        loaded = _model_of_probe(run_dir, about, device)
        return cls(loaded.model, probe, list(about["class_names"]), about, Path(run_dir))

    def predict_proba(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> np.ndarray:
        """Probabilities in the order of `class_names`, shape (n, K), fp64; those of several labels do not sum to 1."""
        return self.probe.predict_proba(self.features(texts, batch_size, progress))

    def predict(self, texts: Sequence[str], batch_size: int = 128) -> list[str]:
        """Names of the most probable classes; with several labels a text, those given, joined by `,`."""
        return self.names_of(self.predict_proba(texts, batch_size))

    def names_of(self, probability: np.ndarray) -> list[str]:
        """The same for probabilities at hand."""
        if isinstance(self.probe, MultiLabelProbe):
            return [",".join(np.array(self.class_names)[row]) for row in probability >= self.probe.thresholds_]
        return [self.class_names[index] for index in probability.argmax(axis=1)]

    def features(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> np.ndarray:
        """Features as the probe was fitted on them, shape (n, H), float32."""
        options = self.about["features"]
        return featurize(self.model, texts, batch_size=batch_size, progress=progress, **options)


def load_probed(
    run_dir: Path, task: str | None = None, device: str = "cpu"
) -> tuple[LoadedModel, SentimentProbe, dict[str, Any]]:
    """The model of a folder, a probe fitted on it, and what `transfer.py` recorded about that.

    Raises:
        ValueError: As `Classifier.load`.
    """
    probe, about = SentimentProbe.load(_probe_path(run_dir, task))
    return _model_of_probe(run_dir, about, device), probe, about


def load_classifier(
    run_dir: Path | str, task: str | None = None, device: str = "cpu"
) -> Classifier | FinetunedClassifier:
    """What labels texts in a folder: a model with its probe, or a fine-tuned one; see their `load`.

    Raises:
        ValueError: As theirs, or a task named for a fine-tuned run, which has one only.
    """
    if not is_finetuned(run_dir):
        return Classifier.load(run_dir, task, device)
    if task is not None:
        raise ValueError(f"{run_dir} is a run of bigbatch finetune, which has one task: leave --task out")
    return FinetunedClassifier.load(run_dir, device)


def check_published(folder: Path) -> None:
    """Refuses what `bigbatch publish` has not written.

    Raises:
        ValueError: Saying how such a folder is made.
    """
    if not (folder / PUBLISHED).is_file():
        raise ValueError(
            f"--model {folder} is no folder of bigbatch publish (it has no {PUBLISHED}): `bigbatch publish --run-dir RUN --out "
            f"{folder}` makes one; a run folder is named with --run-dir"
        )


def find_run(root: Path | str = "runs") -> Path:
    """The run folder under `root` whose probe is the newest.

    Raises:
        ValueError: There is none; the message says which commands make one.
    """
    probes = [path for path in Path(root).glob("*/probe/*.json") if path.is_file()]
    if not probes:
        raise ValueError(f"nothing under {root}/ has been trained and transferred yet: {HOW_TO_TRAIN}")
    return max(probes, key=lambda path: (path.stat().st_mtime_ns, str(path))).parent.parent


def _probe_path(run_dir: Path, task: str | None, kinds: tuple[str, ...] = (PROBE_KIND,)) -> Path:
    """The file of the probe of a task, or of the newest one of these kinds; where there is none of them, the newest."""
    if not run_dir.is_dir():
        raise ValueError(f"there is no run folder {run_dir}: {HOW_TO_TRAIN}")
    found = sorted((run_dir / "probe").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not found:
        transfer = f"`bigbatch transfer --run-dir {run_dir} --train train.csv --val val.csv --test test.csv`"
        raise ValueError(f"{run_dir} has no probe yet: run {transfer} on labelled texts")
    if task is None:
        return next((path for path in reversed(found) if probe_kind(path) in kinds), found[-1])
    for path in found:
        if path.stem == task:
            return path
    raise ValueError(f"{run_dir} has no probe for task {task!r}; it has {', '.join(path.stem for path in found)}")


def _model_of_probe(run_dir: Path, about: dict[str, Any], device: str) -> LoadedModel:
    """The model that the probe was fitted on: the recorded checkpoint, or another with the same weights."""
    recorded = run_dir / about["checkpoint"]
    loaded = load_model(recorded if recorded.is_dir() else run_dir, device)
    if loaded.model_hash != about["model_hash"] and (run_dir / PUBLISHED).is_file():
        raise ValueError(
            f"the probe {about['task']!r} in {run_dir} belongs to another model than the one beside it: its files are of "
            "several folders; take the whole folder again from where it was published"
        )
    if loaded.model_hash != about["model_hash"]:
        raise ValueError(
            f"the probe {about['task']!r} in {run_dir} belongs to another checkpoint than {loaded.path.name} (training went "
            f"on?): run `bigbatch transfer --run-dir {run_dir} --task {about['task']} ...` again"
        )
    return loaded
