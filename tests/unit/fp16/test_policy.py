"""Precision policies around the real models: fp32 masters, gradients close to fp32's, DDP outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from bigbatch.fp16.policy import apply_policy
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig, ModelConfig
from torch import Tensor, nn
from torch.nn import functional as F

CONFIGS = [MLSTMConfig(embedding_size=8, hidden_size=24, num_layers=2), LSTMConfig(embedding_size=8, hidden_size=24)]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "amp": torch.float16, "bf16": torch.bfloat16}
# Largest relative error of the whole gradient against fp32.
TOLERANCES = {"fp32": 1e-7, "fp16": 3e-3, "amp": 3e-3, "bf16": 3e-2}


def draw_model(config: ModelConfig) -> nn.Module:
    torch.manual_seed(0)
    return build_model(config)


def draw_batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (3, 11), generator=generator, dtype=torch.uint8)
    return tokens[:, :-1], tokens[:, 1:].long(), torch.rand(3, 10, generator=generator) < 0.2


def gradient(model: nn.Module, scale: float = 2.0**10) -> Tensor:
    """Gradient of the mean loss in fp32, through a scaled backward pass as the training loop does it."""
    tokens, targets, reset = draw_batch()
    logits, _ = model(tokens, reset=reset)
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    model.zero_grad()
    (loss * scale).backward()
    assert all(p.dtype == torch.float32 and p.grad.dtype == torch.float32 for p in model.parameters())
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / scale


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("precision", DTYPES)
def test_gradients_arrive_in_fp32_close_to_those_of_fp32(config: ModelConfig, precision: str) -> None:
    plain = gradient(draw_model(config))
    policy = apply_policy(draw_model(config), precision, "cpu")
    error = (gradient(policy) - plain).norm() / plain.norm()
    assert error <= TOLERANCES[precision]
    assert precision == "fp32" or error > 1e-6, "nothing was computed in reduced precision"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("precision", DTYPES)
def test_outputs_have_the_compute_dtype_and_the_cell_fp32(config: ModelConfig, precision: str) -> None:
    policy = apply_policy(draw_model(config), precision, "cpu")
    tokens, _, reset = draw_batch()
    logits, state = policy(tokens, policy.module.init_state(3), reset)
    assert logits.dtype == state.hidden.dtype == DTYPES[precision]
    assert state.cell.dtype == torch.float32
    again, _ = policy(tokens, state.detach())  # a half-precision state is accepted as it came out
    assert again.dtype == DTYPES[precision]


@pytest.mark.parametrize("precision", DTYPES)
def test_the_module_and_its_parameters_stay_the_model_s_own(precision: str) -> None:
    model = draw_model(CONFIGS[0])
    names = [name for name, _ in model.named_parameters()]
    policy = apply_policy(model, precision, "cpu")
    gradient(policy)
    assert policy.module is model
    assert [name for name, _ in policy.named_parameters()] == [f"module.{name}" for name in names]
    assert [name for name, _ in model.named_parameters()] == names


def test_weight_norm_is_not_cast() -> None:
    model = draw_model(MLSTMConfig(embedding_size=8, hidden_size=24))
    policy = apply_policy(model, "fp16", "cpu")
    seen = {}

    def look(module: nn.Module, _args: object, output: Tensor) -> None:
        seen[module] = (module.v.dtype, module.g.dtype, output.dtype)

    layer = model.layers[0]
    for weight in (layer.wx, layer.wh, layer.wmx, layer.wmh):
        weight.register_forward_hook(look)
    policy(draw_batch()[0])
    assert len(seen) == 4 and set(seen.values()) == {(torch.float32,) * 3}


def test_small_gradients_vanish_in_fp16_unless_the_loss_is_scaled() -> None:
    policy = apply_policy(draw_model(CONFIGS[0]), "fp16", "cpu")

    def tiny_gradient(scale: float) -> Tensor:
        policy.zero_grad()
        logits, _ = policy(draw_batch()[0])
        (logits.float().mean() * 1e-7 * scale).backward()
        return policy.module.output.weight.grad

    assert tiny_gradient(1.0).abs().max() == 0
    assert tiny_gradient(2.0**16).abs().max() > 0


def test_fp16_overflow_reaches_the_masters_as_inf_or_nan() -> None:
    policy = apply_policy(draw_model(CONFIGS[0]), "fp16", "cpu")
    assert not gradient(policy, scale=2.0**30).isfinite().all()


def test_half_models_and_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter .* is torch.bfloat16: .* starts from an fp32 model"):
        apply_policy(draw_model(CONFIGS[0]).bfloat16(), "fp16", "cpu")
    with pytest.raises(ValueError, match=r"precision is 'auto'"):
        apply_policy(draw_model(CONFIGS[0]), "auto", "cpu")


@pytest.fixture
def one_process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_ddp_around_the_policy_gives_the_same_gradients(precision: str, one_process_group: None) -> None:
    alone = gradient(apply_policy(draw_model(CONFIGS[0]), precision, "cpu"))
    wrapped = nn.parallel.DistributedDataParallel(apply_policy(draw_model(CONFIGS[0]), precision, "cpu"))
    assert torch.equal(gradient(wrapped), alone)
