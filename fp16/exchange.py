"""Gradients between ranks in fewer bits: a DDP communication hook.

The masters' gradients are fp32; what travels is fp16 or bf16. Each rank divides by the number of ranks before the cast, so
that the sum of many large gradients does not overflow where their mean would not. An overflow on the wire becomes inf on
every rank and is found, agreed on and skipped like any other. torch has an fp16 hook; its bf16 hook refuses gloo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

EXCHANGE_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Exchange:
    """State of `exchange_hook`.

    Attributes:
        dtype: type on the wire.
        process_group: the ranks that exchange; all by default.
        measure: sum up the squared norm of this rank's gradients before they are averaged, for the gradient noise scale.
        local_square_sum: that sum since the last `take_square_sum`; a scalar fp32 tensor.
    """

    dtype: torch.dtype = torch.float32
    process_group: Any = None
    measure: bool = False
    local_square_sum: Tensor | None = None

    def take_square_sum(self) -> float:
        """The measured sum since the last call; 0 if nothing was measured."""
        value, self.local_square_sum = self.local_square_sum, None
        return 0.0 if value is None else float(value)


def exchange_hook(state, bucket):  # DDP compares annotations with its own classes, and these would be strings
    """Averages one bucket over the ranks in `state.dtype`; for `DistributedDataParallel.register_comm_hook`.

    Args:
        state: an `Exchange`.
        bucket: a `torch.distributed.GradBucket`.

    Returns:
        A future of the averaged bucket, in its own type.
    """
    buffer = bucket.buffer()
    if state.measure:
        square = torch.linalg.vector_norm(buffer).square()
        state.local_square_sum = square if state.local_square_sum is None else state.local_square_sum + square
    buffer.div_(dist.get_world_size(state.process_group))
    wire = buffer if state.dtype == buffer.dtype else buffer.to(state.dtype)
    work = dist.all_reduce(wire, group=state.process_group, async_op=True)
    assert work is not None

    def back(future: torch.futures.Future) -> Tensor:
        return buffer if wire is buffer else buffer.copy_(future.value()[0])

    return work.get_future().then(back)
