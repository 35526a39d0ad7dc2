"""What GPT and BERT share as tasks: samples by their number, so that the position in the data is one number.

Sample i of a run follows from the seed and i alone: any ranks, micro-batches and ramps read the same samples in the same
order, and nothing is carried from step to step.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...models.build import build_model
from ...models.transformer_config import BERTConfig, GPTConfig
from ..batch_size import BatchLayout
from ..checkpoint import load_initial_weights, verify
from ..config import TrainConfig
from ..distributed import Ranks

log = logging.getLogger(__name__)


class PretrainingTask(ABC):
    """The part of a `Task` (see `base.py`) that does not depend on the objective.

    Args:
        config: the run.
        ranks: this process.
        tokenizer_hash: of the tokenizer behind the data; empty if it is not known.
    """

    higher_is_better, unit = False, "token"

    def __init__(self, config: TrainConfig, ranks: Ranks, tokenizer_hash: str) -> None:
        self.ranks, self.units_per_sample = ranks, config.batch.seq_length
        self._config, self._tokenizer_hash, self._samples = config, tokenizer_hash, 0

    def config_dict(self) -> dict[str, Any]:
        return {**self._config.to_dict(), "tokenizer_hash": self._tokenizer_hash}

    def build_model(self) -> nn.Module:
        model = self._config.model
        assert isinstance(model, GPTConfig | BERTConfig)
        return build_model(model)

    def initialise(self, model: nn.Module) -> None:
        """Loads the weights of `init_from`.

        Raises:
            ValueError: they were trained on the tokens of another tokenizer.
        """
        if not self._config.init_from:
            return
        path = load_initial_weights(model, Path(self._config.init_from))
        theirs = verify(path)["config"].get("tokenizer_hash", "")
        if theirs and self._tokenizer_hash and theirs != self._tokenizer_hash:
            raise ValueError(
                f"{path} was trained on the tokens of another tokenizer than the store's: use a store made with the model's "
                "own, or leave --init-from out"
            )
        log.info("weights from %s", path)

    def begin(self, layout: BatchLayout, position: dict[str, Any] | None, state: dict[str, Tensor] | None) -> None:
        self.layout, self._samples = layout, position["samples"] if position else 0

    def set_layout(self, layout: BatchLayout) -> None:
        self.layout = layout

    @property
    @abstractmethod
    def samples_per_epoch(self) -> int: ...

    @property
    def epoch(self) -> int:
        return self._samples // self.samples_per_epoch

    def advance(self) -> None:
        self._samples += self.layout.global_batch_size

    def position(self) -> dict[str, Any]:
        return {"samples": self._samples}

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def row_size(self) -> str:
        return f"{self._config.batch.seq_length} tokens"

    def _numbers(self, lanes: range) -> range:
        """Numbers of the samples that are some rows of the present global batch."""
        return range(self._samples + lanes.start, self._samples + lanes.stop)

    def _eval_rows(self) -> int:
        """Sequences scored at once: changes memory and speed, not the result."""
        return max(1, min(self._config.log.eval_lanes, self.layout.micro_batch_size))


def own_batches(count: int, rows: int, ranks: Ranks) -> Iterator[range]:
    """This rank's share of `count` sequences, `rows` at a time; ranks take turns.

    All ranks get equally many, empty ones at the end: under FSDP2 every forward pass needs them all.
    """
    starts = range(0, count, rows)
    for turn in range(0, len(starts), ranks.world_size):
        start = (turn + ranks.rank) * rows
        yield range(min(start, count), min(start + rows, count))
