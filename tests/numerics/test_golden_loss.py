"""Losses of a few training steps in fp64, written down: a refactor of model or scan must leave them as they are.

Weights and data come from closed forms, not from a generator, so the numbers hold on any machine. A change of numerics
replaces them and says why.
"""

from __future__ import annotations

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig, ModelConfig
from torch.nn import functional as F

SIZES = {"vocab_size": 17, "embedding_size": 5, "hidden_size": 7, "num_layers": 2}
GOLDEN = {
    "mlstm": [2.847825331262336, 2.596834853669721, 2.8327357986081894, 2.682674836533134],
    "lstm": [3.0636212005625256, 3.288981561122847, 2.9598514621346825, 2.9764704132822857],
}


def train(config: ModelConfig, steps: int = 4) -> list[float]:
    """Losses of windows that carry their state, a reset in the second, with plain gradient descent."""
    model = build_model(config).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            index = torch.arange(parameter.numel(), dtype=torch.float64) + 1
            parameter.copy_((torch.sin(index * (1.7 + number)) * 0.6 + 0.1 * (parameter.dim() == 1)).view_as(parameter))
    tokens = (torch.arange(3 * (4 * 6 + 1)) ** 2 % 17).view(3, -1)
    state, losses = None, []
    for step in range(steps):
        window = tokens[:, 6 * step : 6 * step + 7]
        reset = torch.zeros(3, 6, dtype=torch.bool)
        reset[1, 2] = step == 1
        logits, state = model(window[:, :-1], state, reset)
        state = state.detach()
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    return losses


@pytest.mark.parametrize("config", [MLSTMConfig(**SIZES), LSTMConfig(**SIZES)], ids=lambda config: config.kind)
def test_losses_are_the_golden_ones(config: ModelConfig) -> None:
    assert train(config) == pytest.approx(GOLDEN[config.kind], rel=1e-11)
