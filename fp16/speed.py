"""Whether this machine computes in half precision at a usable speed, measured in a fraction of a second."""

from __future__ import annotations

import time

import torch

# A CPU without fp16 instructions takes a hundred times as long; one with them, about as long as in fp32.
SLOW = 3.0
_DTYPES = {"fp16": torch.float16, "amp": torch.float16, "bf16": torch.bfloat16}


def half_precision_slowdown(precision: str, device_type: str, size: int = 256, repeats: int = 3) -> float:
    """Time of a matrix product in the precision's type over its time in fp32; 1 for fp32 and on accelerators.

    Args:
        precision: resolved.
        device_type: "cpu" or "cuda".
        size: rows and columns of the square product.
        repeats: the fastest of so many counts.
    """
    if precision not in _DTYPES or device_type != "cpu":
        return 1.0

    def fastest(dtype: torch.dtype) -> float:
        a = torch.ones(size, size, dtype=dtype)
        torch.mm(a, a)  # the first product also sets up its kernel
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            torch.mm(a, a)
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    return fastest(_DTYPES[precision]) / fastest(torch.float32)
