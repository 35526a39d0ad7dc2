"""In which precision a model computes: a wrapper around an fp32 model, so that nothing else asks.

The wrapped model's fp32 parameters are the master weights. Under fp16 and bf16 each is cast once per forward pass,
inside autograd, so gradients arrive in fp32 on the masters, and DDP, optimizers, clipping and checkpoints see fp32
only. The loss must be computed in fp32 by the caller and scaled by `loss_scaler.py` before backward.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from .config import PRECISIONS


class PrecisionPolicy(nn.Module):
    """An fp32 model as it is; also the base of the other policies.

    Args:
        module: the fp32 model, reached as `.module`. DDP wraps this wrapper, not the other way round.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model under the policy."""
        return self.module(*args, **kwargs)


class CastPolicy(PrecisionPolicy):
    """Computes in `dtype` with parameters cast from the fp32 masters once per forward pass.

    Args:
        module: the fp32 model. Parameters named in its `fp32_parameter_names`, if it has that attribute, stay fp32.
        dtype: torch.float16 or torch.bfloat16.

    Raises:
        ValueError: a parameter is not fp32 (a half-precision model has no masters).
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(module)
        self.dtype = dtype
        self.fp32_parameter_names = frozenset(getattr(module, "fp32_parameter_names", ()))
        for name, parameter in module.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                raise ValueError(f"parameter {name} is {parameter.dtype}: {dtype} training starts from an fp32 model")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model with cast parameters."""
        cast = {
            name: parameter.to(self.dtype)
            for name, parameter in self.module.named_parameters()
            if parameter.is_floating_point() and name not in self.fp32_parameter_names
        }
        return functional_call(self.module, cast, args, kwargs)


class AmpPolicy(PrecisionPolicy):
    """Runs the fp32 model under torch.autocast in fp16, which chooses the precision of each operation.

    Args:
        module: the fp32 model.
        device_type: "cuda" or "cpu".
    """

    def __init__(self, module: nn.Module, device_type: str) -> None:
        super().__init__(module)
        self.device_type = device_type

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model under autocast."""
        with self._autocast():
            return self.module(*args, **kwargs)

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device_type, dtype=torch.float16)


def apply_policy(model: nn.Module, precision: str, device_type: str) -> PrecisionPolicy:
    """Wraps an fp32 model so that its forward pass runs in `precision`.

    Args:
        model: the fp32 model; the result holds it as `.module`, and its parameters are the model's own.
        precision: fp32, fp16, bf16 or amp ("auto" is resolved before, once, by `config.resolve_precision`).
        device_type: "cpu" or "cuda".

    Raises:
        ValueError: an unknown precision, or a model that is not fp32.
    """
    if precision == "fp32":
        return PrecisionPolicy(model)
    if precision == "fp16":
        return CastPolicy(model, torch.float16)
    if precision == "bf16":
        return CastPolicy(model, torch.bfloat16)
    if precision == "amp":
        return AmpPolicy(model, device_type)
    raise ValueError(f"precision is {precision!r}: choose one of {', '.join(PRECISIONS[1:])}")
