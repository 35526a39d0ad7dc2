"""The one training loop: every family, precision and number of ranks goes through `Engine.run`.

What differs between families is the task (`tasks/`); what differs between precisions is the policy and the scaler
(`fp16/`). The loop counts samples: schedule, logs, validation, checkpoints and resuming are functions of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..fp16.grads import agree_found_inf, clip_grad_norm_, first_bad_parameter, found_inf, square_sum, unscale_
from ..fp16.loss_scaler import make_loss_scaler
from ..fp16.policy import apply_policy
from .batch_size import NO_RAMP, BatchLayout, batch_at, batch_layout
from .checkpoint import Checkpoint, load_weights, mark_best, newest_checkpoint, save_checkpoint
from .config import TrainConfig
from .distributed import Ranks, sum_over_ranks
from .finetune_config import FinetuneConfig
from .memory import explain_out_of_memory, is_out_of_memory
from .metrics import MetricsWriter, RunningMeans, event_writer
from .noise_scale import NoiseScale
from .optimizers import build_optimizer, load_optimizer_tensors, optimizer_tensors, set_lr
from .parallel import Parallel, whole
from .profiling import StepProfiler
from .schedules import check_schedule, lr_factor, scaled_optim
from .signals import StopSignals
from .tasks.base import Task, Validation

log = logging.getLogger(__name__)


class Diverged(ValueError):
    """Gradients stay non-finite however low the loss scale: more steps would change nothing."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        status: "finished", or "stopped" by a signal after writing a checkpoint.
        samples: samples consumed.
        tokens: bytes trained on.
        val: the last validation, on the whole split; None if stopped.
        best: the best validation's `task.metric`.
    """

    status: str
    samples: int
    tokens: int
    val: Validation | None
    best: float | None


class Engine:
    """One rank of one run, from its newest checkpoint or from the beginning.

    Args:
        config: the run, precision already resolved.
        ranks: this process.
        task: the objective: model, batches, loss, validation.
        data_hash: of the data; a checkpoint of other data is refused.
    """

    def __init__(self, config: TrainConfig | FinetuneConfig, ranks: Ranks, task: Task, data_hash: str) -> None:
        self.config, self.ranks, self.task, self.data_hash = config, ranks, task, data_hash
        self.run_dir = Path(config.run_dir)
        torch.manual_seed(config.seed)
        self.model = task.build_model().to(ranks.device)
        self.scaler = make_loss_scaler(config.loss_scale, config.precision)
        self.trainer: dict[str, Any] = {
            "samples": 0, "tokens": 0, "step": 0, "seconds": 0.0, "best": None, "best_samples": None, "eval_due": False,
            "validations_without_gain": 0,
        }  # fmt: skip
        self.means, self.noise, self._metrics_bytes, self._saved_at = RunningMeans(), NoiseScale(), 0, -1
        checkpoint = self._restore()
        samples = self.trainer["samples"]
        if sum_over_ranks([float(samples)], ranks)[0] != samples * ranks.world_size:
            raise ValueError(
                f"the ranks see different checkpoints in {self.run_dir} (this one that of {samples:,} samples): is the folder "
                "shared by all nodes, and up to date on each? Start again in a minute"
            )
        self.policy = apply_policy(self.model, config.precision, ranks.device.type)
        self.parallel = Parallel(
            self.policy, config.parallel, ranks, config.precision, task.settling_loss, config.log.noise_scale
        )
        optim = scaled_optim(config.schedule, config.optim, config.batch.global_batch_size)
        self.peak_lr = optim.lr
        self.optimizer = build_optimizer(self.model, optim)
        position = state = None
        if checkpoint is not None:
            load_optimizer_tensors(self.optimizer, self.model, checkpoint.optimizer)
            position, state = checkpoint.trainer["position"], checkpoint.state
        # The lanes are those that the state belongs to: a ramp's change of batch is due at the next step, not here.
        batch = (position or {}).get("num_lanes") or batch_at(config.batch, samples)
        self.layout = self._layout_of(batch)
        task.begin(self.layout, position, state)
        self.total_samples = config.schedule.samples or round(config.schedule.epochs * self.task.samples_per_epoch)
        check_schedule(config.schedule, self.total_samples)
        # Asked for by a signal to this rank; what all ranks have agreed on, at the same point of the run, is the second.
        self._stop_requested = self._stop = False

    def _restore(self) -> Checkpoint | None:
        """Loads the newest whole checkpoint into model, scaler and counters; the rest is loaded where it belongs."""
        found = newest_checkpoint(self.run_dir)
        if found is None:
            self.task.initialise(self.model)
            return None
        checkpoint, _, path = found
        self.trainer |= checkpoint.trainer["progress"]
        self._saved_at = self.trainer["samples"]
        if checkpoint.trainer["data_hash"] != self.data_hash:
            raise ValueError(f"{path} was trained on other data than its files hold now: use another --run-dir for it")
        load_weights(self.model, checkpoint.model, str(path))
        self.scaler.load_state_dict(checkpoint.trainer["loss_scale"])
        self.means = RunningMeans(checkpoint.trainer["means"])
        self.noise = NoiseScale(**checkpoint.trainer.get("noise_scale", {}))
        self._metrics_bytes = checkpoint.trainer["metrics_bytes"]
        if self.ranks.is_main:
            if self.trainer["best_samples"] == self._saved_at:  # a kill may have come between the save and the mark
                mark_best(self.run_dir, self._saved_at)
            log.info("resuming from %s at %s samples", path, f"{self.trainer['samples']:,}")
        return checkpoint

    def _layout_of(self, global_batch_size: int) -> BatchLayout:
        batch = replace(self.config.batch, global_batch_size=global_batch_size, **NO_RAMP)
        return batch_layout(batch, self.ranks.world_size)

    def _ramp(self) -> None:
        """Takes up the global batch that is due: the unread bytes are split anew, and lanes start with zero state."""
        batch = batch_at(self.config.batch, self.trainer["samples"])
        if batch == self.layout.global_batch_size:
            return
        self.layout = self._layout_of(batch)
        self.task.set_layout(self.layout)
        if self.ranks.is_main:
            log.info(
                "global batch %d from %s samples on: unread text split anew", batch, f"{self.trainer['samples']:,}"
            )

    @property
    def finished(self) -> bool:
        patience = self.config.schedule.patience
        gave_up = patience and self.trainer["validations_without_gain"] >= patience
        return bool(gave_up) or self.trainer["samples"] >= self.total_samples

    def run(self) -> TrainResult:
        """Trains to the end of the run, or until a signal asks to stop.

        Raises:
            ValueError: if gradients stay non-finite, or a micro-batch does not fit in memory.
            OSError: if a checkpoint cannot be written.
        """
        config = self.config
        metrics = None
        if self.ranks.is_main:
            events = event_writer(self.run_dir, self.trainer["samples"]) if config.log.tensorboard else None
            metrics = MetricsWriter(self.run_dir / "metrics.jsonl", self._metrics_bytes, events)
        profiler = StepProfiler(self.run_dir if config.profile and self.ranks.is_main else None)
        val = None
        self.model.train()
        with StopSignals(self), self._progress_bar() as bar, profiler, self._checkpoint_before_diverging(metrics):
            while not self._stop and (self.trainer["eval_due"] or not self.finished):
                before = self.trainer["samples"]
                if not self.trainer["eval_due"]:
                    self._step_and_log(before, bar, metrics)
                    profiler.step()
                best = False
                if self.trainer["eval_due"] and not self._stop:
                    val, best = self._validate(metrics, config.log.eval_max_bytes)
                    self.trainer["eval_due"] = val is None
                    bar.set_postfix({self.task.metric: f"{self._score(val):.3f}" if val else "stopping"}, refresh=False)
                if self._stop or best or self._crossed(before, config.log.checkpoint_interval_samples, 10):
                    self._save(metrics, best)
            if self.finished and not self._stop and (val is None or config.log.eval_max_bytes):
                val, _ = self._validate(metrics, 0)
            if self.finished and not self._stop:
                self._check_outcome(val)
        if metrics:
            metrics.close()
        # Without its last validation, which a signal has cut short, a run is not finished.
        status = "finished" if self.finished and val and not self._stop else "stopped"
        return TrainResult(status, self.trainer["samples"], self.trainer["tokens"], val, self.trainer["best"])

    def _crossed(self, before: int, interval_samples: int, share: int) -> bool:
        """Whether the step from `before` crossed a multiple of the interval, or ended the run."""
        interval = interval_samples or max(1, self.total_samples // share)
        return self.finished or before // interval != self.trainer["samples"] // interval

    def _step_and_log(self, before: int, bar: tqdm, metrics: MetricsWriter | None) -> None:
        row = self._step_and_time(bar)
        if self._crossed(before, self.config.log.interval_samples, 100):
            if metrics:
                means = self.means.row()
                metrics.write({**row, **means, **self.task.loss_columns(means["loss"]), **self._noise_row()})
            self.means = RunningMeans()
        self.trainer["eval_due"] = self._crossed(before, self.config.log.eval_interval_samples, 10)

    def _noise_row(self) -> dict[str, float]:
        return {"noise_scale": self.noise.samples} if self.config.log.noise_scale else {}

    def _step_and_time(self, bar: tqdm) -> dict:
        started = time.perf_counter()
        self._ramp()
        lr = self.peak_lr * lr_factor(self.config.schedule, self.trainer["samples"], self.total_samples)
        epoch, num_targets, num_tokens = self.task.epoch, self.task.num_targets(), self.task.num_tokens()
        try:
            loss_sum, grad_norm = self._step(lr, num_targets)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ValueError(
                explain_out_of_memory(error, self.parallel.module, self.task, self.layout, self.ranks)
            ) from error
        self.task.advance()
        progress = self.trainer
        progress["samples"] += self.layout.global_batch_size
        progress["tokens"] += num_tokens
        progress["step"] += 1
        seconds = time.perf_counter() - started
        progress["seconds"] += seconds
        self.means.add(loss_sum, num_targets, num_tokens, grad_norm, seconds)
        bar.update(self.layout.global_batch_size * self.task.units_per_sample)
        return {
            "samples": progress["samples"],
            "tokens": progress["tokens"],
            "step": progress["step"],
            "epoch": epoch,
            "lr": lr,
            "loss_scale": self.scaler.scale,
            "skipped_steps": self.scaler.skipped_steps,
            "global_batch_size": self.layout.global_batch_size,
            "total_samples": self.total_samples,
        }

    def _step(self, lr: float, num_targets: float) -> tuple[float, float]:
        """One global batch: returns its loss sum over all ranks and the gradient norm before clipping."""
        ranks, parameters = self.ranks, list(self.model.parameters())
        # Dropout is a function of seed, position and rank, so that nothing random has to be stored.
        torch.manual_seed((self.config.seed * 1_000_003 + self.trainer["samples"]) * 8191 + ranks.rank)
        self.optimizer.zero_grad(set_to_none=ranks.world_size == 1)
        # DDP averages over ranks; the loss is divided by the targets of the whole global batch, so unequal ranks and
        # micro-batches stay unbiased.
        factor = self.scaler.scale * ranks.world_size / num_targets
        local_loss, micro_square = 0.0, 0.0
        for micro_step in range(self.layout.grad_accum_steps):
            with self.parallel.accumulating(last=micro_step == self.layout.grad_accum_steps - 1):
                output = self.task.loss(self.parallel.module, micro_step)
                (output.loss_sum * factor).backward()
            local_loss += float(output.loss_sum.detach())
            if micro_step == 0 and self._noise_from_micro_batch:
                micro_square = square_sum(parameters)
        local_square = micro_square or self.parallel.exchange.take_square_sum()
        sums = sum_over_ranks([local_loss, float(self._stop_requested), local_square], ranks)
        loss_sum, self._stop = sums[0], sums[1] > 0
        unscale_(parameters, 1.0 / self.scaler.scale)
        overflow = agree_found_inf(found_inf(parameters))
        grad_norm = float("inf")
        if not overflow:
            grad_norm = clip_grad_norm_(parameters, self.config.optim.clip_grad_norm)
            self._add_noise(sums[2] / ranks.world_size, grad_norm)
            set_lr(self.optimizer, lr)
            self.optimizer.step()
        else:
            self.parallel.after_overflow()
        self.scaler.update(overflow)
        if self.scaler.stuck:
            raise Diverged(self._explain_divergence(lr))
        return loss_sum, grad_norm

    @property
    def _noise_from_micro_batch(self) -> bool:
        """Whether the small batch of the noise scale is the first of several micro-batches of one rank."""
        alone = self.ranks.world_size == 1 and self.layout.grad_accum_steps > 1
        return self.config.log.noise_scale and alone

    def _add_noise(self, small_square: float, grad_norm: float) -> None:
        """Adds the two gradient norms of this step, both before clipping, to the estimate of the noise scale."""
        layout = self.layout
        parts = layout.grad_accum_steps if self._noise_from_micro_batch else layout.data_parallel_size
        if not self.config.log.noise_scale or parts == 1 or not small_square:
            return
        # A part's gradient is divided by the targets of the whole batch; ranks are averaged, micro-batches summed.
        scale = parts / self.scaler.scale if self._noise_from_micro_batch else 1.0 / self.scaler.scale
        batch = layout.global_batch_size
        self.noise.add(small_square * scale**2, grad_norm**2, batch / parts, batch)

    @contextmanager
    def _checkpoint_before_diverging(self, metrics: MetricsWriter | None) -> Iterator[None]:
        """Leaves a checkpoint if a run diverges before its first: all steps since were skipped, so its weights are whole."""
        try:
            yield
        except Diverged:
            if self._saved_at < 0:
                self._save(metrics, best=False)
            raise

    def _explain_divergence(self, lr: float) -> str:
        name, largest = first_bad_parameter(self.model.named_parameters()) or ("unknown", float("nan"))
        return (
            f"the gradients were not finite for {self.scaler.max_consecutive_overflows} steps in a row at loss scale "
            f"{self.scaler.scale:g} (first bad gradient: {name}, largest weight {largest:.3g}, lr {lr:.3g}): lower --optim.lr or "
            f"lengthen --schedule.warmup_samples in another --run-dir; the weights from before: {self.run_dir / 'checkpoints'}"
        )

    def _check_outcome(self, val: Validation | None) -> None:
        """Ends a run that came to its end before `max_consecutive_overflows` as what it is.

        Raises:
            Diverged: no step was taken, most of the run was one row of overflows, or the model's loss is not a number.
        """
        skipped, steps = self.scaler.skipped_steps, self.trainer["step"]
        if skipped == steps or 2 * self.scaler.stuck_overflows > steps:
            what = f"{skipped} of {steps} steps were skipped because the gradients were not finite"
        elif val and not math.isfinite(val.loss):
            what = f"the validation loss is {val.loss}"
        else:
            return
        raise Diverged(
            f"the run has ended without a usable model: {what} (loss scale {self.scaler.scale:g}, peak lr {self.peak_lr:.3g}): "
            "lower --optim.lr, lengthen --schedule.warmup_samples, or train for longer, in another --run-dir"
        )

    def _validate(self, metrics: MetricsWriter | None, max_bytes: int) -> tuple[Validation | None, bool]:
        """Scores the validation split; True if it is the best so far. None if a signal cuts it short."""
        val = self.task.validate(self.policy, max_bytes, self._agree_stop)
        if val is None:
            return None, False
        progress, score = self.trainer, self._score(val)
        counts = max_bytes == self.config.log.eval_max_bytes
        sign = -1 if self.task.higher_is_better else 1
        best = counts and (progress["best"] is None or sign * score < sign * progress["best"])
        if best:
            progress["best"], progress["best_samples"] = score, progress["samples"]
        if counts:
            progress["validations_without_gain"] = 0 if best else progress["validations_without_gain"] + 1
        if metrics:
            row = {"event": "eval", "split": "val", "samples": progress["samples"], "tokens": progress["tokens"]}
            metrics.write({**row, **val.row()})
        return val, best

    def _score(self, val: Validation) -> float:
        return val.row()[self.task.metric]

    def _agree_stop(self) -> bool:
        """Whether any rank was asked to stop: asked between windows of a validation, which may last for minutes."""
        self._stop = sum_over_ranks([float(self._stop_requested)], self.ranks)[0] > 0
        return self._stop

    def _save(self, metrics: MetricsWriter | None, best: bool) -> None:
        if self._saved_at == self.trainer["samples"]:
            # Resumed here with a validation due: the checkpoint is whole and is never rewritten.
            if metrics and best:
                mark_best(self.run_dir, self._saved_at)
            return
        self._saved_at = self.trainer["samples"]
        state = self.task.state_tensors()
        keep = metrics is not None
        model = whole(self.model.state_dict(), keep)
        optimizer = whole(optimizer_tensors(self.optimizer, self.model), keep)
        if metrics is None:
            return
        trainer = {
            **{key: self.trainer[key] for key in ("samples", "tokens")},
            "progress": self.trainer,
            "position": self.task.position(),
            "loss_scale": self.scaler.state_dict(),
            "means": self.means.state(),
            "noise_scale": self.noise.state(),
            "metrics_bytes": metrics.size_bytes,
            "data_hash": self.data_hash,
        }
        checkpoint = Checkpoint(model, trainer, optimizer, state)
        save_checkpoint(self.run_dir, checkpoint, self.task.config_dict(), self.config.log.keep_checkpoints, best)

    def _progress_bar(self) -> tqdm:
        """How much of the run is done, on rank 0."""
        size, hidden = self.task.units_per_sample, not (self.ranks.is_main and self.config.log.progress)
        return tqdm(
            total=self.total_samples * size, initial=self.trainer["samples"] * size, unit=self.task.unit, unit_scale=True,
            desc="train", disable=hidden, mininterval=0.5,
        )  # fmt: skip

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Ends the run after the present step or within a validation, with a checkpoint; agreed on by all ranks."""
        self._stop_requested = True
