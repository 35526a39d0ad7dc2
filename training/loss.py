"""Loss of a language model: cross-entropy of the next byte."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..models.recurrent import RecurrentState
from .tasks.base import LossOutput


def sequence_loss(
    model: nn.Module, tokens: Tensor, reset: Tensor, mask: Tensor, state: RecurrentState | None
) -> LossOutput:
    """Cross-entropy of the next byte, softmax in fp32 whatever the logits' dtype.

    Args:
        model: called as `model(inputs, state, reset)`.
        tokens: (b, T+1) uint8; inputs and targets overlap.
        reset: (b, T) bool.
        mask: (b, T) bool; targets where False do not count.
        state: state before the window.
    """
    logits, after = model(tokens[:, :-1], state, reset)
    # Time-major, as the model computes: a reshape of the (b, T, V) view would copy all logits.
    targets = tokens[:, 1:].long().masked_fill(~mask, -100).t()
    loss = F.cross_entropy(
        logits.transpose(0, 1).flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return LossOutput(loss, int(mask.sum()), after)
