"""The steps of a window on CPU in compiled loops: same two functions as `mlstm_steps.py`, fp32 only.

Needs the kernels that `native.py` builds; `usable` says whether they are there. All of it is `mlstm_kernels.cpp`.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from . import native
from .mlstm_steps import Saved, StepGradients


def has_int8() -> bool:
    """Whether weights in eight bits can be read here."""
    return native.library() is not None and bool(_library().mlstm_has_int8())


def usable(inputs: Tensor) -> bool:
    """Whether this path can run a window: fp32 on CPU, with kernels at hand."""
    return inputs.dtype == torch.float32 and inputs.device.type == "cpu" and native.library() is not None


class Packed:
    """The recurrent weights in the kernels' layout for the forward pass; of use as long as they do not change.

    Args:
        wh: (4H, H).
        wmh: (H, H), or None.
        int8: round each output unit's weights to eight bits, with a scale of its own; h and m are then rounded at every step.

    Raises:
        ValueError: `int8` on a processor without AVX512-VNNI.
    """

    def __init__(self, wh: Tensor, wmh: Tensor | None, int8: bool = False) -> None:
        self.int8, library, size = int8, _library(), wh.shape[1]
        if not int8:
            self.buffers = _packed(wh, wmh)
            library.mlstm_pack_forward(*_pointers(wh, wmh, *self.buffers), size, torch.get_num_threads())
            return
        if not library.mlstm_has_int8():
            raise ValueError("8-bit weights need a processor with AVX512-VNNI, which this one has not: read in fp32")
        shapes = [(wh, 0)] if wmh is None else [(wh, 0), (wmh, 1)]
        buffers = [torch.empty(library.mlstm_int8_size(size, part), dtype=torch.uint8) for _, part in shapes]
        self.buffers = (buffers[0], buffers[1] if wmh is not None else None)
        library.mlstm_pack_int8(*_pointers(wh, wmh, *self.buffers), size)


def forward_steps(
    inputs: Tensor, tokens: Tensor | None, wh: Tensor, wmh: Tensor | None, hidden: Tensor, cell: Tensor, reset: Tensor | None,
    save: bool, keep_cells: bool, packed: Packed | None = None,
) -> Saved:  # fmt: skip
    """See `mlstm_steps.forward_steps`. All tensors are contiguous. `packed` holds wh and wmh, if they are packed already."""
    if tokens is not None:
        low, high = (int(bound) for bound in tokens.aminmax())  # the kernels follow a token without asking
        if low < 0 or high >= len(inputs):
            raise IndexError(f"tokens go from {low} to {high}, but the table has {len(inputs)} rows")
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    batch, size = hidden.shape
    saved = Saved(
        inputs.new_empty((steps, batch, 4 * size) if save else 0),
        inputs.new_empty((steps, batch, size) if save and wmh is not None else 0),
        inputs.new_empty((steps, batch, size)),
        inputs.new_empty((steps if save or keep_cells else 1, batch, size)),
    )
    m, threads = inputs.new_empty((batch, size)), torch.get_num_threads()
    packed = packed or Packed(wh, wmh)
    if packed.int8:
        assert not save, "gradients of rounded weights"
        _library().mlstm_forward_int8(
            *_pointers(*packed.buffers, inputs, tokens, reset, hidden, cell, saved.hidden, saved.cell, m),
            steps, batch, size, int(keep_cells), threads,
        )  # fmt: skip
        return saved
    _library().mlstm_forward(
        *_pointers(*packed.buffers, inputs, tokens, reset, hidden, cell, saved.hidden, saved.cell),
        *_pointers(saved.gates if save else None, saved.z if save and wmh is not None else None, m),
        steps, batch, size, int(save or keep_cells), threads,
    )  # fmt: skip
    return saved


class Backward:
    """See `mlstm_steps.Backward`; holds the packed weights of one backward pass."""

    def __init__(self, wh: Tensor, wmh: Tensor | None) -> None:
        self._packed = _packed(wh, wmh)
        _library().mlstm_pack_backward(*_pointers(wh, wmh, *self._packed), wh.shape[1], torch.get_num_threads())
        self._scratch = wh.new_empty(_library().mlstm_gradient_scratch(torch.get_num_threads()))

    def steps(
        self, inputs: Tensor, tokens: Tensor | None, reset: Tensor | None, cell: Tensor, saved: Saved, grad_h: Tensor | None,
        grad_c: Tensor | None, dh: Tensor, dc: Tensor, out: StepGradients,
    ) -> None:  # fmt: skip
        """Walks a block of steps backwards. All tensors are contiguous."""
        steps, batch, size = saved.hidden.shape
        lstm = self._packed[1] is None
        _library().mlstm_backward(
            *_pointers(*self._packed, inputs, tokens, reset, cell, saved.cell, saved.gates, None if lstm else saved.z),
            *_pointers(grad_h, grad_c, dh, dc, out.gates, *(None if lstm else x for x in (out.x_m, out.z, out.m))),
            steps, batch, size, torch.get_num_threads(),
        )  # fmt: skip

    def add_weight_gradient(self, total: Tensor, d: Tensor, factor: Tensor) -> None:
        """total (M, N) += d^T factor, over all rows of d (..., M) and factor (..., N)."""
        _library().mlstm_weight_gradient(
            *_pointers(total, d, factor, self._scratch), d.numel() // d.shape[-1], *total.shape, torch.get_num_threads()
        )

    def add_to_table(self, total: Tensor, tokens: Tensor, d: Tensor, first: int) -> None:
        """total (V, columns)[token, first:] += d, for each token and row of d."""
        _library().mlstm_table_backward(
            *_pointers(d, tokens, total), tokens.numel(), d.shape[-1], first, total.shape[1], torch.get_num_threads()
        )


def _packed(wh: Tensor, wmh: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Room for the two weights in the kernels' layout."""
    size = wh.shape[1]
    recurrent = None if wmh is None else wh.new_empty(_library().mlstm_packed_size(size, 1))
    return wh.new_empty(_library().mlstm_packed_size(size, 0)), recurrent


@functools.cache
def _library() -> ctypes.CDLL:
    library = native.library()
    assert library is not None
    pointer, long, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    signatures = {
        "mlstm_packed_size": (long, [long, integer]),
        "mlstm_pack_forward": (None, [pointer] * 4 + [long, integer]),
        "mlstm_has_int8": (integer, []),
        "mlstm_pack_backward": (None, [pointer] * 4 + [long, integer]),
        "mlstm_forward": (None, [pointer] * 12 + [long] * 3 + [integer] * 2),
        "mlstm_backward": (None, [pointer] * 17 + [long] * 3 + [integer]),
        "mlstm_gradient_scratch": (long, [integer]),
        "mlstm_weight_gradient": (None, [pointer] * 4 + [long] * 3 + [integer]),
        "mlstm_table_backward": (None, [pointer] * 3 + [long] * 4 + [integer]),
    }
    if library.mlstm_has_int8():
        signatures |= {
            "mlstm_int8_size": (long, [long, integer]),
            "mlstm_pack_int8": (None, [pointer] * 4 + [long]),
            "mlstm_forward_int8": (None, [pointer] * 10 + [long] * 3 + [integer] * 2),
        }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
