"""The mLSTM (and the LSTM) over a whole window: one autograd node for all time steps, in plain PyTorch.

Same numbers as stepping `mlstm.mlstm_cell`, at less cost: the caller projects the inputs of all steps at once (or once
per byte value: a byte has 256), a step writes into buffers allocated once, nothing is recorded per step, and the weight
gradients are one matrix product each over all steps. Everything here is time-major, (T, B, ...), so that a step is one
contiguous block. `mlstm.py` and `lstm.py` own the parameters, the projections and the batch-major interface.

With fp16 or bf16 inputs the matrix products run in that type; gates, cell state and all pointwise work are fp32.

An mLSTM in fp32 on a CPU takes compiled loops instead (`mlstm_cpu.py`) where a compiler and MKL are there; what is here
runs everywhere else, and is what those are compared with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from . import mlstm_cpu

# The order of the four blocks of H rows in wx, wh and the bias, and the only place where it is written: that of the
# weights published by OpenAI. The first three are sigmoid gates and the last a tanh; the slices below rely on it.
GATE_ORDER = ("input", "forget", "output", "candidate")


# Rows (steps times batch) whose gradients are held at once in backward: enough for the products that sum the weight
# gradients to run at full speed, few enough to stay out of main memory and in already mapped pages.
BLOCK_ROWS = 1024


class ScanOutput(NamedTuple):
    """What a window leaves: hidden (T, B, H), the final state of each row (B, H) twice, and cells (T, B, H)."""

    hidden: Tensor
    final_hidden: Tensor
    final_cell: Tensor
    cells: Tensor | None


def mlstm_scan(
    inputs: Tensor,
    tokens: Tensor | None,
    wh: Tensor,
    wmh: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    return_cells: bool = False,
) -> ScanOutput:
    """Runs T steps of an mLSTM; differentiable once in inputs, weights and initial state.

    Args:
        inputs: projections of the input, gates (4H, bias included) then m (H): a table (V, 5H) with one row per token,
            or (T, B, 5H) for each step. Without `wmh` 4H wide.
        tokens: int64 (T, B), the row of the table each step takes; None where `inputs` is (T, B, 5H).
        wh: (4H, H), from the multiplicative state to the gates in `GATE_ORDER`.
        wmh: (H, H), from the hidden state to the multiplicative state; None makes this an LSTM, m = h.
        hidden: initial hidden state (B, H), in the dtype of `inputs`.
        cell: initial cell state (B, H), fp32 (fp64 where `inputs` is).
        reset: bool (T, B); True zeroes the state of a row before this step.
        lengths: int64 (B,); steps t >= lengths[b] do not reach the final state of row b.
        return_cells: keep the cell state of every step even where no gradient needs it.

    Returns:
        The hidden state of every step and the final state. `cells` is None unless asked for. Steps at and after a row's
        length hold unspecified values.

    Source: Krause et al. 2016 (arXiv 1609.07959), equations 18-22, in the form of Radford et al. 2017.
    """
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    if reset is not None and lengths is not None:
        reset = reset & (torch.arange(steps, device=reset.device).unsqueeze(1) < lengths)
    tensors = (inputs, wh, wmh, hidden, cell)
    differentiable = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    native = mlstm_cpu.usable(inputs, wmh)
    if differentiable:
        scan = mlstm_cpu.Scan if native else _Scan
        hiddens, cells = scan.apply(inputs, tokens, wh, wmh, hidden, cell, reset)
    else:
        keep_cells = return_cells or lengths is not None
        forward = mlstm_cpu.forward if native else _forward
        run = forward(inputs, tokens, wh, wmh, hidden, cell, reset, save=False, keep_cells=keep_cells)
        hiddens, cells = run.hidden[1:], run.cell[1:] if keep_cells else run.cell
    if lengths is None:
        final_hidden, final_cell = hiddens[-1], cells[-1]
    else:
        last, rows = (lengths - 1).clamp(min=0), torch.arange(len(lengths), device=lengths.device)
        unmoved = (lengths == 0).unsqueeze(1)
        final_hidden = torch.where(unmoved, hidden, hiddens[last, rows])
        final_cell = torch.where(unmoved, cell, cells[last, rows])
    return ScanOutput(hiddens, final_hidden, final_cell, cells if return_cells else None)


class _Saved(NamedTuple):
    """Buffers of a forward pass. Kept for backward they have T entries, else one that every step overwrites."""

    x: Tensor  # (T, B, 4H or 5H) gates after their nonlinearity, then the input's share of m
    z: Tensor  # (T, B, H) wmh h; the LSTM has none and shares it with m
    m: Tensor  # (T, B, H) multiplicative state
    hidden: Tensor  # (T + 1, B, H), entry 0 is the initial state
    cell: Tensor  # (T + 1, B, H), or (1, B, H) where only the last is kept

    def block(self, span: slice) -> _Saved:
        """Views of some consecutive steps; the states include the one before them."""
        states = slice(span.start, span.stop + 1)
        return _Saved(self.x[span], self.z[span], self.m[span], self.hidden[states], self.cell[states])


class _Gates(NamedTuple):
    """Views of one step's projections (B, 4H or 5H), by name."""

    all: Tensor  # (B, 4H)
    sigmoid: Tensor  # (B, 3H) the three gates
    input_forget: Tensor  # (B, 2, H)
    i: Tensor
    f: Tensor
    o: Tensor
    u: Tensor
    x_m: Tensor  # (B, H) of the mLSTM, empty in the LSTM


def _steps(buffer: Tensor, steps: int) -> list[Tensor]:
    """One view per time step; taken once, because indexing inside the loop costs as much as a small operation."""
    views = list(buffer.unbind(0))
    return views if len(views) >= steps else views * steps


def _gates(x: Tensor, size: int, steps: int) -> list[_Gates]:
    """Named views of every step of `x` (T, B, 4H or 5H)."""
    spans = [(0, 4), (0, 3), (0, 2), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    parts = [x[..., first * size : last * size] for first, last in spans]
    parts[2] = parts[2].unflatten(-1, (2, size))
    return [_Gates(*views) for views in zip(*(_steps(part, steps) for part in parts))]


def _reset_steps(reset: Tensor | None, steps: int) -> list[Tensor | None]:
    """For each step the rows to zero (B, 1), or None where there are none; one device synchronisation per window."""
    if reset is None:
        return [None] * steps
    rows = reset.unsqueeze(-1).unbind(0)
    return [row if hit else None for row, hit in zip(rows, reset.any(dim=1).tolist())]


def _forward(
    inputs: Tensor,
    tokens: Tensor | None,
    wh: Tensor,
    wmh: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    reset: Tensor | None,
    save: bool,
    keep_cells: bool,
) -> _Saved:
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    (batch, size), kept = hidden.shape, steps if save else 1
    x = cell.new_empty((kept, batch, inputs.shape[-1]))
    m = inputs.new_empty((kept, batch, size))
    z = m if wmh is None else torch.empty_like(m)
    hiddens = inputs.new_empty((steps + 1, batch, size))
    cells = cell.new_empty((steps + 1 if save or keep_cells else 1, batch, size))
    hiddens[0], cells[0] = hidden, cell

    xs, ms, zs, gates = _steps(x, steps), _steps(m, steps), _steps(z, steps), _gates(x, size, steps)
    hs, cs = _steps(hiddens, steps + 1), _steps(cells, steps + 1)
    tanh_cell, wh_t = cell.new_empty((batch, size)), wh.t()
    for t, zero in enumerate(_reset_steps(reset, steps)):
        if zero is not None and t == 0:
            # Really zero, not multiplied by zero: a state that went to NaN must end at a reset.
            hs[0].masked_fill_(zero, 0)
            cs[0].masked_fill_(zero, 0)
        _load(inputs, tokens, t, xs[t])
        if wmh is None:
            ms[t].copy_(hs[t])
        else:
            torch.mm(hs[t], wmh.t(), out=zs[t])
        if zero is not None:
            zs[t].masked_fill_(zero, 0)
        if wmh is not None:
            torch.mul(zs[t], gates[t].x_m, out=ms[t])
        _add_matmul(gates[t].all, ms[t], wh_t)
        gates[t].sigmoid.sigmoid_()
        gates[t].u.tanh_()
        before = cs[t]
        if zero is not None:
            # A closed forget gate also cuts the gradient; backward needs no mask for the cell.
            gates[t].f.masked_fill_(zero, 0)
            before = before.masked_fill(zero, 0)
        torch.mul(before, gates[t].f, out=cs[t + 1]).addcmul_(gates[t].i, gates[t].u)
        torch.tanh(cs[t + 1], out=tanh_cell)
        torch.mul(gates[t].o, tanh_cell, out=hs[t + 1])
    return _Saved(x, z, m, hiddens, cells)


def _load(inputs: Tensor, tokens: Tensor | None, t: int, out: Tensor) -> None:
    """Copies the projected inputs of step t to `out` (B, 4H or 5H), which may be wider in type."""
    if tokens is None:
        out.copy_(inputs[t])
    elif inputs.dtype == out.dtype:
        torch.index_select(inputs, 0, tokens[t], out=out)
    else:
        out.copy_(inputs.index_select(0, tokens[t]))


def _add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in place; `total` is fp32 where a and b are fp16 or bf16."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(torch.mm(a, b))


class _Scan(Function):
    """`_forward` with its gradient. Returns hidden (T, B, H) and cells (T, B, H)."""

    @staticmethod
    def forward(ctx: Any, inputs, tokens, wh, wmh, hidden, cell, reset):
        saved = _forward(inputs, tokens, wh, wmh, hidden, cell, reset, save=True, keep_cells=True)
        ctx.save_for_backward(tokens, wh, wmh, reset, *saved)
        ctx.inputs_shape = inputs.shape
        ctx.set_materialize_grads(False)
        return saved.hidden[1:], saved.cell[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None):
        tokens, wh, wmh, reset, *buffers = ctx.saved_tensors
        saved = _Saved(*buffers)
        steps, batch, width = saved.x.shape
        block = min(steps, max(1, BLOCK_ROWS // batch))
        zeros, empty = saved.cell.new_zeros, saved.cell.new_empty
        need_inputs, _, need_wh, need_wmh, *_ = ctx.needs_input_grad
        d_inputs = zeros(ctx.inputs_shape) if need_inputs else None
        d_wh = zeros(wh.shape) if need_wh else None
        d_wmh = zeros(wmh.shape) if need_wmh else None
        dh, dc = zeros((batch, wh.shape[1])), zeros((batch, wh.shape[1]))
        d_x_block, d_z_block = empty((block, batch, width)), torch.empty_like(saved.z[:block])
        for first in reversed(range(0, steps, block)):
            span = slice(first, min(first + block, steps))
            part = saved.block(span)
            d_x, d_z = d_x_block[: len(part.m)], d_z_block[: len(part.m)]
            grad_h, grad_c = (None if grad is None else grad[span] for grad in grads)
            zero = _reset_steps(None if reset is None else reset[span], len(part.m))
            _backward_steps(part, wh, wmh, zero, grad_h, grad_c, d_x, d_z, dh, dc)
            if d_inputs is not None:
                _add_inputs(d_inputs, tokens, span, d_x)
            if d_wh is not None:
                d_gates = d_x.flatten(0, 1)[:, : len(wh)].to(wh.dtype)
                _add_matmul(d_wh, d_gates.t(), part.m.flatten(0, 1))
            if d_wmh is not None:
                _add_matmul(d_wmh, d_z.flatten(0, 1).t(), part.hidden[:-1].flatten(0, 1))
        d_inputs, d_wh, d_wmh, dh = (None if d is None else d.to(wh.dtype) for d in (d_inputs, d_wh, d_wmh, dh))
        return d_inputs, None, d_wh, d_wmh, dh, dc, None


def _add_inputs(d_inputs: Tensor, tokens: Tensor | None, span: slice, d_x: Tensor) -> None:
    """Puts the gradient of some steps where it belongs: at those steps, or added to the rows of the table they used."""
    if tokens is None:
        d_inputs[span] = d_x
    else:
        d_inputs.index_add_(0, tokens[span].flatten(), d_x.flatten(0, 1))


def _backward_steps(
    saved: _Saved,
    wh: Tensor,
    wmh: Tensor | None,
    zeros: list[Tensor | None],
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    d_x: Tensor,
    d_z: Tensor,
    dh: Tensor,
    dc: Tensor,
) -> None:
    """Walks a block of steps backwards.

    `dh` and `dc` (B, H) come as the gradients of the state after the block and leave as those of the state before it;
    `d_x` (T, B, 4H or 5H) and `d_z` (T, B, H) are filled for the weight gradients.
    """
    steps, _, size = saved.m.shape
    dc_dh = _steps(_local_derivatives(saved.x, saved.cell, d_x), steps)
    gates, d_gates = _gates(saved.x, size, steps), _gates(d_x, size, steps)
    zs, d_zs = _steps(saved.z, steps), _steps(d_z, steps)
    dc_both, dm = dc.unsqueeze(1), torch.empty_like(dh)
    for t in reversed(range(steps)):
        if grad_h is not None:
            dh.add_(grad_h[t])
        if grad_c is not None:
            dc.add_(grad_c[t])
        d, zero = d_gates[t], zeros[t]
        d.o.mul_(dh)
        dc.addcmul_(dh, dc_dh[t])
        d.input_forget.mul_(dc_both)
        d.u.mul_(dc)
        dc.mul_(gates[t].f)
        if wmh is None:
            _matmul(d.all, wh, dh)
            if zero is not None:
                dh.masked_fill_(zero, 0)
            continue
        _matmul(d.all, wh, dm)
        torch.mul(dm, zs[t], out=d.x_m)
        torch.mul(dm, gates[t].x_m, out=d_zs[t])
        if zero is not None:
            d_zs[t].masked_fill_(zero, 0)
        _matmul(d_zs[t], wmh, dh)


def _matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b, the product in the dtype of b; `out` may be wider than b."""
    if out.dtype == b.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(torch.mm(a.to(b.dtype), b))


def _local_derivatives(x: Tensor, cell: Tensor, d_x: Tensor) -> Tensor:
    """Fills the gates of `d_x` with what d c_t (for o: d h_t) is multiplied by, for all steps; returns d c_t / d h_t.

    Done for all steps together, as it depends on no gradient: each step of the loop is then a few products.
    """
    size = cell.shape[-1]
    i, _, o, u = x[..., : 4 * size].unflatten(-1, (4, size)).unbind(-2)
    d_i, d_f, d_o, d_u = d_x[..., : 4 * size].unflatten(-1, (4, size)).unbind(-2)
    sigmoids = x[..., : 3 * size]
    tanh_cell = torch.tanh(cell[1:])
    torch.addcmul(sigmoids, sigmoids, sigmoids, value=-1, out=d_x[..., : 3 * size])
    d_i.mul_(u)
    d_f.mul_(cell[:-1])
    d_o.mul_(tanh_cell)
    torch.addcmul(i, torch.mul(u, u, out=d_u), i, value=-1, out=d_u)
    tanh_cell.square_()
    return torch.addcmul(o, o, tanh_cell, value=-1, out=tanh_cell)
