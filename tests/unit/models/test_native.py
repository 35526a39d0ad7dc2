"""Building the kernels: cached, atomic, and done without where it cannot be."""

from __future__ import annotations

import ctypes
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bigbatch.models import mlstm_cpu, native

COMPILER = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing that a test finds out about a compiler is remembered."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@needs_compiler
def test_it_is_built_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPILER is not None
    path = native.build(COMPILER, tmp_path / "cache")
    assert [path] == list((tmp_path / "cache").iterdir())
    assert ctypes.CDLL(str(path)).mlstm_forward
    stamp = path.stat().st_mtime_ns
    assert native.build(COMPILER, tmp_path / "cache") == path and path.stat().st_mtime_ns == stamp
    # Another processor that shares the home folder builds its own.
    monkeypatch.setattr(native, "processor", lambda: "another")
    assert native.build(COMPILER, tmp_path / "cache") != path


@needs_compiler
def test_a_failed_build_leaves_nothing_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("int main( { this is no program")
    monkeypatch.setattr(native, "SOURCE", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING):
        assert native.library() is None and native.library() is None
    assert len(caplog.records) == 1 and "cannot be built" in caplog.text and "plain PyTorch runs instead" in caplog.text
    assert not list((tmp_path / "cache" / "bigbatch").iterdir())


def test_without_a_compiler_plain_pytorch_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert not mlstm_cpu.usable(torch.zeros(1))
    assert "no C++ compiler: the mLSTM runs on plain PyTorch" in caplog.text
    native.library.cache_clear()
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    assert native.library() is None


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.TURN_OFF, "0")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("a compiler was called"))
    assert native.library() is None


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.cache_folder().name.startswith("bigbatch-")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / "bigbatch"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_only_fp32_windows_take_it(dtype: torch.dtype) -> None:
    assert not mlstm_cpu.usable(torch.zeros(1, dtype=dtype))
