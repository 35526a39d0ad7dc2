"""Global batch = micro batch x ranks x accumulation steps, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from .config import BatchConfig


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
        near = sorted({max(unit, batch // unit * unit), (batch // unit + 1) * unit})
        what = f"{ranks} rank{'s' * (ranks > 1)}" + (f" x micro batch {micro}" if config.micro_batch_size else "")
        raise ValueError(
            f"--batch.global_batch_size {batch} does not divide over {what}: the nearest sizes that do are "
            f"{' and '.join(map(str, near))}"
        )
    return BatchLayout(batch, micro, batch // (micro * ranks), ranks)
