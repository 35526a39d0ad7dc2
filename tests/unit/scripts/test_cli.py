"""The command table: help without torch, one line and exit status 2 for what a user got wrong."""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bigbatch.scripts import cli
from bigbatch.scripts.cli import COMMANDS, main, with_dashes

HEAVY = ("torch", "numpy", "pandas", "sklearn", "matplotlib")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Puts a fake in the place of every command: a list of what its `main` does, and of what it was given."""
    calls: list[Any] = []

    def fake_main(argv: list[str]) -> Any:
        action = calls.pop(0)
        calls.append(argv)
        if isinstance(action, BaseException):
            raise action
        return action

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=lambda *_: SimpleNamespace(main=fake_main)))
    monkeypatch.delenv("BIGBATCH_DEBUG", raising=False)
    return calls


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    out = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert name in out and summary in out


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["train", "--help"], ["train", "--print_config"], ["nonsense"]]
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import sys\nfrom bigbatch.scripts.cli import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    error = capsys.readouterr().err
    assert error == f"bigbatch: there is no command 'trian'; commands: {', '.join(COMMANDS)}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from bigbatch import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bigbatch {__version__}\n"


def test_every_command_has_its_module() -> None:
    for name in COMMANDS:
        assert importlib.util.find_spec(f"bigbatch.scripts.{name}") is not None, name


def test_option_names_take_dashes_or_underscores() -> None:
    argv = [
        "--run_dir",
        "my_runs/a_b",
        "--text_key=my_key",
        "-x_y",
        "a_b",
        "--data.min_heldout_bytes",
        "5",
        "--",
        "--a_b",
    ]
    assert with_dashes(argv) == [
        "--run-dir", "my_runs/a_b", "--text-key=my_key", "-x_y", "a_b", "--data.min-heldout-bytes", "5", "--", "--a_b"
    ]  # fmt: skip


@pytest.mark.parametrize("given, status", [(None, 0), (0, 0), (3, 3)])
def test_the_status_is_the_commands(command: list[Any], given: int | None, status: int) -> None:
    command.append(given)
    assert main(["train", "--run_dir", "x"]) == status
    assert command == [["--run-dir", "x"]]


@pytest.mark.parametrize("error", [ValueError("no such\n  thing"), FileNotFoundError("no such thing")])
def test_a_users_error_is_one_line(command: list[Any], error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    command.append(error)
    assert main(["classify"]) == 2
    assert capsys.readouterr().err == "bigbatch classify: no such thing\n"


def test_debug_shows_the_traceback(command: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGBATCH_DEBUG", "1")
    command.append(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        main(["train"])


def test_our_own_errors_keep_their_traceback(command: list[Any]) -> None:
    command.append(AssertionError("ours"))
    with pytest.raises(AssertionError, match="ours"):
        main(["train"])


def test_an_interrupt_is_no_traceback(command: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    command.append(KeyboardInterrupt())
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "bigbatch demo: interrupted\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys\nfrom types import SimpleNamespace\nfrom bigbatch.scripts import cli\n"
        "def talk(argv):\n    for _ in range(100000): print('x' * 100)\n"
        "cli.importlib = SimpleNamespace(import_module=lambda *_: SimpleNamespace(main=talk))\n"
        "sys.exit(cli.main(['classify']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == ""


def test_the_module_runs_as_a_program() -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    argv = [sys.executable, "-m", "bigbatch.scripts.cli", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("bigbatch ")


def test_our_logger_speaks_and_others_are_quiet(command: list[Any]) -> None:
    command.append(0)
    main(["train"])
    assert logging.getLogger("bigbatch.training").isEnabledFor(logging.INFO)
    assert not logging.getLogger("torch.something").isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    "number, message",
    [
        (errno.EACCES, "permission denied: choose a file or folder that you may use"),
        (errno.EROFS, "read-only file system: choose another folder"),
        (errno.ENAMETOOLONG, "file name too long: choose a shorter name"),
        (errno.ENOTDIR, "not a directory: a part of this path is a file"),
        (errno.EIO, "input/output error"),
    ],
)
def test_an_error_of_the_operating_system_names_the_file_and_a_remedy(
    command: list[Any], capsys: pytest.CaptureFixture[str], number: int, message: str
) -> None:
    command.append(OSError(number, os.strerror(number), "runs/mine"))
    assert main(["train"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bigbatch train: runs/mine: {message}") and error.count("\n") == 1


def test_a_terminated_prepare_leaves_nothing_behind(tmp_path: Path) -> None:
    fifo = tmp_path / "in.txt"
    os.mkfifo(fifo)
    (tmp_path / "out").mkdir()
    command = [
        sys.executable,
        "-m",
        "bigbatch.scripts.cli",
        "prepare",
        "--data",
        str(fifo),
        "--out",
        str(tmp_path / "out" / "s"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with fifo.open("w") as file:  # opened by both: it reads now, and waits for more
        file.write("some text\n")
        file.flush()
        end = time.monotonic() + 20
        while not list((tmp_path / "out").iterdir()) and time.monotonic() < end:
            time.sleep(0.05)
        assert list((tmp_path / "out").iterdir()), "the build has begun"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert list((tmp_path / "out").iterdir()) == []
