"""A fine-tuned classifier in use: labels and probabilities for new texts, and its scores on test data.

Training is `training/tasks/classify.py`. Texts are read as for the probes, whole and with memory that does not grow with
their length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from ..data.labelled import LabelledData
from ..evaluation.scores import classification_scores, multilabel_scores
from ..evaluation.statistics import accuracy_interval, paired_difference
from ..models.classifier import TextClassifier
from ..models.config import ClassifierConfig
from ..training.checkpoint import checkpoint_dirs, find_checkpoint, load_weights, verify
from ..training.distributed import resolve_device
from ..training.finetune import load_parts, load_test
from ..training.finetune_config import finetune_from_dict
from ..training.metrics import read_result, update_result
from ..training.run import read_config
from .baselines import TfidfBaseline, majority_class
from .calibration import sigmoid
from .featurize import featurize
from .probe_file import write_atomic, write_json
from .results import SCHEMA_VERSION, describe, table_csv
from .thresholds import search_thresholds

RESULT = "results/finetune.json"


@dataclass(frozen=True)
class FinetunedClassifier:
    """A fine-tuned model; to its user what `Classifier` is with a probe.

    Attributes:
        model: In eval mode.
        class_names: Name of each class or label.
        thresholds: Of a multi-label model: a label is given where its probability reaches its own; None otherwise.
        about: Its task's name, checkpoint and samples.
        run_dir: Where it came from.
    """

    model: TextClassifier
    class_names: list[str]
    thresholds: np.ndarray | None
    about: dict[str, Any]
    run_dir: Path

    @classmethod
    def load(cls, run_dir: Path | str, device: str = "cpu") -> FinetunedClassifier:
        """Loads the best checkpoint of `bigbatch finetune`.

        Raises:
            ValueError: No checkpoint, a damaged one, or one of another kind of run.
        """
        run_dir = Path(run_dir)
        directory = find_checkpoint(run_dir)
        manifest = verify(directory)
        stored = dict(manifest["config"]["model"])
        if stored.get("kind") != "classifier":
            raise ValueError(
                f"{run_dir} holds a language model, no fine-tuned classifier: run `bigbatch finetune` first"
            )
        config = ClassifierConfig(**stored)
        with torch.device("meta"):
            model = TextClassifier(config)
        tensors = {name: tensor.clone() for name, tensor in load_file(directory / "model.safetensors").items()}
        load_weights(model, tensors, str(directory), assign=True)
        result = run_dir / RESULT
        found = json.loads(result.read_text(encoding="utf-8")).get("thresholds") if result.is_file() else None
        thresholds = np.array(found or [0.5] * len(config.classes)) if config.multi_label else None
        about = {"task": "finetune", "checkpoint": directory.name, "samples": manifest["samples"]}
        return cls(model.to(device).eval(), list(config.classes), thresholds, about, run_dir)

    @torch.no_grad()
    def scores(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> np.ndarray:
        """Scores before softmax or sigmoid, averaged over heads, shape (n, K), fp32."""
        head = self.model.config.head
        features = featurize(self.model.encoder, texts, state=head.state, batch_size=batch_size, progress=progress)
        device = next(self.model.parameters()).device
        return self.model.score_features(torch.from_numpy(features).to(device)).mean(dim=1).cpu().numpy()

    def predict_proba(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> np.ndarray:
        """Probabilities in the order of `class_names`, shape (n, K), fp64; of labels each by itself, not normalised."""
        return self._probabilities(self.scores(texts, batch_size, progress))

    def predict(self, texts: Sequence[str], batch_size: int = 128) -> list[str]:
        """Names of the most probable classes; of a multi-label model the labels that are given, joined by `,`."""
        return self.names_of(self.predict_proba(texts, batch_size))

    def names_of(self, probability: np.ndarray) -> list[str]:
        """The same for probabilities at hand."""
        if self.thresholds is None:
            return [self.class_names[index] for index in probability.argmax(axis=1)]
        return [",".join(np.array(self.class_names)[row]) for row in probability >= self.thresholds]

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        scores = scores.astype(np.float64)
        if self.thresholds is not None:
            return sigmoid(scores)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)


def is_finetuned(run_dir: Path | str) -> bool:
    """Whether a folder is a run of `bigbatch finetune`."""
    run_dir = Path(run_dir)
    return bool(checkpoint_dirs(run_dir)) and (run_dir / "config.yaml").is_file() and "encoder" in read_config(run_dir)


def score_run(run_dir: Path, progress: bool = True) -> str:
    """Scores a finished run on its test files; writes results/finetune.json and .predictions.csv, and returns a table.

    Thresholds of several labels are found on the validation texts. Beside one label a text stand the majority class and
    TF-IDF with logistic regression on the same texts.

    Raises:
        ValueError: bad input, or a run that has no test files.
    """
    config = finetune_from_dict(read_config(run_dir))
    if not config.task.test:
        raise ValueError(f"{run_dir} was given no test files: run the same command again with --task.test test.csv")
    classifier = FinetunedClassifier.load(run_dir, str(resolve_device(config.device)))
    train, val = load_parts(config.task, config.seed)
    test = load_test(config.task, train)
    thresholds = None
    if classifier.thresholds is not None:
        assert val.labels is not None
        thresholds, _ = search_thresholds(classifier.predict_proba(val.texts, progress=progress), val.labels)
        classifier = FinetunedClassifier(
            classifier.model, classifier.class_names, thresholds, classifier.about, run_dir
        )
    probability = classifier.predict_proba(test.texts, progress=progress)
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "kind": "finetune", "checkpoint": classifier.about["checkpoint"],
        "samples": classifier.about["samples"], "classes": classifier.class_names,
        "thresholds": None if thresholds is None else thresholds.tolist(),
        "data": {name: describe(part) for name, part in (("train", train), ("val", val), ("test", test))},
    }  # fmt: skip
    if test.labels is not None:
        result |= _scored(classifier, probability, train, val, test)
    (run_dir / RESULT).parent.mkdir(exist_ok=True)
    write_atomic((run_dir / RESULT).with_suffix(".predictions.csv"), _predictions(classifier, test, probability))
    write_json(run_dir / RESULT, result)
    update_result(run_dir, {"finetune": {k: v for k, v in result.items() if k not in ("data", "scores")}})
    best = read_result(run_dir).get("train", {}).get(f"best_{config.task.metric}")
    chosen = "" if best is None else f", the best on validation ({config.task.metric} {best:.4f})"
    return f"scored: {classifier.about['checkpoint']}{chosen}\n{_table(result, len(test))}"


def _scored(
    classifier: FinetunedClassifier, probability: np.ndarray, train: LabelledData, val: LabelledData, test: LabelledData
) -> dict[str, Any]:
    assert train.labels is not None and val.labels is not None and test.labels is not None
    truth = test.labels
    if classifier.thresholds is not None:
        predicted = (probability >= classifier.thresholds).astype(np.int64)
        scores = multilabel_scores(truth, predicted, classifier.class_names, probability)
        return {"scores": scores, "f1_macro": scores["f1_macro"], "f1_micro": scores["f1_micro"]}
    predicted = probability.argmax(axis=1)
    majority = majority_class(train.labels)
    tfidf = TfidfBaseline.fit(train.texts, train.labels, val.texts, val.labels)
    by_tfidf = tfidf.predict(test.texts)
    return {
        "scores": classification_scores(truth, predicted, classifier.class_names, probability),
        "classifier": accuracy_interval(predicted, truth).to_dict(),
        "baseline_majority": accuracy_interval(np.full_like(truth, majority), truth).to_dict(),
        "baseline_tfidf": {"C": tfidf.C, **accuracy_interval(by_tfidf, truth).to_dict()},
        "classifier_minus_tfidf": paired_difference(predicted, by_tfidf, truth).to_dict(),
    }


def _predictions(classifier: FinetunedClassifier, test: LabelledData, probability: np.ndarray) -> bytes:
    """One line for each test text: its number from 0, its row in its file, label if there is one, prediction, probabilities."""
    names = classifier.names_of(probability)
    header = ["index", "row", "label", "predicted", *(f"probability_{name}" for name in classifier.class_names)]

    def label(row: int) -> str:
        if test.labels is None:
            return ""
        value = test.labels[row]
        if test.labels.ndim == 1:
            return classifier.class_names[value]
        return ",".join(np.array(classifier.class_names)[value == 1])

    rows = ([row, test.rows[row], label(row), names[row], *probability[row]] for row in range(len(test)))
    return table_csv(header, rows)


def _table(result: dict[str, Any], n: int) -> str:
    if "scores" not in result:
        return f"{n:,} test texts have no labels: predictions only, in results/finetune.predictions.csv"
    rows = {
        "fine-tuned, accuracy": result.get("classifier"),
        "TF-IDF + logistic regression": result.get("baseline_tfidf"),
        "majority class": result.get("baseline_majority"),
        "fine-tuned minus TF-IDF": result.get("classifier_minus_tfidf"),
        "fine-tuned, macro F1": result["scores"]["f1_macro"],
        "fine-tuned, micro F1": result["scores"]["f1_micro"] if result["thresholds"] else None,
    }
    lines = []
    for name, row in rows.items():
        if row:
            value = next(row[key] for key in ("accuracy", "value", "difference") if key in row)
            sign = "+" if "minus" in name else " "
            numbers = [format(number, f"{sign}.4f") for number in (value, row["low"], row["high"])]
            lines.append(f"{name:30} {numbers[0]}  [{numbers[1]}, {numbers[2]}]  n = {row['n']:,}")
    return "\n".join(lines)
