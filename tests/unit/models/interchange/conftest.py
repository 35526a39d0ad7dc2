"""A cell in NumPy fp64 that knows neither our code nor our layout, and a way to run our model beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from bigbatch.models.interchange.weights import Weights
from bigbatch.models.mlstm import MLSTM

B, T = 2, 7


@dataclass
class States:
    """Everything a run gives: hidden and cell of the last layer after every byte, of all layers at the end, logits."""

    hidden: np.ndarray
    cells: np.ndarray
    final_hidden: np.ndarray
    final_cell: np.ndarray
    logits: np.ndarray

    def assert_close(self, other: States) -> None:
        for name in ("hidden", "cells", "final_hidden", "final_cell", "logits"):
            np.testing.assert_allclose(getattr(self, name), getattr(other, name), rtol=1e-9, atol=1e-12, err_msg=name)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def tokens() -> np.ndarray:
    """Bytes (B, T), the first and last of all among them."""
    drawn = np.random.default_rng(5).integers(0, 256, (B, T))
    drawn[0, 0], drawn[1, -1] = 0, 255
    return drawn


@pytest.fixture
def run_cells() -> Callable[..., States]:
    """Runs a stack of cells given as functions of (x, h) -> gates by name, with its embedding and output layer."""

    def run(ids: np.ndarray, embedding: np.ndarray, layers: list, weight: np.ndarray, bias: np.ndarray) -> States:
        sizes = [layer["size"] for layer in layers]
        h, c = ([np.zeros((len(ids), size)) for size in sizes] for _ in range(2))
        hidden, cells = [], []
        for step in range(ids.shape[1]):
            x = embedding[ids[:, step]]
            for number, layer in enumerate(layers):
                gate = layer["gates"](x, h[number])
                c[number] = sigmoid(gate["f"]) * c[number] + sigmoid(gate["i"]) * np.tanh(gate["u"])
                x = h[number] = sigmoid(gate["o"]) * np.tanh(c[number])
            hidden.append(h[-1])
            cells.append(c[-1])
        stacked = np.stack(hidden, 1)
        return States(stacked, np.stack(cells, 1), np.stack(h), np.stack(c), stacked @ weight + bias)

    return run


@pytest.fixture
def run_ours(tokens: np.ndarray) -> Callable[[Weights], States]:
    """Our model in fp64 on the same bytes."""

    def run(weights: Weights) -> States:
        model = MLSTM(weights.config)
        model.load_state_dict(weights.tensors)
        model = model.double().eval()
        ids = torch.from_numpy(tokens)
        with torch.no_grad():
            logits, _ = model(ids)
            hidden, final, cells = model.encode(ids, return_cells=True)
        return States(*(x.numpy() for x in (hidden, cells, final.hidden, final.cell, logits)))

    return run
