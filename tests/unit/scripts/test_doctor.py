"""`bigbatch doctor`: what is there, what is missing, and the command that fixes it."""

from __future__ import annotations

import builtins
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from bigbatch.fp16 import apex
from bigbatch.scripts import doctor


@pytest.fixture(autouse=True)
def _no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gemm_gflops", lambda *arguments, **options: 123.4)


def test_it_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for expected in (
        "bigbatch ",
        "python ",
        f"torch            {torch.__version__}",
        "fp32 GEMM rate   123 GFLOP/s",
        "free disk here",
    ):
        assert expected in out
    assert "cores, torch uses" in out and "not there (optional, never needed)" in out


def test_a_missing_package_has_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("pyarrow", "tensorboardX") else original(name)
    )
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    doctor.main([])
    out = capsys.readouterr().out
    assert "reading .parquet files needs pyarrow: pip install 'bigbatch[parquet]'" in out
    assert "needs tensorboardX: pip install 'bigbatch[log]'" in out and "no C++ compiler" in out and "to fix:" in out


def test_it_works_where_torch_itself_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, version = builtins.__import__, doctor.version

    def without_torch(name: str, *arguments: object, **options: object) -> object:
        if name == "torch":
            raise ImportError(name)
        return original(name, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", without_torch)
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "torch" else version(name))
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "torch            MISSING" in out and "missing torch: pip install -c constraints.txt torch" in out


def test_cards_and_apex_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    card = SimpleNamespace(name="Some Card", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(apex, "available", lambda: ["FusedAdam", "FusedLAMB"])
    doctor.main([])
    out = capsys.readouterr().out
    assert (
        "cuda:1           Some Card, 80 GiB" in out and "FusedAdam, FusedLAMB" in out and "fp16 GEMM rate   123" in out
    )
