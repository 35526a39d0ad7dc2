"""What surrounds the exchanges: devices by name, and how one rank's end is told to the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bigbatch.training import distributed as module
from bigbatch.training.distributed import Ranks, gather_lanes, process_group, resolve_device, run_worker, sum_over_ranks


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "errors"
    path.touch()
    monkeypatch.setenv("BIGBATCH_ERROR_FILE", str(path))
    monkeypatch.setattr(module, "_end_with_launcher", lambda: None)  # the test's own launcher is no concern of it
    return path


def failing(error: BaseException):
    def main() -> int:
        raise error

    return main


def test_without_a_launcher_errors_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIGBATCH_ERROR_FILE", raising=False)
    assert run_worker(lambda: 7) == 7
    with pytest.raises(ValueError, match="mine"):
        run_worker(failing(ValueError("mine")))


@pytest.mark.parametrize("error", [ValueError("no such\n thing"), OSError("no such thing")])
def test_a_users_error_is_left_for_the_launcher(error_file: Path, error: Exception) -> None:
    assert run_worker(failing(error)) == 0
    assert error_file.read_text() == "no such thing\n"
    # What is started again, or fails because of it, adds nothing.
    assert run_worker(failing(AssertionError("not reached"))) == 0


def test_a_failed_exchange_is_silent_where_another_rank_said_why(error_file: Path) -> None:
    def other_rank_reports_first() -> int:
        error_file.write_text("disk full\n")
        raise RuntimeError("Connection closed by peer")

    assert run_worker(other_rank_reports_first) == 0
    assert error_file.read_text() == "disk full\n"


def test_other_failures_keep_their_traceback(error_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_reported", lambda path: module.Path(path).stat().st_size > 0)
    with pytest.raises(RuntimeError, match="ours"):
        run_worker(failing(RuntimeError("ours")))
    assert run_worker(lambda: 143) == 143 and error_file.read_text() == ""


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="--device 'tpu' is not a device to compute on: use auto, cpu, cuda or cuda:N"):
        resolve_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="has no CUDA device that torch can use; run with --device cpu"):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert resolve_device("auto") == torch.device("cuda", 3) and resolve_device("cuda:1") == torch.device("cuda", 1)


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with process_group("cpu") as ranks:
        assert ranks == Ranks() and ranks.is_main and not torch.distributed.is_initialized()
    assert sum_over_ranks([1.0, 2.0], Ranks()) == [1.0, 2.0]
    lanes = torch.ones(1, 2, 3)
    assert gather_lanes(lanes, Ranks()) is not None
