"""Held-out bits per character against a direct fp64 computation, whatever the window."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from bigbatch.data.streams import START_TOKEN
from bigbatch.models.build import build_model
from bigbatch.models.config import MLSTMConfig
from bigbatch.training.evaluate import evaluate_bpc, evaluate_until
from torch import nn


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(5)
    return build_model(MLSTMConfig(embedding_size=8, hidden_size=16)).eval()


@torch.no_grad()
def direct_bits(model: nn.Module, data: np.ndarray, shard_starts: list[int], lanes: int) -> float:
    """Mean of -log2 p(byte): each lane byte by byte in fp64, no windows, no batching."""
    import copy

    model = copy.deepcopy(model).double()
    bits = 0.0
    for lane in range(lanes):
        start, stop = lane * len(data) // lanes, (lane + 1) * len(data) // lanes
        state = None
        for at in range(start, stop):
            if at in shard_starts:
                state = None
            before = int(data[at - 1]) if at else START_TOKEN
            logits, state = model(torch.tensor([[before]]), state)
            bits -= float(torch.log_softmax(logits[0, 0], 0)[int(data[at])]) / math.log(2)
    return bits / len(data)


@pytest.mark.parametrize("lanes", [1, 3, 4])
def test_bpc_equals_the_direct_computation(model: nn.Module, val_source, lanes: int) -> None:
    expected = direct_bits(model, val_source.data, val_source.shard_starts.tolist(), lanes)
    for window in (16, 64, 1000):
        result = evaluate_bpc(model, val_source, lanes, window)
        assert result.bpc == pytest.approx(expected, rel=1e-6)  # fp32 against fp64
        assert result.loss == pytest.approx(expected * math.log(2), rel=1e-6)
        assert (result.num_targets, result.lanes) == (700, lanes)


def test_the_number_of_lanes_is_the_rule_also_for_a_short_split(model: nn.Module, val_source) -> None:
    results = [evaluate_bpc(model, val_source, lanes=32, seq_length=window) for window in (8, 64, 256)]
    assert [result.lanes for result in results] == [32] * 3
    assert results[0].bpc == pytest.approx(results[1].bpc, rel=1e-6) == results[2].bpc
    assert evaluate_bpc(model, val_source, lanes=5000).lanes == 700


def test_lanes_start_cold(model: nn.Module, val_source) -> None:
    assert evaluate_bpc(model, val_source, 1).bpc != evaluate_bpc(model, val_source, 50).bpc


def test_max_bytes_scores_whole_windows_up_to_it(model: nn.Module, val_source) -> None:
    assert evaluate_bpc(model, val_source, 4, 16, max_bytes=100).num_targets == 128
    assert evaluate_bpc(model, val_source, 4, 16, max_bytes=10**9).num_targets == 700


def test_the_training_mode_is_left_as_it_was(model: nn.Module, val_source) -> None:
    for training in (True, False):
        model.train(training)
        evaluate_bpc(model, val_source, 4, 16)
        assert evaluate_until(lambda: True, model, val_source) is None
        assert model.training is training
    model.eval()


def test_dropout_is_off(val_source) -> None:
    torch.manual_seed(0)
    model = build_model(MLSTMConfig(embedding_size=8, hidden_size=16, dropout=0.5)).train()
    assert evaluate_bpc(model, val_source, 4).bpc == evaluate_bpc(model, val_source, 4).bpc


def test_an_empty_split_is_refused(model: nn.Module, val_source) -> None:
    empty = type(val_source)(val_source.data[:0], np.asarray([0]))
    with pytest.raises(ValueError, match=r"the split to evaluate is empty: raise --data.val_fraction"):
        evaluate_bpc(model, empty)


def test_it_stops_when_asked(model: nn.Module, val_source) -> None:
    answers: list[bool] = []
    stop: Callable[[], bool] = lambda: answers.append(len(answers) == 3) or answers[-1]  # noqa: E731
    assert evaluate_until(stop, model, val_source, 4, 16) is None
    assert len(answers) == 4
