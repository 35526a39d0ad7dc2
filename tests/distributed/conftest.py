"""Ranks for tests: processes forked from one server that has torch imported, so that a group starts in a fraction of a second."""

from __future__ import annotations

import multiprocessing
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).with_name("rank.py"))
TIME_LIMIT_SECONDS = 90.0


@pytest.fixture(scope="session")
def forkserver() -> Any:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    # Building an optimizer imports torch._dynamo, which takes longer than all of a test.
    context.set_forkserver_preload(["torch._dynamo", "bigbatch.training.run", "pytest"])
    return context


@pytest.fixture
def run_ranks(forkserver: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list]:
    """`run_ranks("function", world=2, **arguments)` calls `function(rank, world, **arguments)` of the test's own module on
    every rank and returns the answers in the order of the ranks."""
    calls: list[None] = []

    def run(function: str, world: int = 2, **arguments: Any) -> list:
        calls.append(None)
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = forkserver.Pipe(duplex=False)
            values = {
                "MODULE": str(request.path), "FUNCTION": function, "RANK": rank, "WORLD": world,
                "RENDEZVOUS": str(tmp_path / f"rendezvous{len(calls)}"), "ARGUMENTS": arguments, "ANSWER": theirs,
            }  # fmt: skip
            process = forkserver.Process(target=runpy.run_path, args=(SCRIPT, values, "rank"))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return [_answer(rank, pipe) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(5.0)
                if process.is_alive():
                    process.kill()

    return run


def _answer(rank: int, pipe: Any) -> Any:
    if not pipe.poll(TIME_LIMIT_SECONDS):
        pytest.fail(f"rank {rank} did not answer within {TIME_LIMIT_SECONDS:g} seconds")
    kind, value = pipe.recv()
    if kind == "error":
        pytest.fail(f"rank {rank}: {value}")
    return value
