"""The LSTM baseline: the language model of `recurrent.py` with a plain LSTM layer, for comparison with the mLSTM.

Uses the sequence op of `mlstm_scan.py` with m = h, so resets, lengths and half precision mean the same in both.
torch.nn.LSTM is not used: it has no resets inside a window and fails under fp16 autocast on CPU.
"""

from __future__ import annotations

import torch
from torch import nn

from .config import LSTMConfig
from .recurrent import (
    LayerWeights,
    RecurrentLanguageModel,
    RecurrentLayer,
    forget_bias,
    input_matrix,
    orthogonal_blocks,
)


class LSTMLayer(RecurrentLayer):
    """Parameters of one LSTM layer, with one bias vector, and their projection of the input.

    Args:
        input_size: features of the input.
        hidden_size: units H.
        recompute: see `MLSTMConfig`.
    """

    def __init__(self, input_size: int, hidden_size: int, recompute: bool = False) -> None:
        super().__init__(recompute)
        self.wx = nn.Parameter(input_matrix(4 * hidden_size, input_size))
        self.wh = nn.Parameter(orthogonal_blocks(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(forget_bias(hidden_size))

    def weights(self, dtype: torch.dtype) -> LayerWeights:
        """See `RecurrentLayer`."""
        return LayerWeights(self.wx.to(dtype), self.bias.to(dtype), self.wh.to(dtype), None)


class LSTM(RecurrentLanguageModel):
    """LSTM language model; see `RecurrentLanguageModel` for its interface.

    Source: Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000; no peepholes.
    """

    def __init__(self, config: LSTMConfig) -> None:
        sizes = [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
        super().__init__(config, [LSTMLayer(size, config.hidden_size, config.recompute) for size in sizes])
