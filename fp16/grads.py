"""Gradients between backward and step: unscale, look for overflow, agree on it, clip. All in fp32, one pass each.

In this order: `unscale_`, `found_inf`, `agree_found_inf`, and if nothing was found `clip_grad_norm_` and the step.
Works on plain tensors of one device; sharded tensors are left to their owner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def _grads(params: Iterable[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]


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
    grads = _grads(params)
    if not grads:
        return torch.zeros(())
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
    norm = get_total_norm(_grads(params), 2.0)
    if max_norm > 0:
        clip_grads_with_norm_(params, max_norm, norm)
    return float(norm)


def first_bad_parameter(named_params: Iterable[tuple[str, nn.Parameter]]) -> tuple[str, float] | None:
    """Name and largest magnitude of the first parameter whose gradient holds an inf or NaN, or None.

    For the message of a run that stops: the name says where to look, the value whether the weights had grown first.
    """
    for name, parameter in named_params:
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return name, float(parameter.detach().abs().max())
    return None
