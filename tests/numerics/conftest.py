"""The table of tolerances by dtype, and the obvious way to run a recurrent model: the cell, step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

# Largest error of a tensor relative to its reference, as 2-norms; about eight units of the type's rounding.
TOLERANCES = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(scope="session")
def assert_near() -> Callable[..., None]:
    def check(actual: Tensor, expected: Tensor, dtype: torch.dtype, what: str = "") -> None:
        assert actual.shape == expected.shape, what
        actual, expected = actual.detach().double(), expected.detach().double()
        error = (actual - expected).norm() / expected.norm().clamp(min=1e-30)
        assert error <= TOLERANCES[dtype], f"{what}: relative error {error:.2e} in {dtype}"

    return check
