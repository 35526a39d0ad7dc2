"""Shared fixtures: one thread per process, and the folders of real data that may be absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

# Under CI a skip is legal only for these reasons, and for tests that need a GPU.
LEGAL_SKIPS = ("no real corpora at", "no published numbers at", "no Chromium on the PATH", "no published weights")
REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Folder of real corpora; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("BIGBATCH_CORPORA", REPO.parent / "shared" / "corpora"))
    if not folder.is_dir():
        pytest.skip(f"no real corpora at {folder}: set BIGBATCH_CORPORA")
    return folder


@pytest.fixture(scope="session")
def facts() -> Path:
    """Folder of published numbers; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("BIGBATCH_FACTS", REPO.parent / "shared" / "facts"))
    if not folder.is_dir():
        pytest.skip(f"no published numbers at {folder}: set BIGBATCH_FACTS")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """A headless browser; tests of what a page looks like in it are skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip(f"no Chromium on the PATH: install one of {', '.join(names)}")
    return found


def skip_is_legal(reason: str, gpu: bool) -> bool:
    return gpu or any(legal in reason for legal in LEGAL_SKIPS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a test that skips itself for any other reason fails: what cannot run there would never be noticed."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not skip_is_legal(reason, item.get_closest_marker("gpu") is not None):
            report.outcome, report.longrepr = "failed", f"skipped under CI: {reason}"
    return report
