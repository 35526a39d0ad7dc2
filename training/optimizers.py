"""Adam over the fp32 parameters, with the decay where it belongs, and its state as named tensors for checkpoints."""

from __future__ import annotations

import torch
from torch import nn

from .config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW with torch's fused kernel: one pass over parameters, gradients and moments.

    Biases and gains (everything of one dimension) are not decayed: shrinking a gain fights the weight norm it belongs to.
    """
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """State as `{entry}.{parameter name}`: readable by name, whatever the order of the parameters."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{entry}.{names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, torch.Tensor]
) -> None:
    """The reverse of `optimizer_tensors`.

    Raises:
        ValueError: if a tensor belongs to no parameter of the model.
    """
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        entry, name = key.split(".", 1)
        if name not in parameters:
            raise ValueError(
                f"the checkpoint's optimizer state names the parameter {name!r}, which this model does not have"
            )
        # Adam's step counters stay on the CPU unless the kernel wants them elsewhere; moments live with their parameter.
        optimizer.state[parameters[name]][entry] = (
            value.clone() if entry == "step" else value.to(parameters[name].device)
        )
