"""The byte language model as a task: what the loop must know about lanes, recurrent state and the loss.

A sample is one window of one lane. The state of this rank's lanes is carried from window to window, detached at the
edge and zeroed where a lane or shard starts; it advances also where an optimizer step is skipped.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.streams import LaneStream, OrderedStore, StreamPosition
from ...models.recurrent import RecurrentState
from ..batch_size import BatchLayout
from ..config import TrainConfig
from ..distributed import Ranks, gather_lanes

log = logging.getLogger(__name__)


class LossOutput(NamedTuple):
    """Loss of one micro-batch, summed (not averaged) over its targets.

    Attributes:
        loss_sum: scalar fp32, nats.
        num_targets: targets counted in it.
        state: recurrent state after the window, (L, b, H).
    """

    loss_sum: Tensor
    num_targets: int
    state: RecurrentState


def sequence_loss(
    model: nn.Module, tokens: Tensor, reset: Tensor, mask: Tensor, state: RecurrentState | None
) -> LossOutput:
    """Cross-entropy of the next byte, softmax in fp32 whatever the logits' dtype.

    Args:
        model: called as `model(inputs, state, reset)`.
        tokens: (b, T+1) uint8; inputs and targets overlap.
        reset: (b, T) bool.
        mask: (b, T) bool; targets where False do not count.
        state: state before the window.
    """
    logits, after = model(tokens[:, :-1], state, reset)
    # Time-major, as the model computes: a reshape of the (b, T, V) view would copy all logits.
    targets = tokens[:, 1:].long().masked_fill(~mask, -100).t()
    loss = F.cross_entropy(
        logits.transpose(0, 1).flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return LossOutput(loss, int(mask.sum()), after)


class CharLMTask:
    """Char LM over the lanes of one rank.

    Args:
        config: the run.
        layout: how lanes fall on ranks and accumulation steps.
        ranks: this process.
        source: the training bytes.
        position: where to go on; None at the start.
        state: recurrent state of all lanes in global order, as `state_tensors` returned it; None at the start.
    """

    def __init__(
        self,
        config: TrainConfig,
        layout: BatchLayout,
        ranks: Ranks,
        source: OrderedStore,
        position: StreamPosition | None = None,
        state: dict[str, Tensor] | None = None,
    ) -> None:
        self.layout, self.ranks = layout, ranks
        self.stream = LaneStream(
            source, layout.global_batch_size, config.batch.seq_length, config.seed, config.data.reset, position
        )
        self._state: RecurrentState | None = None
        if state:
            lanes = layout.lanes(ranks.rank)
            pick = {k: v[:, lanes.start : lanes.stop].contiguous().to(ranks.device) for k, v in state.items()}
            self._state = RecurrentState(pick["hidden"], pick["cell"])
        self._next: list[RecurrentState] = []
        self._batch = config.batch

    @property
    def samples_per_epoch(self) -> int:
        """Samples of one epoch at the full global batch, wherever in a ramp this one is."""
        lanes = self._batch.global_batch_size
        longest_lane = -(-self.stream.source.num_tokens // lanes)
        return -(-longest_lane // self._batch.seq_length) * lanes

    def set_layout(self, layout: BatchLayout) -> None:
        """Another global batch: the unread bytes are split into its lanes, which start with zero state."""
        self.layout, self._state = layout, None
        self.stream.set_num_lanes(layout.global_batch_size)

    def num_targets(self) -> int:
        """Targets of the whole global batch at this position, the divisor of its loss; known without reading."""
        return self.stream.num_targets()

    def loss(self, model: nn.Module, micro_step: int) -> LossOutput:
        """Forward pass of one micro-batch; its final state is kept for the next window."""
        lanes = self.layout.micro_lanes(self.ranks.rank, micro_step)
        window = self.stream.read(lanes)
        tokens, reset, mask = (torch.from_numpy(array).to(self.ranks.device) for array in window)
        state = None
        if self._state is not None:
            offset = lanes.start - self.layout.lanes(self.ranks.rank).start
            rows = slice(offset, offset + len(lanes))
            state = RecurrentState(self._state.hidden[:, rows].contiguous(), self._state.cell[:, rows].contiguous())
        output = sequence_loss(model, tokens, reset, mask, state)
        self._next.append(output.state.detach())
        return output

    def advance(self) -> None:
        """Moves to the next window: position and state together, once per step."""
        hidden, cell = zip(*self._next)
        self._state = _without_bad_lanes(RecurrentState(torch.cat(hidden, dim=1), torch.cat(cell, dim=1)))
        self._next = []
        self.stream.advance()

    def state_tensors(self) -> dict[str, Tensor]:
        """State of all lanes in global order, on rank 0 (a collective: every rank calls it); empty elsewhere."""
        if self._state is None:
            return {}
        joined = {name: gather_lanes(getattr(self._state, name), self.ranks) for name in ("hidden", "cell")}
        return {name: tensor for name, tensor in joined.items() if tensor is not None}


def _without_bad_lanes(state: RecurrentState) -> RecurrentState:
    """The state with zeros for lanes that hold an inf or NaN: carried on, it would spoil every step until the next reset."""
    bad = ~(state.hidden.isfinite().all(-1) & state.cell.isfinite().all(-1)).all(0)
    if not bad.any():
        return state
    log.warning("the recurrent state of %d lane(s) was not finite: they start again from zero", int(bad.sum()))
    rows = bad[None, :, None]
    return RecurrentState(state.hidden.masked_fill(rows, 0), state.cell.masked_fill(rows, 0))
