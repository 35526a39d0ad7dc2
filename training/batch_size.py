"""Global batch = micro batch x ranks x accumulation steps, checked before anything starts; and its ramp."""

from __future__ import annotations

from dataclasses import dataclass

from .config import BatchConfig

NO_RAMP = {"ramp_start": 0, "ramp_increment": 0, "ramp_samples": 0}


@dataclass(frozen=True)
class BatchLayout:
    """How the lanes of one global batch fall on ranks and accumulation steps.

    Attributes:
        global_batch_size: lanes per step.
        micro_batch_size: lanes per rank and backward pass.
        grad_accum_steps: backward passes per step.
        data_parallel_size: ranks.
    """

    global_batch_size: int
    micro_batch_size: int
    grad_accum_steps: int
    data_parallel_size: int

    def lanes(self, rank: int) -> range:
        """The contiguous lanes of one rank, in the order of the global batch."""
        share = self.global_batch_size // self.data_parallel_size
        return range(rank * share, (rank + 1) * share)

    def micro_lanes(self, rank: int, micro_step: int) -> range:
        start = self.lanes(rank).start + micro_step * self.micro_batch_size
        return range(start, start + self.micro_batch_size)


def batch_layout(config: BatchConfig, data_parallel_size: int) -> BatchLayout:
    """Resolves the micro batch and the number of accumulation steps.

    Raises:
        ValueError: if the global batch does not divide; the message names the nearest sizes that do.
    """
    batch, ranks = config.global_batch_size, data_parallel_size
    micro = config.micro_batch_size or batch // ranks
    unit = ranks * (config.micro_batch_size or 1)
    if micro == 0 or batch % unit:
        raise ValueError(
            f"--batch.global_batch_size {batch} does not divide over {_what(config, ranks)}: the nearest sizes that do are "
            f"{_nearest(batch, unit)}"
        )
    return BatchLayout(batch, micro, batch // (micro * ranks), ranks)


def _what(config: BatchConfig, ranks: int) -> str:
    micro = f" x micro batch {config.micro_batch_size}" if config.micro_batch_size else ""
    return f"{ranks} rank{'s' * (ranks > 1)}{micro}"


def _nearest(size: int, unit: int) -> str:
    return " and ".join(map(str, sorted({max(unit, size // unit * unit), (size // unit + 1) * unit})))


def batch_at(config: BatchConfig, samples: int) -> int:
    """The global batch of the step that begins after `samples` consumed samples.

    Grows from `ramp_start` by `ramp_increment` after each equal part of `ramp_samples`, exactly in integers.

    Source: Megatron-LM v2.6, megatron/microbatches.py (RampupBatchsizeNumMicroBatches), which computes in floats.
    """
    if not config.ramp_start or samples >= config.ramp_samples:
        return config.global_batch_size
    increments = (config.global_batch_size - config.ramp_start) // config.ramp_increment
    return config.ramp_start + samples * increments // config.ramp_samples * config.ramp_increment


def check_batch(config: BatchConfig, data_parallel_size: int) -> None:
    """Refuses a batch, or a ramp, of which some step does not divide over the ranks.

    Raises:
        ValueError: naming the nearest sizes that do.
    """
    batch_layout(config, data_parallel_size)
    unit = data_parallel_size * (config.micro_batch_size or 1)
    for name in ("ramp_start", "ramp_increment"):
        size = getattr(config, name)
        if size % unit:
            raise ValueError(
                f"--batch.{name} {size} does not divide over {_what(config, data_parallel_size)}: the nearest sizes that do are "
                f"{_nearest(size, unit)}"
            )
