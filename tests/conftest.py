"""Shared fixtures: one thread per process, and the folders of real data that may be absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

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
