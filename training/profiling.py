"""`--profile`: where the time of a few steps goes, as a table and as a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

_WARMUP_STEPS, _PROFILED_STEPS = 2, 5


class StepProfiler:
    """Profiles steps 3 to 7 of this start of the run; does nothing without a folder.

    Args:
        folder: gets profile.txt (operators by own time) and profile.json (trace); None turns it off.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._steps = 0
        self._profile: profile | None = None

    def __enter__(self) -> None:
        return None

    def step(self) -> None:
        """Called after every step."""
        self._steps += 1
        if self._folder is None:
            return
        if self._steps == _WARMUP_STEPS:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            self._profile = profile(activities=activities)
            self._profile.__enter__()
        elif self._steps == _WARMUP_STEPS + _PROFILED_STEPS:
            self._finish()

    def _finish(self) -> None:
        if self._profile is None or self._folder is None:
            return
        self._profile.__exit__(None, None, None)
        table = self._profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=40)
        (self._folder / "profile.txt").write_text(table, encoding="utf-8")
        self._profile.export_chrome_trace(str(self._folder / "profile.json"))
        self._profile = None

    def __exit__(self, *exc: object) -> None:
        self._finish()
