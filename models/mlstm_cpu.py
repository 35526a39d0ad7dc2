"""The mLSTM's window on CPU in compiled loops: same contract as the plain PyTorch path of `mlstm_scan.py`, fp32 only.

Needs the kernels of `native.py` and the packed matrix products of the MKL inside torch; `usable` says whether both are
there. Kept for backward are the gates, wmh h, hidden and cell states: 7 H numbers a step and row. Everything is time-major.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from . import native

_ROW_MAJOR, _B_MATRIX, _NO_TRANS, _TRANS = 101, 162, 111, 112


class _Gemm(ctypes.Structure):
    """`Gemm` of mlstm_kernels.cpp."""

    _fields_ = (("compute", ctypes.c_void_p), ("wmh", ctypes.c_void_p), ("wh", ctypes.c_void_p))


class _Mkl(NamedTuple):
    pack_get_size: Any
    pack: Any
    compute: int  # address


@functools.cache
def _mkl() -> _Mkl | None:
    """The packed products of the MKL that torch carries, or None where it has none (other processors, other builds)."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path))
        size, pack, compute = library.cblas_sgemm_pack_get_size, library.cblas_sgemm_pack, library.cblas_sgemm_compute
    except (OSError, AttributeError):
        return None
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    size.argtypes, size.restype = [integer] * 4, ctypes.c_size_t
    pack.argtypes = [integer] * 6 + [ctypes.c_float, pointer, integer, pointer]
    pack.restype = None
    address = ctypes.cast(compute, pointer).value
    return None if address is None else _Mkl(size, pack, address)


def usable(inputs: Tensor, wmh: Tensor | None) -> bool:
    """Whether this path can run a window: an mLSTM in fp32 on CPU, with kernels and MKL at hand."""
    plain = wmh is not None and inputs.dtype == torch.float32 and inputs.device.type == "cpu"
    return plain and not torch.compiler.is_compiling() and _mkl() is not None and native.library() is not None


class Packed:
    """The two recurrent weights packed for products with B rows; keep it alive while its `gemm` is used.

    Args:
        wh: (4H, H).
        wmh: (H, H).
        batch: B.
        transposed: pack wh^T and wmh^T, as the forward pass multiplies; else wh and wmh, as the backward pass does.
    """

    def __init__(self, wh: Tensor, wmh: Tensor, batch: int, transposed: bool) -> None:
        mkl = _mkl()
        assert mkl is not None
        self._keep = [_pack(mkl, weight, batch, transposed) for weight in (wmh, wh)]
        self.gemm = _Gemm(mkl.compute, *(buffer.data_ptr() for buffer in self._keep))


def _pack(mkl: _Mkl, weight: Tensor, batch: int, transposed: bool) -> Tensor:
    weight = weight.detach().contiguous()
    rows, columns = weight.shape
    inner, outer = (columns, rows) if transposed else (rows, columns)
    buffer = torch.empty(mkl.pack_get_size(_B_MATRIX, batch, outer, inner), dtype=torch.uint8)
    trans = _TRANS if transposed else _NO_TRANS
    mkl.pack(_ROW_MAJOR, _B_MATRIX, trans, batch, outer, inner, 1.0, weight.data_ptr(), columns, buffer.data_ptr())
    return buffer


class Saved(NamedTuple):
    """Buffers of a forward pass; those of what nothing is kept of have one entry in time."""

    gates: Tensor  # (T, B, 4H) after their nonlinearity
    z: Tensor  # (T, B, H) wmh h, zero where a row was reset
    hidden: Tensor  # (T + 1, B, H), entry 0 is the initial state
    cell: Tensor  # (T + 1, B, H), or (1, B, H) where only the last is kept


def forward(
    inputs: Tensor, tokens: Tensor | None, wh: Tensor, wmh: Tensor | None, hidden: Tensor, cell: Tensor, reset: Tensor | None,
    save: bool, keep_cells: bool,
) -> Saved:  # fmt: skip
    """Runs a window; arguments as in `mlstm_scan`. `save` keeps what backward needs, `keep_cells` the cells alone."""
    assert wmh is not None, "see `usable`"
    inputs, tokens, reset = inputs.contiguous(), _dense(tokens), _dense(reset)
    if tokens is not None:
        low, high = (int(bound) for bound in tokens.aminmax())  # the kernels follow a token without asking
        if low < 0 or high >= len(inputs):
            raise IndexError(f"tokens go from {low} to {high}, but the table has {len(inputs)} rows")
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    (batch, size), kept = hidden.shape, steps if save else 1
    cells = save or keep_cells
    saved = Saved(
        inputs.new_empty((kept, batch, 4 * size)), inputs.new_empty((kept, batch, size)),
        inputs.new_empty((steps + 1, batch, size)), inputs.new_empty((steps + 1 if cells else 1, batch, size)),
    )  # fmt: skip
    saved.hidden[0], saved.cell[0] = hidden, cell
    m = inputs.new_empty((batch, size))
    packed = Packed(wh, wmh, batch, transposed=True)
    _library().mlstm_forward(
        ctypes.byref(packed.gemm), _pointer(inputs), _pointer(tokens), _pointer(reset), _pointer(saved.hidden),
        _pointer(saved.cell), _pointer(saved.gates), _pointer(saved.z), _pointer(m), *_sizes(steps, batch, size),
        int(save), int(cells), torch.get_num_threads(),
    )  # fmt: skip
    return saved


def backward_block(
    inputs: Tensor, tokens: Tensor | None, packed: Packed, reset: Tensor | None, saved: Saved, grad_h: Tensor | None,
    grad_c: Tensor | None, dh: Tensor, dc: Tensor, d_gates: Tensor, d_xm: Tensor, d_z: Tensor,
) -> None:  # fmt: skip
    """Walks the steps of `saved` backwards; see `mlstm_backward` in mlstm_kernels.cpp. All tensors are contiguous."""
    steps, batch, size = saved.z.shape
    _library().mlstm_backward(
        ctypes.byref(packed.gemm), _pointer(inputs), _pointer(tokens), _pointer(reset), _pointer(saved.cell),
        _pointer(saved.gates), _pointer(saved.z), _pointer(grad_h), _pointer(grad_c), _pointer(dh), _pointer(dc),
        _pointer(d_gates), _pointer(d_xm), _pointer(d_z), *_sizes(steps, batch, size), torch.get_num_threads(),
    )  # fmt: skip


def add_to_table(d_table: Tensor, tokens: Tensor, d_gates: Tensor, d_xm: Tensor) -> None:
    """d_table (V, 5H) += the gradients of each step and row, at the row of its token."""
    width, threads = d_table.shape[1], torch.get_num_threads()
    for d, first in ((d_gates, 0), (d_xm, width - d_xm.shape[-1])):
        number, columns = tokens.numel(), d.shape[-1]
        _library().mlstm_table_backward(
            _pointer(d),
            _pointer(tokens),
            _pointer(d_table),
            *_sizes(number, columns, first),
            ctypes.c_int64(width),
            threads,
        )


class Scan(Function):
    """`forward` with its gradient. Returns hidden (T, B, H) and cells (T, B, H)."""

    # Rows (steps times batch) whose gradients are held at once, as in `mlstm_scan.py`.
    block_rows = 1024

    @staticmethod
    def forward(ctx: Any, inputs, tokens, wh, wmh, hidden, cell, reset):
        saved = forward(inputs, tokens, wh, wmh, hidden, cell, reset, save=True, keep_cells=True)
        ctx.save_for_backward(_dense(inputs), _dense(tokens), wh, wmh, _dense(reset), *saved)
        ctx.set_materialize_grads(False)
        return saved.hidden[1:], saved.cell[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None):
        inputs, tokens, wh, wmh, reset, *buffers = ctx.saved_tensors
        saved = Saved(*buffers)
        steps, batch, size = saved.z.shape
        block = min(steps, max(1, Scan.block_rows // batch))
        need_inputs, _, need_wh, need_wmh, *_ = ctx.needs_input_grad
        d_inputs = torch.zeros_like(inputs) if need_inputs else None
        d_wh, d_wmh = torch.zeros_like(wh) if need_wh else None, torch.zeros_like(wmh) if need_wmh else None
        dh, dc = saved.z.new_zeros((batch, size)), saved.z.new_zeros((batch, size))
        buffer = saved.z.new_empty((block, batch, 7 * size))
        grad_h, grad_c = (None if grad is None else grad.contiguous() for grad in grads)
        packed = Packed(wh, wmh, batch, transposed=False)
        for first in reversed(range(0, steps, block)):
            span = slice(first, min(first + block, steps))
            count = span.stop - span.start
            rows = buffer.view(-1)[: count * batch * 7 * size]
            d_gates, d_xm, d_z, m = (
                part.view(count, batch, -1) for part in rows.split([count * batch * size * n for n in (4, 1, 1, 1)])
            )
            states = slice(span.start, span.stop + 1)
            part = Saved(saved.gates[span], saved.z[span], saved.hidden[states], saved.cell[states])
            x = inputs if tokens is not None else inputs[span]
            token = None if tokens is None else tokens[span]
            backward_block(
                x, token, packed, None if reset is None else reset[span], part, None if grad_h is None else grad_h[span],
                None if grad_c is None else grad_c[span], dh, dc, d_gates, d_xm, d_z,
            )  # fmt: skip
            if d_wh is not None:
                x_m = (
                    x[..., 4 * size :] if token is None else x[:, 4 * size :][token.flatten()].view(count, batch, size)
                )
                torch.mul(part.z, x_m, out=m)
                d_wh.addmm_(d_gates.flatten(0, 1).t(), m.flatten(0, 1))
            if d_wmh is not None:
                d_wmh.addmm_(d_z.flatten(0, 1).t(), part.hidden[:-1].flatten(0, 1))
            if d_inputs is not None and token is not None:
                add_to_table(d_inputs, token, d_gates, d_xm)
            elif d_inputs is not None:
                d_inputs[span, :, : 4 * size], d_inputs[span, :, 4 * size :] = d_gates, d_xm
        return d_inputs, None, d_wh, d_wmh, dh, dc, None


@functools.cache
def _library() -> ctypes.CDLL:
    library = native.library()
    assert library is not None
    pointer, long, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.mlstm_forward.argtypes = [pointer] * 9 + [long] * 3 + [integer] * 3
    library.mlstm_backward.argtypes = [pointer] * 14 + [long] * 3 + [integer]
    library.mlstm_table_backward.argtypes = [pointer] * 3 + [long] * 4 + [integer]
    for name in ("mlstm_forward", "mlstm_backward", "mlstm_table_backward"):
        getattr(library, name).restype = None
    return library


def _dense(tensor: Tensor | None) -> Tensor | None:
    """As the kernels read it: contiguous, and tokens of 8 bytes."""
    if tensor is None:
        return None
    integer = not tensor.is_floating_point() and tensor.dtype != torch.bool
    return (tensor.long() if integer else tensor).contiguous()


def _pointer(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _sizes(*sizes: int) -> tuple[ctypes.c_int64, ...]:
    return tuple(ctypes.c_int64(size) for size in sizes)
