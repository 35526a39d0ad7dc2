"""The steps of a window in plain PyTorch, forward and backward: what runs where no faster path does, on any device.

`mlstm_scan.py` owns the contract, the blocks of the backward pass and the gradients of weights and inputs; `mlstm_cpu.py`
has the same functions in compiled loops, tested against these. Everything is time-major, (T, B, ...), so that a step is one
contiguous block.

A step writes into buffers allocated once and is few calls, because a call costs as much as its work where B and H are
small. With fp16 or bf16 inputs the matrix products run in that type; gates, cell state and all pointwise work are fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Saved(NamedTuple):
    """What a forward pass leaves; `gates` and `z` are empty where nothing is kept for backward."""

    gates: (
        Tensor  # (T, B, 4H) after their nonlinearity, in the dtype of the cell state; f is zero where a row was reset
    )
    z: Tensor  # (T, B, H) wmh h, zero where a row was reset; the LSTM has none
    hidden: Tensor  # (T, B, H)
    cell: Tensor  # (T, B, H), or (1, B, H) where only the last is kept


class StepGradients(NamedTuple):
    """What a backward walk over some steps leaves for the gradients of inputs and weights."""

    gates: Tensor  # (T, B, 4H) of the gates before their nonlinearity, in the dtype of the cell state
    x_m: Tensor  # (T, B, H) of the input's share of m; the LSTM has none, nor z and m
    z: Tensor  # (T, B, H) of wmh h
    m: Tensor  # (T, B, H) not a gradient: the multiplicative state itself


class _Gates(NamedTuple):
    """Views of one step's gates (B, 4H), by name."""

    all: Tensor  # (B, 4H)
    sigmoid: Tensor  # (B, 3H) the three gates
    input_forget: Tensor  # (B, 2, H)
    i: Tensor
    f: Tensor
    o: Tensor
    u: Tensor


def _steps(buffer: Tensor, steps: int) -> list[Tensor]:
    """One view per time step; taken once, because indexing inside the loop costs as much as a small operation."""
    views = list(buffer.unbind(0))
    return views if len(views) >= steps else views * steps


def _gates(gates: Tensor, size: int, steps: int) -> list[_Gates]:
    """Named views of every step of `gates` (T, B, 4H)."""
    spans = [(0, 4), (0, 3), (0, 2), (0, 1), (1, 2), (2, 3), (3, 4)]
    parts = [gates[..., first * size : last * size] for first, last in spans]
    parts[2] = parts[2].unflatten(-1, (2, size))
    return [_Gates(*views) for views in zip(*(_steps(part, steps) for part in parts))]


def reset_steps(reset: Tensor | None, steps: int) -> list[Tensor | None]:
    """For each step the rows to zero (B, 1), or None where there are none; one device synchronisation per window."""
    if reset is None:
        return [None] * steps
    rows = reset.unsqueeze(-1).unbind(0)
    return [row if hit else None for row, hit in zip(rows, reset.any(dim=1).tolist())]


def forward_steps(
    inputs: Tensor, tokens: Tensor | None, wh: Tensor, wmh: Tensor | None, hidden: Tensor, cell: Tensor, reset: Tensor | None,
    save: bool, keep_cells: bool,
) -> Saved:  # fmt: skip
    """Runs a window.

    Args:
        inputs, tokens, wh, wmh, hidden, cell, reset: as in `mlstm_scan`, except that rows of `hidden` and `cell` which the
            first step resets are zero already.
        save: keep gates and z for the backward pass, and cells.
        keep_cells: keep the cell state of every step.
    """
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    (batch, size), kept = hidden.shape, steps if save else 1
    x_m = None if wmh is None else inputs[..., 4 * size :]
    gates = cell.new_empty((kept, batch, 4 * size))
    z = inputs.new_empty((kept, batch, size)) if wmh is not None else inputs.new_empty(0)
    hiddens = inputs.new_empty((steps, batch, size))
    cells = cell.new_empty((steps if save or keep_cells else 1, batch, size))
    m = inputs.new_empty((batch, size))
    views, zs = _gates(gates, size, steps), [] if wmh is None else _steps(z, steps)
    hs, cs = _steps(hiddens, steps), _steps(cells, steps)
    tanh_cell, wh_t = cell.new_empty((batch, size)), wh.t()
    for t, zero in enumerate(reset_steps(reset, steps)):
        gate = views[t]
        _load(inputs, tokens, t, slice(0, 4 * size), gate.all)
        if wmh is None or x_m is None:
            m = hidden if zero is None else hidden.masked_fill(zero, 0)
        else:
            torch.mm(hidden, wmh.t(), out=zs[t])
            if zero is not None:
                zs[t].masked_fill_(zero, 0)
            torch.mul(zs[t], x_m[t] if tokens is None else x_m.index_select(0, tokens[t]), out=m)
        _add_matmul(gate.all, m, wh_t)
        gate.sigmoid.sigmoid_()
        gate.u.tanh_()
        if zero is not None:
            # A closed forget gate also cuts the gradient; backward needs no mask for the cell.
            gate.f.masked_fill_(zero, 0)
            cell = cell.masked_fill(zero, 0)
        torch.mul(cell, gate.f, out=cs[t]).addcmul_(gate.i, gate.u)
        torch.tanh(cs[t], out=tanh_cell)
        torch.mul(gate.o, tanh_cell, out=hs[t])
        hidden, cell = hs[t], cs[t]
    return Saved(gates, z, hiddens, cells) if save else Saved(gates.new_empty(0), inputs.new_empty(0), hiddens, cells)


def _load(inputs: Tensor, tokens: Tensor | None, t: int, columns: slice, out: Tensor) -> None:
    """Copies columns of the projected inputs of step t to `out`, which may be wider in type."""
    out.copy_(inputs[t, :, columns] if tokens is None else inputs[:, columns].index_select(0, tokens[t]))


def _add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in place; `total` is fp32 where a and b are fp16 or bf16."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(torch.mm(a, b))


class Backward:
    """One backward pass over a window, in blocks of steps from the last to the first.

    Args:
        wh: (4H, H).
        wmh: (H, H); None in the LSTM.
    """

    def __init__(self, wh: Tensor, wmh: Tensor | None) -> None:
        self._wh, self._wmh = wh, wmh

    def steps(
        self, inputs: Tensor, tokens: Tensor | None, reset: Tensor | None, cell: Tensor, saved: Saved, grad_h: Tensor | None,
        grad_c: Tensor | None, dh: Tensor, dc: Tensor, out: StepGradients,
    ) -> None:  # fmt: skip
        """Walks a block of T steps backwards.

        Args:
            inputs, tokens, reset: of these steps.
            cell: cell state before them, (B, H).
            saved: of these steps.
            grad_h: gradients of their hidden states from outside, (T, B, H), or None.
            grad_c: the same of their cell states.
            dh: (B, H), comes as the gradient of the hidden state after the block, leaves as that of the state before it.
            dc: the same of the cell state.
            out: filled.
        """
        wmh, (steps, _, size) = self._wmh, saved.hidden.shape
        zero = reset_steps(reset, steps)
        x_m = None
        if wmh is not None:
            columns = inputs[..., 4 * size :]
            x_m = columns if tokens is None else columns.index_select(0, tokens.flatten()).view(saved.z.shape)
            torch.mul(saved.z, x_m, out=out.m)
        dc_dh = _steps(_local_derivatives(saved, cell, out.gates), steps)
        gates, d_gates = _gates(saved.gates, size, steps), _gates(out.gates, size, steps)
        dc_both, dm = dc.unsqueeze(1), torch.empty_like(dh)
        for t in reversed(range(steps)):
            if grad_h is not None:
                dh.add_(grad_h[t])
            if grad_c is not None:
                dc.add_(grad_c[t])
            d, rows = d_gates[t], zero[t]
            d.o.mul_(dh)
            dc.addcmul_(dh, dc_dh[t])
            d.input_forget.mul_(dc_both)
            d.u.mul_(dc)
            dc.mul_(gates[t].f)
            if rows is not None:  # the cell before may have been anything, even a NaN
                d.f.masked_fill_(rows, 0)
                dc.masked_fill_(rows, 0)
            if wmh is None or x_m is None:
                _matmul(d.all, self._wh, dh)
                if rows is not None:
                    dh.masked_fill_(rows, 0)
                continue
            _matmul(d.all, self._wh, dm)
            torch.mul(dm, saved.z[t], out=out.x_m[t])
            torch.mul(dm, x_m[t], out=out.z[t])
            if rows is not None:
                out.z[t].masked_fill_(rows, 0)
            _matmul(out.z[t], wmh, dh)

    def add_weight_gradient(self, total: Tensor, d: Tensor, factor: Tensor) -> None:
        """total (M, N) += d^T factor, over all rows of d (..., M) and factor (..., N)."""
        _add_matmul(total, d.flatten(0, -2).to(factor.dtype).t(), factor.flatten(0, -2))

    def add_to_table(self, total: Tensor, tokens: Tensor, d: Tensor, first: int) -> None:
        """total (V, columns)[token, first:] += d, for each token and row of d."""
        total[:, first : first + d.shape[-1]].index_add_(0, tokens.flatten(), d.flatten(0, -2).to(total.dtype))


def _matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b, the product in the dtype of b; `out` may be wider than b."""
    if out.dtype == b.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(torch.mm(a.to(b.dtype), b))


def _local_derivatives(saved: Saved, cell: Tensor, d_gates: Tensor) -> Tensor:
    """Fills `d_gates` with what d c_t (for o: d h_t) is multiplied by, for all steps; returns d c_t / d h_t (T, B, H).

    Done for all steps together, as it depends on no gradient: each step of the loop is then a few products.
    """
    size = saved.cell.shape[-1]
    i, _, o, u = saved.gates.unflatten(-1, (4, size)).unbind(-2)
    d_i, d_f, d_o, d_u = d_gates.unflatten(-1, (4, size)).unbind(-2)
    sigmoids = saved.gates[..., : 3 * size]
    tanh_cell = torch.tanh(saved.cell)
    torch.addcmul(sigmoids, sigmoids, sigmoids, value=-1, out=d_gates[..., : 3 * size])
    d_i.mul_(u)
    d_f[0].mul_(cell)
    d_f[1:].mul_(saved.cell[:-1])
    d_o.mul_(tanh_cell)
    torch.addcmul(i, torch.mul(u, u, out=d_u), i, value=-1, out=d_u)
    tanh_cell.square_()
    return torch.addcmul(o, o, tanh_cell, value=-1, out=tanh_cell)
