"""Gradient exchange in fewer bits, FSDP2, the noise scale over ranks, a batch ramp on ranks, a rank that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from bigbatch.fp16.config import LossScaleConfig
from bigbatch.fp16.exchange import Exchange, exchange_hook
from bigbatch.models.config import MLSTMConfig
from bigbatch.training import distributed
from bigbatch.training.checkpoint import newest_checkpoint
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ParallelConfig, ScheduleConfig, TrainConfig
from bigbatch.training.distributed import Ranks
from bigbatch.training.engine import Engine
from bigbatch.training.loss import sequence_loss
from bigbatch.training.metrics import read_metrics
from bigbatch.training.parallel import exchange_name
from bigbatch.training.run import check_config
from bigbatch.training.tasks.char_lm import CharLMTask
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LANES, WINDOW = 8, 16


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


def source(length: int) -> Any:
    words = np.random.Generator(np.random.PCG64(0)).integers(0, 5, length)
    text = b" ".join([b"good", b"film", b"was", b"bad", b"very"][w] for w in words)[:length]
    return ArraySource(np.frombuffer(text, np.uint8), np.asarray([0, length // 2]))


def make_config(run_dir: str, steps: int = 6, **options: Any) -> TrainConfig:
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    batch = BatchConfig(LANES, options.pop("micro", 0), WINDOW, **options.pop("ramp", {}))
    return TrainConfig(
        model=MLSTMConfig(embedding_size=8, hidden_size=options.pop("hidden_size", 16)),
        batch=batch,
        optim=OptimConfig(**{"lr": 5e-3, **options.pop("optim", {})}),
        schedule=ScheduleConfig(samples=steps * LANES),
        parallel=ParallelConfig(**options.pop("parallel", {})),
        loss_scale=LossScaleConfig(init_scale=options.pop("init_scale", 2.0**12)),
        log=LogConfig(
            interval_samples=1, eval_interval_samples=16, checkpoint_interval_samples=10**6, eval_lanes=4, progress=False,
            noise_scale=options.pop("noise_scale", False),
        ),
        run_dir=run_dir, device="cpu", **{"precision": "fp32", **options},
    )  # fmt: skip


def make_engine(config: TrainConfig, ranks: Ranks) -> Engine:
    return Engine(config, ranks, CharLMTask(config, ranks, source(900), source(300)), "corpus")


def train(rank: int, world: int, run_dir: str, stop_at: int = 0, **options: Any) -> dict:
    engine = make_engine(make_config(run_dir, **options), Ranks(rank, world))
    noise: list = []
    engine.noise.add = lambda *arguments: noise.append(arguments)  # pyright: ignore[reportAttributeAccessIssue]
    if stop_at:
        original, calls = engine.task.advance, []

        def advance() -> None:
            calls.append(None)
            if len(calls) == stop_at:
                engine.request_stop()
            original()

        engine.task.advance = advance
    result = engine.run()
    shapes = {name: list(getattr(p, "to_local", lambda p=p: p)().shape) for name, p in engine.model.named_parameters()}
    return {
        "status": result.status, "bpc": result.best, "noise": noise, "shapes": shapes,
        "skipped": engine.scaler.skipped_steps, "scale": engine.scaler.scale,
    }  # fmt: skip


def losses(run_dir: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run_dir) if "event" not in row]


def final(run_dir: Path) -> dict[str, torch.Tensor]:
    found = newest_checkpoint(run_dir)
    assert found is not None
    return {**found[0].model, **found[0].optimizer}


# ---- the hook ---------------------------------------------------------------------------------------------------------


def average(rank: int, world: int, dtype: str, values: list[float]) -> dict:
    """Gradient of one weight through the hook; each rank's own gradient is its value."""
    module = nn.Linear(4, 1, bias=False)
    ddp = DistributedDataParallel(module)
    state = Exchange(getattr(torch, dtype), measure=True)
    ddp.register_comm_hook(state, exchange_hook)
    ddp(torch.full((1, 4), values[rank])).sum().backward()
    assert module.weight.grad is not None
    return {"grad": module.weight.grad[0, 0].item(), "dtype": str(module.weight.grad.dtype), "sum": state.take_square_sum(),
            "again": state.take_square_sum()}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_are_averaged_in_the_type_asked_for(run_ranks: Callable, dtype: str) -> None:
    answers = run_ranks("average", dtype=dtype, values=[1.0001, 3.0])
    # Each half is rounded to the type on the wire before the sum.
    kind = getattr(torch, dtype)
    wire = [torch.tensor(value / 2).to(kind) for value in (1.0001, 3.0)]
    expected = float((wire[0] + wire[1]).to(torch.float32))
    for value, answer in zip((1.0001, 3.0), answers):
        assert answer["grad"] == pytest.approx(expected, rel=1e-7) and answer["dtype"] == "torch.float32"
        assert answer["sum"] == pytest.approx(4 * value**2, rel=1e-6) and answer["again"] == 0.0


def test_division_comes_before_the_cast_so_that_only_the_mean_must_fit(run_ranks: Callable) -> None:
    # 60000 + 60000 overflows fp16, whose largest number is 65504; their mean does not.
    assert [a["grad"] for a in run_ranks("average", dtype="float16", values=[60000.0, 60000.0])] == [60000.0] * 2
    # What does not fit is inf on every rank, to be skipped by all.
    assert [a["grad"] for a in run_ranks("average", dtype="float16", values=[2e5, 1.0])] == [float("inf")] * 2


# ---- runs -------------------------------------------------------------------------------------------------------------


def test_fp16_exchange_learns_as_fp32_exchange_does(run_ranks: Callable, tmp_path: Path) -> None:
    ends = {}
    for exchange in ("fp32", "fp16", "bf16"):
        run_ranks("train", run_dir=str(tmp_path / exchange), parallel={"grad_exchange": exchange})
        ends[exchange] = losses(tmp_path / exchange)
    assert ends["fp16"] == pytest.approx(ends["fp32"], abs=2e-3) and ends["fp16"] != ends["fp32"]
    assert ends["bf16"] == pytest.approx(ends["fp32"], abs=2e-2) and ends["bf16"] != ends["fp32"]


def test_an_overflow_on_the_wire_is_skipped_by_all_ranks(run_ranks: Callable, tmp_path: Path) -> None:
    answers = run_ranks("train", run_dir=str(tmp_path / "run"), steps=14, precision="fp16", init_scale=2.0**24)
    assert answers[0]["skipped"] == answers[1]["skipped"] >= 1 and answers[0]["scale"] == answers[1]["scale"] < 2.0**24
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


def test_powersgd_starts_whole_then_sends_factors_and_learns(run_ranks: Callable, tmp_path: Path) -> None:
    run_ranks("train", run_dir=str(tmp_path / "whole"), steps=30)
    run_ranks(
        "train", run_dir=str(tmp_path / "factors"), steps=30, parallel={"grad_exchange": "powersgd", "powersgd_rank": 2}
    )
    whole, factors = losses(tmp_path / "whole"), losses(tmp_path / "factors")
    assert factors[:9] == pytest.approx(whole[:9], rel=1e-5) and factors[20:] != pytest.approx(whole[20:], rel=1e-5)
    assert factors[-1] < factors[0] - 0.5


def powersgd_with_a_nan(rank: int, world: int, run_dir: str) -> dict:
    config = make_config(run_dir, 30, parallel={"grad_exchange": "powersgd"})
    engine = make_engine(config, Ranks(rank, world))
    original, calls = engine.task.loss, []

    def loss(model: Any, micro_step: int) -> Any:
        calls.append(None)
        output = original(model, micro_step)
        return output._replace(loss_sum=output.loss_sum * float("nan")) if rank == 1 and len(calls) == 15 else output

    engine.task.loss = loss
    return {"status": engine.run().status, "skipped": engine.scaler.skipped_steps}


def test_one_bad_batch_does_not_stay_in_powersgds_feedback(run_ranks: Callable, tmp_path: Path) -> None:
    assert run_ranks("powersgd_with_a_nan", run_dir=str(tmp_path)) == [{"status": "finished", "skipped": 1}] * 2


@pytest.mark.parametrize("exchange", ["fp32", "fp16"])
def test_four_ranks_resume_to_the_bit(run_ranks: Callable, tmp_path: Path, exchange: str) -> None:
    # With three ranks or more a sum depends on its order, and so on the buckets, which DDP cuts anew after a first pass.
    options: dict = {"parallel": {"grad_exchange": exchange, "bucket_mb": 0.01}, "steps": 5}
    run_ranks("train", world=4, run_dir=str(tmp_path / "whole"), **options)
    run_ranks("train", world=4, run_dir=str(tmp_path / "parts"), stop_at=2, **options)
    run_ranks("train", world=4, run_dir=str(tmp_path / "parts"), **options)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert all(torch.equal(value, final(tmp_path / "parts")[name]) for name, value in final(tmp_path / "whole").items())


def test_four_then_two_then_one_rank_read_the_same_samples(run_ranks: Callable, tmp_path: Path) -> None:
    train(0, 1, str(tmp_path / "one"), steps=9)
    run_ranks("train", world=4, run_dir=str(tmp_path / "mixed"), steps=9, stop_at=2)
    run_ranks("train", world=2, run_dir=str(tmp_path / "mixed"), steps=9, stop_at=2)
    assert train(0, 1, str(tmp_path / "mixed"), steps=9)["status"] == "finished"
    assert losses(tmp_path / "mixed") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    rows = [[row for row in read_metrics(tmp_path / name) if "event" not in row] for name in ("one", "mixed")]
    columns = ("samples", "tokens", "epoch", "lr")
    assert [[row[c] for c in columns] for row in rows[0]] == [[row[c] for c in columns] for row in rows[1]]


def test_a_static_graph_goes_with_accumulation(run_ranks: Callable, tmp_path: Path) -> None:
    run_ranks("train", run_dir=str(tmp_path / "plain"), micro=2)
    run_ranks("train", run_dir=str(tmp_path / "static"), micro=2, parallel={"static_graph": True})
    assert losses(tmp_path / "static") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)


OPTIMIZERS = [{}, {"kind": "lamb", "weight_decay": 0.1}, {"kind": "lars", "trust_coefficient": 0.1}]


@pytest.mark.parametrize("optim", OPTIMIZERS, ids=str)
def test_fsdp_equals_ddp_and_holds_shards(run_ranks: Callable, tmp_path: Path, optim: dict) -> None:
    # 1e-6: the moments compare the gradients, which Adam's rescaling of tiny ones would otherwise blur.
    optim = {"lr": 1e-6, **optim}
    run_ranks("train", run_dir=str(tmp_path / "ddp"), optim=optim, micro=2)
    answers = run_ranks("train", run_dir=str(tmp_path / "fsdp"), optim=optim, micro=2, parallel={"strategy": "fsdp"})
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "ddp"), rel=1e-6)
    ddp, fsdp = final(tmp_path / "ddp"), final(tmp_path / "fsdp")
    assert ddp.keys() == fsdp.keys()
    for name, value in ddp.items():
        torch.testing.assert_close(fsdp[name], value, rtol=1e-4, atol=1e-8, msg=name)
    for name, value in ddp.items():
        if name in answers[0]["shapes"] and value.dim():
            assert sum(answer["shapes"][name][0] for answer in answers) == value.shape[0], name
            assert answers[0]["shapes"][name][0] < value.shape[0], name


def test_fsdp_resumes_to_the_bit_and_on_one_process(run_ranks: Callable, tmp_path: Path) -> None:
    options: dict = {"parallel": {"strategy": "fsdp"}, "precision": "fp16"}
    run_ranks("train", run_dir=str(tmp_path / "whole"), **options)
    (stopped, _) = run_ranks("train", run_dir=str(tmp_path / "parts"), stop_at=3, **options)
    assert stopped["status"] == "stopped"
    run_ranks("train", run_dir=str(tmp_path / "parts"), **options)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert all(torch.equal(value, final(tmp_path / "parts")[name]) for name, value in final(tmp_path / "whole").items())
    run_ranks("train", run_dir=str(tmp_path / "one"), stop_at=3, **options)
    train(0, 1, str(tmp_path / "one"), **options)
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)


def test_fsdp_with_shards_that_are_empty(run_ranks: Callable, tmp_path: Path) -> None:
    # 6 hidden units on 4 ranks are shards of 2, 2, 2 and 0 rows.
    run_ranks("train", world=4, run_dir=str(tmp_path / "ddp"), hidden_size=6, optim={"lr": 1e-5})
    run_ranks(
        "train",
        world=4,
        run_dir=str(tmp_path / "fsdp"),
        hidden_size=6,
        optim={"lr": 1e-5},
        parallel={"strategy": "fsdp"},
    )
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "ddp"), rel=1e-5)


def diverge(rank: int, world: int, run_dir: str) -> str:
    config = make_config(run_dir, parallel={"strategy": "fsdp"})
    config = replace(config, loss_scale=replace(config.loss_scale, max_consecutive_overflows=2))
    engine = make_engine(config, Ranks(rank, world))
    original = engine.task.loss

    def loss(model: Any, micro_step: int) -> Any:
        output = original(model, micro_step)
        return output._replace(loss_sum=output.loss_sum * float("nan"))

    engine.task.loss = loss
    try:
        engine.run()
    except ValueError as error:
        return str(error)
    return "finished"


def test_under_fsdp_all_ranks_name_the_same_bad_parameter(run_ranks: Callable, tmp_path: Path) -> None:
    first, second = run_ranks("diverge", run_dir=str(tmp_path))
    assert first == second and "first bad gradient: embedding.weight, largest weight" in first


def test_a_ramp_on_two_ranks_equals_one_process(run_ranks: Callable, tmp_path: Path) -> None:
    ramp = {"ramp_start": 2, "ramp_increment": 2, "ramp_samples": 24}
    one = train(0, 1, str(tmp_path / "one"), ramp=ramp, optim={"lr": 1e-4})
    two = run_ranks("train", run_dir=str(tmp_path / "two"), ramp=ramp, optim={"lr": 1e-4})
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert two[0]["bpc"] == pytest.approx(one["bpc"], rel=1e-5)
    batches = [row["global_batch_size"] for row in read_metrics(tmp_path / "two") if "event" not in row]
    assert batches[:4] == [2] * 4 and batches[-1] == 8


def test_the_noise_scale_over_ranks_compares_each_with_all(run_ranks: Callable, tmp_path: Path) -> None:
    answers = run_ranks("train", run_dir=str(tmp_path / "two"), noise_scale=True, steps=1, precision="fp16")
    assert answers[0]["noise"] == answers[1]["noise"]
    (small, big, small_batch, big_batch) = answers[0]["noise"][0]
    # The same by plain fp32 arithmetic: the gradient of each half of the lanes, and of all.
    engine = make_engine(make_config(str(tmp_path / "plain")), Ranks())
    squares = []
    for lanes in (range(0, 4), range(4, 8), range(8)):
        engine.model.zero_grad()
        tokens, reset, mask = (torch.from_numpy(array) for array in engine.task.stream.read(lanes))
        (sequence_loss(engine.model, tokens, reset, mask, None).loss_sum / (len(lanes) * WINDOW)).backward()
        squares.append(sum(float(p.grad.square().sum()) for p in engine.model.parameters() if p.grad is not None))
    assert (small_batch, big_batch) == (4.0, 8)
    assert small == pytest.approx((squares[0] + squares[1]) / 2, rel=0.01) and big == pytest.approx(
        squares[2], rel=0.01
    )


# ---- a rank that hangs ------------------------------------------------------------------------------------------------


def hang(rank: int, world: int, port: int) -> str:
    """Joins through the product's own group; rank 1 never comes to the exchange."""
    import logging
    import os

    dist.destroy_process_group()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    distributed._ROLL_CALL_SECONDS = 1.0
    messages: list[str] = []
    logging.getLogger(distributed.__name__).error = lambda text, *args, **kw: messages.append(text % args)  # pyright: ignore
    try:
        with distributed.process_group("cpu", timeout_seconds=2.0):
            if rank == 1:
                time.sleep(7)
            else:
                dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        messages.append(type(error).__name__)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5))
    return "; ".join(messages)


def test_a_rank_that_hangs_is_named(run_ranks: Callable) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = run_ranks("hang", world=3, port=port)
    assert "rank 1 did not answer within 2 s: it hangs" in answers[0]
    assert not answers[1] and "rank" not in answers[2]  # said once


def test_what_travels_follows_the_precision() -> None:
    assert exchange_name(ParallelConfig(), "fp16") == "fp16" and exchange_name(ParallelConfig(), "bf16") == "fp32"
    assert exchange_name(ParallelConfig(strategy="fsdp"), "fp16") == "fp32"
    config = replace(
        TrainConfig(precision="fp32"), parallel=ParallelConfig(strategy="fsdp"), log=LogConfig(eval_lanes=2)
    )
    with pytest.raises(
        ValueError, match=r"eval_lanes is 2: under --parallel.strategy fsdp each of 4 ranks needs a lane"
    ):
        check_config(config, 4)
