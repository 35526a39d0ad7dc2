"""One run as a dataclass: composes the configurations of its parts. Torch-free, so that `--help` answers at once.

Every length of time is in samples (one sample = one window of `seq_length` targets of one lane, or one sequence of a GPT or
BERT) or in epochs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..data.config import DataConfig
from ..fp16.config import PRECISIONS, LossScaleConfig
from ..models.config import LSTMConfig, MLSTMConfig
from ..models.transformer_config import BERTConfig, GPTConfig

T = TypeVar("T")


def check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"--{name} is {value}: it must be above 0" + " and finite" * (value > 0))


def check_at_most(name: str, value: float, limit: float, unit: str) -> None:
    check_positive(name, value)
    if value > limit:
        raise ValueError(f"--{name} is {value:g}: it must be at most {limit:,} {unit}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"--{name} is {value!r}: choose one of {', '.join(choices)}")


def check_run(precision: str, resume: str, nproc: int, seed: int, run_dir: str) -> str:
    """Checks what every kind of run is asked; returns the run folder with its `~` expanded."""
    check_choice("precision", precision, tuple(PRECISIONS))
    check_choice("resume", resume, ("auto", "never"))
    check_positive("nproc", nproc)
    if not 0 <= seed < 2**31:
        raise ValueError(f"--seed is {seed}: it must be in [0, 2147483648)")
    if not run_dir or Path(run_dir).expanduser().is_file():
        raise ValueError(f"--run-dir {run_dir!r} is not a folder: name one, such as runs/mine")
    return str(Path(run_dir).expanduser())  # a shell leaves the ~ of --run-dir=~/runs/mine alone


@dataclass
class BatchConfig:
    """The shape of one optimizer step.

    Args:
        global_batch_size: lanes per step over all ranks and accumulation steps.
        micro_batch_size: lanes per rank and backward pass; 0 means global_batch_size / ranks (no accumulation).
        seq_length: targets per window; gradients flow this far back.
        ramp_start: global batch of the first samples, growing to `global_batch_size`; 0 means no ramp.
        ramp_increment: lanes added at each step of the ramp.
        ramp_samples: samples over which the batch grows, in equal parts for each increment (Megatron-LM's rule).
    """

    global_batch_size: int = 128
    micro_batch_size: int = 0
    seq_length: int = 256
    ramp_start: int = 0
    ramp_increment: int = 0
    ramp_samples: int = 0

    def __post_init__(self) -> None:
        check_positive("batch.global_batch_size", self.global_batch_size)
        check_positive("batch.seq_length", self.seq_length)
        if self.micro_batch_size < 0:
            raise ValueError(f"--batch.micro_batch_size is {self.micro_batch_size}: it must be 0 (automatic) or above")
        ramp = (self.ramp_start, self.ramp_increment, self.ramp_samples)
        if min(ramp) < 0 or any(ramp) != all(ramp):
            raise ValueError(
                f"--batch.ramp_start, ramp_increment and ramp_samples are {', '.join(map(str, ramp))}: give all three above 0, or "
                "none of them"
            )
        growth = self.global_batch_size - self.ramp_start
        if self.ramp_start and (growth <= 0 or growth % self.ramp_increment):
            raise ValueError(
                f"--batch.ramp_start {self.ramp_start} does not reach --batch.global_batch_size {self.global_batch_size} in steps "
                f"of {self.ramp_increment}: their difference must be a positive multiple of --batch.ramp_increment"
            )


OPTIMIZERS = ("adamw", "adam", "lamb", "lars", "sgd")


@dataclass
class OptimConfig:
    """The optimizer on the fp32 parameters; see `training/optimizers.py` for the update of each kind.

    Args:
        kind: adamw (decoupled decay), adam (decay added to the gradient), lamb, lars, sgd.
        lr: peak learning rate at `schedule.base_batch_size` (or at any batch where `schedule.lr_rule` is none).
        beta1: decay of the first moment; of adam, adamw, lamb.
        beta2: decay of the second moment; of adam, adamw, lamb.
        eps: added to the root of the second moment (lars, larc: to the denominator of the trust ratio).
        weight_decay: decay of matrices; biases, norms and weight-norm gains are never decayed.
        momentum: of sgd and lars.
        nesterov: Nesterov's momentum for sgd.
        trust_coefficient: of lars and larc: the local rate is this times weight norm over gradient norm.
        layer_lr_decay: each layer below the output learns at this fraction of the rate of the one above; for fine-tuning.
        max_trust_ratio: lamb: the trust ratio is clipped to this; 0 leaves it free.
        lamb_prenorm: lamb: divide all gradients by their common norm first (NVLAMB).
        larc: LARC on top of sgd or adam: the gradient of each tensor is scaled so that its local rate is at most
            the trust ratio.
        backend: torch, or apex (NVIDIA Apex's fused kernels; CUDA only); auto is apex for lamb where it is there.
        clip_grad_norm: global gradient norm above which gradients are scaled down, after unscaling; 0 turns it off.
    """

    kind: Literal["adamw", "adam", "lamb", "lars", "sgd"] = "adamw"
    lr: float = 5e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    trust_coefficient: float = 1e-3
    layer_lr_decay: float = 1.0
    max_trust_ratio: float = 0.0
    lamb_prenorm: bool = False
    larc: bool = False
    backend: Literal["torch", "apex", "auto"] = "torch"
    clip_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        check_choice("optim.kind", self.kind, OPTIMIZERS)
        check_choice("optim.backend", self.backend, ("torch", "apex", "auto"))
        check_positive("optim.lr", self.lr)
        check_positive("optim.eps", self.eps)
        check_positive("optim.trust_coefficient", self.trust_coefficient)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"--optim.momentum is {self.momentum}: it must be in [0, 1)")
        if self.nesterov and (self.kind != "sgd" or self.momentum == 0):
            raise ValueError("--optim.nesterov is for --optim.kind sgd with momentum")
        if self.larc and self.kind not in ("sgd", "adam"):
            why = "decays apart from the gradient" if self.kind == "adamw" else "has a trust ratio of its own"
            raise ValueError(f"--optim.larc goes with sgd, adam: {self.kind} {why}")
        if self.lamb_prenorm and self.kind != "lamb":
            raise ValueError(f"--optim.lamb_prenorm goes with --optim.kind lamb, not {self.kind}")
        if not 0 < self.layer_lr_decay <= 1:
            raise ValueError(f"--optim.layer_lr_decay is {self.layer_lr_decay}: it must be in (0, 1], 1 for one rate")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"--optim.{name} is {getattr(self, name)}: it must be in [0, 1)")
        for name in ("weight_decay", "clip_grad_norm", "max_trust_ratio"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"--optim.{name} is {getattr(self, name)}: it must not be negative, and finite")


DECAYS = ("linear", "cosine", "constant", "inverse_sqrt", "step", "wsd", "slanted")


@dataclass
class ScheduleConfig:
    """How long a run is and what its learning rate does, as functions of samples consumed.

    Args:
        epochs: passes over the training bytes; fractions are fine. Ignored where `samples` is given.
        samples: length of the run in samples; 0 means `epochs` decides.
        warmup_samples: the rate rises linearly from 0 over this many samples.
        decay: shape between warm-up and horizon: linear, cosine, constant, inverse_sqrt (needs a warm-up), step, wsd
            (warm-up, stable, decay) or slanted (triangular, from the floor up and back: for fine-tuning).
        horizon_samples: where the decay ends; 0 means the end of the run. The rate stays as it is there.
        min_lr_ratio: floor of the decay, as a fraction of the peak.
        decay_samples: wsd: length of the final decay (0: a tenth of the horizon); step: samples between two drops (0: a
            third of what follows the warm-up).
        step_factor: step: the rate is multiplied by this at every drop.
        lr_rule: scaling of the peak with the global batch: none, linear (Goyal et al. 2017), sqrt (Hoffer et al. 2017),
            sqrt_adam (Malladi et al. 2022: betas and eps change with it).
        base_batch_size: the global batch at which the peak is `optim.lr`.
        max_lr: cap of the scaled peak; 0 means none.
        patience: the run ends early after so many validations in a row without a better score; 0: never.
    """

    epochs: float = 1.0
    samples: int = 0
    warmup_samples: int = 0
    decay: Literal["linear", "cosine", "constant", "inverse_sqrt", "step", "wsd", "slanted"] = "linear"
    horizon_samples: int = 0
    min_lr_ratio: float = 0.0
    decay_samples: int = 0
    step_factor: float = 0.1
    lr_rule: Literal["none", "linear", "sqrt", "sqrt_adam"] = "none"
    base_batch_size: int = 128
    max_lr: float = 0.0
    patience: int = 0

    def __post_init__(self) -> None:
        check_choice("schedule.decay", self.decay, DECAYS)
        check_choice("schedule.lr_rule", self.lr_rule, ("none", "linear", "sqrt", "sqrt_adam"))
        if not 0 < self.step_factor < 1:
            raise ValueError(f"--schedule.step_factor is {self.step_factor}: it must lie between 0 and 1")
        check_positive("schedule.base_batch_size", self.base_batch_size)
        if self.epochs < 0 or not self.samples:
            check_positive("schedule.epochs", self.epochs)
        for name in ("samples", "warmup_samples", "horizon_samples", "decay_samples", "max_lr", "patience"):
            if getattr(self, name) < 0:
                raise ValueError(f"--schedule.{name} is {getattr(self, name)}: it must not be negative")
        if not 0 <= self.min_lr_ratio <= 1:
            raise ValueError(f"--schedule.min_lr_ratio is {self.min_lr_ratio}: it must be in [0, 1]")


@dataclass
class ParallelConfig:
    """How ranks share the work.

    Args:
        strategy: ddp (every rank holds all), or fsdp (FSDP2: parameters, gradients and optimizer state in shards).
        grad_exchange: type in which DDP sends gradients: auto is fp16 under --precision fp16, else fp32; powersgd sends
            low-rank factors.
        powersgd_rank: rank of those factors.
        bucket_mb: gradients are sent in buckets of this size, MiB, while the backward pass goes on.
        static_graph: tell DDP that every step uses the same parameters.
        timeout_seconds: a rank that is waited for longer than this ends the attempt, with its name.
    """

    strategy: Literal["ddp", "fsdp"] = "ddp"
    grad_exchange: Literal["auto", "fp32", "fp16", "bf16", "powersgd"] = "auto"
    powersgd_rank: int = 4
    bucket_mb: float = 25.0
    static_graph: bool = False
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        check_choice("parallel.strategy", self.strategy, ("ddp", "fsdp"))
        check_choice("parallel.grad_exchange", self.grad_exchange, ("auto", "fp32", "fp16", "bf16", "powersgd"))
        check_positive("parallel.powersgd_rank", self.powersgd_rank)
        check_at_most("parallel.bucket_mb", self.bucket_mb, 1_000_000, "MiB")
        check_at_most("parallel.timeout_seconds", self.timeout_seconds, 2_592_000, "s (thirty days)")
        if self.strategy == "fsdp" and self.grad_exchange not in ("auto", "fp32"):
            raise ValueError(f"--parallel.grad_exchange {self.grad_exchange} is an option of ddp: fsdp sends fp32")


@dataclass
class LogConfig:
    """What a run writes, and how often. 0 means a share of the run.

    Args:
        interval_samples: samples between lines of metrics.jsonl; 0: a hundredth of the run.
        eval_interval_samples: samples between validations; 0: a tenth of the run.
        checkpoint_interval_samples: samples between checkpoints; 0: a tenth of the run.
        keep_checkpoints: newest checkpoints kept; the one with the best validation BPC is kept besides.
        eval_lanes: the held-out text is read in this many lanes, each starting with zero state; by GPT and BERT in at most so
            many sequences at once, which changes nothing about the result.
        eval_max_bytes: validation during training stops after this many bytes; 0: all. The last one reads all.
        noise_scale: estimate the gradient noise scale (McCandlish et al. 2018) from the gradients of ranks or of
            accumulation steps; costs one norm a step.
        tensorboard: also write TensorBoard event files into the run folder (extra `log`).
        progress: show a progress bar on rank 0.
    """

    interval_samples: int = 0
    eval_interval_samples: int = 0
    checkpoint_interval_samples: int = 0
    keep_checkpoints: int = 2
    eval_lanes: int = 32
    eval_max_bytes: int = 0
    noise_scale: bool = False
    tensorboard: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        check_positive("log.keep_checkpoints", self.keep_checkpoints)
        check_positive("log.eval_lanes", self.eval_lanes)
        names = ("interval_samples", "eval_interval_samples", "checkpoint_interval_samples", "eval_max_bytes")
        for name in names:
            if getattr(self, name) < 0:
                raise ValueError(f"--log.{name} is {getattr(self, name)}: it must not be negative")


@dataclass
class TrainConfig:
    """A training run: what `bigbatch train` reads from YAML and options, and what a run folder stores.

    Args:
        model: the network; `model.kind` tells the families apart.
        data: where the text comes from and how it is split.
        batch: lanes and window.
        optim: optimizer and clipping.
        schedule: run length and learning rate.
        loss_scale: loss scaling under fp16 and amp.
        parallel: how ranks share the work.
        log: logging, validation, checkpoints.
        run_dir: folder of the run: config.yaml, metrics.jsonl, checkpoints, results.
        precision: fp32, fp16 (fp16 compute copies of fp32 master parameters), bf16, amp; auto is fp16 on CUDA, else fp32.
        device: cpu, cuda, or auto.
        nproc: processes on this machine; above 1 the command starts them itself.
        seed: of initial weights, data order and dropout.
        init_from: run folder or checkpoint whose weights a new run starts from; optimizer, schedule and data are its own.
        resume: auto goes on where the run folder stopped; never refuses a folder that holds a run.
        profile: profile a few steps and write profile.txt and profile.json into the run folder.
    """

    model: MLSTMConfig | LSTMConfig | GPTConfig | BERTConfig = field(default_factory=MLSTMConfig)
    data: DataConfig = field(default_factory=DataConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run_dir: str = "runs/train"
    precision: Literal["auto", "fp32", "fp16", "bf16", "amp"] = "auto"
    device: str = "auto"
    nproc: int = 1
    seed: int = 1234
    init_from: str | None = None
    resume: Literal["auto", "never"] = "auto"
    profile: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.model, GPTConfig | BERTConfig):
            self._check_transformer(self.model)
        elif self.model.vocab_size < 256:
            raise ValueError(
                f"--model.vocab_size is {self.model.vocab_size}: the text is bytes, so it must be at least 256"
            )
        self.run_dir = check_run(self.precision, self.resume, self.nproc, self.seed, self.run_dir)

    def _check_transformer(self, model: GPTConfig | BERTConfig) -> None:
        if self.batch.seq_length > model.max_position_embeddings:
            raise ValueError(
                f"--batch.seq_length is {self.batch.seq_length}, longer than the model's {model.max_position_embeddings} "
                "positions: shorten it or raise --model.max_position_embeddings"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def absolute(self) -> TrainConfig:
        """The same with every path absolute, so that a run can be gone on with from anywhere."""
        data = replace(
            self.data,
            paths=[path if path == "demo" else absolute(path) for path in self.data.paths],
            store=absolute(self.data.store) if self.data.store else None,
        )
        return replace(self, data=data, init_from=absolute(self.init_from) if self.init_from else None)


def absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


# What may differ between the parts of one run: where and how it is computed, not what.
LAYOUT_KEYS = (
    "run_dir", "device", "nproc", "resume", "profile", "batch.micro_batch_size", "parallel.strategy", "parallel.bucket_mb",
    "parallel.static_graph", "parallel.timeout_seconds", "optim.backend",
)  # fmt: skip


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionary to one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lines `key: old -> new` for every difference that would make another run of it."""
    a, b = flatten(old), flatten(new)
    ours = [key for key in {**a, **b} if key not in LAYOUT_KEYS and not key.startswith("log.")]
    keys = [key for key in ours if a.get(key) != b.get(key)]
    return [f"{key}: {a.get(key)} -> {b.get(key)}" for key in keys]


MODELS: dict[str, type] = {"mlstm": MLSTMConfig, "lstm": LSTMConfig, "gpt": GPTConfig}


def config_from_dict(values: dict[str, Any]) -> TrainConfig:
    """The configuration stored in a run folder or checkpoint, validated anew.

    Raises:
        ValueError: if it has keys this version does not know.
    """
    model = values.get("model", {})
    kind = model.get("kind", "mlstm") if isinstance(model, dict) else model
    if kind not in MODELS:
        raise ValueError(
            f"the stored configuration has model.kind {kind!r}, which this version of bigbatch does not know"
        )
    parts: dict[str, type] = {
        "model": MODELS[kind],
        "data": DataConfig, "batch": BatchConfig, "optim": OptimConfig, "schedule": ScheduleConfig,
        "loss_scale": LossScaleConfig, "parallel": ParallelConfig, "log": LogConfig,
    }  # fmt: skip
    values = {key: value for key, value in values.items() if key != "tokenizer_hash"}  # which a checkpoint adds
    return compose(TrainConfig, parts, values)


def compose(whole: type[T], parts: dict[str, type], values: dict[str, Any]) -> T:
    """A dataclass of dataclasses from a nested dictionary.

    Raises:
        ValueError: if it has keys this version does not know.
    """
    try:
        return whole(**{key: parts[key](**value) if key in parts else value for key, value in values.items()})
    except TypeError as error:
        raise ValueError(f"the stored configuration is of another version of bigbatch: {error}") from None
