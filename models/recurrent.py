"""What the recurrent language models share: embedding, layers, output layer, and the state passed in and out.

A family (`mlstm.py`, `lstm.py`) adds its layer. Precision is decided outside: the model computes in the dtype in which
it finds its embedding, or in autocast's, and keeps cell state and pointwise work in fp32. No state is ever stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .mlstm_scan import GATE_ORDER, ScanOutput, mlstm_scan, pack_weights


class RecurrentState(NamedTuple):
    """State of every layer between two windows.

    Attributes:
        hidden: (L, B, H) in the compute dtype.
        cell: (L, B, H) in fp32 (fp64 in an fp64 model).
    """

    hidden: Tensor
    cell: Tensor

    def detach(self) -> RecurrentState:
        """The same values without their history: truncates backpropagation at a window's edge."""
        return RecurrentState(self.hidden.detach(), self.cell.detach())

    def select(self, index: Tensor) -> RecurrentState:
        """The rows `index` (int64, over B), in that order."""
        return RecurrentState(self.hidden.index_select(1, index), self.cell.index_select(1, index))


class LayerWeights(NamedTuple):
    """Weights of a layer as the sequence op takes them: normalised and in the compute dtype.

    Attributes:
        inputs: (5H, E), from the input to the gates and to the multiplicative state; 4H in the LSTM.
        bias: (5H,).
        wh: (4H, H).
        wmh: (H, H); None in the LSTM.
    """

    inputs: Tensor
    bias: Tensor
    wh: Tensor
    wmh: Tensor | None


class _Frozen:
    """What a layer has computed of its weights, for windows to come."""

    def __init__(self, weights: LayerWeights, int8: bool) -> None:
        self.weights, self.packed = weights, pack_weights(weights.wh, weights.wmh, int8)
        self.table: Tensor | None = None


class RecurrentLayer(nn.Module, ABC):
    """One layer: hidden states of the layer below, or a table and tokens, in; a `ScanOutput` out.

    Args:
        recompute: see `MLSTMConfig`.
    """

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self._keep, self._int8, self._frozen = False, False, None

    @abstractmethod
    def weights(self, dtype: torch.dtype) -> LayerWeights:
        """The weights for inputs of `dtype`."""

    def freeze(self, on: bool, int8: bool = False) -> None:
        """Keeps the weights of the next window for those after it, or forgets them."""
        self._keep, self._int8, self._frozen = on, int8, None

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
        frozen = self._frozen
        weights = self.weights(inputs.dtype) if frozen is None else frozen.weights
        if self._keep and frozen is None:
            frozen = self._frozen = _Frozen(weights, self._int8)
        table = None if frozen is None or tokens is None else frozen.table
        projected = F.linear(inputs, weights.inputs, weights.bias) if table is None else table
        if frozen is not None and tokens is not None:
            frozen.table = projected
        packed = None if frozen is None else frozen.packed
        return mlstm_scan(
            projected,
            tokens,
            weights.wh,
            weights.wmh,
            hidden,
            cell,
            reset,
            lengths,
            return_cells,
            self.recompute,
            packed,
        )


class RecurrentLanguageModel(nn.Module):
    """Embedding (V, E), L recurrent layers of H units, linear output layer with bias (H to V).

    Args:
        config: sizes; kept as `model.config`.
        layers: the L layers, the first reading E and the others H features.
    """

    def __init__(self, config: ModelConfig, layers: list[RecurrentLayer]) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layers = nn.ModuleList(layers)
        self.output = nn.Linear(config.hidden_size, config.vocab_size)

    @property
    def fp32_parameter_names(self) -> frozenset[str]:
        """Parameters that a half-precision policy must leave in fp32."""
        return frozenset()

    @contextmanager
    def frozen(self, int8: bool = False) -> Iterator[None]:
        """Inside, weights are normalised, projected and packed once and not for every window.

        For reading with gradients off; parameters and compute dtype must not change meanwhile.

        Args:
            int8: the recurrent weights in eight bits, a scale for each output unit, and h and m rounded to eight bits at
                every step, a scale for each row; input projections, gates and cell state stay fp32.

        Raises:
            ValueError: at the first window, `int8` where the processor or the dtype has no such products.
        """
        layers = [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]
        for layer in layers:
            layer.freeze(True, int8)
        try:
            with torch.no_grad():
                yield
        finally:
            for layer in layers:
                layer.freeze(False)

    def init_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> RecurrentState:
        """A state of zeros for `batch_size` rows; device and hidden dtype default to the embedding's."""
        weight = self.embedding.weight
        device, dtype = device or weight.device, dtype or weight.dtype
        shape = (self.config.num_layers, batch_size, self.config.hidden_size)
        hidden = torch.zeros(shape, device=device, dtype=dtype)
        return RecurrentState(hidden, torch.zeros(shape, device=device, dtype=_cell_dtype(dtype)))

    def forward(
        self,
        tokens: Tensor,
        state: RecurrentState | None = None,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """Logits of the token after each position.

        Args:
            tokens: integer (B, T), uint8 or wider.
            state: state before the first token; zeros if None.
            reset: bool (B, T); True zeroes the row's state before this token is read.
            lengths: int64 (B,); tokens at t >= lengths[b] are padding and do not change row b's state.

        Returns:
            Logits (B, T, V) in the compute dtype, a transposed view of time-major memory (`reshape`, not `view`), and
            the state after the last token of each row. Logits of padding are unspecified.

        Raises:
            ValueError: shapes or dtypes that do not fit together.
        """
        last, state = self._run(tokens, state, reset, lengths, False)
        hidden = F.dropout(last.hidden, self.config.dropout, self.training)
        weight, bias = self.output.weight.to(hidden.dtype), self.output.bias.to(hidden.dtype)
        with torch.autocast(tokens.device.type, enabled=False):
            logits = F.linear(hidden, weight, bias)
        return logits.transpose(0, 1), state

    @overload
    def encode(
        self,
        tokens: Tensor,
        state: RecurrentState | None = None,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[Tensor, RecurrentState]: ...

    @overload
    def encode(
        self,
        tokens: Tensor,
        state: RecurrentState | None = None,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
        *,
        return_cells: Literal[True],
    ) -> tuple[Tensor, RecurrentState, Tensor]: ...

    def encode(
        self,
        tokens: Tensor,
        state: RecurrentState | None = None,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
        return_cells: bool = False,
    ) -> tuple[Tensor, RecurrentState] | tuple[Tensor, RecurrentState, Tensor]:
        """Features of the last layer instead of logits; arguments as in `forward`.

        Returns:
            Hidden states (B, T, H) in the compute dtype, the final state, and with `return_cells` the cell states
            (B, T, H) in fp32. Values at padding are unspecified.
        """
        last, state = self._run(tokens, state, reset, lengths, return_cells)
        hidden = last.hidden.transpose(0, 1)
        return (hidden, state) if last.cells is None else (hidden, state, last.cells.transpose(0, 1))

    def _run(
        self,
        tokens: Tensor,
        state: RecurrentState | None,
        reset: Tensor | None,
        lengths: Tensor | None,
        return_cells: bool,
    ) -> tuple[ScanOutput, RecurrentState]:
        dtype = self._compute_dtype()
        if state is None:
            state = self.init_state(tokens.shape[0], tokens.device, dtype)
        _check_shapes(tokens, state, reset, lengths)
        # The first layer reads a table of the embeddings of all tokens, so that its projections cost V rows, not B * T.
        inputs, index = self.embedding.weight.to(dtype), tokens.t().long().contiguous()
        reset = None if reset is None else reset.t().contiguous()
        outputs: list[ScanOutput] = []
        with torch.autocast(tokens.device.type, enabled=False):
            for number, layer in enumerate(self.layers):
                if outputs:
                    inputs, index = F.dropout(outputs[-1].hidden, self.config.dropout, self.training), None
                hidden, cell = state.hidden[number].to(dtype), state.cell[number].to(_cell_dtype(dtype))
                cells_wanted = return_cells and number == len(self.layers) - 1
                outputs.append(layer(inputs, index, hidden, cell, reset, lengths, cells_wanted))
        final = RecurrentState(
            torch.stack([output.final_hidden for output in outputs]),
            torch.stack([output.final_cell for output in outputs]),
        )
        return outputs[-1], final

    def _compute_dtype(self) -> torch.dtype:
        device_type = self.embedding.weight.device.type
        if torch.is_autocast_enabled(device_type):
            return torch.get_autocast_dtype(device_type)
        return self.embedding.weight.dtype


def orthogonal_blocks(rows: int, columns: int) -> Tensor:
    """A matrix (rows, columns) of orthogonal blocks with `columns` rows each: one for each gate.

    Source: Saxe et al. 2014; Krause's multiplicative LSTM starts its recurrent matrices so.
    """
    assert rows % columns == 0
    return torch.cat([nn.init.orthogonal_(torch.empty(columns, columns)) for _ in range(rows // columns)])


def input_matrix(rows: int, columns: int) -> Tensor:
    """A matrix (rows, columns) whose product with an input has the variance of that input."""
    return torch.randn(rows, columns) / columns**0.5


def forget_bias(hidden_size: int) -> Tensor:
    """The bias (4H,) of a new layer: 1 for the forget gate, so that it remembers at first, and 0 elsewhere.

    Source: Jozefowicz et al. 2015.
    """
    bias = torch.zeros(len(GATE_ORDER), hidden_size)
    bias[GATE_ORDER.index("forget")] = 1.0
    return bias.flatten()


def _cell_dtype(compute_dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if compute_dtype == torch.float64 else torch.float32


def _check_shapes(tokens: Tensor, state: RecurrentState, reset: Tensor | None, lengths: Tensor | None) -> None:
    shape = tuple(tokens.shape)
    if len(shape) != 2 or shape[1] == 0 or tokens.is_floating_point():
        raise ValueError(f"tokens must be integers (batch, time) with time >= 1, not {tokens.dtype} {shape}")
    if state.hidden.shape != state.cell.shape or state.hidden.shape[1] != shape[0]:
        raise ValueError(f"the state holds {state.hidden.shape[1]} rows but there are {shape[0]} rows of tokens")
    if reset is not None and (reset.shape != tokens.shape or reset.dtype != torch.bool):
        raise ValueError(f"reset must be bool {shape} as the tokens are, not {reset.dtype} {tuple(reset.shape)}")
    if lengths is not None and lengths.shape != shape[:1]:
        raise ValueError(f"lengths must be ({shape[0]},), one for each row of tokens, not {tuple(lengths.shape)}")
