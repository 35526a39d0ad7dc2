"""Precision names and the limits of the loss-scale settings."""

from __future__ import annotations

import math

import pytest
from bigbatch.fp16.config import PRECISIONS, LossScaleConfig, resolve_precision


def test_auto_is_fp16_on_cuda_only() -> None:
    assert resolve_precision("auto", "cuda") == "fp16"
    assert resolve_precision("auto", "cpu") == "fp32"
    for name in PRECISIONS[1:]:
        assert resolve_precision(name, "cuda") == name


def test_unknown_precision_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"precision is 'fp8': choose one of auto, fp32, fp16, bf16, amp"):
        resolve_precision("fp8", "cpu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_scale": -1.0}, "loss_scale is -1.0"),
        ({"loss_scale": math.nan}, "loss_scale is nan"),
        ({"min_scale": 8.0, "init_scale": 4.0}, "min_scale 8, init_scale 4 and max_scale"),
        ({"init_scale": 2.0**30}, "in this order"),
        ({"min_scale": 0.0}, "must be positive"),
        ({"growth_factor": 1.0}, "growth_factor is 1.0"),
        ({"backoff_factor": 1.0}, "backoff_factor is 1.0"),
        ({"growth_interval": 0}, "growth_interval is 0"),
        ({"hysteresis": 0}, "hysteresis is 0"),
        ({"max_consecutive_overflows": 0}, "max_consecutive_overflows is 0"),
    ],
)
def test_wrong_settings_are_named(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossScaleConfig(**fields)
