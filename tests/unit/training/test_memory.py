"""Out of memory: the message names the largest micro-batch that fits, found by trying."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from bigbatch.models.recurrent import RecurrentLanguageModel
from bigbatch.training.config import TrainConfig
from bigbatch.training.engine import Engine
from bigbatch.training.memory import is_out_of_memory

EngineOf = Callable[[TrainConfig], Engine]


def allow(monkeypatch: pytest.MonkeyPatch, rows: int, error: Callable[[str], RuntimeError]) -> list[int]:
    """Lets a forward pass fail where it holds more rows; returns the sizes tried."""
    tried: list[int] = []
    original = RecurrentLanguageModel.forward

    def forward(self, tokens, *args, **kwargs):
        tried.append(len(tokens))
        if len(tokens) > rows:
            raise error("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, tokens, *args, **kwargs)

    monkeypatch.setattr(RecurrentLanguageModel, "forward", forward)
    return tried


@pytest.mark.parametrize("rows, fits", [(7, 4), (4, 4), (3, 2), (1, 1)])
def test_the_largest_divisor_that_fits_is_named(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch, rows: int, fits: int
) -> None:
    engine = engine_of(config)
    allow(monkeypatch, rows, torch.OutOfMemoryError)
    with pytest.raises(ValueError) as caught:
        engine.run()
    message = str(caught.value)
    assert message.startswith("out of memory on cpu with micro-batch 8 x 16 bytes: ") and "\n" not in message
    found = re.search(r"--batch.micro_batch_size (\d+)", message)
    assert found and int(found[1]) == fits
    # The advice holds: that run goes through, with the same lanes per step.
    advised = replace(config, batch=replace(config.batch, micro_batch_size=fits))
    advised = replace(advised, log=replace(config.log, eval_lanes=1))
    assert engine_of(advised).run().status == "finished"


def test_a_run_that_accumulates_is_told_a_smaller_divisor(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(replace(config, batch=replace(config.batch, micro_batch_size=4)))
    tried = allow(monkeypatch, 2, torch.OutOfMemoryError)
    with pytest.raises(ValueError, match="a micro-batch of 2 fits"):
        engine.run()
    assert tried == [4, 2]


def test_where_nothing_fits_the_window_is_the_remedy(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(config)
    allow(monkeypatch, 0, torch.OutOfMemoryError)
    with pytest.raises(ValueError, match=r"not even one lane fits: shorten --batch.seq_length or --model.hidden_size"):
        engine.run()


def test_a_validation_that_does_not_fit_names_its_lanes(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(replace(config, batch=replace(config.batch, micro_batch_size=2)))
    allow(monkeypatch, 2, torch.OutOfMemoryError)
    with pytest.raises(ValueError, match=r"out of memory on cpu while scoring 4 lanes x 16 bytes: .*log.eval_lanes"):
        engine.run()


def test_other_errors_pass_through(config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(config)
    allow(monkeypatch, 1, lambda _: RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match=r"^shapes do not match$"):
        engine.run()


def test_what_the_failed_pass_held_is_freed_before_trying(
    config: TrainConfig, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []

    class Activation:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    engine, seen = engine_of(config), []
    original = RecurrentLanguageModel.forward

    def forward(self, tokens, *args, **kwargs):
        held = Activation()
        seen.append(len(alive))
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("out of memory")
        assert held
        return original(self, tokens, *args, **kwargs)

    monkeypatch.setattr(RecurrentLanguageModel, "forward", forward)
    with pytest.raises(ValueError, match="a micro-batch of 2 fits"):
        engine.run()
    assert seen == [1, 1, 1]  # 8, 4 and 2 rows: never two passes in memory at once


def test_what_counts_as_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not is_out_of_memory(RuntimeError("expected scalar type Float"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
