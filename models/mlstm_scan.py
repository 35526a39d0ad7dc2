"""The mLSTM (and the LSTM) over a whole window: one operator for all time steps, `bigbatch::mlstm_scan`.

Same numbers as stepping `mlstm.mlstm_cell`, at less cost: the caller projects the inputs of all steps at once (or once
per byte value: a byte has 256), nothing is recorded per step, and the weight gradients are one matrix product each over
blocks of steps. This module holds the contract, the operator with its gradient, and the blocks; the steps themselves are
`mlstm_cpu.py` (compiled, fp32 on CPU), `mlstm_triton.py` (GPU) or `mlstm_steps.py` (plain PyTorch, everything else).
Everything here is time-major. `mlstm.py` and `lstm.py` own the parameters, the projections and the batch-major interface.

Kept for backward are gates (4H, fp32) and wmh h (H) of every step beside the hidden and cell states themselves; with
`recompute` only the states, from which a block's gates come again in two products.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import mlstm_cpu, mlstm_steps
from .mlstm_steps import Saved, StepGradients

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
    recompute: bool = False,
    packed: mlstm_cpu.Packed | None = None,
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
        recompute: keep only the states for backward and compute the gates again there: 2H numbers a step and row
            instead of 7H, for two products more.
        packed: wh and wmh by `pack_weights`, for many windows with the same weights; used where no gradient is wanted.

    Returns:
        The hidden state of every step and the final state. `cells` is None unless asked for. Steps at and after a row's
        length hold unspecified values.

    Source: Krause et al. 2016 (arXiv 1609.07959), equations 18-22, in the form of Radford et al. 2017.
    """
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    if reset is not None and lengths is not None:
        reset = reset & (torch.arange(steps, device=reset.device).unsqueeze(1) < lengths)
    if reset is not None:
        # Really zero, not multiplied by zero: a state that went to NaN must end at a reset.
        hidden, cell = (state.masked_fill(reset[0].unsqueeze(1), 0) for state in (hidden, cell))
    tensors = (inputs, wh, wmh, hidden, cell)
    differentiable = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    keep_cells = differentiable or return_cells or lengths is not None
    if packed is not None and not differentiable:
        args: list[Any] = [_dense(x) for x in (inputs, tokens, wh, wmh, hidden, cell, reset)]
        hiddens, cells = mlstm_cpu.forward_steps(*args, save=False, keep_cells=keep_cells, packed=packed)[2:]
    else:
        save = differentiable and not recompute
        hiddens, cells, *_ = _scan(inputs, tokens, wh, wmh, hidden, cell, reset, save, keep_cells)
    if lengths is None:
        final_hidden, final_cell = hiddens[-1], cells[-1]
    else:
        last, rows = (lengths - 1).clamp(min=0), torch.arange(len(lengths), device=lengths.device)
        unmoved = (lengths == 0).unsqueeze(1)
        final_hidden = torch.where(unmoved, hidden, hiddens[last, rows])
        final_cell = torch.where(unmoved, cell, cells[last, rows])
    return ScanOutput(hiddens, final_hidden, final_cell, cells if return_cells else None)


def pack_weights(wh: Tensor, wmh: Tensor | None, int8: bool = False) -> mlstm_cpu.Packed | None:
    """The recurrent weights as the compiled steps read them; None where plain PyTorch runs.

    Raises:
        ValueError: `int8`, where it cannot be had.
    """
    if mlstm_cpu.usable(wh):
        return mlstm_cpu.Packed(wh.contiguous(), _dense(wmh), int8)
    if int8:
        raise ValueError("8-bit weights need the compiled kernels, fp32 and a CPU: see `bigbatch doctor`")
    return None


def _path(inputs: Tensor) -> ModuleType:
    """The module whose steps run this window."""
    if mlstm_cpu.usable(inputs):
        return mlstm_cpu
    if triton_usable(inputs):
        from . import mlstm_triton  # imports Triton

        return mlstm_triton
    return mlstm_steps


def triton_usable(inputs: Tensor) -> bool:
    """Whether the window is on a GPU and Triton is there, which CUDA builds of torch bring along."""
    return inputs.is_cuda and inputs.dtype != torch.float64 and importlib.util.find_spec("triton") is not None


def _dense(tensor: Tensor | None) -> Tensor | None:
    """Contiguous, and tokens of 8 bytes."""
    if tensor is None:
        return None
    integer = not tensor.is_floating_point() and tensor.dtype != torch.bool
    return (tensor.long() if integer else tensor).contiguous()


@torch.library.custom_op("bigbatch::mlstm_scan", mutates_args=())
def _scan(
    inputs: Tensor,
    tokens: Tensor | None,
    wh: Tensor,
    wmh: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    reset: Tensor | None,
    save: bool,
    keep_cells: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden and cell states, then the gates and z of `Saved` (empty unless `save`)."""
    steps = _path(inputs)
    args = [_dense(x) for x in (inputs, tokens, wh, wmh, hidden, cell, reset)]
    saved = steps.forward_steps(*args, save=save, keep_cells=keep_cells)
    return saved.hidden, saved.cell, saved.gates, saved.z


@_scan.register_fake
def _(inputs, tokens, wh, wmh, hidden, cell, reset, save, keep_cells):
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    batch, size = hidden.shape
    return (
        inputs.new_empty((steps, batch, size)),
        cell.new_empty((steps if save or keep_cells else 1, batch, size)),
        cell.new_empty((steps, batch, 4 * size) if save else (0,)),
        inputs.new_empty((steps, batch, size) if save and wmh is not None else (0,)),
    )


@torch.library.custom_op("bigbatch::mlstm_scan_backward", mutates_args=())
def _scan_backward(
    inputs: Tensor,
    tokens: Tensor | None,
    wh: Tensor,
    wmh: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    reset: Tensor | None,
    hiddens: Tensor,
    cells: Tensor,
    gates: Tensor,
    z: Tensor,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of inputs, wh, wmh, hidden and cell; empty where not `needed` (of inputs, wh and wmh)."""
    path = _path(inputs)
    inputs, tokens, wh, wmh, hidden, cell, reset, grad_h, grad_c = (
        _dense(x) for x in (inputs, tokens, wh, wmh, hidden, cell, reset, grad_h, grad_c)
    )  # pyright: ignore[reportAssignmentType]
    steps, batch, size = hiddens.shape
    block = min(steps, max(1, BLOCK_ROWS // batch))
    zeros, lstm = cell.new_zeros, wmh is None
    d_inputs = zeros(inputs.shape if needed[0] else 0)
    d_wh, d_wmh = zeros(wh.shape if needed[1] else 0), zeros(wh.shape[1:] * 2 if needed[2] and not lstm else 0)
    dh, dc = zeros((batch, size)), zeros((batch, size))
    buffers = [cell.new_empty(block * batch * width) for width in (4 * size, size, size)]
    m_buffer = inputs.new_empty(block * batch * size)
    walk = path.Backward(wh, wmh)
    for first in reversed(range(0, steps, block)):
        span = slice(first, min(first + block, steps))
        count = span.stop - span.start
        out = StepGradients(*(x[: x.numel() // block * count].view(count, batch, -1) for x in (*buffers, m_buffer)))
        x, token = (inputs[span], None) if tokens is None else (inputs, tokens[span])
        zero, before = _at(reset, span), (hidden, cell) if first == 0 else (hiddens[first - 1], cells[first - 1])
        if gates.numel():
            saved = Saved(gates[span], z if lstm else z[span], hiddens[span], cells[span])
        else:
            saved = _recompute(x, token, wh, wmh, zero, before[0], hiddens[span], cells[span])
        walk.steps(x, token, zero, before[1], saved, _at(grad_h, span), _at(grad_c, span), dh, dc, out)
        if needed[1]:
            factor = out.m if not lstm else _masked(_before(before[0], saved.hidden), zero)
            walk.add_weight_gradient(d_wh, out.gates, factor)
        if needed[2] and not lstm:
            for d, factor in ((out.z[:1], before[0]), (out.z[1:], saved.hidden[:-1])):
                walk.add_weight_gradient(d_wmh, d, factor)
        for part, start in ((out.gates, 0), *(() if lstm else ((out.x_m, 4 * size),))) if needed[0] else ():
            if tokens is None:
                d_inputs[span, :, start : start + part.shape[-1]] = part
            else:
                walk.add_to_table(d_inputs, token, part, start)
    d_inputs, d_wh, d_wmh, dh = (d.to(inputs.dtype) for d in (d_inputs, d_wh, d_wmh, dh))
    return d_inputs, d_wh, d_wmh, dh, dc


@_scan_backward.register_fake
def _(inputs, tokens, wh, wmh, hidden, cell, reset, hiddens, cells, gates, z, grad_h, grad_c, needed):
    return (
        inputs.new_empty(inputs.shape if needed[0] else (0,)),
        inputs.new_empty(wh.shape if needed[1] else (0,)),
        inputs.new_empty(wmh.shape if needed[2] and wmh is not None else (0,)),
        inputs.new_empty(hidden.shape),
        cell.new_empty(cell.shape),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, _, _ = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, *_: Any):
    needed = [bool(ctx.needs_input_grad[place]) for place in (0, 2, 3)]
    d_inputs, d_wh, d_wmh, dh, dc = _scan_backward(*ctx.saved_tensors, grad_h, grad_c, needed)
    wanted = [d if need else None for d, need in zip((d_inputs, d_wh, d_wmh), needed, strict=True)]
    return wanted[0], None, wanted[1], wanted[2], dh, dc, None, None, None


_scan.register_autograd(_gradient, setup_context=_setup_context)


def _at(tensor: Tensor | None, span: slice) -> Tensor | None:
    return None if tensor is None else tensor[span]


def _before(state: Tensor, states: Tensor) -> Tensor:
    """The state before each of some steps: `state` (B, H), then all of `states` (T, B, H) but the last."""
    return torch.cat([state.unsqueeze(0), states[:-1]])


def _masked(states: Tensor, reset: Tensor | None) -> Tensor:
    return states if reset is None else states.masked_fill(reset.unsqueeze(-1), 0)


def _recompute(
    inputs: Tensor, tokens: Tensor | None, wh: Tensor, wmh: Tensor | None, reset: Tensor | None, hidden: Tensor,
    hiddens: Tensor, cells: Tensor,
) -> Saved:  # fmt: skip
    """`Saved` of some steps from their states alone; `hidden` (B, H) is the one before them."""
    size = hidden.shape[-1]
    x = inputs if tokens is None else inputs.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
    m = _before(hidden, hiddens)
    z = inputs.new_empty(0)
    if wmh is not None:
        z = _masked(m @ wmh.t(), reset)
        m = z * x[..., 4 * size :]
    else:
        m = _masked(m, reset)
    gates = x[..., : 4 * size].to(cells.dtype) + m @ wh.t()
    gates[..., : 3 * size].sigmoid_()
    gates[..., 3 * size :].tanh_()
    if reset is not None:
        gates[..., size : 2 * size].masked_fill_(reset.unsqueeze(-1), 0)
    return Saved(gates, z, hiddens, cells)
