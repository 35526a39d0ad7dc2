"""Fine-tuning as a task: texts with labels through a `TextClassifier`. A sample is one text.

Text number i of a run is text perm(i mod n) of epoch i div n, with a permutation for each epoch drawn from the seed, so the
position is one number and any ranks read the same texts in the same order. What is scored beyond loss, accuracy and F1 is
left to `sentiment/finetuned.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...models.classifier import TextClassifier
from ...models.config import ClassifierConfig
from ..batch_size import BatchLayout
from ..checkpoint import load_initial_weights
from ..distributed import Ranks, sum_over_ranks
from ..finetune_config import FinetuneConfig
from .base import LossOutput

# Texts scored at once in a validation; they are sorted by length, so little of a batch is padding.
EVAL_ROWS = 32


@dataclass(frozen=True)
class TextSet:
    """Cleaned texts and their labels.

    Attributes:
        texts: bytes of each text, at least one.
        labels: class of each text, int64 (n,), or 0 and 1 for each of K labels, int64 (n, K).
    """

    texts: list[bytes]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Scores:
    """One validation of a classifier.

    Attributes:
        loss: nats per text, unweighted, without the language model's part.
        accuracy: share of texts (of labels, where a text may have several) that are predicted right.
        f1: macro average over classes; 0 for a class that neither occurs nor is predicted.
        num_targets: texts scored.
    """

    loss: float
    accuracy: float
    f1: float
    num_targets: int

    def row(self) -> dict[str, Any]:
        return asdict(self)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.4f}, macro F1 {self.f1:.4f} over {self.num_targets:,} texts"


class ClassifyTask:
    """Classification on one rank: a `Task` (see `base.py`).

    Args:
        config: the run.
        model_config: of the classifier.
        ranks: this process.
        train: texts to train on.
        val: texts to validate on.
    """

    unit, units_per_sample = "text", 1

    def __init__(
        self, config: FinetuneConfig, model_config: ClassifierConfig, ranks: Ranks, train: TextSet, val: TextSet
    ) -> None:
        self.ranks, self.train, self.val, self.model_config = ranks, train, val, model_config
        self.metric = config.task.metric
        self.higher_is_better = self.metric != "loss"
        self._config, self._task = config, config.task
        self._class_weights = class_weights(train.labels, len(model_config.classes), self._task.class_weights)
        self._samples, self._orders = 0, dict[int, np.ndarray]()

    def config_dict(self) -> dict[str, Any]:
        return {**self._config.to_dict(), "model": asdict(self.model_config)}

    def build_model(self) -> nn.Module:
        model = TextClassifier(self.model_config)
        if not self._task.lm_weight:  # nothing would reach it, and DDP waits for every gradient
            model.encoder.output.requires_grad_(False)
        return model

    def initialise(self, model: nn.Module) -> None:
        assert isinstance(model, TextClassifier)
        load_initial_weights(model.encoder, Path(self._config.encoder))

    def begin(self, layout: BatchLayout, position: dict[str, Any] | None, state: dict[str, Tensor] | None) -> None:
        self.layout, self._samples = layout, position["samples"] if position else 0

    def set_layout(self, layout: BatchLayout) -> None:
        self.layout = layout

    @property
    def samples_per_epoch(self) -> int:
        return len(self.train)

    @property
    def epoch(self) -> int:
        return self._samples // len(self.train)

    def position(self) -> dict[str, Any]:
        return {"samples": self._samples}

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def advance(self) -> None:
        self._samples += self.layout.global_batch_size

    def num_targets(self) -> float:
        """Sum of the weights of the batch's texts."""
        return float(self._weights(self._rows(range(self.layout.global_batch_size))).sum())

    def num_tokens(self) -> int:
        return sum(len(self._text(row)) for row in self._rows(range(self.layout.global_batch_size)))

    def loss(self, model: nn.Module, micro_step: int) -> LossOutput:
        rows = self._rows(self.layout.micro_lanes(self.ranks.rank, micro_step))
        return LossOutput(self._loss(model, rows), float(self._weights(rows).sum()))

    def trial_loss(self, model: nn.Module, rows: int) -> Tensor:
        return self._loss(model, self._rows(self.layout.lanes(self.ranks.rank)[:rows]))

    def settling_loss(self, model: nn.Module) -> Tensor:
        tokens = torch.zeros((1, 1), dtype=torch.uint8, device=self.ranks.device)
        lengths = torch.ones(1, dtype=torch.int64, device=self.ranks.device)
        scores, logits = model(tokens, lengths, None, bool(self._task.lm_weight))
        return scores.sum() if logits is None else scores.sum() + logits.float().sum()

    def row_size(self) -> str:
        return f"up to {max(map(len, self.train.texts)):,} bytes"

    def loss_columns(self, loss: float) -> dict[str, float]:
        return {}

    def validate(self, model: nn.Module, limit: int, should_stop: Callable[[], bool]) -> Scores | None:
        """Scores every text whole; `limit` is for language models."""
        scored = score_texts(model, self.val, self.ranks, should_stop)
        if scored is None:
            return None
        own, scores = scored
        labels, classes = self.val.labels[own], len(self.model_config.classes)
        loss = float(classification_loss(torch.from_numpy(scores)[:, None], torch.from_numpy(labels), None).sum())
        counts = confusion(predict(scores, labels.ndim == 2), labels, classes)
        sums = sum_over_ranks([loss, *counts.ravel().tolist()], self.ranks)
        hits, false_positives, misses = np.array(sums[1:]).reshape(3, classes)
        n = len(self.val)
        f1 = 2 * hits / np.maximum(2 * hits + false_positives + misses, 1)
        right = hits.sum() if labels.ndim == 1 else n * classes - false_positives.sum() - misses.sum()
        accuracy = float(right) / (n if labels.ndim == 1 else n * classes)
        return Scores(sums[0] / n, accuracy, float(f1.mean()), n)

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            generator = np.random.Generator(np.random.PCG64([self._config.seed, epoch]))
            self._orders = {e: order for e, order in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = np.argsort(generator.random(len(self.train)), kind="stable")
        return self._orders[epoch]

    def _rows(self, lanes: range) -> np.ndarray:
        """Texts of some rows of the present global batch."""
        at = self._samples + np.asarray(lanes, dtype=np.int64)
        n = len(self.train)
        return np.array([self._order(int(i // n))[i % n] for i in at], dtype=np.int64)

    def _text(self, row: int) -> bytes:
        return self.train.texts[row][-self._task.max_bytes :]  # 0 keeps all

    def _weights(self, rows: np.ndarray) -> np.ndarray:
        """Weight of each text, fp64."""
        weights = self._class_weights
        if weights is None or self.train.labels.ndim == 2:
            return np.ones(len(rows))
        return weights[self.train.labels[rows]]

    def _loss(self, model: nn.Module, rows: np.ndarray) -> Tensor:
        device, task = self.ranks.device, self._task
        tokens, lengths = pad([self._text(row) for row in rows], device)
        labels = torch.from_numpy(self.train.labels[rows]).to(device)
        weights = None if self._class_weights is None else torch.from_numpy(self._class_weights).float().to(device)
        scores, logits = model(tokens, lengths, None, bool(task.lm_weight))
        loss = classification_loss(scores, labels, weights).sum()
        share = float(self._weights(rows).sum())
        if task.lm_weight and logits is not None:
            # A mean over this batch's bytes; each text's share of it is its share of the divisor.
            loss = loss + task.lm_weight * share * _byte_loss(logits, tokens, lengths)
        if task.head_similarity_weight:
            classifier = _unwrapped(model)
            loss = loss + task.head_similarity_weight * share * classifier.head_similarity()
        return loss


def pad(texts: list[bytes], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) uint8, padded with zeros at the end, and lengths (B,) int64."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.zeros((len(texts), int(lengths.max())), dtype=np.uint8)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = np.frombuffer(text, dtype=np.uint8)
    return torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device)


def class_weights(labels: np.ndarray, classes: int, rule: str) -> np.ndarray | None:
    """Weights (K,) fp64 that make classes count alike; with several labels a text, of each label's positive rows.

    Balanced is n / (K n_k), whose mean over the rows is 1; for a label of several, the odds against it.
    """
    if rule == "none":
        return None
    if labels.ndim == 2:
        positive = np.maximum(labels.sum(axis=0), 1)
        return np.maximum(len(labels) - positive, 1) / positive
    counts = np.bincount(labels, minlength=classes)
    return len(labels) / (classes * np.maximum(counts, 1))


def classification_loss(scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Loss of each text, the mean over heads: cross-entropy, or the mean binary cross-entropy of the labels.

    Args:
        scores: (B, heads, K) fp32.
        labels: int64 (B,) or (B, K).
        weights: (K,), of the classes or of the labels' positive rows; None for 1.

    Returns:
        (B,) fp32, nats.
    """
    heads = scores.shape[1]
    if labels.dim() == 1:
        targets = labels[:, None].expand(-1, heads).reshape(-1)
        loss = F.cross_entropy(scores.flatten(0, 1), targets, weight=weights, reduction="none")
        return loss.view(-1, heads).mean(dim=1)
    targets = labels[:, None].expand_as(scores).float()
    return F.binary_cross_entropy_with_logits(scores, targets, pos_weight=weights, reduction="none").mean(dim=(1, 2))


@torch.no_grad()
def score_texts(
    model: nn.Module, texts: TextSet, ranks: Ranks, should_stop: Callable[[], bool]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Scores of this rank's share of the texts, averaged over heads; None once `should_stop()` says so.

    Returns:
        Numbers of the texts, and scores fp32 (their number, K).
    """
    order = np.argsort([-len(text) for text in texts.texts], kind="stable")
    batches = [order[start : start + EVAL_ROWS] for start in range(0, len(order), EVAL_ROWS)]
    was_training = model.training
    model.eval()
    own, scores = [], []
    for first in range(0, len(batches), ranks.world_size):
        if should_stop():
            model.train(was_training)
            return None
        # Every rank makes every pass, since FSDP2 gathers parameters in it; one without a batch left repeats the last.
        at = first + ranks.rank
        rows = batches[min(at, len(batches) - 1)]
        values, _ = model(*pad([texts.texts[row] for row in rows], ranks.device))
        if at < len(batches):
            own.append(rows)
            scores.append(values.mean(dim=1).cpu().numpy())
    model.train(was_training)
    classes = _unwrapped(model).config.classes
    if not own:
        return np.empty(0, np.int64), np.empty((0, len(classes)), np.float32)
    return np.concatenate(own), np.concatenate(scores)


def predict(scores: np.ndarray, multi_label: bool) -> np.ndarray:
    """Classes (n,) of the highest score, or 0 and 1 (n, K): a label is given where its probability is above a half."""
    return (scores > 0).astype(np.int64) if multi_label else scores.argmax(axis=1)


def confusion(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """True positives, false positives and false negatives of each class: int64 (3, K)."""
    if labels.ndim == 1:
        predicted, labels = np.eye(classes, dtype=np.int64)[predicted], np.eye(classes, dtype=np.int64)[labels]
    hits = predicted * labels
    return np.stack([part.sum(axis=0) for part in (hits, predicted - hits, labels - hits)])


def _byte_loss(logits: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Mean cross-entropy of the next byte over the texts' bytes but the first, nats, scalar fp32."""
    positions = torch.arange(1, tokens.shape[1], device=tokens.device)
    targets = tokens[:, 1:].long().masked_fill(positions >= lengths[:, None], -100)
    loss = F.cross_entropy(logits[:, :-1].transpose(0, 1).flatten(0, 1).float(), targets.t().flatten(), reduction="sum")
    return loss / max(1, int((lengths - 1).sum()))


def _unwrapped(model: nn.Module) -> TextClassifier:
    """The classifier inside DDP and the precision policy."""
    while not isinstance(model, TextClassifier):
        model = model.module  # pyright: ignore[reportAssignmentType]
    return model
