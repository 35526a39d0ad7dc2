"""Weight normalisation, w = g * v / |v| per output unit, always in fp32 (fp64 for fp64 parameters).

A weight of nn.utils.parametrizations is recomputed at every access and in the parameter's own dtype; here the caller
computes it once per forward pass and casts the result, so a half-precision model keeps exact gains.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
    """g * v / |v| for each row of `v` (out, in), computed in fp32 at least."""
    if v.dtype in (torch.float16, torch.bfloat16):
        v, g = v.float(), g.float()
    squared = v.square().sum(dim=1)
    return v * (g * torch.rsqrt(squared + EPS)).unsqueeze(1)
