"""Two ranks against one process: the same batch, the same order, the same decisions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bigbatch.fp16 import grads
from bigbatch.fp16.config import LossScaleConfig
from bigbatch.models.build import build_model
from bigbatch.models.config import MLSTMConfig
from bigbatch.training import checkpoint as checkpoint_module
from bigbatch.training import engine as engine_module
from bigbatch.training.checkpoint import newest_checkpoint
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ScheduleConfig, TrainConfig
from bigbatch.training.distributed import Ranks, gather_lanes, run_worker, sum_over_ranks
from bigbatch.training.engine import Engine
from bigbatch.training.evaluate import evaluate_bpc
from bigbatch.training.metrics import read_metrics
from bigbatch.training.tasks.char_lm import CharLMTask

LANES, WINDOW = 8, 16
# One target more than whole windows: in the last window of an epoch rank 1 has one target and rank 0 none.
LENGTH = LANES * WINDOW * 3 + 1


@dataclass
class ArraySource:
    """A byte stream held in memory."""

    data: np.ndarray
    shard_starts: np.ndarray

    @property
    def num_tokens(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.data[start:stop]


def source(length: int = LENGTH) -> Any:
    words = np.random.Generator(np.random.PCG64(0)).integers(0, 5, length)
    text = b" ".join([b"good", b"film", b"was", b"bad", b"very"][w] for w in words)[:length]
    return ArraySource(np.frombuffer(text, np.uint8), np.asarray([0, length // 2]))


def make_config(run_dir: str, steps: int, micro: int = 0, **options: Any) -> TrainConfig:
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    return TrainConfig(
        model=MLSTMConfig(embedding_size=8, hidden_size=16),
        batch=BatchConfig(LANES, micro, WINDOW),
        optim=OptimConfig(lr=options.pop("lr", 5e-3)),
        schedule=ScheduleConfig(samples=steps * LANES),
        log=LogConfig(
            interval_samples=LANES, eval_interval_samples=options.pop("eval_interval", 10**6),
            checkpoint_interval_samples=10**6, eval_lanes=3, progress=False,
        ),
        run_dir=run_dir, precision=options.pop("precision", "fp32"), device="cpu", **options,
    )  # fmt: skip


def make_engine(config: TrainConfig, ranks: Ranks) -> Engine:
    return Engine(config, ranks, CharLMTask(config, ranks, source(), source(300)), "corpus")


def at_step(engine: Engine, step: int, action: Callable[[], object]) -> None:
    original, calls = engine.task.advance, []

    def advance() -> None:
        calls.append(None)
        if len(calls) == step:
            action()
        original()

    engine.task.advance = advance


def summary(engine: Engine, result: Any) -> dict:
    flat = torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None])
    weights = torch.cat([p.detach().flatten() for p in engine.model.parameters()])
    return {
        "status": result.status, "samples": result.samples, "bpc": result.best, "gradients": flat.tolist(),
        "weights": weights.tolist(), "scale": engine.scaler.scale, "skipped": engine.scaler.skipped_steps,
    }  # fmt: skip


def train(
    rank: int, world: int, run_dir: str, steps: int, stop_at: int = 0, stop_rank: int = 0, **options: Any
) -> dict:
    engine = make_engine(make_config(run_dir, steps, **options), Ranks(rank, world))
    if stop_at and rank == stop_rank:
        at_step(engine, stop_at, engine.request_stop)
    return summary(engine, engine.run())


def losses(run_dir: str | Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run_dir) if "event" not in row]


@pytest.mark.parametrize("micro", [0, 2], ids=["one backward", "accumulated"])
def test_two_ranks_equal_one_process_with_the_double_batch(run_ranks: Callable, tmp_path: Path, micro: int) -> None:
    # A tiny rate, because Adam turns the rounding of near-zero gradients into steps of full size; four windows, so that
    # the gradients compared are those of the window in which rank 0 has no target at all.
    one = train(0, 1, str(tmp_path / "one"), 4, lr=1e-6)
    two = run_ranks("train", run_dir=str(tmp_path / "two"), steps=4, micro=micro, lr=1e-6)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)
    for rank in two:
        torch.testing.assert_close(
            torch.tensor(rank["gradients"]), torch.tensor(one["gradients"]), rtol=1e-4, atol=1e-6
        )
        assert rank["bpc"] == pytest.approx(one["bpc"], rel=1e-6)
    assert two[0]["gradients"] == two[1]["gradients"] and two[0]["weights"] == two[1]["weights"]


def test_two_ranks_train_as_one_process_does(run_ranks: Callable, tmp_path: Path) -> None:
    one = train(0, 1, str(tmp_path / "one"), 20)
    two = run_ranks("train", run_dir=str(tmp_path / "two"), steps=20)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert two[0]["bpc"] == pytest.approx(one["bpc"], rel=1e-3)
    assert two[0]["weights"] == two[1]["weights"]
    assert losses(tmp_path / "one")[-1] < losses(tmp_path / "one")[0] - 0.3
    columns = ("samples", "tokens", "lr", "epoch")
    keys = [
        [[row[c] for c in columns] for row in read_metrics(tmp_path / run) if "lr" in row] for run in ("one", "two")
    ]
    assert keys[0] == keys[1]


def train_in_a_folder_of_its_own(rank: int, world: int, run_dir: str, steps: int) -> dict:
    return train(rank, world, f"{run_dir}/rank{rank}", steps)


def test_only_rank_0_writes(run_ranks: Callable, tmp_path: Path) -> None:
    """A saving condition that binds in the wrong order let every rank of a predecessor write the best model."""
    run_ranks("train_in_a_folder_of_its_own", run_dir=str(tmp_path), steps=3)
    assert newest_checkpoint(tmp_path / "rank0") is not None and losses(tmp_path / "rank0")
    assert not [path for path in (tmp_path / "rank1").rglob("*") if path.is_file()]


def test_another_world_size_goes_on_in_the_same_order(run_ranks: Callable, tmp_path: Path) -> None:
    train(0, 1, str(tmp_path / "one"), 12)
    stopped = run_ranks("train", run_dir=str(tmp_path / "mixed"), steps=12, stop_at=5)
    assert [rank["status"] for rank in stopped] == ["stopped"] * 2
    assert train(0, 1, str(tmp_path / "mixed"), 12)["status"] == "finished"
    assert losses(tmp_path / "mixed") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    positions = [newest_checkpoint(tmp_path / run) for run in ("one", "mixed")]
    assert positions[0] is not None and positions[1] is not None
    assert positions[0][0].trainer["position"] == positions[1][0].trainer["position"]


def test_two_ranks_resume_to_the_bit(run_ranks: Callable, tmp_path: Path) -> None:
    whole = run_ranks("train", run_dir=str(tmp_path / "whole"), steps=9, micro=2)
    run_ranks("train", run_dir=str(tmp_path / "parts"), steps=9, micro=2, stop_at=6)
    parts = run_ranks("train", run_dir=str(tmp_path / "parts"), steps=9, micro=2)
    assert parts[0]["weights"] == whole[0]["weights"]
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize("stop_rank", [0, 1])
@pytest.mark.parametrize("stop_at", [3, 5], ids=["step", "validation"])
def test_a_stop_seen_by_one_rank_stops_all_at_the_same_sample(
    run_ranks: Callable, tmp_path: Path, stop_rank: int, stop_at: int
) -> None:
    ranks = run_ranks("train", run_dir=str(tmp_path), steps=12, stop_at=stop_at, stop_rank=stop_rank, eval_interval=40)
    # Asked for in step 3, agreed on in step 4; asked for in step 5, agreed on in the validation that follows it.
    assert [(rank["status"], rank["samples"]) for rank in ranks] == [("stopped", {3: 32, 5: 40}[stop_at])] * 2
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0].trainer["samples"] == ranks[0]["samples"]


def overflow_on_one_rank(rank: int, world: int, run_dir: str) -> dict:
    answer = {"agreed": grads.agree_found_inf(torch.tensor(float(rank == 1)))}
    answer["nothing"] = grads.agree_found_inf(torch.tensor(0.0))
    scale = LossScaleConfig(init_scale=2.0**10, growth_interval=4)
    config = make_config(run_dir, 10, precision="fp16", loss_scale=scale)
    engine, scales, calls = make_engine(config, Ranks(rank, world)), [], []
    original = engine_module.found_inf

    def found_inf(parameters: Any) -> torch.Tensor:
        # DDP has spread any infinity already; this is one that a single rank sees, such as in a rank's own parameters.
        calls.append(None)
        return torch.ones(()) if rank == 1 and len(calls) == 3 else original(parameters)

    engine_module.found_inf = found_inf
    before: list[torch.Tensor] = []
    at_step(engine, 3, lambda: answer.update(kept=all(map(torch.equal, before, engine.model.parameters()))))
    at_step(engine, 2, lambda: before.extend(p.detach().clone() for p in engine.model.parameters()))
    original_update = engine.scaler.update
    engine.scaler.update = lambda found: (original_update(found), scales.append(engine.scaler.scale))[0]
    return {**summary(engine, engine.run()), **answer, "scales": scales}


def test_an_overflow_on_one_rank_skips_all_and_scales_stay_equal(run_ranks: Callable, tmp_path: Path) -> None:
    first, second = run_ranks("overflow_on_one_rank", run_dir=str(tmp_path))
    assert first == second
    assert (first["agreed"], first["nothing"], first["kept"], first["skipped"]) == (True, False, True, 1)
    # Backs off in step 3 by half; grows after four clean steps.
    assert first["scales"] == [1024.0] * 2 + [512.0] * 4 + [1024.0] * 4


def infinite_gradient_on_one_rank(rank: int, world: int, run_dir: str) -> dict:
    engine = make_engine(make_config(run_dir, 6, precision="fp16"), Ranks(rank, world))
    if rank == 1:
        original, calls = engine.task.loss, []

        def loss(model: Any, micro_step: int) -> Any:
            calls.append(None)
            output = original(model, micro_step)
            return output._replace(loss_sum=output.loss_sum * float("inf")) if len(calls) == 2 else output

        engine.task.loss = loss
    return summary(engine, engine.run())


def test_an_infinite_loss_on_one_rank_skips_all(run_ranks: Callable, tmp_path: Path) -> None:
    first, second = run_ranks("infinite_gradient_on_one_rank", run_dir=str(tmp_path))
    assert first["skipped"] == second["skipped"] >= 1 and first["weights"] == second["weights"]
    assert first["scale"] == second["scale"] and first["status"] == "finished"
    assert np.isfinite(first["weights"]).all()


def evaluate(rank: int, world: int) -> list[dict]:
    torch.manual_seed(3)
    model = build_model(MLSTMConfig(embedding_size=8, hidden_size=16))
    return [evaluate_bpc(model, source(500), lanes, WINDOW, Ranks(rank, world)).to_dict() for lanes in (1, 3, 8)]


def test_evaluation_does_not_depend_on_the_number_of_ranks(run_ranks: Callable) -> None:
    expected = evaluate(0, 1)
    answers = run_ranks("evaluate", world=3)
    assert answers[0] == answers[1] == answers[2]
    for got, one in zip(answers[0], expected):
        assert got["num_targets"] == one["num_targets"] == 500
        assert got["bpc"] == pytest.approx(one["bpc"], rel=1e-6)


def exchanges(rank: int, world: int) -> dict:
    ranks = Ranks(rank, world)
    lanes = torch.arange(12.0).reshape(2, 6, 1)[:, rank * 2 : rank * 2 + 2]
    joined = gather_lanes(lanes, ranks)
    return {"lanes": None if joined is None else joined.flatten().tolist(), "sum": sum_over_ranks([1e16, 1.0], ranks)}


def test_lanes_are_joined_in_global_order(run_ranks: Callable) -> None:
    answers = run_ranks("exchanges", world=3)
    assert [answer["lanes"] for answer in answers] == [[float(i) for i in range(12)], None, None]
    assert all(answer["sum"] == [3e16, 3.0] for answer in answers)


def full_disk_on_rank_0(rank: int, world: int, run_dir: str, error_file: str) -> int:
    os.environ["BIGBATCH_ERROR_FILE"] = error_file

    def save_file(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    checkpoint_module.save_file = save_file

    def work() -> int:
        engine = make_engine(replace(make_config(run_dir, 9), log=LogConfig(progress=False)), Ranks(rank, world))
        try:
            engine.run()
        finally:
            torch.distributed.destroy_process_group()
            torch.distributed.destroy_process_group = lambda: None
        return 0

    return run_worker(work)


def test_a_users_error_on_one_rank_ends_all_with_its_message_alone(run_ranks: Callable, tmp_path: Path) -> None:
    error_file = tmp_path / "errors"
    error_file.touch()
    # Zero from both: the launcher prints the message and tries no restart.
    assert run_ranks("full_disk_on_rank_0", run_dir=str(tmp_path / "run"), error_file=str(error_file)) == [0, 0]
    lines = error_file.read_text().splitlines()
    assert len(lines) == 1 and "cannot write the checkpoint" in lines[0] and "No space left" in lines[0]
