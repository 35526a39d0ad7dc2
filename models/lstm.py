"""The LSTM baseline: the language model of `recurrent.py` with a plain LSTM layer, for comparison with the mLSTM.

Uses the sequence op of `mlstm_scan.py` with m = h, so resets, lengths and half precision mean the same in both.
torch.nn.LSTM is not used: it has no resets inside a window and fails under fp16 autocast on CPU.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .config import LSTMConfig
from .mlstm_scan import ScanOutput, mlstm_scan
from .recurrent import RecurrentLanguageModel, RecurrentLayer, forget_bias, input_matrix, orthogonal_blocks


class LSTMLayer(RecurrentLayer):
    """Parameters of one LSTM layer, with one bias vector, and their projection of the input.

    Args:
        input_size: features of the input.
        hidden_size: units H.
        recompute: see `MLSTMConfig`.
    """

    def __init__(self, input_size: int, hidden_size: int, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.wx = nn.Parameter(input_matrix(4 * hidden_size, input_size))
        self.wh = nn.Parameter(orthogonal_blocks(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(forget_bias(hidden_size))

    def forward(
        self,
        inputs: Tensor,
        tokens: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
        reset: Tensor | None,
        lengths: Tensor | None,
        return_cells: bool,
    ) -> ScanOutput:
        """Runs the window; `inputs` is a table (V, E) read at `tokens` (T, B), or (T, B, E) without tokens."""
        wx, wh, bias = (weight.to(inputs.dtype) for weight in (self.wx, self.wh, self.bias))
        projected = F.linear(inputs, wx, bias)
        return mlstm_scan(projected, tokens, wh, None, hidden, cell, reset, lengths, return_cells, self.recompute)


class LSTM(RecurrentLanguageModel):
    """LSTM language model; see `RecurrentLanguageModel` for its interface.

    Source: Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000; no peepholes.
    """

    def __init__(self, config: LSTMConfig) -> None:
        sizes = [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
        super().__init__(config, [LSTMLayer(size, config.hidden_size, config.recompute) for size in sizes])
