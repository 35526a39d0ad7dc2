"""What to say when memory runs out: which micro-batch would have fitted, found by trying."""

from __future__ import annotations

import traceback

import torch
from torch import nn

from ..data.streams import LaneStream
from .batch_size import BatchLayout
from .distributed import Ranks
from .tasks.char_lm import sequence_loss


def is_out_of_memory(error: RuntimeError) -> bool:
    """True for CUDA's exception and for the plain RuntimeError of torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def explain_out_of_memory(
    error: RuntimeError, model: nn.Module, stream: LaneStream, layout: BatchLayout, ranks: Ranks
) -> str:
    """One line with the largest smaller micro-batch whose forward and backward pass fits."""
    traceback.clear_frames(error.__traceback__)  # they hold the activations of the pass that did not fit
    micro = layout.micro_batch_size
    what = f"out of memory on {ranks.device} with micro-batch {micro} x {stream.seq_length} bytes"
    share = layout.global_batch_size // layout.data_parallel_size
    if hasattr(model, "unshard"):  # FSDP2: trying needs all ranks, and only this one is known to have failed
        return f"{what}: halve --batch.micro_batch_size, or use more ranks"
    module = getattr(model, "module", model) if ranks.world_size > 1 else model  # without DDP: no exchange while trying
    module.zero_grad(set_to_none=True)
    for smaller in sorted((m for m in range(1, micro) if share % m == 0), reverse=True):
        if _fits(module, stream, layout.lanes(ranks.rank)[:smaller], ranks):
            remedy = f"a micro-batch of {smaller} fits: run with --batch.micro_batch_size {smaller} (same result, more steps)"
            break
    else:
        remedy = "not even one lane fits: shorten --batch.seq_length or --model.hidden_size"
    return f"{what}: {remedy}"


def _fits(module: nn.Module, stream: LaneStream, lanes: range, ranks: Ranks) -> bool:
    try:
        tokens, reset, mask = (torch.from_numpy(array).to(ranks.device) for array in stream.read(lanes))
        sequence_loss(module, tokens, reset, mask, None).loss_sum.backward()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        module.zero_grad(set_to_none=True)
    return True
