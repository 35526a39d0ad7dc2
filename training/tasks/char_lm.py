"""The byte language model as a task: what the loop must know about lanes, recurrent state and the loss.

A sample is one window of one lane. The state of this rank's lanes is carried from window to window, detached at the
edge and zeroed where a lane or shard starts; it advances also where an optimizer step is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data.streams import ByteStream, LaneStream, StreamPosition
from ...models.build import build_model
from ...models.config import ModelConfig
from ...models.recurrent import RecurrentState
from ..batch_size import BatchLayout
from ..checkpoint import load_initial_weights
from ..config import TrainConfig
from ..distributed import Ranks, gather_lanes
from ..evaluate import EvalResult, evaluate_until
from ..loss import sequence_loss
from ..metrics import bits_per_char
from .base import LossOutput

log = logging.getLogger(__name__)


class CharLMTask:
    """Char LM over the lanes of one rank: a `Task` (see `base.py`).

    Args:
        config: the run.
        ranks: this process.
        train: bytes to train on.
        val: bytes to validate on.

    Attributes:
        stream: the training lanes; there once `begin` was called.
    """

    metric, higher_is_better, unit = "bpc", False, "char"

    def __init__(self, config: TrainConfig, ranks: Ranks, train: ByteStream, val: ByteStream) -> None:
        self.ranks, self.train, self.val = ranks, train, val
        self.units_per_sample = config.batch.seq_length
        self._config, self._batch = config, config.batch
        self._state: RecurrentState | None = None
        self._next: list[RecurrentState] = []

    def config_dict(self) -> dict[str, Any]:
        return self._config.to_dict()

    def build_model(self) -> nn.Module:
        model = self._config.model
        assert isinstance(model, ModelConfig)
        return build_model(model)

    def initialise(self, model: nn.Module) -> None:
        if self._config.init_from:
            log.info("weights from %s", load_initial_weights(model, Path(self._config.init_from)))

    def begin(self, layout: BatchLayout, position: dict[str, Any] | None, state: dict[str, Tensor] | None) -> None:
        self.layout = layout
        config = self._config
        at = StreamPosition.from_json(position) if position else None
        self.stream = LaneStream(
            self.train, layout.global_batch_size, config.batch.seq_length, config.seed, config.data.reset, at
        )
        if state:
            lanes = layout.lanes(self.ranks.rank)
            pick = {k: v[:, lanes.start : lanes.stop].contiguous().to(self.ranks.device) for k, v in state.items()}
            self._state = RecurrentState(pick["hidden"], pick["cell"])
        self.stream.check_length(config.batch.global_batch_size)  # a ramp gets there later

    @property
    def epoch(self) -> int:
        return self.stream.position.epoch

    @property
    def samples_per_epoch(self) -> int:
        """At the full global batch, wherever in a ramp this one is."""
        lanes = self._batch.global_batch_size
        longest_lane = -(-self.stream.source.num_tokens // lanes)
        return -(-longest_lane // self._batch.seq_length) * lanes

    def set_layout(self, layout: BatchLayout) -> None:
        """Another global batch: the unread bytes are split into its lanes, which start with zero state."""
        self.layout, self._state = layout, None
        self.stream.set_num_lanes(layout.global_batch_size)

    def num_targets(self) -> int:
        return self.stream.num_targets()

    def num_tokens(self) -> int:
        return self.stream.num_targets()

    def position(self) -> dict[str, Any]:
        return self.stream.position.to_json()

    def loss(self, model: nn.Module, micro_step: int) -> LossOutput:
        """Forward pass of one micro-batch; its final state is kept for the next window."""
        lanes = self.layout.micro_lanes(self.ranks.rank, micro_step)
        tokens, reset, mask = self._read(lanes)
        state = None
        if self._state is not None:
            offset = lanes.start - self.layout.lanes(self.ranks.rank).start
            rows = slice(offset, offset + len(lanes))
            state = RecurrentState(self._state.hidden[:, rows].contiguous(), self._state.cell[:, rows].contiguous())
        output = sequence_loss(model, tokens, reset, mask, state)
        self._next.append(output.state.detach())
        return output

    def advance(self) -> None:
        """Position and state together."""
        hidden, cell = zip(*self._next)
        self._state = _without_bad_lanes(RecurrentState(torch.cat(hidden, dim=1), torch.cat(cell, dim=1)))
        self._next = []
        self.stream.advance()

    def state_tensors(self) -> dict[str, Tensor]:
        if self._state is None:
            return {}
        joined = {name: gather_lanes(getattr(self._state, name), self.ranks) for name in ("hidden", "cell")}
        return {name: tensor for name, tensor in joined.items() if tensor is not None}

    def _read(self, lanes: range) -> tuple[Tensor, Tensor, Tensor]:
        tokens, reset, mask = (torch.from_numpy(array).to(self.ranks.device) for array in self.stream.read(lanes))
        return tokens, reset, mask

    def trial_loss(self, model: nn.Module, rows: int) -> Tensor:
        lanes = self.layout.lanes(self.ranks.rank)[:rows]
        return sequence_loss(model, *self._read(lanes), None).loss_sum

    def settling_loss(self, model: nn.Module) -> Tensor:
        logits, _ = model(torch.zeros((1, 1), dtype=torch.uint8, device=self.ranks.device))
        return logits.float().sum()

    def row_size(self) -> str:
        return f"{self.stream.seq_length} bytes"

    def loss_columns(self, loss: float) -> dict[str, float]:
        return {"bpc": bits_per_char(loss)}

    def validate(self, model: nn.Module, limit: int, should_stop: Callable[[], bool]) -> EvalResult | None:
        lanes, window = self._config.log.eval_lanes, self._batch.seq_length
        return evaluate_until(should_stop, model, self.val, lanes, window, self.ranks, limit)


def _without_bad_lanes(state: RecurrentState) -> RecurrentState:
    """The state with zeros for lanes that hold an inf or NaN: carried on, it would spoil every step until the next reset."""
    bad = ~(state.hidden.isfinite().all(-1) & state.cell.isfinite().all(-1)).all(0)
    if not bad.any():
        return state
    log.warning("the recurrent state of %d lane(s) was not finite: they start again from zero", int(bad.sum()))
    rows = bad[None, :, None]
    return RecurrentState(state.hidden.masked_fill(rows, 0), state.cell.masked_fill(rows, 0))
