"""Weight normalisation, w = g * v / |v| per output unit, always in fp32 (fp64 for fp64 parameters).

A weight of nn.utils.parametrizations is recomputed at every access and in the parameter's own dtype; here the caller
computes it once per forward pass and casts the result, so a half-precision model keeps exact gains.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

# OpenAI's weights were trained with this on the squared norm; it only matters for a row of zeros.
EPS = 1e-12


class NormedWeight(nn.Module):
    """A weight matrix (out, in) kept as direction `v` (out, in) and gain `g` (out,), or as plain `v` without gain.

    Args:
        initial: the plain weight to start from. The gain starts at its row norms, so that normalising changes nothing.
        weight_norm: without it `g` does not exist and the weight is `v`.

    Source: Salimans & Kingma 2016, equation 2, with the gain at the row norm as in Krause's multiplicative LSTM.
    """

    def __init__(self, initial: Tensor, weight_norm: bool = True) -> None:
        super().__init__()
        self.v = nn.Parameter(initial)
        self.g = nn.Parameter(initial.detach().norm(dim=1)) if weight_norm else None

    def forward(self) -> Tensor:
        """The weight (out, in), in fp32 or wider where it is normalised, else as it is stored."""
        return self.v if self.g is None else normalise(self.v, self.g)


def normalise(v: Tensor, g: Tensor) -> Tensor:
    """g * v / |v| for each row of `v` (out, in), computed in fp32 at least; differentiable once."""
    if v.dtype in (torch.float16, torch.bfloat16):
        v, g = v.float(), g.float()
    return _Normalise.apply(v, g)


class _Normalise(Function):
    """One node instead of five: the passes over memory of a chain cost a tenth of a training step at small batch."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, g: Tensor) -> Tensor:
        inverse = torch.linalg.vector_norm(v, dim=1).square_().add_(EPS).rsqrt_()
        ctx.save_for_backward(v, g, inverse)
        return v * (g * inverse).unsqueeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_w: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        v, g, inverse = ctx.saved_tensors
        with torch.autocast(d_w.device.type, enabled=False):
            along = torch.bmm(d_w.unsqueeze(1), v.unsqueeze(2)).flatten()  # of each row
        d_v = d_w * (g * inverse).unsqueeze(1)
        d_v.addcmul_(v, (g * inverse.pow(3) * along).unsqueeze(1), value=-1)
        return d_v, along * inverse
