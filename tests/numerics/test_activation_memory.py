"""What a window keeps for its backward pass: measured against the closed form, and against a loop that autograd records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bigbatch.benchmarks.mlstm import PerStepLoop
from bigbatch.fp16.policy import apply_policy
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig, ModelConfig
from bigbatch.models.flops import activation_bytes
from bigbatch.models.mlstm import MLSTM
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, STEPS = 16, 48


def kept_bytes(module: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes of all storages that autograd holds when the loss is there, parameters left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(kept.values())


def small(family: type, hidden_size: int, **options: object) -> ModelConfig:
    """A vocabulary of 16, so that the model's weights are little beside its states."""
    return family(hidden_size=hidden_size, vocab_size=16, embedding_size=4, **options)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("family", [MLSTMConfig, LSTMConfig])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_closed_form_is_within_a_tenth(family: type, layers: int, recompute: bool, precision: str) -> None:
    config = small(family, 24, num_layers=layers, recompute=recompute)
    policy = apply_policy(build_model(config), precision, "cpu")
    tokens = torch.randint(0, 16, (BATCH, STEPS + 1))
    state = None

    def loss() -> Tensor:
        logits = policy(tokens[:, :-1], state)[0].transpose(0, 1).flatten(0, 1)
        return F.cross_entropy(logits.float(), tokens[:, 1:].t().flatten(), reduction="sum")

    # Copies of the weights, which the pass keeps too, do not grow with the window: measured by a window of one step.
    measured = kept_bytes(policy, loss)
    expected = sum(activation_bytes(config, BATCH, STEPS, precision).values())
    tokens = tokens[:, :2]
    fixed = kept_bytes(policy, loss) - sum(activation_bytes(config, BATCH, 1, precision).values())
    assert abs(measured - fixed - expected) <= 0.1 * expected


@pytest.mark.parametrize(("recompute", "share"), [(False, 0.75), (True, 0.4)])
def test_less_is_held_than_by_a_loop_of_single_steps(recompute: bool, share: float) -> None:
    tokens = torch.randint(0, 256, (BATCH, STEPS))
    model = MLSTM(MLSTMConfig(hidden_size=64, recompute=recompute))
    loop = PerStepLoop(model)
    ours = kept_bytes(model, lambda: model.encode(tokens)[0].sum())
    recorded = kept_bytes(model, lambda: loop(tokens).sum())
    assert recorded > 10 * BATCH * STEPS * 64 * 4  # ten numbers a step, row and unit
    assert ours < share * recorded
