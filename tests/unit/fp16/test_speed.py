"""The warning about slow half precision: when it is measured, and that the ratio is one of times."""

from __future__ import annotations

import itertools
import time

import pytest
from bigbatch.fp16.speed import half_precision_slowdown


def test_nothing_is_measured_where_nothing_can_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("measured"))
    assert half_precision_slowdown("fp32", "cpu") == 1.0
    assert half_precision_slowdown("fp16", "cuda") == 1.0


@pytest.mark.parametrize("precision", ["fp16", "bf16", "amp"])
def test_the_ratio_is_that_of_the_fastest_products(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half-precision products take 9, 6 and 7 seconds of this clock, fp32 ones 2, 3 and 4.
    clock = itertools.chain.from_iterable((0.0, seconds) for seconds in (9.0, 6.0, 7.0, 2.0, 3.0, 4.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert half_precision_slowdown(precision, "cpu", size=16) == 3.0
