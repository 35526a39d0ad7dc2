"""Precision names and loss-scale settings. Free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

PRECISIONS = ("auto", "fp32", "fp16", "bf16", "amp")


@dataclass
class LossScaleConfig:
    """How the loss is scaled so that small fp16 gradients do not vanish.

    Args:
        loss_scale: 0 adapts the scale; any other value is a constant scale.
        init_scale: scale at the start.
        growth_factor: the scale is multiplied by this after `growth_interval` steps without overflow.
        backoff_factor: the scale is multiplied by this after an overflow.
        growth_interval: steps without overflow before the scale grows.
        hysteresis: overflows since the last growth that are skipped before the scale backs off; 1 backs off at once.
        min_scale: the scale never backs off below this.
        max_scale: the scale never grows above this.
        max_consecutive_overflows: so many skipped steps in a row that backing off cannot cure end the run.

    Raises:
        ValueError: a value outside its range.

    Source: Micikevicius et al. 2018; defaults of torch.amp.GradScaler, ceiling of Apex amp, hysteresis of Megatron-LM.
    """

    loss_scale: float = 0.0
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    max_consecutive_overflows: int = 50

    def __post_init__(self) -> None:
        if not (math.isfinite(self.loss_scale) and self.loss_scale >= 0):
            raise ValueError(f"--loss_scale.loss_scale is {self.loss_scale}: it must be positive, or 0 to adapt it")
        if not 0 < self.min_scale <= self.init_scale <= self.max_scale:
            raise ValueError(
                f"--loss_scale.min_scale {self.min_scale:g}, init_scale {self.init_scale:g} and max_scale {self.max_scale:g} "
                "must be positive and in this order"
            )
        if not self.growth_factor > 1:
            raise ValueError(f"--loss_scale.growth_factor is {self.growth_factor}: it must be above 1")
        if not 0 < self.backoff_factor < 1:
            raise ValueError(f"--loss_scale.backoff_factor is {self.backoff_factor}: it must lie between 0 and 1")
        for name in ("growth_interval", "hysteresis", "max_consecutive_overflows"):
            if getattr(self, name) < 1:
                raise ValueError(f"--loss_scale.{name} is {getattr(self, name)}: it must be at least 1")


def resolve_precision(name: str, device_type: str) -> str:
    """Replaces "auto" by fp16 on CUDA and fp32 elsewhere.

    Raises:
        ValueError: an unknown name.
    """
    if name not in PRECISIONS:
        raise ValueError(f"precision is {name!r}: choose one of {', '.join(PRECISIONS)}")
    if name != "auto":
        return name
    return "fp16" if device_type == "cuda" else "fp32"
