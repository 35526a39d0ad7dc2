"""Weight normalisation against torch's own, and its fp32 rule."""

from __future__ import annotations

import pytest
import torch
from bigbatch.models.weight_norm import NormedWeight, normalise
from torch import nn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_equals_torch_parametrization(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(7, 5, bias=False).to(dtype), dim=0)
    ours = NormedWeight(torch.randn(5, 7, dtype=dtype))
    with torch.no_grad():
        ours.g.copy_(torch.rand(5) + 0.5)
        theirs.parametrizations.weight.original0.copy_(ours.g.unsqueeze(1))
        theirs.parametrizations.weight.original1.copy_(ours.v)
    torch.testing.assert_close(ours(), theirs.weight)
    weights = torch.randn(5, 7, dtype=dtype)
    (ours() * weights).sum().backward()
    (theirs.weight * weights).sum().backward()
    torch.testing.assert_close(ours.v.grad, theirs.parametrizations.weight.original1.grad)
    torch.testing.assert_close(ours.g.grad, theirs.parametrizations.weight.original0.grad.squeeze(1))


def test_starts_at_the_plain_weight() -> None:
    torch.manual_seed(0)
    initial = torch.randn(6, 3)
    torch.testing.assert_close(NormedWeight(initial)(), initial)
    plain = NormedWeight(initial, weight_norm=False)
    assert plain.g is None and torch.equal(plain(), initial)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_parameters_are_normalised_in_fp32(dtype: torch.dtype) -> None:
    # The squares of these values overflow fp16, and their sum is no bf16 number.
    v, g = torch.full((2, 9), 300.0).to(dtype), torch.ones(2, dtype=dtype)
    weight = normalise(v, g)
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, torch.full((2, 9), 1 / 3), rtol=1e-6, atol=0)


def test_stays_fp32_under_autocast() -> None:
    weight = NormedWeight(torch.randn(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        inside = weight()
    assert torch.equal(inside, weight())


def test_a_row_of_zeros_has_finite_gradients() -> None:
    weight = NormedWeight(torch.zeros(1, 4))
    weight().sum().backward()
    assert weight.v.grad.isfinite().all() and weight.g.grad.isfinite().all()
