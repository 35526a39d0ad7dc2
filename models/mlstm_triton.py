"""The steps of a window on a GPU: same two functions as `mlstm_steps.py`, pointwise work in one Triton kernel a product.

Products are torch.mm, on a GPU cuBLAS, in the dtype of the inputs (fp32, fp16 or bf16); gates, cell state and gradients of
states are fp32. A step is two products and two kernels in each direction. Triton comes with CUDA builds of torch. The
kernels are tested in Triton's interpreter and compiled ahead for sm_80 and sm_90; they have not run on a GPU yet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import mlstm_steps
from .mlstm_steps import Saved, StepGradients

BLOCK = 512


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    # 2 sigmoid(2 x) - 1 cancels near 0, where a polynomial (Cephes' tanhf) takes over; exp overflows to the right limit.
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    return tl.where(z < 0.390625, p * z * x + x, 2.0 * sigmoid(2.0 * x) - 1.0)


@triton.jit
def multiply(z, x, tokens, reset, m, H, HAS_TOKENS: tl.constexpr, HAS_RESET: tl.constexpr, BLOCK: tl.constexpr):
    """m = z * x_m; z is zeroed where a row is reset."""
    b = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < H
    row = tl.load(tokens + b) if HAS_TOKENS else b
    z_b = tl.load(z + b * H + unit, mask=inside, other=0.0)
    if HAS_RESET:
        z_b = tl.where(tl.load(reset + b) == 0, z_b, 0.0).to(z.dtype.element_ty)
        tl.store(z + b * H + unit, z_b, mask=inside)
    x_m = tl.load(x + row * 5 * H + 4 * H + unit, mask=inside, other=0.0)
    tl.store(m + b * H + unit, (z_b.to(tl.float32) * x_m.to(tl.float32)).to(m.dtype.element_ty), mask=inside)


@triton.jit
def update(
    sums, x, tokens, reset, before, gates, after, hidden, H, WIDTH: tl.constexpr, HAS_TOKENS: tl.constexpr,
    HAS_RESET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gates from m wh^T and the projected inputs, the new cell state and hidden state."""
    b = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < H
    row = tl.load(tokens + b) if HAS_TOKENS else b
    at_sum, at_x = sums + b * 4 * H + unit, x + row * WIDTH * H + unit
    i = tl.load(at_sum, mask=inside, other=0.0).to(tl.float32) + tl.load(at_x, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(at_sum + H, mask=inside, other=0.0).to(tl.float32)
    f += tl.load(at_x + H, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(at_sum + 2 * H, mask=inside, other=0.0).to(tl.float32)
    o += tl.load(at_x + 2 * H, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(at_sum + 3 * H, mask=inside, other=0.0).to(tl.float32)
    u += tl.load(at_x + 3 * H, mask=inside, other=0.0).to(tl.float32)
    i, f, o, u = sigmoid(i), sigmoid(f), sigmoid(o), tanh(u)
    c = tl.load(before + b * H + unit, mask=inside, other=0.0)
    if HAS_RESET:  # a closed forget gate also cuts the gradient
        keep = tl.load(reset + b) == 0
        f, c = tl.where(keep, f, 0.0), tl.where(keep, c, 0.0)
    c = f * c + i * u
    tl.store(after + b * H + unit, c, mask=inside)
    tl.store(hidden + b * H + unit, (o * tanh(c)).to(hidden.dtype.element_ty), mask=inside)
    g = gates + b * 4 * H + unit
    tl.store(g, i, mask=inside)
    tl.store(g + H, f, mask=inside)
    tl.store(g + 2 * H, o, mask=inside)
    tl.store(g + 3 * H, u, mask=inside)


@triton.jit
def update_backward(
    gates, before, after, reset, grad_h, grad_c, dh, dc, d_gates, narrow, H, HAS_RESET: tl.constexpr,
    HAS_H: tl.constexpr, HAS_C: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates before their nonlinearity; dc becomes that of the cell before. `narrow` is a copy for products."""
    b = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < H
    at = b * H + unit
    g = gates + b * 4 * H + unit
    i, f = tl.load(g, mask=inside, other=0.0), tl.load(g + H, mask=inside, other=0.0)
    o, u = tl.load(g + 2 * H, mask=inside, other=0.0), tl.load(g + 3 * H, mask=inside, other=0.0)
    c, t = tl.load(before + at, mask=inside, other=0.0), tanh(tl.load(after + at, mask=inside, other=0.0))
    d_h, d_c = tl.load(dh + at, mask=inside, other=0.0), tl.load(dc + at, mask=inside, other=0.0)
    if HAS_H:
        d_h += tl.load(grad_h + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_C:
        d_c += tl.load(grad_c + at, mask=inside, other=0.0)
    d_c += d_h * o * (1.0 - t * t)
    d_i, d_f = d_c * u * i * (1.0 - i), d_c * c * f * (1.0 - f)
    d_o, d_u = d_h * t * o * (1.0 - o), d_c * i * (1.0 - u * u)
    d_c = d_c * f
    if HAS_RESET:  # the cell before may hold anything, even a NaN
        keep = tl.load(reset + b) == 0
        d_f, d_c = tl.where(keep, d_f, 0.0), tl.where(keep, d_c, 0.0)
    tl.store(dc + at, d_c, mask=inside)
    to = d_gates + b * 4 * H + unit
    tl.store(to, d_i, mask=inside)
    tl.store(to + H, d_f, mask=inside)
    tl.store(to + 2 * H, d_o, mask=inside)
    tl.store(to + 3 * H, d_u, mask=inside)
    if NARROW:
        copy = narrow + b * 4 * H + unit
        tl.store(copy, d_i.to(narrow.dtype.element_ty), mask=inside)
        tl.store(copy + H, d_f.to(narrow.dtype.element_ty), mask=inside)
        tl.store(copy + 2 * H, d_o.to(narrow.dtype.element_ty), mask=inside)
        tl.store(copy + 3 * H, d_u.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def multiply_backward(
    dm, z, x, tokens, reset, d_xm, d_z, narrow, m, H, HAS_TOKENS: tl.constexpr, HAS_RESET: tl.constexpr,
    NARROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of both factors of m, and m itself; `narrow` is a copy of d_z for the product."""
    b = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < H
    at = b * H + unit
    row = tl.load(tokens + b) if HAS_TOKENS else b
    d = tl.load(dm + at, mask=inside, other=0.0).to(tl.float32)
    z_b = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
    x_m = tl.load(x + row * 5 * H + 4 * H + unit, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_xm + at, d * z_b, mask=inside)
    tl.store(m + at, (z_b * x_m).to(m.dtype.element_ty), mask=inside)
    d = d * x_m
    if HAS_RESET:
        d = tl.where(tl.load(reset + b) == 0, d, 0.0)
    tl.store(d_z + at, d, mask=inside)
    if NARROW:
        tl.store(narrow + at, d.to(narrow.dtype.element_ty), mask=inside)


def _grid(batch: int, size: int) -> tuple[int, int]:
    return batch, -(-size // BLOCK)


def _step(tensor: Tensor | None, t: int, missing: Tensor) -> Tensor:
    """Step t of a tensor; where there is none, any tensor, which the kernel does not touch."""
    return missing if tensor is None else tensor[t]


def _bytes(reset: Tensor | None) -> Tensor | None:
    return None if reset is None else reset.view(torch.uint8)


def forward_steps(
    inputs: Tensor, tokens: Tensor | None, wh: Tensor, wmh: Tensor | None, hidden: Tensor, cell: Tensor, reset: Tensor | None,
    save: bool, keep_cells: bool,
) -> Saved:  # fmt: skip
    """See `mlstm_steps.forward_steps`. All tensors are contiguous."""
    steps = inputs.shape[0] if tokens is None else tokens.shape[0]
    if tokens is not None:  # without waiting for the GPU: the kernels follow a token without asking
        torch._assert_async(((tokens >= 0) & (tokens < len(inputs))).all(), f"a token beyond the {len(inputs)} rows")
    (batch, size), kept, grid = hidden.shape, steps if save else 1, _grid(*hidden.shape)
    gates = cell.new_empty((kept, batch, 4 * size))
    z = inputs.new_empty((kept if wmh is not None else 0, batch, size))
    hiddens = inputs.new_empty((steps, batch, size))
    cells = cell.new_empty((steps if save or keep_cells else 1, batch, size))
    m, sums, wh_t = inputs.new_empty((batch, size)), inputs.new_empty((batch, 4 * size)), wh.t()
    masks, has_tokens, has_reset = _bytes(reset), tokens is not None, reset is not None
    for t in range(steps):
        x = inputs if tokens is not None else inputs[t]
        token, mask = _step(tokens, t, m), _step(masks, t, m)
        if wmh is not None:
            z_t = z[t % kept]
            torch.mm(hidden, wmh.t(), out=z_t)
            multiply[grid](z_t, x, token, mask, m, size, has_tokens, has_reset, BLOCK)
            factor = m
        else:
            factor = hidden if reset is None else hidden.masked_fill(reset[t].unsqueeze(1), 0)
        torch.mm(factor, wh_t, out=sums)
        after = cells[t % len(cells)]
        update[grid](
            sums, x, token, mask, cell, gates[t % kept], after, hiddens[t], size, inputs.shape[-1] // size, has_tokens, has_reset,
            BLOCK,
        )  # fmt: skip
        hidden, cell = hiddens[t], after
    if not save:
        gates, z = gates.new_empty(0), z.new_empty(0)
    return Saved(gates, z if wmh is not None else z.new_empty(0), hiddens, cells)


class Backward(mlstm_steps.Backward):
    """See `mlstm_steps.Backward`, whose sums over rows serve here as well."""

    def steps(
        self, inputs: Tensor, tokens: Tensor | None, reset: Tensor | None, cell: Tensor, saved: Saved, grad_h: Tensor | None,
        grad_c: Tensor | None, dh: Tensor, dc: Tensor, out: StepGradients,
    ) -> None:  # fmt: skip
        """Walks a block of steps backwards. All tensors are contiguous."""
        steps, batch, size = saved.hidden.shape
        grid, wmh, narrow = _grid(batch, size), self._wmh, inputs.dtype != out.gates.dtype
        masks, has_tokens, has_reset = _bytes(reset), tokens is not None, reset is not None
        d_gates, d_z = inputs.new_empty((batch, 4 * size)), inputs.new_empty((batch, size))
        dm = inputs.new_empty((batch, size))
        for t in reversed(range(steps)):
            mask = _step(masks, t, dm)
            update_backward[grid](
                saved.gates[t], saved.cell[t - 1] if t else cell, saved.cell[t], mask, _step(grad_h, t, dm),
                _step(grad_c, t, dm), dh, dc, out.gates[t], d_gates, size, has_reset, grad_h is not None, grad_c is not None,
                narrow, BLOCK,
            )  # fmt: skip
            gates = d_gates if narrow else out.gates[t]
            if wmh is None:
                dh.copy_(torch.mm(gates, self._wh))
                if reset is not None:
                    dh.masked_fill_(reset[t].unsqueeze(1), 0)
                continue
            torch.mm(gates, self._wh, out=dm)
            x = inputs if tokens is not None else inputs[t]
            multiply_backward[grid](
                dm, saved.z[t], x, _step(tokens, t, dm), mask, out.x_m[t], out.z[t], d_z, out.m[t], size, has_tokens, has_reset,
                narrow, BLOCK,
            )  # fmt: skip
            dh.copy_(torch.mm(d_z if narrow else out.z[t], wmh))
