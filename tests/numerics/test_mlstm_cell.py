"""The reference cell against plain Python numbers and against torch.nn.LSTMCell."""

from __future__ import annotations

import math

import torch
from bigbatch.models.mlstm import mlstm_cell
from bigbatch.models.mlstm_scan import GATE_ORDER
from torch import Tensor

E, H = 3, 4


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def dot(row: list[float], column: list[float]) -> float:
    return sum(a * b for a, b in zip(row, column, strict=True))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def scalar_cell(x, h, c, wx, wh, wmx, wmh, b):
    """Krause et al. 2016, one unit after the other, for one row."""
    m = [dot(wmx[k], x) * dot(wmh[k], h) for k in range(H)]
    new_h, new_c = [], []
    for k in range(H):
        rows = {gate: n * H + k for n, gate in enumerate(GATE_ORDER)}
        pre = {gate: dot(wx[row], x) + dot(wh[row], m) + b[row] for gate, row in rows.items()}
        cell = sigmoid(pre["forget"]) * c[k] + sigmoid(pre["input"]) * math.tanh(pre["candidate"])
        new_c.append(cell)
        new_h.append(sigmoid(pre["output"]) * math.tanh(cell))
    return new_h, new_c


def test_cell_equals_a_scalar_loop() -> None:
    torch.manual_seed(0)
    weights = [draw(4 * H, E), draw(4 * H, H), draw(H, E), draw(H, H), draw(4 * H)]
    x, h, c = draw(2, E), draw(2, H), draw(2, H)
    new_h, new_c = mlstm_cell(x, h, c, *weights)
    plain = [weight.tolist() for weight in weights]
    for row in range(2):
        want_h, want_c = scalar_cell(x[row].tolist(), h[row].tolist(), c[row].tolist(), *plain)
        torch.testing.assert_close(new_h[row], torch.tensor(want_h, dtype=torch.float64), rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(new_c[row], torch.tensor(want_c, dtype=torch.float64), rtol=1e-13, atol=1e-14)


def test_cell_is_lstm_cell_when_m_is_h() -> None:
    # An input feature that is always 1 makes wmx x = 1, and wmh = identity then leaves m = h.
    torch.manual_seed(1)
    theirs = torch.nn.LSTMCell(E, H).double()
    order = [("input", "forget", "candidate", "output").index(gate) for gate in GATE_ORDER]

    def ours(weight: Tensor) -> Tensor:
        return weight.unflatten(0, (4, H))[order].flatten(0, 1)

    wx = torch.cat([ours(theirs.weight_ih), torch.zeros(4 * H, 1)], dim=1)
    wmx = torch.zeros(H, E + 1, dtype=torch.float64)
    wmx[:, E] = 1
    x, h, c = draw(2, E), draw(2, H), draw(2, H)
    bias = ours(theirs.bias_ih + theirs.bias_hh)
    identity = torch.eye(H, dtype=torch.float64)
    new_h, new_c = mlstm_cell(
        torch.cat([x, torch.ones(2, 1)], dim=1), h, c, wx, ours(theirs.weight_hh), wmx, identity, bias
    )
    want_h, want_c = theirs(x, (h, c))
    torch.testing.assert_close(new_h, want_h, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(new_c, want_c, rtol=1e-13, atol=1e-14)
