"""The multiplicative LSTM: its cell as the paper writes it, and the language model around the fast sequence op.

`mlstm_cell` is the readable reference that the tests hold `mlstm_scan` to; the model never calls it. Not the
matrix-memory mLSTM of xLSTM.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import MLSTMConfig
from .mlstm_scan import GATE_ORDER
from .recurrent import (
    LayerWeights,
    RecurrentLanguageModel,
    RecurrentLayer,
    forget_bias,
    input_matrix,
    orthogonal_blocks,
)
from .weight_norm import NormedWeight

# Hidden states start far below 1, so the multiplicative state starts larger to reach the gates. On review text (H 128
# and 320, batch 32) 2 gives 0.04-0.06 bits per byte less than 1 after the first 1.6 MB, and 0.007 less after 5 MB.
M_SCALE = 2.0


def mlstm_cell(
    x: Tensor, hidden: Tensor, cell: Tensor, wx: Tensor, wh: Tensor, wmx: Tensor, wmh: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the multiplicative LSTM.

    Args:
        x: input (B, E).
        hidden: hidden state (B, H).
        cell: cell state (B, H).
        wx: (4H, E), input to gates, blocks in `GATE_ORDER`.
        wh: (4H, H), multiplicative state to gates.
        wmx: (H, E), input to multiplicative state.
        wmh: (H, H), hidden to multiplicative state.
        bias: (4H,), of the gates; the multiplicative state has none.

    Returns:
        The new hidden and cell state, (B, H) each.

    Source: Krause et al. 2016 (arXiv 1609.07959), section 3, with the output gate outside the tanh as in Radford et al.
    2017 (arXiv 1704.01444).
    """
    m = (x @ wmx.t()) * (hidden @ wmh.t())
    gates = x @ wx.t() + m @ wh.t() + bias
    i, f, o, u = gates.chunk(len(GATE_ORDER), dim=-1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(cell), cell


class MLSTMLayer(RecurrentLayer):
    """Parameters of one mLSTM layer and their projection of the input.

    Args:
        input_size: features of the input.
        hidden_size: units H.
        weight_norm: normalise wx, wh, wmx and wmh.
        recompute: see `MLSTMConfig`.
    """

    def __init__(self, input_size: int, hidden_size: int, weight_norm: bool, recompute: bool = False) -> None:
        super().__init__(recompute)
        self.wx = NormedWeight(input_matrix(4 * hidden_size, input_size), weight_norm)
        self.wh = NormedWeight(orthogonal_blocks(4 * hidden_size, hidden_size), weight_norm)
        self.wmx = NormedWeight(M_SCALE * input_matrix(hidden_size, input_size), weight_norm)
        self.wmh = NormedWeight(orthogonal_blocks(hidden_size, hidden_size), weight_norm)
        self.bias = nn.Parameter(forget_bias(hidden_size))

    def weights(self, dtype: torch.dtype) -> LayerWeights:
        """See `RecurrentLayer`."""
        wx, wh, wmx, wmh = (weight().to(dtype) for weight in (self.wx, self.wh, self.wmx, self.wmh))
        return LayerWeights(torch.cat([wx, wmx]), F.pad(self.bias.to(dtype), (0, len(wmx))), wh, wmh)


class MLSTM(RecurrentLanguageModel):
    """Multiplicative LSTM language model; see `RecurrentLanguageModel` for its interface.

    Recurrent matrices start orthogonal for each gate, wx so that a projection has the variance of its input and wmx at
    `M_SCALE` times that; embeddings are standard normal; the forget gate's bias starts at 1, all others at 0. With
    weight norm the gains start at the row norms, so that it changes nothing at first.

    Source: Krause et al. 2016; Radford et al. 2017.
    """

    def __init__(self, config: MLSTMConfig) -> None:
        sizes = [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
        super().__init__(
            config, [MLSTMLayer(size, config.hidden_size, config.weight_norm, config.recompute) for size in sizes]
        )

    @property
    def fp32_parameter_names(self) -> frozenset[str]:
        """Direction and gain of every normed weight: the norm is a sum of squares, and the gain multiplies a row."""
        normed = (name for name, part in self.named_modules() if isinstance(part, NormedWeight) and part.g is not None)
        return frozenset(f"{name}.{leaf}" for name in normed for leaf in ("v", "g"))
