"""Adam against its textbook form, decay where it belongs, and state that survives by name."""

from __future__ import annotations

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.config import MLSTMConfig
from bigbatch.training.config import OptimConfig
from bigbatch.training.optimizers import build_optimizer, load_optimizer_tensors, optimizer_tensors, set_lr
from torch import nn

CONFIG = OptimConfig(lr=0.1, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.5)


def model() -> nn.Module:
    torch.manual_seed(0)
    return build_model(MLSTMConfig(embedding_size=4, hidden_size=6))


def set_gradients(module: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)


def test_three_steps_equal_adamw_written_out() -> None:
    ours = model()
    expected = {name: p.detach().double().clone() for name, p in ours.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in expected.items()}
    second = {name: torch.zeros_like(p) for name, p in expected.items()}
    optimizer = build_optimizer(ours, CONFIG)
    for step, lr in enumerate((0.1, 0.05, 0.2), start=1):
        set_gradients(ours, step)
        set_lr(optimizer, lr)
        optimizer.step()
        for name, parameter in ours.named_parameters():
            assert parameter.grad is not None
            grad = parameter.grad.double()
            first[name] = 0.8 * first[name] + 0.2 * grad
            second[name] = 0.9 * second[name] + 0.1 * grad**2
            corrected = first[name] / (1 - 0.8**step), second[name] / (1 - 0.9**step)
            decay = lr * 0.5 if parameter.dim() > 1 else 0.0  # biases and gains are not decayed
            expected[name] = expected[name] * (1 - decay) - lr * corrected[0] / (corrected[1].sqrt() + 1e-3)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


def test_state_by_name_goes_on_identically() -> None:
    one, other = model(), model()
    optimizers = [build_optimizer(m, CONFIG) for m in (one, other)]
    set_gradients(one, 1)
    optimizers[0].step()
    tensors = {name: t.clone() for name, t in optimizer_tensors(optimizers[0], one).items()}
    names = {name for name, _ in one.named_parameters()}
    assert tensors.keys() == {f"{entry}.{name}" for entry in ("step", "exp_avg", "exp_avg_sq") for name in names}
    other.load_state_dict(one.state_dict())
    load_optimizer_tensors(optimizers[1], other, tensors)
    for module, optimizer in zip((one, other), optimizers):
        set_gradients(module, 2)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


def test_state_of_an_unknown_parameter_is_refused() -> None:
    module = model()
    with pytest.raises(ValueError, match=r"names the parameter 'layers.9.w', which this model does not have"):
        load_optimizer_tensors(build_optimizer(module, CONFIG), module, {"exp_avg.layers.9.w": torch.zeros(1)})
