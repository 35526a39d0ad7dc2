"""Adam against its textbook form, decay where it belongs, and state that survives by name."""

from __future__ import annotations

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.config import MLSTMConfig
from bigbatch.training.config import OptimConfig
from bigbatch.training.optimizers import LAMB, build_optimizer, load_optimizer_tensors, optimizer_tensors, set_lr
from torch import Tensor, nn

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


class Plain:
    """The same optimizers one tensor at a time in fp64, as the papers write them."""

    def __init__(self, config: OptimConfig, module: nn.Module) -> None:
        self.config, self.step_count = config, 0
        self.weights = {name: p.detach().double().clone() for name, p in module.named_parameters()}
        self.state = {name: [torch.zeros_like(w), torch.zeros_like(w)] for name, w in self.weights.items()}

    def step(self, grads: dict[str, Tensor], lr: float) -> None:
        self.step_count += 1
        if self.config.lamb_prenorm:
            norm = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
            grads = {name: g / norm for name, g in grads.items()}
        for name, grad in grads.items():
            w, matrix = self.weights[name], self.weights[name].dim() > 1
            decay = self.config.weight_decay if matrix else 0.0
            local = self.local_rate(w, grad, decay)
            w -= getattr(self, self.config.kind)(name, w, grad, decay, lr, matrix, local)

    def local_rate(self, w: Tensor, grad: Tensor, decay: float) -> float:
        top, bottom = float(w.norm()), float(grad.norm())
        if not top or not bottom:
            return 1.0
        return self.config.trust_coefficient * top / (bottom + decay * top + self.config.eps)

    def moments(self, name: str, grad: Tensor) -> Tensor:
        c, (m, v) = self.config, self.state[name]
        m.mul_(c.beta1).add_((1 - c.beta1) * grad)
        v.mul_(c.beta2).add_((1 - c.beta2) * grad**2)
        return (m / (1 - c.beta1**self.step_count)) / ((v / (1 - c.beta2**self.step_count)).sqrt() + c.eps)

    def lamb(self, name, w, grad, decay, lr, matrix, local) -> Tensor:
        update = self.moments(name, grad) + decay * w
        ratio = float(w.norm() / update.norm()) if matrix and w.norm() > 0 and update.norm() > 0 else 1.0
        if matrix and self.config.max_trust_ratio:
            ratio = min(ratio, self.config.max_trust_ratio)
        return lr * ratio * update

    def lars(self, name, w, grad, decay, lr, matrix, local) -> Tensor:
        velocity = self.state[name][0]
        velocity.mul_(self.config.momentum).add_(lr * (local if matrix else 1.0) * (grad + decay * w))
        return velocity

    def sgd(self, name, w, grad, decay, lr, matrix, local) -> Tensor:
        grad = grad + decay * w
        if self.config.larc and matrix:
            grad = grad * min(local / lr, 1.0)
        velocity, momentum = self.state[name][0], self.config.momentum
        velocity.mul_(momentum).add_(grad)
        return lr * (grad + momentum * velocity if self.config.nesterov else velocity)

    def adam(self, name, w, grad, decay, lr, matrix, local) -> Tensor:
        grad = grad + decay * w
        if self.config.larc and matrix:
            grad = grad * min(local / lr, 1.0)
        return lr * self.moments(name, grad)


MOMENTS = {"beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.5}
KINDS = [
    OptimConfig(kind="lamb", **MOMENTS),
    OptimConfig(kind="lamb", **{**MOMENTS, "weight_decay": 0.0}),
    OptimConfig(kind="lamb", lamb_prenorm=True, **MOMENTS),
    OptimConfig(kind="lamb", max_trust_ratio=0.7, **MOMENTS),
    OptimConfig(kind="lars", momentum=0.9, trust_coefficient=0.1, weight_decay=0.5),
    OptimConfig(kind="lars", momentum=0.0, trust_coefficient=0.1),
    OptimConfig(kind="sgd", momentum=0.9, weight_decay=0.5),
    OptimConfig(kind="sgd", momentum=0.0),
    OptimConfig(kind="sgd", momentum=0.9, nesterov=True),
    OptimConfig(kind="sgd", momentum=0.9, weight_decay=0.5, larc=True, trust_coefficient=0.1),
    OptimConfig(kind="adam", **MOMENTS),
    OptimConfig(kind="adam", larc=True, trust_coefficient=0.1, **MOMENTS),
]


@pytest.mark.parametrize("config", KINDS, ids=lambda c: f"{c.kind}-{KINDS.index(c)}")
def test_every_kind_equals_a_loop_over_tensors(config: OptimConfig) -> None:
    ours = model()
    with torch.no_grad():
        ours.embedding.weight.zero_()  # a norm of zero has no trust ratio  # pyright: ignore
    plain, optimizer = Plain(config, ours), build_optimizer(ours, config)
    for step, lr in enumerate((0.1, 0.05, 0.2, 0.1), start=1):
        set_gradients(ours, step)
        grads = {name: p.grad.double() for name, p in ours.named_parameters() if p.grad is not None}
        set_lr(optimizer, lr)
        optimizer.step()
        plain.step(grads, lr)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), plain.weights[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("config", KINDS, ids=lambda c: f"{c.kind}-{KINDS.index(c)}")
def test_every_kind_goes_on_identically_from_its_named_state(config: OptimConfig) -> None:
    one, other = model(), model()
    optimizers = [build_optimizer(m, config) for m in (one, other)]
    for seed in (1, 2):
        set_gradients(one, seed)
        optimizers[0].step()
    tensors = {name: t.clone() for name, t in optimizer_tensors(optimizers[0], one).items()}
    other.load_state_dict(one.state_dict())
    load_optimizer_tensors(optimizers[1], other, tensors)
    for module, optimizer in zip((one, other), optimizers):
        set_gradients(module, 3)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert all(t.dtype == torch.float32 for t in tensors.values())


def test_parameters_without_gradients_are_left_alone() -> None:
    module = model()
    before = [p.detach().clone() for p in module.parameters()]
    build_optimizer(module, OptimConfig(kind="lamb", weight_decay=0.5)).step()
    assert all(map(torch.equal, before, module.parameters()))


def test_lamb_takes_plain_parameters_and_adapts_them() -> None:
    weight = nn.Parameter(torch.full((3, 3), 2.0))
    optimizer = LAMB([weight], lr=0.5, betas=(0.9, 0.999), eps=0.0)
    weight.grad = torch.ones(3, 3)
    optimizer.step()
    # The first Adam step of equal gradients is 1 everywhere, of norm 3; the weight's norm is 6: the step is 0.5 * 2.
    torch.testing.assert_close(weight.detach(), torch.ones(3, 3))


def test_apex_asked_for_by_name_and_absent_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"--optim.backend apex: it needs a CUDA device; use --optim.backend torch"):
        build_optimizer(model(), OptimConfig(kind="lamb", weight_decay=0.1, backend="apex"))
    assert isinstance(build_optimizer(model(), OptimConfig(kind="lamb", weight_decay=0.1, backend="auto")), LAMB)
