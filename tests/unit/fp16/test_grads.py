"""Unscale, overflow, agreement and clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from bigbatch.fp16.grads import agree_found_inf, clip_grad_norm_, first_bad_parameter, found_inf, unscale_
from torch import nn


def draw_parameters(seed: int = 0) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    params = [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (2, 2, 2), (1,))]
    for parameter in params[:-1]:  # the last has no gradient
        parameter.grad = torch.randn_like(parameter)
    return params


def test_unscale_divides_every_gradient() -> None:
    params, wanted = draw_parameters(), draw_parameters()
    unscale_(params, 1 / 8)
    for a, b in zip(params[:-1], wanted[:-1], strict=True):
        assert torch.equal(a.grad, b.grad / 8)
    assert params[-1].grad is None


def test_unscale_refuses_fp16_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float16))
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match="a gradient is fp16"):
        unscale_([parameter], 0.5)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", range(3))
def test_found_inf_sees_any_bad_value(bad: float, place: int) -> None:
    params = draw_parameters()
    assert found_inf(params).item() == 0
    params[place].grad.flatten()[-1] = bad
    assert found_inf(params).item() == 1


def test_largest_finite_gradient_is_no_overflow() -> None:
    params = draw_parameters()
    params[0].grad.fill_(torch.finfo(torch.float32).max)
    assert found_inf(params).item() == 0
    assert found_inf([nn.Parameter(torch.ones(1))]).item() == 0  # nothing to look at


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 1e3])
def test_clip_equals_torch(max_norm: float) -> None:
    ours, theirs = draw_parameters(), draw_parameters()
    norm = clip_grad_norm_(ours, max_norm)
    wanted = nn.utils.clip_grad_norm_(theirs, max_norm)
    assert norm == pytest.approx(wanted.item(), rel=1e-6)
    for a, b in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_no_clip_still_measures() -> None:
    params, untouched = draw_parameters(), draw_parameters()
    norm = clip_grad_norm_(params, 0.0)
    assert norm == pytest.approx(torch.cat([p.grad.flatten() for p in untouched[:-1]]).norm().item(), rel=1e-6)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(params[:-1], untouched[:-1], strict=True))
    assert clip_grad_norm_([nn.Parameter(torch.ones(1))], 1.0) == 0.0


def test_first_bad_parameter_is_named_with_its_largest_value() -> None:
    params = draw_parameters()
    named = [(f"p{number}", parameter) for number, parameter in enumerate(params)]
    assert first_bad_parameter(named) is None
    params[1].grad[0] = torch.nan
    params[2].grad.fill_(torch.inf)
    with torch.no_grad():
        params[1][2] = -7.5
    assert first_bad_parameter(named) == ("p1", 7.5)


@pytest.fixture
def one_process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_agreement_without_and_with_a_group(monkeypatch: pytest.MonkeyPatch, one_process_group: None) -> None:
    assert agree_found_inf(torch.tensor(1.0)) and not agree_found_inf(torch.tensor(0.0))

    def overflow_elsewhere(tensor: torch.Tensor, op: dist.ReduceOp, group: object = None) -> None:
        assert op == dist.ReduceOp.MAX
        tensor.fill_(1.0)

    monkeypatch.setattr(dist, "all_reduce", overflow_elsewhere)
    mine = torch.tensor(0.0)
    assert agree_found_inf(mine) and mine.item() == 0.0


def test_agreement_of_a_single_process_needs_no_group() -> None:
    assert not dist.is_initialized()
    assert agree_found_inf(torch.tensor(1.0)) and not agree_found_inf(torch.tensor(0.0))
