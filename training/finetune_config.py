"""A fine-tuning run as a dataclass, beside `config.py`: the parts of a training run less its text, plus labelled files.

A sample is one text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..fp16.config import LossScaleConfig
from ..models.config import HeadConfig
from .config import (
    BatchConfig,
    LogConfig,
    OptimConfig,
    ParallelConfig,
    ScheduleConfig,
    absolute,
    check_choice,
    check_run,
    compose,
)


@dataclass
class TaskConfig:
    """Labelled texts and how they count.

    Args:
        train: files to train on.
        val: files that choose the checkpoint and end the run early; none cuts a part off `train`.
        test: files that are scored once, at the end; none scores nothing.
        text_key: column of the text; null guesses it and says which was taken.
        label_key: column of the label; null guesses.
        label_keys: columns of 0 and 1 for texts with several labels; replaces `label_key`.
        val_fraction: part of `train` cut off where `val` is not given.
        class_weights: none, or balanced: each class counts alike in the loss, however many rows it has.
        lm_weight: weight of the language model's loss per byte beside the classifier's per text; 0 leaves it out.
        head_similarity_weight: weight of how alike the heads of a class are (`models/classifier.py`); keeps them apart.
        max_bytes: longer texts are cut to their last bytes while training; 0 keeps them whole. Scoring never cuts.
        metric: what checkpoints are compared by: accuracy, f1 (macro) or loss.
        on_bad_row: skip counts rows without text or label and goes on, error stops at the first.
    """

    train: list[str] = field(default_factory=list)
    val: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=list)
    text_key: str | None = None
    label_key: str | None = None
    label_keys: list[str] = field(default_factory=list)
    val_fraction: float = 0.1
    class_weights: Literal["none", "balanced"] = "none"
    lm_weight: float = 0.0
    head_similarity_weight: float = 0.0
    max_bytes: int = 0
    metric: Literal["accuracy", "f1", "loss"] = "accuracy"
    on_bad_row: Literal["skip", "error"] = "skip"

    def __post_init__(self) -> None:
        check_choice("task.class_weights", self.class_weights, ("none", "balanced"))
        check_choice("task.metric", self.metric, ("accuracy", "f1", "loss"))
        check_choice("task.on_bad_row", self.on_bad_row, ("skip", "error"))
        if self.label_key and self.label_keys:
            raise ValueError("--task.label_key and --task.label_keys are both given: one label, or several, not both")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"--task.val_fraction is {self.val_fraction}: it must lie between 0 and 1")
        for name in ("lm_weight", "head_similarity_weight", "max_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"--task.{name} is {getattr(self, name)}: it must not be negative")


def _batch() -> BatchConfig:
    return BatchConfig(global_batch_size=16)


def _optim() -> OptimConfig:
    return OptimConfig(lr=1e-4)


def _schedule() -> ScheduleConfig:
    return ScheduleConfig(epochs=3.0, decay="slanted")


@dataclass
class FinetuneConfig:
    """A fine-tuning run: what `bigbatch finetune` reads from YAML and options, and what a run folder stores.

    Args:
        encoder: run folder or checkpoint of the trained language model to start from.
        task: labelled files and the loss.
        head: the classifier on the encoder.
        batch: texts per step; `seq_length` is not used, texts are read whole.
        optim: optimizer and clipping; `layer_lr_decay` gives lower layers lower rates.
        schedule: run length and learning rate, in texts.
        loss_scale: loss scaling under fp16 and amp.
        parallel: how ranks share the work.
        log: logging, validation, checkpoints.
        run_dir: folder of the run.
        precision: fp32, fp16, bf16, amp; auto is fp16 on CUDA, else fp32.
        device: cpu, cuda, or auto.
        nproc: processes on this machine.
        seed: of the head, the order of the texts, dropout and the part cut off for validation.
        resume: auto goes on where the run folder stopped; never refuses a folder that holds a run.
        profile: profile a few steps.
    """

    encoder: str = ""
    task: TaskConfig = field(default_factory=TaskConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    batch: BatchConfig = field(default_factory=_batch)
    optim: OptimConfig = field(default_factory=_optim)
    schedule: ScheduleConfig = field(default_factory=_schedule)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run_dir: str = "runs/finetune"
    precision: Literal["auto", "fp32", "fp16", "bf16", "amp"] = "auto"
    device: str = "auto"
    nproc: int = 1
    seed: int = 1234
    resume: Literal["auto", "never"] = "auto"
    profile: bool = False

    def __post_init__(self) -> None:
        if not self.encoder:
            raise ValueError("--encoder is missing: name the run folder of a trained language model, such as runs/mine")
        if not self.task.train:
            raise ValueError("--task.train is missing: name a file of labelled texts, such as train.csv")
        self.run_dir = check_run(self.precision, self.resume, self.nproc, self.seed, self.run_dir)
        if self.log.noise_scale:
            raise ValueError("--log.noise_scale is for language models: leave it out of a fine-tuning run")
        if self.task.head_similarity_weight and (self.head.num_heads == 1 or self.parallel.strategy == "fsdp"):
            raise ValueError(
                "--task.head_similarity_weight needs --head.num_heads of at least 2, and --parallel.strategy ddp"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def absolute(self) -> FinetuneConfig:
        """The same with every path absolute, so that a run can be gone on with from anywhere."""
        files = {name: [absolute(path) for path in getattr(self.task, name)] for name in ("train", "val", "test")}
        return replace(self, encoder=absolute(self.encoder), task=replace(self.task, **files))


def finetune_from_dict(values: dict[str, Any]) -> FinetuneConfig:
    """The configuration stored in a run folder, validated anew.

    Raises:
        ValueError: if it has keys this version does not know.
    """
    parts: dict[str, type] = {
        "task": TaskConfig, "head": HeadConfig, "batch": BatchConfig, "optim": OptimConfig, "schedule": ScheduleConfig,
        "loss_scale": LossScaleConfig, "parallel": ParallelConfig, "log": LogConfig,
    }  # fmt: skip
    return compose(FinetuneConfig, parts, values)
