"""GPT as a task: the next token of samples that `data/gpt_samples.py` cuts, and the rule of its validation.

The rule: the split's tokens, documents in shuffled order put end to end, are read in windows of `seq_length` targets that
do not overlap; a token is predicted from those before it in its window. All tokens but the first are targets. Bits per
byte are the bits per token over the bytes of a token, a mean over the whole store.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.gpt_samples import GPTSamples
from ...data.splits import Splits
from ...data.streams import ByteStream, OrderedStore
from ...data.token_store import TokenStore
from ..config import TrainConfig
from ..distributed import Ranks, sum_over_ranks
from ..metrics import bits_per_char
from ..vocabulary import bytes_per_token, tokenizer_hash
from .base import LossOutput
from .pretraining import PretrainingTask, own_batches


@dataclass(frozen=True)
class TokenScores:
    """Loss over a split.

    Attributes:
        loss: nats per token.
        num_targets: tokens scored.
        bytes_per_token: of the store; None where it is not known.
    """

    loss: float
    num_targets: int
    bytes_per_token: float | None

    def row(self) -> dict[str, Any]:
        return {"loss": self.loss, **token_columns(self.loss, self.bytes_per_token), "num_targets": self.num_targets}

    def to_dict(self) -> dict[str, Any]:
        return {**self.row(), "bytes_per_token": self.bytes_per_token}

    def __str__(self) -> str:
        columns = token_columns(self.loss, self.bytes_per_token)
        names = {"bpc": "bits per byte", "ppl": "perplexity"}
        return f"{', '.join(f'{value:.4f} {names[key]}' for key, value in columns.items())} over {self.num_targets:,} tokens"


def token_columns(loss: float, bytes_of_token: float | None) -> dict[str, float]:
    """What follows from nats per token: `bpc`, bits per byte, where bytes are known; `ppl` where tokens are no bytes."""
    columns = {} if bytes_of_token is None else {"bpc": bits_per_char(loss) / bytes_of_token}
    if bytes_of_token != 1.0:
        columns["ppl"] = math.exp(min(loss, 700.0))
    return columns


class GPTTask(PretrainingTask):
    """The next token, on one rank: a `Task` (see `base.py`).

    Args:
        config: the run.
        ranks: this process.
        store: the tokens.
        splits: which documents train and validate.

    Raises:
        ValueError: too few tokens for one batch, or for one target of validation.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks, store: TokenStore, splits: Splits) -> None:
        super().__init__(config, ranks, tokenizer_hash(store))
        batch = config.batch
        if splits.train.num_tokens <= batch.global_batch_size * batch.seq_length:
            raise ValueError(
                f"{splits.train.num_tokens:,} tokens to train on are too few for one batch of {batch.global_batch_size} x "
                f"{batch.seq_length}: lower --batch.global_batch_size or --batch.seq_length, or use more text"
            )
        if splits.val.num_tokens < 2:
            raise ValueError("the text to validate on has no two tokens: raise --data.val_fraction")
        self.samples = GPTSamples(store, splits.train.doc_ids, batch.seq_length, config.seed)
        self.val = OrderedStore(store, splits.val)
        self.bytes_per_token = bytes_per_token(store)
        self.metric = "loss" if self.bytes_per_token is None else "bpc"

    @property
    def samples_per_epoch(self) -> int:
        return self.samples.first_sample(1)

    def num_targets(self) -> int:
        return self.layout.global_batch_size * self._config.batch.seq_length

    def num_tokens(self) -> int:
        return self.num_targets()

    def loss(self, model: nn.Module, micro_step: int) -> LossOutput:
        lanes = self.layout.micro_lanes(self.ranks.rank, micro_step)
        return LossOutput(self._loss(model, lanes), len(lanes) * self._config.batch.seq_length)

    def trial_loss(self, model: nn.Module, rows: int) -> Tensor:
        return self._loss(model, self.layout.lanes(self.ranks.rank)[:rows])

    def settling_loss(self, model: nn.Module) -> Tensor:
        logits, _ = model(torch.zeros((1, 1), dtype=torch.int64, device=self.ranks.device))
        return logits[..., : self._config.model.vocab_size].float().sum()

    def loss_columns(self, loss: float) -> dict[str, float]:
        return token_columns(loss, self.bytes_per_token)

    def validate(self, model: nn.Module, limit: int, should_stop: Callable[[], bool]) -> TokenScores | None:
        most = math.ceil(limit / (self.bytes_per_token or 1.0))
        scored = score_tokens(
            model, self.val, self._config.batch.seq_length, self._eval_rows(), self.ranks, most, should_stop
        )
        return None if scored is None else TokenScores(scored[0] / scored[1], scored[1], self.bytes_per_token)

    def _loss(self, model: nn.Module, lanes: range) -> Tensor:
        tokens = torch.from_numpy(self.samples.batch(self._numbers(lanes))).to(self.ranks.device)
        return next_token_loss(model, tokens[:, :-1], tokens[:, 1:])


def next_token_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over the targets, nats, softmax in fp32 whatever the logits' dtype.

    Args:
        model: a GPT, or a policy around one.
        inputs: int64 (B, T).
        targets: int64 (B, T); -100 does not count.
    """
    logits, _ = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")


@torch.no_grad()
def score_tokens(
    model: nn.Module,
    source: ByteStream,
    seq_length: int,
    rows: int,
    ranks: Ranks,
    max_tokens: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[float, int] | None:
    """Loss sum over a stream and the tokens in it, by the rule above; None once `should_stop()` says so.

    Args:
        model: a GPT, or a policy around one.
        source: the tokens.
        seq_length: targets T of a window.
        rows: windows at once.
        ranks: this process among several; each scores a share, all get the whole result.
        max_tokens: stop after the window that reaches so many; 0: all.
        should_stop: asked between batches, by all ranks alike.
    """
    targets = source.num_tokens - 1
    if max_tokens:
        targets = min(targets, -(-max_tokens // seq_length) * seq_length)
    was_training = model.training
    model.eval()
    loss_sum = 0.0
    for windows in own_batches(-(-targets // seq_length), rows, ranks):
        if should_stop():
            model.train(was_training)
            return None
        arrays = _windows(source, windows or range(1), seq_length, targets)
        inputs, wanted = (torch.from_numpy(array).to(ranks.device) for array in arrays)
        loss = float(next_token_loss(model, inputs, wanted))
        loss_sum += loss if windows else 0.0
    model.train(was_training)
    return sum_over_ranks([loss_sum], ranks)[0], targets


def _windows(source: ByteStream, windows: range, seq_length: int, targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets (B, T) int64 of some windows; what is past the end is 0, and -100 as a target."""
    inputs = np.zeros((len(windows), seq_length), np.int64)
    wanted = np.full((len(windows), seq_length), -100, np.int64)
    for row, window in enumerate(windows):
        start = window * seq_length
        tokens = source.read(start, min(start + seq_length, targets) + 1)
        inputs[row, : len(tokens) - 1], wanted[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
    return inputs, wanted
