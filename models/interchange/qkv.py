"""The orders in which fused projections of queries, keys and values are stored.

A = number of heads, D = size of a head. Ours is (A, 3, D): `layers.Attention` says why.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

# By the axes of the rows from the outermost: GPT-2 and Megatron 0 stack whole q, k and v; Megatron 1.0 keeps the three of
# a number together; Megatron 2.0 those of a head.
Order = Literal["3AD", "AD3", "A3D"]


def to_ours(fused: Tensor, heads: int, order: Order) -> Tensor:
    """Rows (3 A D, ...) of a fused weight or bias from the given order into ours."""
    size = len(fused) // (3 * heads)
    if order == "3AD":
        parts = fused.unflatten(0, (3, heads, size)).transpose(0, 1)
    elif order == "AD3":
        parts = fused.unflatten(0, (heads, size, 3)).transpose(1, 2)
    else:
        parts = fused.unflatten(0, (heads, 3, size))
    return parts.flatten(0, 2)


def from_ours(fused: Tensor, heads: int) -> Tensor:
    """Rows (3 A D, ...) in our order as whole q, k and v, one after the other."""
    return fused.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
