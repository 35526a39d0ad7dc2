"""Learning rates against their closed forms, and the scaling rules against a published table."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from bigbatch.training.config import OptimConfig, ScheduleConfig
from bigbatch.training.schedules import check_schedule, lr_factor, scaled_optim, scaled_peak_lr

TOTAL, WARMUP = 1000, 100


def factor(samples: int, **options) -> float:
    return lr_factor(ScheduleConfig(warmup_samples=WARMUP, **options), samples, TOTAL)


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant"])
def test_warm_up_rises_linearly_once(decay: str) -> None:
    assert factor(0, decay=decay) == 0.0
    assert factor(1, decay=decay) == pytest.approx(0.01, rel=1e-12)
    assert factor(50, decay=decay) == 0.5
    assert factor(WARMUP, decay=decay) == 1.0
    # Applied once: just behind the peak nothing of the ramp is left in the rate.
    assert factor(WARMUP + 1, decay=decay) > 0.99


def test_linear_reaches_its_floor_at_the_last_sample_and_stays() -> None:
    assert factor(550, decay="linear") == pytest.approx(0.5, rel=1e-12)
    assert factor(TOTAL - 1, decay="linear") == pytest.approx(1 / 900, rel=1e-9)
    assert factor(TOTAL, decay="linear") == 0.0
    assert factor(TOTAL + 500, decay="linear") == 0.0
    floor = [factor(samples, decay="linear", min_lr_ratio=0.1) for samples in (TOTAL, TOTAL + 1, 10 * TOTAL)]
    assert floor == [pytest.approx(0.1, rel=1e-12)] * 3
    assert factor(550, decay="linear", min_lr_ratio=0.1) == pytest.approx(0.55, rel=1e-12)


def test_cosine_in_closed_form() -> None:
    for samples in (WARMUP, 101, 325, 550, 999):
        expected = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * (samples - 100) / 900))
        assert factor(samples, decay="cosine", min_lr_ratio=0.2) == pytest.approx(expected, rel=1e-12)
    assert factor(TOTAL, decay="cosine", min_lr_ratio=0.2) == pytest.approx(0.2, rel=1e-12)
    assert factor(TOTAL + 1, decay="cosine", min_lr_ratio=0.2) == pytest.approx(0.2, rel=1e-12)
    assert factor(550, decay="cosine") == pytest.approx(0.5, rel=1e-12)


def test_constant_stays_at_the_peak() -> None:
    assert [factor(samples, decay="constant") for samples in (WARMUP, 600, TOTAL, 5 * TOTAL)] == [1.0] * 4


def test_without_warm_up_the_first_sample_has_the_peak() -> None:
    assert lr_factor(ScheduleConfig(), 0, TOTAL) == 1.0


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_horizon_before_the_end_keeps_the_floor_to_the_end(decay: str) -> None:
    options = {"decay": decay, "horizon_samples": 600, "min_lr_ratio": 0.25}
    assert factor(350, **options) == pytest.approx(0.625, rel=1e-12)
    assert [factor(samples, **options) for samples in (600, 601, TOTAL)] == [pytest.approx(0.25, rel=1e-12)] * 3


@pytest.mark.parametrize("rule, column", [("linear", "linear_rule_lr"), ("sqrt", "sqrt_rule_lr")])
def test_scaling_rules_equal_the_published_table(facts: Path, rule: str, column: str) -> None:
    with (facts / "lr_scaling_table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    config = ScheduleConfig(lr_rule=rule)  # pyright: ignore[reportArgumentType]
    for row in rows:
        assert scaled_peak_lr(config, 5e-4, int(row["batch"])) == pytest.approx(float(row[column]), rel=1e-5)


def test_the_cap_equals_the_published_table(facts: Path) -> None:
    config = ScheduleConfig(lr_rule="linear", max_lr=3e-3)
    with (facts / "lr_scaling_table.csv").open() as file:
        for row in csv.DictReader(file):
            assert scaled_peak_lr(config, 5e-4, int(row["batch"])) == pytest.approx(
                float(row["capped_linear_lr_3e-3"]), rel=1e-6
            )


def test_scaling_none_and_below_the_base() -> None:
    assert scaled_peak_lr(ScheduleConfig(), 5e-4, 4096) == 5e-4
    assert scaled_peak_lr(ScheduleConfig(lr_rule="linear"), 5e-4, 32) == pytest.approx(1.25e-4)
    assert scaled_peak_lr(ScheduleConfig(lr_rule="sqrt", base_batch_size=64), 5e-4, 16) == pytest.approx(2.5e-4)


@pytest.mark.parametrize("options", [{"warmup_samples": 1000}, {"warmup_samples": 300, "horizon_samples": 300}])
def test_a_warm_up_that_does_not_end_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"--schedule.warmup_samples is (1,000|300).*shorten the warm-up"):
        check_schedule(ScheduleConfig(**options), TOTAL)
    check_schedule(ScheduleConfig(warmup_samples=999), TOTAL)


# At the first sample, the peak, half-way, the last sample, the end and past it; worked out by hand from the definitions.
@pytest.mark.parametrize(
    "options, expected",
    [
        ({"decay": "inverse_sqrt"}, [0, 1, math.sqrt(100 / 550), math.sqrt(100 / 999), math.sqrt(0.1), math.sqrt(0.1)]),
        ({"decay": "inverse_sqrt", "min_lr_ratio": 0.5}, [0, 1, 0.5, 0.5, 0.5, 0.5]),
        ({"decay": "step"}, [0, 1, 0.1, 0.01, 0.001, 0.001]),
        ({"decay": "step", "decay_samples": 400, "step_factor": 0.5}, [0, 1, 0.5, 0.25, 0.25, 0.25]),
        ({"decay": "wsd"}, [0, 1, 1, 0.01, 0, 0]),
        ({"decay": "wsd", "decay_samples": 600, "min_lr_ratio": 0.2}, [0, 1, 0.8, 0.2 + 0.8 / 600, 0.2, 0.2]),
        ({"decay": "slanted"}, [1 / 32, 1, 1 / 32 + 31 / 32 / 2, 1 / 32 + 31 / 32 / 900, 1 / 32, 1 / 32]),
        ({"decay": "slanted", "warmup_samples": 0}, [1 / 32, 1, 1 / 32 + 31 / 32 / 2, 1 / 32 + 31 / 32 / 900, 1 / 32, 1 / 32]),
        ({"decay": "wsd", "horizon_samples": 600, "decay_samples": 100}, [0, 1, 0.5, 0, 0, 0]),
    ],
)  # fmt: skip
def test_other_decays_in_closed_form(options: dict, expected: list[float]) -> None:
    config = ScheduleConfig(**{"warmup_samples": WARMUP, **options})
    check_schedule(config, TOTAL)
    found = [lr_factor(config, samples, TOTAL) for samples in (0, WARMUP, 550, TOTAL - 1, TOTAL, 3 * TOTAL)]
    assert found == [pytest.approx(value, rel=1e-12, abs=1e-15) for value in expected]


def test_no_schedule_jumps_at_the_peak() -> None:
    for decay in ("linear", "cosine", "constant", "inverse_sqrt", "step", "wsd", "slanted"):
        before, peak, after = (factor(samples, decay=decay) for samples in (WARMUP - 1, WARMUP, WARMUP + 1))
        assert peak == 1.0 and 0.98 < before < 1.0 and 0.98 < after <= 1.0


def test_decays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"inverse_sqrt needs --schedule.warmup_samples"):
        check_schedule(ScheduleConfig(decay="inverse_sqrt"), TOTAL)
    with pytest.raises(ValueError, match=r"decay_samples is 901, but between warm-up and horizon there are 900"):
        check_schedule(ScheduleConfig(decay="wsd", warmup_samples=100, decay_samples=901), TOTAL)


def test_the_square_root_rule_for_adam_keeps_its_averages_in_samples() -> None:
    config = ScheduleConfig(lr_rule="sqrt_adam", base_batch_size=128)
    optim = OptimConfig(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1)
    scaled = scaled_optim(config, optim, 512)
    assert scaled.lr == pytest.approx(2e-3) and scaled.eps == pytest.approx(5e-9)
    assert scaled.beta1 == pytest.approx(0.6) and scaled.beta2 == pytest.approx(0.996)
    assert scaled.weight_decay == 0.1
    assert scaled_optim(config, optim, 128) == optim
    # Another rule leaves all but the rate alone.
    assert scaled_optim(ScheduleConfig(lr_rule="sqrt"), optim, 512) == OptimConfig(lr=2e-3, weight_decay=0.1)
    with pytest.raises(ValueError, match=r"beta1 -0.6 .* at batch 2048: it holds up to batch 1280 from"):
        scaled_optim(config, optim, 2048)
    assert scaled_optim(config, optim, 1280).beta1 == pytest.approx(0.0, abs=1e-12)
