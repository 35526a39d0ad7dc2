"""What an objective must tell the one loop: its model, its batches and their loss, its validation.

`char_lm.py` is the byte language model, `classify.py` fine-tuning. The engine owns everything else: precision, ranks,
optimizer, schedule, logs, checkpoints. A task counts in samples, the rows of a global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from ..batch_size import BatchLayout


class LossOutput(NamedTuple):
    """Loss of one micro-batch, summed (not averaged) over its targets.

    Attributes:
        loss_sum: scalar fp32, nats.
        num_targets: targets counted in it.
        state: what the task carries to the next window; None where there is nothing.
    """

    loss_sum: Tensor
    num_targets: float
    state: Any = None


class Validation(Protocol):
    """One validation: what `Task.validate` returns."""

    @property
    def loss(self) -> float:
        """Mean loss in nats."""
        ...

    @property
    def num_targets(self) -> int:
        """Targets that were scored."""
        ...

    def row(self) -> dict[str, Any]:
        """Its columns in metrics.jsonl, `loss` and `num_targets` among them."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """All of it, for result.json."""
        ...


class Task(Protocol):
    """One objective on one rank.

    Attributes:
        metric: the column of a validation by which checkpoints are compared.
        higher_is_better: of `metric`.
        unit: what the progress bar counts.
        units_per_sample: of these in a sample.
    """

    metric: str
    higher_is_better: bool
    unit: str
    units_per_sample: int

    @property
    def samples_per_epoch(self) -> int:
        """Samples of one pass over the training data; known once `begin` was called."""
        ...

    @property
    def epoch(self) -> int:
        """Passes completed."""
        ...

    def config_dict(self) -> dict[str, Any]:
        """What a checkpoint stores of the run, `model` with its `kind` included."""
        ...

    def build_model(self) -> nn.Module:
        """A new fp32 model, from torch's current seed."""
        ...

    def initialise(self, model: nn.Module) -> None:
        """Loads what a new run starts from, if anything; not called where a checkpoint is."""
        ...

    def begin(self, layout: BatchLayout, position: dict[str, Any] | None, state: dict[str, Tensor] | None) -> None:
        """Takes up the data at `position` with `state`, as `position()` and `state_tensors()` gave them; None: at the start.

        Raises:
            ValueError: the data does not suffice for one batch.
        """
        ...

    def set_layout(self, layout: BatchLayout) -> None:
        """Another global batch from here on."""
        ...

    def num_targets(self) -> float:
        """Targets of the whole global batch at this position, the divisor of its loss; known without reading."""
        ...

    def num_tokens(self) -> int:
        """Tokens of the whole global batch at this position."""
        ...

    def loss(self, model: nn.Module, micro_step: int) -> LossOutput:
        """Forward pass of one micro-batch of this rank."""
        ...

    def advance(self) -> None:
        """Moves to the next global batch, also where the step was skipped."""
        ...

    def position(self) -> dict[str, Any]:
        """Where the data stands, JSON-able and independent of the number of ranks."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """Carried state in global order, on rank 0 (a collective: every rank calls it); empty elsewhere."""
        ...

    def trial_loss(self, model: nn.Module, rows: int) -> Tensor:
        """A loss over the first `rows` rows of this rank's batch, carrying nothing: to try whether they fit in memory."""
        ...

    def settling_loss(self, model: nn.Module) -> Tensor:
        """A number that depends on every trained parameter, from the smallest input there is."""
        ...

    def row_size(self) -> str:
        """How large a row is, for messages: "256 bytes"."""
        ...

    def loss_columns(self, loss: float) -> dict[str, float]:
        """Columns of metrics.jsonl that follow from the mean training loss."""
        ...

    def validate(self, model: nn.Module, limit: int, should_stop: Callable[[], bool]) -> Validation | None:
        """Scores the validation data, all ranks together.

        Args:
            model: the model under its policy.
            limit: `log.eval_max_bytes`: stop after so many bytes; 0: all.
            should_stop: asked between batches, by all ranks alike; None is returned once it says so.
        """
        ...
