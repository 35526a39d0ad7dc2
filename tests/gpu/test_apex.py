"""NVIDIA Apex's kernels against our own optimizers, where both are there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bigbatch.fp16 import apex
from bigbatch.training.config import OptimConfig
from bigbatch.training.optimizers import build_optimizer
from torch import nn

pytestmark = pytest.mark.gpu


@pytest.fixture
def model() -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 32)).cuda()

    return make


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "lamb"])
def test_apex_takes_the_same_steps(model: Callable[[], nn.Module], kind: str) -> None:
    if not apex.is_available(kind):
        pytest.skip(f"NVIDIA Apex has no {kind} here")
    config = OptimConfig(kind=kind, lr=1e-2, weight_decay=0.1)  # pyright: ignore[reportArgumentType]
    ours, theirs = model(), model()
    optimizers = [build_optimizer(ours, config)]
    config.backend = "apex"
    optimizers.append(build_optimizer(theirs, config))
    for step in range(4):
        torch.manual_seed(step)
        grads = [torch.randn_like(parameter) for parameter in ours.parameters()]
        for module, optimizer in zip((ours, theirs), optimizers):
            for parameter, grad in zip(module.parameters(), grads):
                parameter.grad = grad.clone()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_fused_step_counter_is_restored_on_the_device(model: Callable[[], nn.Module]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from bigbatch.training.optimizers import load_optimizer_tensors, optimizer_tensors

    one, other = model(), model()
    first, second = (build_optimizer(module, OptimConfig()) for module in (one, other))
    for parameter in one.parameters():
        parameter.grad = torch.ones_like(parameter)
    first.step()
    load_optimizer_tensors(second, other, {k: v.cpu() for k, v in optimizer_tensors(first, one).items()})
    other.load_state_dict(one.state_dict())
    for module, optimizer in ((one, first), (other, second)):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
