"""The learning rate in closed form: a function of samples consumed, never of steps.

Accumulation, another number of ranks, skipped steps and resuming therefore change nothing about it.
"""

from __future__ import annotations

import math

from .config import ScheduleConfig


def scaled_peak_lr(config: ScheduleConfig, lr: float, global_batch_size: int) -> float:
    """The peak at this global batch: `lr` times (batch / base) to the power 0, 1/2 or 1, at most `max_lr`.

    Source: linear, Goyal et al. 2017 (arXiv 1706.02677); sqrt, Hoffer et al. 2017 (arXiv 1705.08741); both compared for
    this model by Puri et al. 2018 (arXiv 1808.01371) from 5e-4 at batch 128.
    """
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[config.lr_rule]
    peak = lr * (global_batch_size / config.base_batch_size) ** power
    return min(peak, config.max_lr) if config.max_lr else peak


def lr_factor(config: ScheduleConfig, samples: int, total_samples: int) -> float:
    """Learning rate as a fraction of the peak after `samples` consumed samples.

    Rises linearly over the warm-up (once), is 1 at its end, reaches `min_lr_ratio` exactly at the horizon and stays there.
    """
    horizon = config.horizon_samples or total_samples
    if samples < config.warmup_samples:
        return samples / config.warmup_samples
    if config.decay == "constant":
        return 1.0
    done = min(1.0, (samples - config.warmup_samples) / max(1, horizon - config.warmup_samples))
    shape = 1.0 - done if config.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * shape


def check_schedule(config: ScheduleConfig, total_samples: int) -> None:
    """Refuses a schedule that cannot be run.

    Raises:
        ValueError: if the warm-up is longer than the horizon or the run.
    """
    horizon = config.horizon_samples or total_samples
    if config.warmup_samples >= min(horizon, total_samples):
        raise ValueError(
            f"--schedule.warmup_samples is {config.warmup_samples:,}, but the run has {total_samples:,} samples and the decay "
            f"ends at {horizon:,}: shorten the warm-up or lengthen the run"
        )
