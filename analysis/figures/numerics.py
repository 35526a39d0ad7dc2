"""The experiments of docs/numerics.md at a scale for two cores: runs, pictures and tables.

Each run is an ordinary run folder under one root, gone on with where it stopped, so the command can be stopped and
repeated. Tables are Markdown, made of what the folders hold.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.utils._python_dispatch import TorchDispatchMode

from ...data.config import DataConfig
from ...data.prepare import open_or_prepare
from ...fp16.config import LossScaleConfig
from ...fp16.policy import apply_policy
from ...models.build import build_model
from ...models.config import MLSTMConfig, ModelConfig
from ...models.flops import training_bytes
from ...training.checkpoint import newest_checkpoint
from ...training.config import BatchConfig, LogConfig, OptimConfig, ScheduleConfig, TrainConfig
from ...training.engine import Diverged
from ...training.metrics import read_metrics, read_result
from ...training.run import settle_config, train
from ..curves import BLUE, GREEN, ORANGE, save_figure

log = logging.getLogger(__name__)

# Two-sided 95 % quantile of Student's t with 1 to 9 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# Held-out BPC is compared from here on; before, the curves are steep and a shift of one step shows.
COMPARED_FROM = 0.3
CLAIM_BPC = 0.005


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        root: folder of the runs.
        data: text files.
        samples: length of each run, windows of 64 bytes.
        seeds: of the paired runs.
        heldout_bytes: least size of the validation part.
        hidden_size: units.
    """

    root: Path
    data: tuple[str, ...]
    samples: int = 64_000
    seeds: tuple[int, ...] = (1, 2, 3)
    heldout_bytes: int = 500_000
    hidden_size: int = 128

    @property
    def store(self) -> Path:
        return self.root / "data" / "corpus"

    def config(self, name: str, precision: Literal["fp32", "fp16"], seed: int, nproc: int = 1) -> TrainConfig:
        return TrainConfig(
            model=MLSTMConfig(embedding_size=64, hidden_size=self.hidden_size),
            data=DataConfig(paths=[], store=str(self.store), min_heldout_bytes=self.heldout_bytes),
            batch=BatchConfig(global_batch_size=64, seq_length=64),
            optim=OptimConfig(lr=5e-3),
            schedule=ScheduleConfig(samples=self.samples, warmup_samples=self.samples // 20),
            # From where the scale settles, and rising often enough to be seen: by default it would stay below in a run so short.
            loss_scale=LossScaleConfig(init_scale=2.0**20, growth_interval=200),
            log=LogConfig(keep_checkpoints=1),
            run_dir=str(self.root / name),
            precision=precision,
            device="cpu",
            nproc=nproc,
            seed=seed,
        )


def run(plan: Plan) -> None:
    """Runs what is not finished yet: FP16 and FP32 for every seed, one to four ranks, and a run that must diverge.

    Raises:
        ValueError: bad data, or a run that ends otherwise than planned.
    """
    # Another text in the same folder is an error: the runs there have read the first.
    open_or_prepare(DataConfig(paths=list(plan.data)), plan.store, rebuild=False)
    for seed in plan.seeds:
        for precision in ("fp32", "fp16"):
            _finish(plan.config(f"{precision}-seed{seed}", precision, seed))
    for ranks in (2, 4):
        _finish(plan.config(f"ranks{ranks}", "fp32", plan.seeds[0], ranks))
    bad = plan.config("diverges", "fp16", plan.seeds[0])
    bad = replace(bad, optim=replace(bad.optim, lr=1e4, clip_grad_norm=0.0))
    note = Path(bad.run_dir) / "ended.txt"
    if note.is_file():
        return
    try:
        train(bad)
    except Diverged as error:
        note.write_text(f"{error}\n", encoding="utf-8")
        return
    raise ValueError(f"{bad.run_dir} did not diverge at lr {bad.optim.lr:g}: nothing can be shown with it")


def _finish(config: TrainConfig) -> None:
    settle_config(config)  # refuses to take a finished run of other settings for this one
    if read_result(config.run_dir).get("train"):
        return
    log.info("%s", config.run_dir)
    status = train(config)
    if status:
        raise ValueError(f"{config.run_dir} ended with status {status}: the same command goes on from there")


def validation(run_dir: Path) -> dict[int, float]:
    """BPC of the whole validation part by samples."""
    return {row["samples"]: row["bpc"] for row in read_metrics(run_dir) if row.get("event") == "eval"}


def paired_difference(plan: Plan) -> tuple[list[float], float, float]:
    """FP16 minus FP32 in held-out BPC: the mean of each seed from 30 % of the run on, their mean, half its 95 % interval."""
    means = []
    for seed in plan.seeds:
        half, full = (validation(plan.root / f"{precision}-seed{seed}") for precision in ("fp16", "fp32"))
        late = [samples for samples in full if samples >= COMPARED_FROM * plan.samples]
        if half.keys() != full.keys() or not late:
            raise ValueError(f"seed {seed}: the runs in {plan.root} were validated at different samples")
        means.append(float(np.mean([half[samples] - full[samples] for samples in late])))
    n = len(means)
    spread = T_95[n - 2] * float(np.std(means, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return means, float(np.mean(means)), spread


def precision_table(plan: Plan) -> str:
    """FP16 against FP32, seed by seed."""
    means, mean, spread = paired_difference(plan)
    lines = [
        "| seed | FP32, last | FP16, last | FP16 - FP32, mean from 30 % on | steps | skipped in FP16 | last loss scale |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed, difference in zip(plan.seeds, means):
        half, full = (plan.root / f"{precision}-seed{seed}" for precision in ("fp16", "fp32"))
        last = [row for row in read_metrics(half) if "event" not in row][-1]
        bpc = [list(validation(folder).values())[-1] for folder in (full, half)]
        lines.append(
            f"| {seed} | {bpc[0]:.4f} | {bpc[1]:.4f} | {difference:+.4f} | {last['step']} | {last['skipped_steps']} | "
            f"{last['loss_scale']:g} |"
        )
    inside = abs(mean) + (0.0 if math.isnan(spread) else spread) < CLAIM_BPC
    interval = f"95 % interval [{mean - spread:+.4f}, {mean + spread:+.4f}] (paired, Student's t)"
    verdict = f"{'inside' if inside else '**not** inside'} +-{CLAIM_BPC}"
    lines.append(f"\nMean over {len(means)} seeds: {mean:+.4f} BPC, {interval}, which is {verdict}.")
    return "\n".join(lines)


def ranks_table(plan: Plan) -> str:
    """One, two and four ranks: the same samples, the same curve."""
    folders = {1: plan.root / f"fp32-seed{plan.seeds[0]}", 2: plan.root / "ranks2", 4: plan.root / "ranks4"}
    one = _training(folders[1])
    lines = [
        "| ranks | last held-out BPC | largest difference in training BPC of a log interval | lr and samples equal in all lines |",
        "|---|---|---|---|",
    ]
    for ranks, folder in folders.items():
        rows = _training(folder)
        difference = max(abs(a["bpc"] - b["bpc"]) for a, b in zip(rows, one))
        same = [(r["samples"], r["lr"]) for r in rows] == [(r["samples"], r["lr"]) for r in one]
        lines.append(
            f"| {ranks} | {list(validation(folder).values())[-1]:.4f} | {difference:.5f} | {'yes' if same else 'NO'} |"
        )
    return "\n".join(lines)


def _training(run_dir: Path) -> list[dict]:
    return [row for row in read_metrics(run_dir) if "event" not in row]


def memory_table(plan: Plan) -> str:
    """Bytes of what the newest checkpoint of an FP16 run holds, against the closed form."""
    config = plan.config(f"fp16-seed{plan.seeds[0]}", "fp16", plan.seeds[0])
    found = newest_checkpoint(Path(config.run_dir))
    if found is None:
        raise ValueError(f"{config.run_dir} has no checkpoint: run the experiments first")
    checkpoint = found[0]
    weights = _bytes(checkpoint.model.values())
    moments = {name: value for name, value in checkpoint.optimizer.items() if not name.startswith("step.")}
    gradients, copies = _pass_bytes(config)
    measured = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": _bytes(moments.values()),
        "state": _bytes(checkpoint.state.values()),
        "copies": copies,
    }
    assert isinstance(config.model, ModelConfig)
    expected = training_bytes(config.model, config.batch.global_batch_size, "fp16")
    meaning = {
        "weights": "fp32 masters", "gradients": "fp32 gradients", "optimizer": "Adam's moments", "state": "recurrent state",
        "copies": "fp16 compute copies, during a pass",
    }  # fmt: skip
    lines = ["| what | measured, bytes | closed form | |", "|---|---|---|---|"]
    for key, name in meaning.items():
        equal = "equal" if measured[key] == expected[key] else f"ratio {measured[key] / expected[key]:.4f}"
        lines.append(f"| {name} | {measured[key]:,} | {expected[key]:,} | {equal} |")
    return "\n".join(lines)


class _HalfCopies(TorchDispatchMode):
    """Sums up the bytes of every fp16 copy that is made of another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype == torch.float16:
            self.bytes += out.numel() * out.element_size()
        return out


def _bytes(tensors: Sequence[torch.Tensor] | object) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # pyright: ignore


def _pass_bytes(config: TrainConfig) -> tuple[int, int]:
    """Bytes of the gradients after one backward pass under the policy, and of the fp16 copies that its forward pass made."""
    assert isinstance(config.model, ModelConfig)
    model = build_model(config.model)
    policy = apply_policy(model, config.precision, "cpu")
    with _HalfCopies() as copies:
        logits, _ = policy(torch.zeros(1, 2, dtype=torch.uint8))
    logits.float().sum().backward()
    return _bytes([p.grad for p in model.parameters() if p.grad is not None]), copies.bytes


def plot(plan: Plan, path: Path) -> Path:
    """Held-out BPC of both precisions, their difference, and the loss scale, for every seed."""
    figure = Figure(figsize=(7.5, 7), layout="constrained")
    upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    for number, seed in enumerate(plan.seeds):
        color = f"C{number}" if len(plan.seeds) > 3 else (BLUE, ORANGE, GREEN)[number]
        half, full = (plan.root / f"{precision}-seed{seed}" for precision in ("fp16", "fp32"))
        a, b = validation(half), validation(full)
        samples = list(b)
        upper.plot(samples, list(b.values()), color=color, lw=1.5, label=f"FP32, seed {seed}")
        upper.plot(samples, [a[s] for s in samples], "o", color=color, ms=4, mfc="none", label=f"FP16, seed {seed}")
        middle.plot(samples, [a[s] - b[s] for s in samples], "o-", color=color, lw=1, ms=3)
        rows = _training(half)
        skipped = f"seed {seed}: {rows[-1]['skipped_steps']} of {rows[-1]['step']} steps skipped"
        lower.step(
            [r["samples"] for r in rows],
            [r["loss_scale"] for r in rows],
            where="post",
            color=color,
            lw=1.2,
            label=skipped,
        )
    upper.set_ylabel("held-out BPC")
    upper.legend(frameon=False, ncols=2)
    middle.axhspan(-CLAIM_BPC, CLAIM_BPC, color="0.9", zorder=0)
    middle.axvline(COMPARED_FROM * plan.samples, color="0.5", lw=1, ls=":")
    middle.set_ylabel("FP16 - FP32")
    lower.set_yscale("log", base=2)
    lower.set_ylabel("loss scale")
    lower.set_xlabel("samples (windows of 64 bytes)")
    lower.legend(frameon=False)
    for axes in (upper, middle, lower):
        axes.grid(alpha=0.3)
    return save_figure(figure, path)


def page(plan: Plan) -> str:
    """All tables as Markdown, with what they were measured on."""
    config = plan.config("fp32", "fp32", 1)
    heldout = next(
        row["num_targets"] for row in read_metrics(plan.root / f"fp32-seed{plan.seeds[0]}") if "event" in row
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    ended = (plan.root / "diverges" / "ended.txt").read_text(encoding="utf-8").strip().replace(str(plan.root), "RUNS")
    batch = f"{config.batch.global_batch_size} x {config.batch.seq_length}"
    return f"""Measured on {date.today().isoformat()} ({machine}):
mLSTM of {config.model.hidden_size} units, batch {batch} bytes, {plan.samples:,} samples, held-out {heldout:,} bytes.

### FP16 against FP32 over equal updates

{precision_table(plan)}

### One, two and four ranks

{ranks_table(plan)}

### Memory against the closed form

{memory_table(plan)}

### A run that must diverge

Learning rate 10,000 without clipping; the run ended with this line and left its weights from before:

    {ended}
"""
