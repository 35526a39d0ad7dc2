"""The learning rate in closed form: a function of samples consumed, never of steps.

Accumulation, another number of ranks, a batch that ramps up, skipped steps and resuming therefore change nothing about it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .config import OptimConfig, ScheduleConfig

# Of the slanted triangle where nothing else is said: a tenth of the way up, and a floor of 1/32 (Howard and Ruder 2018).
SLANTED_RISE, SLANTED_FLOOR = 0.1, 1 / 32


def scaled_peak_lr(config: ScheduleConfig, lr: float, global_batch_size: int) -> float:
    """The peak at this global batch: `lr` times (batch / base) to the power 0, 1/2 or 1, at most `max_lr`.

    Source: linear, Goyal et al. 2017 (arXiv 1706.02677); sqrt, Hoffer et al. 2017 (arXiv 1705.08741); both compared for
    this model by Puri et al. 2018 (arXiv 1808.01371) from 5e-4 at batch 128.
    """
    power = {"none": 0.0, "sqrt": 0.5, "sqrt_adam": 0.5, "linear": 1.0}[config.lr_rule]
    peak = lr * (global_batch_size / config.base_batch_size) ** power
    return min(peak, config.max_lr) if config.max_lr else peak


def scaled_optim(config: ScheduleConfig, optim: OptimConfig, global_batch_size: int) -> OptimConfig:
    """The optimizer's settings at this global batch; all but the learning rate stay unless the rule is sqrt_adam.

    With k = batch / base: 1 - beta is multiplied by k and eps divided by sqrt(k), so that the moments average over the
    same number of samples and the noise in the update stays what it was.

    Raises:
        ValueError: if the batch is so large that a beta would fall below 0.

    Source: Malladi et al. 2022 (arXiv 2205.10287), square root scaling rule for Adam.
    """
    peak = scaled_peak_lr(config, optim.lr, global_batch_size)
    if config.lr_rule != "sqrt_adam":
        return replace(optim, lr=peak)
    if optim.kind not in ("adam", "adamw", "lamb"):
        raise ValueError(
            f"--schedule.lr_rule sqrt_adam scales betas, which --optim.kind {optim.kind} does not have: use sqrt"
        )
    k = global_batch_size / config.base_batch_size
    beta1, beta2 = 1 - k * (1 - optim.beta1), 1 - k * (1 - optim.beta2)
    if min(beta1, beta2) < 0:
        largest = math.floor(config.base_batch_size / (1 - min(optim.beta1, optim.beta2)) + 1e-6)
        raise ValueError(
            f"--schedule.lr_rule sqrt_adam makes beta1 {beta1:.3g} and beta2 {beta2:.3g} at batch {global_batch_size}: it holds up "
            f"to batch {largest} from --schedule.base_batch_size {config.base_batch_size}"
        )
    return replace(optim, lr=peak, beta1=beta1, beta2=beta2, eps=optim.eps / math.sqrt(k))


def lr_factor(config: ScheduleConfig, samples: int, total_samples: int) -> float:
    """Learning rate as a fraction of the peak after `samples` consumed samples.

    Rises linearly over the warm-up (once), is 1 at its end, and stays from the horizon on as it is there: at `min_lr_ratio`
    for linear, cosine, wsd and slanted.

    Source: wsd, Hu et al. 2024 (arXiv 2404.06395); slanted, Howard and Ruder 2018 (arXiv 1801.06146).
    """
    horizon = config.horizon_samples or total_samples
    warmup, floor = config.warmup_samples, config.min_lr_ratio
    if config.decay == "slanted":
        warmup, floor = warmup or round(SLANTED_RISE * horizon), floor or SLANTED_FLOOR
        if samples < warmup:
            return floor + (1.0 - floor) * samples / warmup
    if samples < warmup:
        return samples / warmup
    at = min(samples, horizon)
    return max(floor, _decayed(config, at, warmup, horizon, floor))


def _decayed(config: ScheduleConfig, at: int, warmup: int, horizon: int, floor: float) -> float:
    """The factor between warm-up and horizon."""
    rest = max(1, horizon - warmup)
    match config.decay:
        case "constant":
            return 1.0
        case "inverse_sqrt":
            return math.sqrt(warmup / at)
        case "step":
            every = config.decay_samples or max(1, rest // 3)
            return config.step_factor ** ((at - warmup) // every)
        case "wsd":
            length = config.decay_samples or max(1, round(0.1 * horizon))
            return floor + (1.0 - floor) * min(1.0, (horizon - at) / length)
    done = (at - warmup) / rest
    shape = 0.5 * (1.0 + math.cos(math.pi * done)) if config.decay == "cosine" else 1.0 - done
    return floor + (1.0 - floor) * shape


def check_schedule(config: ScheduleConfig, total_samples: int) -> None:
    """Refuses a schedule that cannot be run.

    Raises:
        ValueError: if the warm-up is longer than the horizon or the run, or the decay does not fit between them.
    """
    horizon = config.horizon_samples or total_samples
    if config.warmup_samples >= min(horizon, total_samples):
        raise ValueError(
            f"--schedule.warmup_samples is {config.warmup_samples:,}, but the run has {total_samples:,} samples and the decay "
            f"ends at {horizon:,}: shorten the warm-up or lengthen the run"
        )
    if config.decay == "inverse_sqrt" and not config.warmup_samples:
        raise ValueError("--schedule.decay inverse_sqrt needs --schedule.warmup_samples: the decay starts from its end")
    length = config.decay_samples or max(1, round(0.1 * horizon))
    if config.decay == "wsd" and length > horizon - config.warmup_samples:
        raise ValueError(
            f"--schedule.decay_samples is {length:,}, but between warm-up and horizon there are "
            f"{horizon - config.warmup_samples:,} samples: shorten the decay"
        )
