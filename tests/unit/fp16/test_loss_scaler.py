"""The loss scale against torch.amp.GradScaler's trace, and what it adds: hysteresis, limits, counts, the dead end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from bigbatch.fp16.config import LossScaleConfig
from bigbatch.fp16.loss_scaler import DynamicLossScaler, StaticLossScaler, make_loss_scaler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

# Limits out of reach: GradScaler has none.
FREE = LossScaleConfig(init_scale=2.0**10, growth_interval=3, min_scale=1e-30, max_scale=1e30)


def grad_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=FREE.init_scale, growth_interval=FREE.growth_interval)


def torch_step(scaler: torch.amp.GradScaler, found_inf: bool) -> None:
    """One step of torch's scaler over a parameter whose gradient overflows or not."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler.scale(parameter.sum()).backward()
    if found_inf:
        parameter.grad.fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([False, False, False, True]), min_size=1, max_size=25))
def test_trace_equals_grad_scaler(overflows: list[bool]) -> None:
    ours, theirs = DynamicLossScaler(FREE), grad_scaler()
    for found_inf in overflows:
        torch_step(theirs, found_inf)
        ours.update(found_inf)
        assert ours.scale == theirs.get_scale()
        assert ours.state_dict()["_growth_tracker"] == theirs.state_dict()["_growth_tracker"]
    assert ours.skipped_steps == sum(overflows)


def test_state_goes_to_grad_scaler_and_back() -> None:
    ours, theirs = DynamicLossScaler(FREE), grad_scaler()
    for found_inf in (False, False, True, False, False):
        torch_step(theirs, found_inf)
    theirs_state = theirs.state_dict()
    ours.load_state_dict(theirs_state)
    assert {key: ours.state_dict()[key] for key in theirs_state} == theirs_state
    fresh = torch.amp.GradScaler("cpu")
    fresh.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    for scaler in (theirs, fresh):
        torch_step(scaler, False)
    ours.update(False)
    assert ours.scale == theirs.get_scale() == fresh.get_scale() == 2.0**10


@pytest.mark.parametrize("cut", range(12))
def test_resuming_anywhere_gives_the_same_trace(cut: int) -> None:
    config = replace(FREE, hysteresis=2, growth_interval=2)
    overflows = [False, True, True, False, False, True, False, True, True, False, False, False]
    whole, first = DynamicLossScaler(config), DynamicLossScaler(config)
    for found_inf in overflows[:cut]:
        whole.update(found_inf)
        first.update(found_inf)
    second = DynamicLossScaler(config)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for found_inf in overflows[cut:]:
        whole.update(found_inf)
        second.update(found_inf)
        assert second.state_dict() == whole.state_dict()


def test_hysteresis_waits_for_that_many_overflows_since_the_last_growth() -> None:
    scaler = DynamicLossScaler(replace(FREE, hysteresis=2, growth_interval=2))
    trace = []
    for found_inf in (True, False, True, True, False, False, True, True):
        scaler.update(found_inf)
        trace.append(scaler.scale / FREE.init_scale)
    # First overflow is forgiven; the second and each one after back off; growth forgives one again.
    assert trace == [1, 1, 0.5, 0.25, 0.25, 0.5, 0.5, 0.25]


def test_floor_and_ceiling_hold() -> None:
    scaler = DynamicLossScaler(replace(FREE, min_scale=300.0, max_scale=2.0**11, growth_interval=1))
    for _ in range(5):
        scaler.update(False)
    assert scaler.scale == 2.0**11
    for _ in range(5):
        scaler.update(True)
    assert scaler.scale == 300.0


def test_stuck_counts_only_overflows_in_a_row_at_the_floor() -> None:
    scaler = DynamicLossScaler(replace(FREE, init_scale=4.0, min_scale=1.0, max_consecutive_overflows=3))
    for found_inf in (True, True, True, True, False, True, True):
        scaler.update(found_inf)
    assert scaler.scale == 1.0 and not scaler.stuck and scaler.skipped_steps == 6
    scaler.update(True)
    assert scaler.stuck
    resumed = DynamicLossScaler(replace(FREE, max_consecutive_overflows=3))
    resumed.load_state_dict(scaler.state_dict())
    assert resumed.stuck and resumed.skipped_steps == 7


def test_static_scale_never_moves_but_counts() -> None:
    scaler = StaticLossScaler(128.0, max_consecutive_overflows=2)
    for found_inf in (True, False, True):
        scaler.update(found_inf)
    assert (scaler.scale, scaler.skipped_steps, scaler.stuck) == (128.0, 2, False)
    scaler.update(True)
    assert scaler.stuck
    resumed = StaticLossScaler(128.0, max_consecutive_overflows=2)
    resumed.load_state_dict(json.loads(json.dumps(scaler.state_dict())))
    assert resumed.stuck and resumed.skipped_steps == 3


@pytest.mark.parametrize(
    ("precision", "loss_scale", "kind", "scale"),
    [
        ("fp32", 64.0, StaticLossScaler, 1.0),
        ("bf16", 0.0, StaticLossScaler, 1.0),
        ("fp16", 64.0, StaticLossScaler, 64.0),
        ("fp16", 0.0, DynamicLossScaler, 2.0**16),
        ("amp", 0.0, DynamicLossScaler, 2.0**16),
    ],
)
def test_precision_chooses_the_scaler(precision: str, loss_scale: float, kind: type, scale: float) -> None:
    scaler = make_loss_scaler(LossScaleConfig(loss_scale=loss_scale), precision)
    assert type(scaler) is kind and scaler.scale == scale
