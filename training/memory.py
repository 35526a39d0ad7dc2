"""Memory: what cannot fit is refused before anything starts; what turns out not to fit is told the micro-batch that would."""

from __future__ import annotations

import os
import traceback

import torch
from torch import nn

from ..models import flops, transformer_flops
from ..models.transformer_config import BERTConfig, GPTConfig
from .batch_size import BatchLayout
from .config import TrainConfig
from .distributed import Ranks
from .tasks.base import Task


def check_memory(config: TrainConfig, world_size: int) -> None:
    """Refuses a model whose weights, gradients and optimizer state alone are larger than the memory they go to.

    Args:
        config: the run; the ranks of one machine share its memory on the CPU.
        world_size: ranks over which FSDP2 spreads the model.

    Raises:
        ValueError: naming the sizes.
    """
    moments = {"sgd": 1, "lars": 1}.get(config.optim.kind, 2)
    shards = world_size if config.parallel.strategy == "fsdp" else 1
    model = config.model
    if isinstance(model, GPTConfig | BERTConfig):
        held = transformer_flops.training_bytes(model, config.precision, moments, shards)
        parameters = transformer_flops.parameters(model)
    else:
        held = flops.training_bytes(model, 0, config.precision, moments, shards)
        parameters = flops.parameters(model)
    needed = held["weights"] + held["gradients"] + held["optimizer"]
    if torch.cuda.is_available() and config.device.startswith(("cuda", "auto")):
        there, where = torch.cuda.get_device_properties(0).total_memory, "its device has"
    elif config.device in ("cpu", "auto"):
        there, where = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine has"
        needed *= config.nproc
    else:
        return
    if needed > there:
        raise ValueError(
            f"the model has {parameters:,} parameters: with gradients and optimizer state that is "
            f"{needed / 2**30:,.1f} GiB, and {where} {there / 2**30:,.1f}: lower --model.hidden_size or --model.num_layers"
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """True for CUDA's exception and for the plain RuntimeError of torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def explain_out_of_memory(error: RuntimeError, model: nn.Module, task: Task, layout: BatchLayout, ranks: Ranks) -> str:
    """One line with the largest smaller micro-batch whose forward and backward pass fits."""
    traceback.clear_frames(error.__traceback__)  # they hold the activations of the pass that did not fit
    micro = layout.micro_batch_size
    what = f"out of memory on {ranks.device} with micro-batch {micro} x {task.row_size()}"
    share = layout.global_batch_size // layout.data_parallel_size
    if hasattr(model, "unshard"):  # FSDP2: trying needs all ranks, and only this one is known to have failed
        return f"{what}: halve --batch.micro_batch_size, or use more ranks"
    module = getattr(model, "module", model) if ranks.world_size > 1 else model  # without DDP: no exchange while trying
    module.zero_grad(set_to_none=True)
    for smaller in sorted((m for m in range(1, micro) if share % m == 0), reverse=True):
        if _fits(module, task, smaller):
            remedy = f"a micro-batch of {smaller} fits: run with --batch.micro_batch_size {smaller} (same result, more steps)"
            break
    else:
        remedy = "not even one lane fits: shorten --batch.seq_length or --model.hidden_size"
    return f"{what}: {remedy}"


def _fits(module: nn.Module, task: Task, rows: int) -> bool:
    try:
        task.trial_loss(module, rows).backward()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        module.zero_grad(set_to_none=True)
    return True
