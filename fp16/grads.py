"""Gradients between backward and step: unscale, look for overflow, agree on it, clip. All in fp32, one pass each.

In this order: `unscale_`, `found_inf`, `agree_found_inf`, and if nothing was found `clip_grad_norm_` and the step.
Gradients that FSDP2 has sharded are worked on shard by shard; their norms are summed over the ranks that hold shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def is_sharded(tensor: Tensor) -> bool:
    """Whether FSDP2 (or another user of DTensor) has spread this tensor over ranks."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, sharing its memory; a plain tensor is its own part."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def _grads(params: Iterable[nn.Parameter]) -> list[Tensor]:
    return [local_part(p.grad) for p in params if p.grad is not None]


def square_sum(params: Iterable[nn.Parameter]) -> float:
    """Squared 2-norm of all gradients of this rank together."""
    return float(get_total_norm(_grads(params), 2.0)) ** 2


def unscale_(params: Iterable[nn.Parameter], inv_scale: float) -> None:
    """Multiplies every gradient by `inv_scale`, in place.

    Raises:
        ValueError: a gradient is fp16, where the product would lose what the scale had saved.
    """
    grads = _grads(params)
    if any(grad.dtype == torch.float16 for grad in grads):
        raise ValueError("a gradient is fp16: unscale the gradients of the fp32 master parameters instead")
    if grads and inv_scale != 1.0:
        torch._foreach_mul_(grads, inv_scale)  # pyright: ignore[reportPrivateImportUsage]


def found_inf(params: Iterable[nn.Parameter]) -> Tensor:
    """1.0 where any gradient of this rank holds an inf or NaN, else 0.0; a scalar fp32 tensor on their device."""
    params = list(params)
    grads = [grad for grad in _grads(params) if grad.numel()]  # a shard may be empty
    if not grads:
        return torch.zeros((), device=params[0].device if params else None)
    # A NaN anywhere makes the largest magnitude NaN.
    return 1.0 - get_total_norm(grads, math.inf).isfinite().float()


def agree_found_inf(found: Tensor, process_group: dist.ProcessGroup | None = None) -> bool:
    """Whether any rank found an overflow: the maximum over all ranks, so that every rank steps or skips alike.

    Args:
        found: this rank's answer from `found_inf`; left as it is.
        process_group: the ranks that must agree; all of them by default.
    """
    if dist.is_available() and dist.is_initialized():
        found = found.clone()
        dist.all_reduce(found, dist.ReduceOp.MAX, group=process_group)
    return bool(found.item())


def clip_grad_norm_(params: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scales the gradients down together so that their common 2-norm is at most `max_norm`; 0 only measures.

    Returns:
        The norm before clipping, accumulated in fp32.

    Source: torch.nn.utils.clip_grad_norm_.
    """
    params = list(params)
    grads = _grads(params)
    norm = get_total_norm(grads, 2.0)
    if any(p.grad is not None and is_sharded(p.grad) for p in params):
        square = norm.square()
        dist.all_reduce(square)
        norm = square.sqrt()
        if max_norm > 0:
            torch._foreach_mul_(grads, float((max_norm / (norm + 1e-6)).clamp(max=1.0)))  # pyright: ignore
    elif max_norm > 0:
        clip_grads_with_norm_(params, max_norm, norm)
    return float(norm)


def first_bad_parameter(named_params: Iterable[tuple[str, nn.Parameter]]) -> tuple[str, float] | None:
    """Name and largest weight of the first parameter whose gradient holds an inf or NaN on any rank, or None.

    For the message of a run that stops: the name says where to look, the value whether the weights had grown first. With a
    process group it is a collective, so that every rank says the same.
    """
    named = list(named_params)
    bad = [
        number
        for number, (_, parameter) in enumerate(named)
        if parameter.grad is not None and not local_part(parameter.grad).isfinite().all()
    ]
    first = _over_ranks(float(bad[0] if bad else len(named)), dist.ReduceOp.MIN, named)
    if first == len(named):
        return None
    name, parameter = named[int(first)]
    part = local_part(parameter.detach())
    return name, _over_ranks(float(part.abs().max()) if part.numel() else 0.0, dist.ReduceOp.MAX, named)


def _over_ranks(value: float, operation: dist.ReduceOp.RedOpType, named: list[tuple[str, nn.Parameter]]) -> float:
    if not (dist.is_available() and dist.is_initialized()):
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=named[0][1].device)
    dist.all_reduce(tensor, operation)
    return float(tensor)
