"""Loss scaling: the number the loss is multiplied by, and what an overflow does to it.

The loop multiplies the loss by `scale`, unscales the gradients with `grads.unscale_`, agrees on `found_inf` over all
ranks with `grads.agree_found_inf`, and calls `update` once per step with the answer. Plain Python numbers: every rank
holds the same ones because every rank sees the same answers.
"""

from __future__ import annotations

import logging
from typing import Any

from .config import LossScaleConfig

logger = logging.getLogger(__name__)


class StaticLossScaler:
    """A constant scale. Steps that overflow are still skipped and counted.

    Args:
        scale: the constant; 1 for precisions that need no scaling.
        max_consecutive_overflows: as in `LossScaleConfig`.

    Attributes:
        scale: what the loss is multiplied by.
        skipped_steps: overflows since the start.
        stuck_overflows: of these, the latest in a row that backing off could not cure.
    """

    def __init__(self, scale: float = 1.0, max_consecutive_overflows: int = 50) -> None:
        self.scale = float(scale)
        self.skipped_steps = 0
        self.max_consecutive_overflows = max_consecutive_overflows
        self.stuck_overflows = 0

    @property
    def stuck(self) -> bool:
        """True when too many steps in a row overflowed although the scale cannot go lower: the run is lost."""
        return self.stuck_overflows >= self.max_consecutive_overflows

    def update(self, found_inf: bool) -> None:
        """Takes note of one step: `found_inf` says that a gradient of it was not finite on some rank."""
        self._count(found_inf, at_floor=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as JSON types."""
        return {"scale": self.scale, "skipped_steps": self.skipped_steps, "stuck_overflows": self.stuck_overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`; the constant is the configuration's, not the state's."""
        self.skipped_steps = int(state.get("skipped_steps", 0))
        self.stuck_overflows = int(state.get("stuck_overflows", 0))

    def _count(self, found_inf: bool, at_floor: bool) -> None:
        self.skipped_steps += int(found_inf)
        self.stuck_overflows = self.stuck_overflows + 1 if found_inf and at_floor else 0


class DynamicLossScaler(StaticLossScaler):
    """A scale that grows while all is finite and backs off at overflows.

    With hysteresis 1 and inside floor and ceiling it moves exactly as torch.amp.GradScaler.

    Args:
        config: factors, interval and limits.

    Source: torch.amp.GradScaler for growth and backoff; Megatron-LM's dynamic scaler for hysteresis.
    """

    def __init__(self, config: LossScaleConfig) -> None:
        super().__init__(config.init_scale, config.max_consecutive_overflows)
        self.growth_factor = config.growth_factor
        self.backoff_factor = config.backoff_factor
        self.growth_interval = config.growth_interval
        self.hysteresis = config.hysteresis
        self.min_scale = config.min_scale
        self.max_scale = config.max_scale
        self._growth_tracker = 0
        self._hysteresis_left = config.hysteresis

    def update(self, found_inf: bool) -> None:
        """Backs off after an overflow, grows after `growth_interval` steps without one."""
        self._count(found_inf, at_floor=self.scale <= self.min_scale)
        if found_inf:
            self._growth_tracker = 0
            self._hysteresis_left = max(self._hysteresis_left - 1, 0)
            if self._hysteresis_left == 0:
                self._set_scale(max(self.scale * self.backoff_factor, self.min_scale))
            return
        self._growth_tracker += 1
        if self._growth_tracker == self.growth_interval:
            self._growth_tracker = 0
            self._hysteresis_left = self.hysteresis
            self._set_scale(min(self.scale * self.growth_factor, self.max_scale))

    def state_dict(self) -> dict[str, Any]:
        """torch.amp.GradScaler's five entries and our own, as JSON types."""
        return {
            **super().state_dict(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._growth_tracker,
            "hysteresis_left": self._hysteresis_left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from our state or from torch.amp.GradScaler's; like there, factors and interval come with it."""
        super().load_state_dict(state)
        self.scale = float(state["scale"])
        self.growth_factor = float(state["growth_factor"])
        self.backoff_factor = float(state["backoff_factor"])
        self.growth_interval = int(state["growth_interval"])
        self._growth_tracker = int(state["_growth_tracker"])
        self._hysteresis_left = int(state.get("hysteresis_left", self.hysteresis))

    def _set_scale(self, scale: float) -> None:
        if scale != self.scale:
            logger.debug("loss scale %g -> %g", self.scale, scale)
        self.scale = scale


def make_loss_scaler(config: LossScaleConfig, precision: str) -> StaticLossScaler:
    """The scaler for a resolved precision: a constant 1 for fp32 and bf16, whose range needs no scaling."""
    if precision in ("fp32", "bf16"):
        return StaticLossScaler(1.0, config.max_consecutive_overflows)
    if config.loss_scale > 0:
        return StaticLossScaler(config.loss_scale, config.max_consecutive_overflows)
    return DynamicLossScaler(config)
