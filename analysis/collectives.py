"""Seconds of collective operations from the size of the message, and from bandwidth and latency of each level of a network.

The algorithms are the textbook ones; `all_reduce` takes the fastest for a group, as communication libraries do. A ring
sends 2 (p - 1) / p of the message over every link in 2 (p - 1) steps; a double binary tree sends 2 of it in 2 log2(p)
steps. Across nodes the devices of a node first reduce-scatter among themselves, then every one exchanges its part with
the same device of the other nodes, then they gather.

Source: Thakur, Rabenseifner and Gropp 2005 (ring and recursive halving); Sanders, Speck and Traeff 2009 (two trees).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What one device sees of a network.

    Args:
        bytes_per_second: in one direction, the share of this device.
        latency_seconds: of one message.
    """

    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class Group:
    """Devices that exchange with one another.

    Args:
        local: of them in one node.
        nodes: over which they are spread evenly.
        intra: link between two of a node.
        inter: link between two nodes, the share that one device has while all of its node send.
    """

    local: int
    nodes: int
    intra: Link
    inter: Link


def ring_all_reduce(size: float, ranks: int, link: Link) -> float:
    """Seconds for `size` bytes."""
    return 2 * (ranks - 1) * (size / ranks / link.bytes_per_second + link.latency_seconds)


def tree_all_reduce(size: float, ranks: int, link: Link) -> float:
    """Seconds for `size` bytes over two binary trees, each of which carries half of them."""
    return (
        2 * size / link.bytes_per_second + 2 * math.ceil(math.log2(ranks)) * link.latency_seconds if ranks > 1 else 0.0
    )


def hierarchical_all_reduce(size: float, group: Group) -> float:
    """Seconds for `size` bytes: reduce-scatter in the node, all-reduce between nodes, all-gather in the node."""
    within = ring_all_reduce(size, group.local, group.intra)  # its two halves take as long as the whole
    part = size / group.local
    return within + min(f(part, group.nodes, group.inter) for f in (ring_all_reduce, tree_all_reduce))


def all_reduce(size: float, group: Group) -> float:
    """Seconds for `size` bytes with the fastest algorithm; 0 for a device alone."""
    if group.nodes == 1:
        return min(f(size, group.local, group.intra) for f in (ring_all_reduce, tree_all_reduce))
    return hierarchical_all_reduce(size, group)
