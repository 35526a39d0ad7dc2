"""The loop in one process: resume to the bit, accumulation, clipping, skipped steps, divergence, logs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bigbatch.fp16.config import LossScaleConfig
from bigbatch.training import engine as module
from bigbatch.training import signals
from bigbatch.training.checkpoint import checkpoint_dirs, load_checkpoint, load_model, newest_checkpoint
from bigbatch.training.config import TrainConfig
from bigbatch.training.engine import Diverged, Engine
from bigbatch.training.loss import sequence_loss
from bigbatch.training.metrics import read_metrics
from bigbatch.training.schedules import lr_factor

TIMING = ("tokens_per_second",)
EngineOf = Callable[[TrainConfig], Engine]


def rows(run_dir: str | Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in TIMING} for row in read_metrics(run_dir)]


def at_step(engine: Engine, step: int, action: Callable[[], object]) -> None:
    """Calls `action` inside the given step (counted from 1) of this engine."""
    original, calls = engine.task.advance, []

    def advance() -> None:
        calls.append(None)
        if len(calls) == step:
            action()
        original()

    engine.task.advance = advance


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def assert_same_run(one: TrainConfig, other: TrainConfig) -> None:
    """Equal metrics (timing aside), equal final weights, optimizer and state, bit for bit."""
    assert rows(one.run_dir) == rows(other.run_dir)
    found = [newest_checkpoint(Path(config.run_dir)) for config in (one, other)]
    assert found[0] is not None and found[1] is not None
    (a, _, _), (b, _, _) = found
    for part in ("model", "optimizer", "state"):
        x, y = getattr(a, part), getattr(b, part)
        assert x.keys() == y.keys()
        assert all(torch.equal(x[name], y[name]) for name in x), part
    for key in ("samples", "tokens", "position", "loss_scale"):
        assert a.trainer[key] == b.trainer[key]


VARIANTS: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "plain": lambda c: c,
    "accumulation": lambda c: replace(c, batch=replace(c.batch, micro_batch_size=2)),
    "dropout, two layers": lambda c: replace(c, model=replace(c.model, dropout=0.3, num_layers=2)),
    "fp16": lambda c: replace(c, precision="fp16", loss_scale=replace(c.loss_scale, growth_interval=4)),
    "short validation": lambda c: replace(c, log=replace(c.log, eval_max_bytes=100)),
}


# Steps of each start after which a stop is asked for: at the first, within and at the end of a log interval, in the
# last one, where the final validation is still to come.
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stopped_run_ends_as_the_uninterrupted_one(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path, variant: str
) -> None:
    config = VARIANTS[variant](config)
    assert engine_of(config).run().status == "finished"
    for steps in ((4, 3), (14,)) if variant != "plain" else ((1,), (2, 1, 1), (4, 3), (10,), (14,)):
        stopped = in_folder(config, tmp_path / f"stopped{steps[0]}")
        for step in steps:
            engine = engine_of(stopped)
            at_step(engine, step, engine.request_stop)
            result = engine.run()
            assert result.status == "stopped" and result.samples == engine.trainer["samples"]
        # Ranks agree within the next step, or within a validation that comes before it.
        assert engine.trainer["samples"] == 8 * (sum(steps) + (steps != (10,)) * len(steps))
        assert engine_of(stopped).run().status == "finished"
        assert_same_run(config, stopped)


def test_sigterm_stops_with_a_checkpoint_after_the_step(config: TrainConfig, engine_of: EngineOf) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    engine = engine_of(config)
    at_step(engine, 2, sigterm)
    assert engine.run().samples == 24  # the signal came in step 2; ranks agree on it within the next step
    assert [path.name for path in checkpoint_dirs(Path(config.run_dir))] == ["step_000000000024"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_stop_within_validation_is_obeyed_at_once_and_validates_on_resume(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path
) -> None:
    engine_of(config).run()
    stopped = in_folder(config, tmp_path / "stopped")
    engine, windows = engine_of(stopped), []

    class Source:
        """Passes the validation bytes on, counts the reads, and is stopped at the third."""

        num_tokens, shard_starts = engine.task.val.num_tokens, engine.task.val.shard_starts

        def read(self, start: int, stop: int):
            windows.append(start)
            if len(windows) == 3:
                sigterm()
            return original.read(start, stop)

    original, engine.task.val = engine.task.val, Source()
    result = engine.run()
    assert result.status == "stopped" and result.samples == 40 and len(windows) < 10
    assert [row for row in rows(stopped.run_dir) if row.get("event")] == []
    assert engine_of(stopped).run().status == "finished"
    assert_same_run(config, stopped)
    found = newest_checkpoint(Path(stopped.run_dir))
    assert found is not None and found[0].trainer["progress"]["best"] is not None


def test_a_checkpoint_is_never_written_twice(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []

    def recording(run_dir: Path, checkpoint, *args) -> None:
        saved.append(checkpoint.trainer["samples"])
        original(run_dir, checkpoint, *args)

    original = module.save_checkpoint
    monkeypatch.setattr(module, "save_checkpoint", recording)
    for _ in range(3):  # each start is stopped within its first validation
        engine = engine_of(config)
        monkeypatch.setattr(engine, "_agree_stop", lambda engine=engine: setattr(engine, "_stop", True) or True)
        assert engine.run().status == "stopped"
    engine_of(config).run()
    assert len(saved) == len(set(saved)) and saved[-1] == 120


def test_a_finished_run_does_nothing_more(config: TrainConfig, engine_of: EngineOf) -> None:
    engine_of(config).run()
    before = {p: p.read_bytes() for p in Path(config.run_dir, "checkpoints").rglob("*") if p.is_file()}
    engine = engine_of(config)
    assert engine.finished
    engine.run()
    assert {p: p.read_bytes() for p in Path(config.run_dir, "checkpoints").rglob("*") if p.is_file()} == before


def test_other_data_is_refused(config: TrainConfig, engine_of: Callable[..., Engine]) -> None:
    engine_of(config).run()
    with pytest.raises(ValueError, match=r"was trained on other data than its files hold now"):
        engine_of(config, data_hash="another corpus")


def test_another_model_is_refused(config: TrainConfig, engine_of: EngineOf) -> None:
    engine_of(config).run()
    other = replace(config, model=replace(config.model, embedding_size=9))
    with pytest.raises(ValueError, match=r"is of another model: embedding.weight is \(256, 8\) there and \(256, 9\)"):
        engine_of(other)


def test_accumulation_equals_one_big_batch(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path
) -> None:
    # SGD-like comparison of gradients, because Adam turns rounding of tiny gradients into steps of full size.
    gradients, losses = [], []
    for micro in (0, 4, 1):
        run = in_folder(config, tmp_path / f"micro{micro}")
        run = replace(run, batch=replace(run.batch, micro_batch_size=micro), optim=replace(run.optim, lr=1e-9))
        engine = engine_of(run)
        engine.run()
        gradients.append([p.grad.clone() for p in engine.model.parameters() if p.grad is not None])
        losses.append([row["loss"] for row in rows(run.run_dir)])
    for other, loss in zip(gradients[1:], losses[1:]):
        assert loss == pytest.approx(losses[0], rel=1e-6)
        for a, b in zip(gradients[0], other):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_lr_follows_samples_and_is_logged(config: TrainConfig, engine_of: EngineOf) -> None:
    engine_of(config).run()
    logged = [row for row in rows(config.run_dir) if "event" not in row]
    assert [row["samples"] for row in logged] == [24, 48, 72, 96, 120]
    for row in logged:
        # The rate of a step is the one after all samples before it.
        assert row["lr"] == 1e-2 * lr_factor(config.schedule, row["samples"] - 8, 120)


def test_logged_rows_have_the_required_keys(config: TrainConfig, engine_of: EngineOf) -> None:
    engine = engine_of(config)
    engine.run()
    required = {"samples", "tokens", "step", "epoch", "loss", "bpc", "lr", "grad_norm", "loss_scale", "skipped_steps"}
    train = [row for row in read_metrics(config.run_dir) if "event" not in row]
    evals = [row for row in read_metrics(config.run_dir) if row.get("event") == "eval"]
    assert all(required | {"tokens_per_second"} <= row.keys() for row in train)
    assert [row["epoch"] for row in train] == [0, 0, 0, 1, 1]
    # Nine windows of 128 targets and one of 3 make an epoch; then five more windows.
    assert [row["tokens"] for row in train] == [384, 768, 1152, 1152 + 3 + 256, 1152 + 3 + 640]
    assert [row["samples"] for row in evals] == [40, 80, 120]
    assert all(row["split"] == "val" and row["num_targets"] == 700 for row in evals)
    assert train[-1]["loss"] < train[0]["loss"] - 0.5 and evals[-1]["bpc"] < evals[0]["bpc"]
    assert engine.trainer["best"] == min(row["bpc"] for row in evals)


def test_clipping_happens_after_unscaling(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path
) -> None:
    finals, norms = [], []
    for scale in (1.0, 1024.0):
        run = in_folder(config, tmp_path / f"scale{scale}")
        loss_scale = LossScaleConfig(loss_scale=scale)
        optim = replace(run.optim, clip_grad_norm=0.05)  # far below the norms that occur: every step is clipped
        engine = engine_of(replace(run, precision="amp", loss_scale=loss_scale, optim=optim))
        engine.run()
        assert engine.scaler.scale == scale and engine.scaler.skipped_steps == 0
        finals.append([p.detach().clone() for p in engine.model.parameters()])
        logged = [row for row in rows(engine.run_dir) if "event" not in row]
        norms.append([row["grad_norm"] for row in logged])
        assert min(norms[-1]) > 0.05
    assert norms[0] == pytest.approx(norms[1], rel=2e-2)  # fp16 backward rounds differently at another scale
    for a, b in zip(*finals):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-2)
    assert sum(float((a - b).abs().mean()) for a, b in zip(*finals)) < 2e-2


def test_the_clipped_gradient_is_what_the_optimizer_sees(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(config, precision="fp16", optim=replace(config.optim, clip_grad_norm=0.05))
    engine, seen = engine_of(run), []
    original = engine.optimizer.step

    def step(*args, **kwargs):
        seen.append(torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None]).norm())
        return original(*args, **kwargs)

    monkeypatch.setattr(engine.optimizer, "step", step)
    engine.run()
    assert len(seen) == 15 and all(float(norm) == pytest.approx(0.05, rel=1e-3) for norm in seen)


def test_fp16_skips_are_counted_and_the_schedule_follows_samples(config: TrainConfig, engine_of: EngineOf) -> None:
    # Starts so high that the first steps must overflow.
    scale = LossScaleConfig(init_scale=2.0**24, growth_interval=5)
    log = replace(config.log, interval_samples=8)
    run = replace(config, precision="fp16", loss_scale=scale, log=log)
    engine = engine_of(run)
    initial = [p.detach().clone() for p in engine.model.parameters()]
    at_step(engine, 1, lambda: skipped_nothing.append(all(map(torch.equal, initial, engine.model.parameters()))))
    skipped_nothing: list[bool] = []
    engine.run()
    logged = [row for row in rows(run.run_dir) if "event" not in row]
    assert logged[0]["skipped_steps"] == 1 and logged[0]["grad_norm"] is None and skipped_nothing == [True]
    assert 1 <= logged[-1]["skipped_steps"] == engine.scaler.skipped_steps < 15
    assert logged[0]["loss_scale"] == 2.0**24 / 2 and logged[-1]["loss_scale"] < 2.0**24
    assert [row["step"] for row in logged] == list(range(1, 16))
    assert [row["lr"] for row in logged] == [1e-2 * lr_factor(run.schedule, 8 * i, 120) for i in range(15)]
    assert logged[-1]["loss"] < logged[0]["loss"] - 0.1


def test_fp16_learns_as_fp32_does(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path
) -> None:
    results = {}
    for precision in ("fp32", "fp16", "bf16", "amp"):
        run = replace(in_folder(config, tmp_path / precision), precision=precision)
        results[precision] = engine_of(run).run().best
    assert results["fp16"] == pytest.approx(results["fp32"], abs=0.02)
    assert results["amp"] == pytest.approx(results["fp32"], abs=0.02)
    assert results["bf16"] == pytest.approx(results["fp32"], abs=0.1)
    assert results["fp16"] != results["fp32"]


def test_lasting_nan_gradients_end_in_a_diagnosis(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(config, loss_scale=replace(config.loss_scale, max_consecutive_overflows=3))
    engine = engine_of(run)
    name, parameter = list(engine.model.named_parameters())[1]
    handle = []

    def poison() -> None:
        handle.append(parameter.register_hook(lambda grad: grad * float("nan")))

    at_step(engine, 6, poison)
    with pytest.raises(ValueError) as caught:
        engine.run()
    message = str(caught.value)
    assert "not finite for 3 steps in a row" in message and f"first bad gradient: {name}," in message
    assert "lower --optim.lr" in message and "\n" not in message
    assert engine.trainer["samples"] == 64  # steps 7 and 8 were skipped, the ninth ended the run
    assert engine.scaler.skipped_steps == 3
    # What was learned before is still there.
    checkpoints = [path.name for path in checkpoint_dirs(Path(run.run_dir))]
    assert checkpoints and all(load_checkpoint(Path(run.run_dir, "checkpoints", c)) for c in checkpoints)


def test_skipped_steps_advance_data_and_state(config: TrainConfig, engine_of: EngineOf) -> None:
    engine = engine_of(config)
    parameter = next(engine.model.parameters())
    parameter.register_hook(lambda grad: grad * float("inf"))
    at_step(engine, 3, engine.request_stop)
    engine.run()
    found = newest_checkpoint(Path(config.run_dir))
    assert found is not None
    trainer = found[0].trainer
    assert trainer["position"]["window"] == 4 and trainer["progress"]["step"] == 4
    assert found[0].state["cell"].abs().sum() > 0
    assert engine.scaler.skipped_steps == 4


def test_the_profile_writes_its_two_files(config: TrainConfig, engine_of: EngineOf) -> None:
    engine_of(replace(config, profile=True)).run()
    run_dir = Path(config.run_dir)
    assert "Self CPU" in (run_dir / "profile.txt").read_text()
    assert json.loads((run_dir / "profile.json").read_text())["traceEvents"]


def test_epochs_decide_the_length(config: TrainConfig, engine_of: EngineOf) -> None:
    engine = engine_of(replace(config, schedule=replace(config.schedule, samples=0, epochs=1.5)))
    assert engine.total_samples == 120
    assert engine.run().tokens == 1155 + 5 * 128


def test_a_corpus_shorter_than_one_window_is_refused(config: TrainConfig, engine_of: EngineOf) -> None:
    with pytest.raises(ValueError, match=r"^the corpus has 1,155 bytes to train on, less than one window of 200 bytes"):
        engine_of(replace(config, batch=replace(config.batch, seq_length=200)))


def ramp(config: TrainConfig, **batch: int) -> TrainConfig:
    """2 lanes, then 4, 6 and 8 over the first 48 samples; 20 steps and more than one epoch in all."""
    values = {"ramp_start": 2, "ramp_increment": 2, "ramp_samples": 48, **batch}
    schedule = replace(config.schedule, samples=160)
    return replace(config, batch=replace(config.batch, **values), schedule=schedule)


def test_a_ramp_reads_every_byte_once_and_says_what_it_does(
    config: TrainConfig, engine_of: EngineOf, caplog: pytest.LogCaptureFixture
) -> None:
    run = ramp(replace(config, log=replace(config.log, interval_samples=1)))
    engine = engine_of(run)
    read: list[int] = []
    original = engine.task.stream.read

    def counting(lanes: range, window: int | None = None):
        result = original(lanes, window)
        if engine.task.stream.position.epoch == 0:
            read.append(int(result.mask.sum()))
        return result

    engine.task.stream.read = counting  # pyright: ignore[reportAttributeAccessIssue]
    with caplog.at_level("INFO", logger="bigbatch"):
        engine.run()
    assert sum(read) == engine.task.stream.source.num_tokens
    logged = [row for row in rows(run.run_dir) if "event" not in row]
    batches = [row["global_batch_size"] for row in logged]
    # Every step begins with the batch that is due after the samples consumed before it.
    starts = [0, *(row["samples"] for row in logged[:-1])]
    assert batches == [2 + 2 * min(3, start * 3 // 48) if start < 48 else 8 for start in starts]
    assert set(batches) == {2, 4, 6, 8} and batches == sorted(batches)
    assert [row["lr"] for row in logged] == [1e-2 * lr_factor(run.schedule, start, 160) for start in starts]
    assert "global batch 4 from 16 samples on: unread text split anew" in caplog.text


@pytest.mark.parametrize("step", [3, 8, 9, 12])  # the eighth step ends at the first change of batch
def test_a_run_stopped_within_a_ramp_ends_as_the_uninterrupted_one(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path, step: int
) -> None:
    whole = ramp(in_folder(config, tmp_path / "whole"))
    engine_of(whole).run()
    parts = ramp(in_folder(config, tmp_path / "parts"))
    engine = engine_of(parts)
    at_step(engine, step, engine.request_stop)
    assert engine.run().status == "stopped"
    engine_of(parts).run()
    assert_same_run(whole, parts)


def test_a_corpus_too_short_for_the_end_of_a_ramp_is_refused_at_its_start(
    config: TrainConfig, engine_of: EngineOf
) -> None:
    with pytest.raises(ValueError, match=r"less than one window of 16 bytes for each of 80 lanes"):
        engine_of(ramp(config, global_batch_size=80))


def test_the_noise_scale_comes_from_the_first_of_several_micro_batches(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, batch = replace(config.log, noise_scale=True), replace(config.batch, micro_batch_size=2)
    run = replace(config, log=log, batch=batch, precision="fp16", optim=replace(config.optim, clip_grad_norm=1e-3))
    engine = engine_of(run)
    seen: list[tuple] = []
    monkeypatch.setattr(engine.noise, "add", lambda *arguments: seen.append(arguments))
    at_step(engine, 1, engine.request_stop)
    engine.run()
    # The same two gradients by plain fp32 arithmetic.
    plain = engine_of(replace(run, run_dir=run.run_dir + "-plain", precision="fp32"))
    squares = []
    for lanes, parts in ((range(2), 4), (range(8), 1)):
        plain.model.zero_grad()
        tokens, reset, mask = (torch.from_numpy(a) for a in plain.task.stream.read(lanes))
        (parts * sequence_loss(plain.model, tokens, reset, mask, None).loss_sum / 128).backward()
        squares.append(sum(float(p.grad.square().sum()) for p in plain.model.parameters() if p.grad is not None))
    assert seen[:1] == [(pytest.approx(squares[0], rel=0.01), pytest.approx(squares[1], rel=0.01), 2.0, 8)]


def test_the_noise_scale_is_logged_and_resumed(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path
) -> None:
    log, batch = replace(config.log, noise_scale=True), replace(config.batch, micro_batch_size=2)
    scales = []
    for name in ("whole", "parts"):
        run = replace(in_folder(config, tmp_path / name), log=log, batch=batch)
        engine = engine_of(run)
        if name == "parts":
            at_step(engine, 5, engine.request_stop)
            engine.run()
        engine_of(run).run()
        scales.append([row["noise_scale"] for row in rows(run.run_dir) if "event" not in row])
    assert scales[0] == scales[1] and any(value and value > 0 for value in scales[0])


def test_divergence_before_the_first_checkpoint_leaves_one(config: TrainConfig, engine_of: EngineOf) -> None:
    run = replace(config, loss_scale=replace(config.loss_scale, max_consecutive_overflows=2))
    engine = engine_of(run)
    initial = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    next(engine.model.parameters()).register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(ValueError, match=r"not finite for 2 steps in a row .* weights from before: "):
        engine.run()
    found = newest_checkpoint(Path(run.run_dir))
    assert found is not None and found[0].trainer["samples"] == 8  # the second step ended the run
    assert all(torch.equal(found[0].model[name], value) for name, value in initial.items())


@pytest.mark.parametrize("taken", [0, 6])  # of the fifteen steps of the run
def test_a_run_that_ends_before_the_limit_of_overflows_has_no_result(
    taken: int, config: TrainConfig, engine_of: EngineOf
) -> None:
    engine = engine_of(config)
    weight = next(engine.model.parameters())

    def spoil() -> None:
        weight.register_hook(lambda grad: grad * float("nan"))

    at_step(engine, taken, spoil) if taken else spoil()
    with pytest.raises(
        Diverged, match=rf"without a usable model: {15 - taken} of 15 steps were skipped .* lower --optim.lr"
    ):
        engine.run()


def test_a_loss_that_is_not_a_number_at_the_end_is_no_result(config: TrainConfig, engine_of: EngineOf) -> None:
    engine = engine_of(config)
    at_step(engine, 15, lambda: next(engine.model.parameters()).data.fill_(float("nan")))
    with pytest.raises(Diverged, match=r"without a usable model: the validation loss is nan"):
        engine.run()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_closed_terminal_and_a_scheduler_end_the_run_with_a_checkpoint(
    number: int, config: TrainConfig, engine_of: EngineOf
) -> None:
    engine = engine_of(config)
    at_step(engine, 2, lambda: os.kill(os.getpid(), number))
    assert engine.run().status == "stopped"
    assert newest_checkpoint(Path(config.run_dir)) is not None


def test_a_hang_up_that_nohup_ignores_stays_ignored(config: TrainConfig, engine_of: EngineOf) -> None:
    engine = engine_of(config)
    at_step(engine, 2, lambda: os.kill(os.getpid(), signal.SIGHUP))
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert engine.run().status == "finished"
    finally:
        signal.signal(signal.SIGHUP, old)


def test_a_run_without_gain_ends_early_and_stays_ended(
    config: TrainConfig, engine_of: EngineOf, tmp_path: Path
) -> None:
    schedule = replace(config.schedule, samples=400, patience=2)
    run = replace(
        config, schedule=schedule, optim=replace(config.optim, lr=1e-30)
    )  # learns nothing: every loss is the first
    result = engine_of(run).run()
    assert result.status == "finished" and result.val is not None
    evals = [row["samples"] for row in rows(run.run_dir) if row.get("event")]
    assert evals == [40, 80, 120] and result.samples == 120  # the first is a gain, the next two are none
    assert engine_of(run).finished
    whole = replace(run, schedule=replace(schedule, patience=0), run_dir=str(tmp_path / "whole"))
    assert engine_of(whole).run().samples == 400


def test_event_files_hold_the_rows(config: TrainConfig, engine_of: EngineOf) -> None:
    pytest.importorskip("tensorboardX", reason="the extra `log` is not installed")
    engine_of(replace(config, log=replace(config.log, tensorboard=True))).run()
    (file,) = (Path(config.run_dir) / "tensorboard").iterdir()
    content = file.read_bytes()
    assert b"train/bpc" in content and b"val/bpc" in content and content.count(b"train/lr") == 5


def test_event_files_without_their_package_are_one_line(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"needs one more package: pip install 'bigbatch\[log\]'"):
        engine_of(replace(config, log=replace(config.log, tensorboard=True))).run()


def test_the_best_is_marked_again_where_a_kill_came_before_the_mark(config: TrainConfig, engine_of: EngineOf) -> None:
    engine = engine_of(config)
    at_step(engine, 11, engine.request_stop)
    engine.run()
    mark = Path(config.run_dir) / "checkpoints" / "best"
    best = mark.read_text()
    mark.unlink()
    engine_of(config)
    # Only where the newest checkpoint is the best one: another one has been marked before it was saved.
    newest = checkpoint_dirs(Path(config.run_dir))[-1].name
    assert (mark.read_text() if mark.exists() else None) == (best if best == newest else None)


def test_a_lane_whose_state_is_not_finite_starts_again(
    config: TrainConfig, engine_of: EngineOf, caplog: pytest.LogCaptureFixture
) -> None:
    run = replace(
        config,
        data=replace(config.data, reset="never"),
        loss_scale=replace(config.loss_scale, max_consecutive_overflows=3),
    )
    engine = engine_of(run)

    def poison() -> None:
        engine.task._next[0].cell[0, 3] = float("nan")
        engine.task._next[0].hidden[0, 5] = float("inf")

    at_step(engine, 4, poison)
    assert engine.run().status == "finished"
    assert "the recurrent state of 2 lane(s) was not finite: they start again from zero" in caplog.text
    assert engine.scaler.skipped_steps == 0
    state = newest_checkpoint(Path(run.run_dir))
    assert state is not None and state[0].state["cell"].isfinite().all()


def test_a_new_run_starts_from_another_ones_weights_and_resumes_from_its_own(
    config: TrainConfig, engine_of: EngineOf, in_folder: Callable, tmp_path: Path
) -> None:
    engine_of(in_folder(config, tmp_path / "first")).run()
    second = replace(in_folder(config, tmp_path / "second"), init_from=str(tmp_path / "first"), seed=7)
    engine = engine_of(second)
    best = load_model(tmp_path / "first")
    assert all(torch.equal(value, best.model.state_dict()[name]) for name, value in engine.model.state_dict().items())
    assert engine.trainer["samples"] == 0 and not engine.optimizer.state
    at_step(engine, 5, engine.request_stop)
    engine.run()
    (tmp_path / "first").rename(tmp_path / "gone")
    assert engine_of(second).trainer["samples"] == 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_schedulers_warning_stops_as_sigterm_does(config: TrainConfig, engine_of: EngineOf, number: int) -> None:
    before = signal.getsignal(number)
    engine = engine_of(config)
    at_step(engine, 3, lambda: os.kill(os.getpid(), number))
    assert engine.run().status == "stopped" and signal.getsignal(number) == before
    found = newest_checkpoint(Path(config.run_dir))
    assert found is not None and found[0].trainer["samples"] in (24, 32)


FAILURES = [
    (True, RuntimeError("closed by peer")),
    (False, RuntimeError("closed by peer")),
    (True, ValueError("a user's")),
]


@pytest.mark.parametrize("asked, error", FAILURES, ids=str)
def test_a_rank_that_was_asked_to_end_dies_quietly_when_its_exchange_fails(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch, asked: bool, error: Exception
) -> None:
    killed: list[tuple] = []
    monkeypatch.setattr(signals, "under_torchrun", lambda: True)
    monkeypatch.setattr(signals.os, "kill", lambda *arguments: killed.append(arguments))
    engine = engine_of(config)

    def fail() -> None:
        if asked:
            engine.request_stop()
        raise error

    at_step(engine, 3, fail)
    with pytest.raises(type(error)):
        engine.run()
    assert killed == ([(os.getpid(), signal.SIGTERM)] if asked and isinstance(error, RuntimeError) else [])
