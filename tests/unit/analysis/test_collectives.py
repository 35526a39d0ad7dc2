"""Times of collectives against a simulated ring and hand arithmetic."""

from __future__ import annotations

import pytest
from bigbatch.analysis.collectives import (
    Group,
    Link,
    all_reduce,
    hierarchical_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)

FAST, SLOW = Link(100e9, 1e-6), Link(1e9, 1e-5)


def simulated_ring(size: float, ranks: int, link: Link) -> float:
    """Chunk by chunk: reduce-scatter, then all-gather, all links busy at once."""
    seconds = 0.0
    for _ in range(2):
        for _ in range(ranks - 1):
            seconds += link.latency_seconds + size / ranks / link.bytes_per_second
    return seconds


@pytest.mark.parametrize("ranks", [1, 2, 3, 16])
def test_ring_is_the_sum_of_its_steps(ranks: int) -> None:
    assert ring_all_reduce(1e8, ranks, SLOW) == pytest.approx(simulated_ring(1e8, ranks, SLOW))


def test_tree_wins_where_latency_rules_and_the_ring_where_bytes_do() -> None:
    assert tree_all_reduce(1e3, 1024, SLOW) == pytest.approx(2e-6 + 20 * 1e-5)
    assert tree_all_reduce(1e3, 1024, SLOW) < ring_all_reduce(1e3, 1024, SLOW)
    assert ring_all_reduce(1e9, 4, SLOW) < tree_all_reduce(1e9, 4, SLOW)
    alone = Group(4, 1, SLOW, SLOW)
    assert all_reduce(1e9, alone) == ring_all_reduce(1e9, 4, SLOW) and tree_all_reduce(1e9, 1, SLOW) == 0


def test_hierarchy_sends_each_part_between_nodes_once() -> None:
    group = Group(8, 4, FAST, SLOW)
    within = 2 * 7 / 8 * 1e9 / 100e9 + 14 * 1e-6
    between = 2 * 3 / 4 * (1e9 / 8) / 1e9 + 6 * 1e-5
    assert (
        hierarchical_all_reduce(1e9, group) == pytest.approx(within + between) == pytest.approx(all_reduce(1e9, group))
    )
    assert all_reduce(1e9, Group(1, 1, FAST, SLOW)) == 0
