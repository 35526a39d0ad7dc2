"""Signals that end a run with a checkpoint: the loop is told, and stops where nothing is lost."""

from __future__ import annotations

import os
import signal
from typing import Any, Protocol

from .distributed import under_torchrun


class Stoppable(Protocol):
    """What can be asked to stop: the engine."""

    @property
    def stop_requested(self) -> bool: ...

    def request_stop(self) -> None: ...


class StopSignals:
    """SIGTERM, SIGINT, SIGHUP and SIGUSR1 end the run after the step in progress; a second SIGINT of one process ends it at once.

    SIGHUP comes when the terminal closes, and is left alone where `nohup` has it ignored; SIGUSR1 is what a scheduler such as
    Slurm sends ahead of its time limit.
    """

    def __init__(self, engine: Stoppable) -> None:
        self._engine = engine
        self._old: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self._engine.request_stop()
        if number == signal.SIGINT and not under_torchrun():
            signal.signal(signal.SIGINT, self._old[signal.SIGINT])

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        if under_torchrun() and self._engine.stop_requested and isinstance(error, RuntimeError):
            # Asked to end because another rank has died, and then the exchange with that rank failed: end as asked,
            # without the traceback of a failure that is no news.
            os.kill(os.getpid(), signal.SIGTERM)
