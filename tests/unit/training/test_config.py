"""Configurations: what is refused and how, and which differences make another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bigbatch.models.config import MLSTMConfig
from bigbatch.training.config import (
    BatchConfig,
    LogConfig,
    OptimConfig,
    ParallelConfig,
    ScheduleConfig,
    TrainConfig,
    changed_keys,
    flatten,
)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BatchConfig(global_batch_size=0), r"--batch.global_batch_size is 0: it must be above 0"),
        (lambda: BatchConfig(seq_length=-3), r"--batch.seq_length is -3: it must be above 0"),
        (lambda: BatchConfig(micro_batch_size=-1), r"--batch.micro_batch_size is -1: it must be 0 \(automatic\) or above"),
        (lambda: OptimConfig(lr=float("nan")), r"--optim.lr is nan: it must be above 0"),
        (lambda: OptimConfig(beta2=1.0), r"--optim.beta2 is 1.0: it must be in \[0, 1\)"),
        (lambda: OptimConfig(clip_grad_norm=-1), r"--optim.clip_grad_norm is -1: it must not be negative"),
        (lambda: ScheduleConfig(epochs=0), r"--schedule.epochs is 0: it must be above 0"),
        (lambda: ScheduleConfig(warmup_samples=-1), r"--schedule.warmup_samples is -1: it must not be negative"),
        (lambda: ScheduleConfig(decay="sine"), r"--schedule.decay is 'sine': choose one of linear, cosine, constant"),  # pyright: ignore
        (lambda: ScheduleConfig(step_factor=1.0), r"--schedule.step_factor is 1.0: it must lie between 0 and 1"),
        (lambda: BatchConfig(64, ramp_start=16), r"ramp_samples are 16, 0, 0: give all three above 0, or none"),
        (lambda: BatchConfig(64, 0, 8, 16, 20, 100), r"ramp_start 16 does not reach .*size 64 in steps of 20"),
        (lambda: BatchConfig(64, 0, 8, 64, 8, 100), r"difference must be a positive multiple"),
        (lambda: OptimConfig(kind="adagrad"), r"--optim.kind is 'adagrad': choose one of adamw, adam, lamb, lars, sgd"),  # pyright: ignore
        (lambda: OptimConfig(kind="lamb", larc=True), r"--optim.larc goes with sgd, adam: lamb has a trust ratio"),
        (lambda: OptimConfig(larc=True), r"--optim.larc goes with sgd, adam: adamw decays apart from the gradient"),
        (lambda: OptimConfig(nesterov=True), r"--optim.nesterov is for --optim.kind sgd with momentum"),
        (lambda: OptimConfig(lamb_prenorm=True), r"--optim.lamb_prenorm goes with --optim.kind lamb, not adamw"),
        (lambda: ParallelConfig(strategy="fsdp", grad_exchange="fp16"), r"grad_exchange fp16 is an option of ddp"),
        (lambda: ParallelConfig(timeout_seconds=0), r"--parallel.timeout_seconds is 0: it must be above 0"),
        (lambda: ScheduleConfig(lr_rule="cube"), r"--schedule.lr_rule is 'cube': choose one of none, linear, sqrt"),  # pyright: ignore
        (lambda: LogConfig(keep_checkpoints=0), r"--log.keep_checkpoints is 0: it must be above 0"),
        (lambda: LogConfig(interval_samples=-5), r"--log.interval_samples is -5: it must not be negative"),
        (lambda: TrainConfig(precision="fp8"), r"--precision is 'fp8': choose one of auto, fp32, fp16, bf16, amp"),  # pyright: ignore
        (lambda: TrainConfig(resume="yes"), r"--resume is 'yes': choose one of auto, never"),  # pyright: ignore
        (lambda: TrainConfig(nproc=0), r"--nproc is 0: it must be above 0"),
        (lambda: TrainConfig(seed=-1), r"--seed is -1"),
        (lambda: TrainConfig(model=MLSTMConfig(vocab_size=128)), r"--model.vocab_size is 128: the text is bytes"),
        (lambda: TrainConfig(run_dir=""), r"--run-dir '' is not a folder: name one"),
        (lambda: TrainConfig(run_dir=str(Path(__file__))), r"is not a folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named_with_its_limit(make, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_samples_given_the_epochs_do_not_matter() -> None:
    assert ScheduleConfig(samples=5, epochs=0).samples == 5


def test_differences_are_listed_with_both_values() -> None:
    one = TrainConfig()
    two = replace(one, seed=7, optim=replace(one.optim, lr=0.5), model=replace(one.model, hidden_size=9))
    expected = ["model.hidden_size: 256 -> 9", "optim.lr: 0.0005 -> 0.5", "seed: 1234 -> 7"]
    assert sorted(changed_keys(one.to_dict(), two.to_dict())) == expected
    assert changed_keys(one.to_dict(), one.to_dict()) == []
    assert changed_keys({"a": 1}, {"b": 2}) == ["a: 1 -> None", "b: None -> 2"]


def test_how_it_is_computed_may_change() -> None:
    one = TrainConfig()
    two = replace(
        one, run_dir="x", device="cuda", nproc=4, resume="never", profile=True,
        batch=replace(one.batch, micro_batch_size=4), log=LogConfig(interval_samples=3, keep_checkpoints=9),
        parallel=ParallelConfig(strategy="fsdp", bucket_mb=1.0, timeout_seconds=5.0),
    )  # fmt: skip
    assert changed_keys(one.to_dict(), two.to_dict()) == []
    # Everything else makes another run.
    same = [key for key in flatten(one.to_dict()) if not changed_keys(one.to_dict(), with_key(one.to_dict(), key))]
    assert set(same) - {key for key in same if key.startswith("log.")} == {
        "run_dir", "device", "nproc", "resume", "profile", "batch.micro_batch_size", "parallel.strategy",
        "parallel.bucket_mb", "parallel.static_graph", "parallel.timeout_seconds", "optim.backend",
    }  # fmt: skip


def with_key(config: dict, key: str) -> dict:
    head, _, rest = key.partition(".")
    return {**config, head: with_key(config[head], rest) if rest else "changed"}
