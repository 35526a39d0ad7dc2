"""Global batch = micro batch x ranks x accumulation, and what is said where it does not divide."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from bigbatch.training.batch_size import BatchLayout, batch_at, batch_layout, check_batch
from bigbatch.training.config import BatchConfig


@pytest.mark.parametrize(
    "batch, micro, ranks, expected",
    [(128, 0, 1, (128, 1)), (128, 0, 4, (32, 1)), (128, 8, 2, (8, 8)), (6, 1, 3, (1, 2)), (5, 5, 1, (5, 1))],
)
def test_layouts(batch: int, micro: int, ranks: int, expected: tuple[int, int]) -> None:
    layout = batch_layout(BatchConfig(batch, micro), ranks)
    assert (layout.micro_batch_size, layout.grad_accum_steps) == expected
    assert layout.micro_batch_size * layout.grad_accum_steps * ranks == batch


def test_micro_batches_of_all_ranks_are_the_lanes_in_order() -> None:
    layout = BatchLayout(global_batch_size=12, micro_batch_size=2, grad_accum_steps=2, data_parallel_size=3)
    lanes = [lane for rank in range(3) for step in range(2) for lane in layout.micro_lanes(rank, step)]
    assert lanes == list(range(12))
    assert [layout.lanes(rank) for rank in range(3)] == [range(0, 4), range(4, 8), range(8, 12)]


@pytest.mark.parametrize(
    "batch, micro, ranks, message",
    [
        (100, 0, 3, r"global_batch_size 100 does not divide over 3 ranks: .* are 99 and 102$"),
        (100, 16, 2, r"100 does not divide over 2 ranks x micro batch 16: .* are 96 and 128$"),
        (10, 16, 1, r"10 does not divide over 1 rank x micro batch 16: .* are 16$"),
        (2, 0, 4, r"2 does not divide over 4 ranks: .* are 4$"),
    ],
)
def test_errors_name_the_nearest_sizes_that_divide(batch: int, micro: int, ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch_layout(BatchConfig(batch, micro), ranks)


@pytest.mark.parametrize("batch, micro, ranks", [(100, 0, 3), (100, 16, 2), (10, 16, 1), (2, 0, 4)])
def test_the_sizes_named_do_divide(batch: int, micro: int, ranks: int) -> None:
    with pytest.raises(ValueError) as caught:
        batch_layout(BatchConfig(batch, micro), ranks)
    for size in str(caught.value).rsplit(" are ", 1)[1].split(" and "):
        batch_layout(BatchConfig(int(size), micro), ranks)


def test_the_ramp_of_mt_nlg_within_one_sample(facts: Path) -> None:
    # 32 to 1920 in steps of 32 over 12 billion tokens of 2048.
    config = BatchConfig(1920, 0, 2048, 32, 32, round(12e9 / 2048))
    with (facts / "mtnlg_batch_ramp_derived.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    for row in rows:
        batch, first = int(row["global_batch"]), int(row["first_sample"])
        assert batch_at(config, first + 1) == batch, row
        assert batch_at(config, max(first - 1, 0)) == max(batch - 32, 32), row
    assert batch_at(config, 10**9) == 1920


def test_a_ramp_grows_in_equal_parts() -> None:
    config = BatchConfig(16, 0, 8, 4, 4, 90)
    assert [batch_at(config, samples) for samples in (0, 29, 30, 59, 60, 89, 90, 1000)] == [4, 4, 8, 8, 12, 12, 16, 16]
    assert batch_at(BatchConfig(16), 0) == 16


@pytest.mark.parametrize(
    "config, ranks, message",
    [
        (BatchConfig(16, 0, 8, 6, 2, 90), 4, r"--batch.ramp_start 6 does not divide over 4 ranks: .* 4 and 8"),
        (BatchConfig(16, 2, 8, 8, 1, 90), 2, r"--batch.ramp_increment 1 does not divide over 2 ranks x micro batch 2: .* are 4$"),
        (BatchConfig(18, 0, 8, 8, 2, 90), 4, r"--batch.global_batch_size 18 does not divide over 4 ranks"),
    ],
)  # fmt: skip
def test_a_ramp_that_the_ranks_cannot_divide_is_refused(config: BatchConfig, ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_batch(config, ranks)
    check_batch(config, 1) if not config.micro_batch_size else None
