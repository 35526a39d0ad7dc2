"""Mean and maximum of a model's states over the bytes of each text, kept up window by window.

Only one row of H numbers for each text being read is held, so memory does not depend on how long texts are. Reading the
windows is `featurize.py`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

Pooling = Literal["last", "mean", "max"]
POOLINGS = ("last", "mean", "max")


class StatePool:
    """The mean or maximum so far of rows that are read together, the longest first.

    Args:
        kind: "mean" or "max".
        tanh: Pool tanh of the states instead of the states.
    """

    def __init__(self, kind: Pooling, tanh: bool) -> None:
        assert kind in ("mean", "max")
        self.kind, self.tanh = kind, tanh
        self._pooled: torch.Tensor | None = None
        self._count = np.zeros(0, dtype=np.int64)

    def add(self, values: torch.Tensor, counts: np.ndarray) -> None:
        """Takes in a window.

        Args:
            values: States, shape (rows, time, H); the rows are a prefix of those of the last window.
            counts: How many of its time steps each row has, shape (rows,); what comes after them is padding.
        """
        values = values if values.dtype in (torch.float32, torch.float64) else values.float()
        values = values.tanh() if self.tanh else values
        if counts.min() < values.shape[1]:
            steps = torch.arange(values.shape[1], device=values.device)
            padding = steps >= torch.from_numpy(counts).to(values.device)[:, None]
            values = values.masked_fill(padding[:, :, None], 0.0 if self.kind == "mean" else -torch.inf)
        # Sums in fp64: a text of ten million bytes has as many addends.
        window = values.sum(dim=1, dtype=torch.float64) if self.kind == "mean" else values.amax(dim=1)
        if self._pooled is None:
            self._pooled, self._count = window, counts.copy()
            return
        rows = len(counts)
        join = torch.add if self.kind == "mean" else torch.maximum
        self._pooled, self._count = join(self._pooled[:rows], window), self._count[:rows] + counts

    def take(self, rows: slice) -> np.ndarray:
        """The pooled states of some of the last window's rows, shape (len(rows), H), float32."""
        assert self._pooled is not None
        pooled = self._pooled[rows].cpu().numpy()
        if self.kind == "mean":
            pooled = pooled / self._count[rows, None]
        return pooled.astype(np.float32)
