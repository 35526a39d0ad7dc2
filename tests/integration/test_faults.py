"""`--nproc 2` through the real launcher: one line for a user's error, and no end of any process that loses the run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bigbatch.data.config import DataConfig
from bigbatch.data.prepare import prepare_store
from bigbatch.scripts.cli import main
from bigbatch.training.checkpoint import checkpoint_dirs, newest_checkpoint
from bigbatch.training.metrics import read_metrics, read_result
from bigbatch.training.run import sole_user

Launch = Callable[..., subprocess.Popen]


@pytest.fixture
def launch(arguments: Callable, tmp_path: Path) -> Iterator[Launch]:
    """`launch(run_dir, options)` starts `bigbatch train ... --nproc 2` in a session of its own."""
    started: list[subprocess.Popen] = []

    def run(run_dir: Path, *options: str) -> subprocess.Popen:
        argv = [sys.executable, "-m", "bigbatch.scripts.cli", *arguments(run_dir, "--nproc", "2", *options)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        errors = (tmp_path / f"stderr{len(started)}").open("w+")
        started.append(subprocess.Popen(argv, stderr=errors, env=environment, cwd=tmp_path, start_new_session=True))
        started[-1].errors = errors  # pyright: ignore[reportAttributeAccessIssue]
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()


def stderr(process: subprocess.Popen) -> str:
    process.errors.seek(0)  # pyright: ignore[reportAttributeAccessIssue]
    return process.errors.read()  # pyright: ignore[reportAttributeAccessIssue]


def ranks_of(launcher: int) -> list[int]:
    """Process numbers of the ranks that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    numbers = [int(word) for word in children.read_text().split()] if children.is_file() else []
    return [n for n in numbers if b"bigbatch.scripts.cli" in Path(f"/proc/{n}/cmdline").read_bytes()]


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def rows(run_dir: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in read_metrics(run_dir)]


def test_a_users_error_on_the_ranks_is_one_line(launch: Launch, tmp_path: Path) -> None:
    process = launch(tmp_path / "run", "--batch.seq_length", "4000")
    assert process.wait(120) == 2
    text = stderr(process)
    lines = [line for line in text.splitlines() if "less than one window of 4000 bytes for each of 8 lanes" in line]
    assert len(lines) == 1 and lines[0].startswith("bigbatch train: the corpus has ")
    assert text.splitlines()[-1] == lines[0]
    assert not re.search(r"Traceback|elastic|torchrun|ChildFailed|Warning", text)


def test_ctrl_c_ends_a_rank_that_waits_for_another(arguments: Callable, corpus: Path, tmp_path: Path) -> None:
    prepare_store(DataConfig(paths=[str(corpus)]), tmp_path / "store", progress=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [
        sys.executable,
        "-m",
        "bigbatch.scripts.cli",
        *arguments(tmp_path / "run", "--data.store", str(tmp_path / "store")),
    ]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, env={**os.environ, **ranks, "OMP_NUM_THREADS": "1"})
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:  # it is there to meet rank 1, which never comes
                    break
            time.sleep(0.1)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT
    finally:
        process.kill()


RANK_OF_TWO = """
import os
os.environ.update(RANK="{rank}", LOCAL_RANK="{rank}", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
"""


@pytest.fixture
def under_torchrun(start: Callable) -> Callable[[list[str]], list]:
    """Runs a command on two ranks as a launcher other than ours would, and waits for them."""

    def run(argv: list[str], hook: str = "") -> list:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = [start(argv, RANK_OF_TWO.format(rank=rank, port=port) + hook) for rank in range(2)]
        for child in children:
            child.wait()
        return children

    return run


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the ranks through /proc")
def test_no_end_of_any_process_loses_the_run(
    launch: Launch, under_torchrun: Callable, arguments: Callable, corpus: Path, wait_for_rows: Callable, tmp_path: Path
) -> None:
    prepare_store(DataConfig(paths=[str(corpus)]), tmp_path / "store", progress=False)
    options = ("--schedule.samples", "6400", "--log.interval_samples", "80", "--log.checkpoint_interval_samples", "400",
               "--log.eval_interval_samples", "3200", "--data.store", str(tmp_path / "store"))  # fmt: skip
    run, whole = tmp_path / "run", tmp_path / "whole"

    # One rank is killed: all are started again and go on from the newest checkpoint.
    process = launch(run, *options)
    wait_for_rows(run, 11)
    victims = ranks_of(process.pid)
    assert len(victims) == 2
    os.kill(victims[1], signal.SIGKILL)
    end = time.monotonic() + 60
    while set(ranks_of(process.pid)) & set(victims) or len(ranks_of(process.pid)) < 2:
        assert process.poll() is None, stderr(process)
        assert time.monotonic() < end, "the ranks were not started again"
        time.sleep(0.05)
    wait_for_rows(run, 20)
    assert "resuming from" in stderr(process)

    # The launcher is stopped: the ranks write a checkpoint and end.
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    stopped = newest_checkpoint(run)
    assert stopped is not None and 20 * 80 <= stopped[0].trainer["samples"] < 6400
    text = stderr(process)
    assert "stopped at" in text and not re.search(r"Traceback|death signal|Warning", text)

    # A scheduler's warning does the same.
    process = launch(run, *options)
    wait_for_rows(run, len(rows(run)) + 3)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 143
    warned = newest_checkpoint(run)
    assert warned is not None and stopped[0].trainer["samples"] < warned[0].trainer["samples"] < 6400
    stopped = warned

    # The launcher is killed: so do they, instead of training on unseen.
    process = launch(run, *options)
    wait_for_rows(run, len(rows(run)) + 3)
    ranks = ranks_of(process.pid)
    process.kill()
    end = time.monotonic() + 60
    while any(alive(rank) for rank in ranks):
        assert time.monotonic() < end, "ranks outlive their launcher"
        time.sleep(0.05)
    killed = newest_checkpoint(run)
    assert killed is not None and stopped[0].trainer["samples"] < killed[0].trainer["samples"] < 6400

    # After all of that the losses are those of an undisturbed run.
    for folder in (run, whole):
        children = under_torchrun(arguments(folder, *options, "--nproc", "2"))
        assert [child.process.exitcode for child in children] == [0, 0], children[0].stderr
    assert rows(run) == rows(whole)
    assert read_result(run)["train"]["val"] == read_result(whole)["train"]["val"]
    assert checkpoint_dirs(run)[-1].name == "step_000000006400"


# Where DDP outlives its group, the end of the process hangs now and then: DDP then destroys the group, and does so holding
# the interpreter's lock while it joins a thread that may wait for it.
REPORT_DDP_AT_THE_END = """
import weakref
import torch.distributed
from torch.nn.parallel import DistributedDataParallel as DDP
made, init, destroy = [], DDP.__init__, torch.distributed.destroy_process_group
def noting(self, *args, **kwargs):
    made.append(weakref.ref(self))
    init(self, *args, **kwargs)
def reporting():
    print(f"{len(made)} made, {sum(ref() is not None for ref in made)} alive", flush=True)
    destroy()
DDP.__init__, torch.distributed.destroy_process_group = noting, reporting
"""
FULL_DISK = """
import errno, os
from bigbatch.training import checkpoint, engine
def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
checkpoint.save_file = full
"""


@pytest.mark.parametrize("hook, statuses", [("", [0, 0]), (FULL_DISK, [2, 1])], ids=["finished", "failed"])
def test_the_model_is_gone_before_the_group_is(
    under_torchrun: Callable, arguments: Callable, corpus: Path, tmp_path: Path, hook: str, statuses: list[int]
) -> None:
    prepare_store(DataConfig(paths=[str(corpus)]), tmp_path / "store", progress=False)
    argv = arguments(tmp_path / "run", "--data.store", str(tmp_path / "store"), "--schedule.samples", "48")
    children = under_torchrun(argv, REPORT_DDP_AT_THE_END + hook)
    assert [child.process.exitcode for child in children] == statuses
    assert [child.stdout for child in children] == ["1 made, 0 alive\n"] * 2


def test_under_another_launcher_a_missing_store_is_an_error(
    under_torchrun: Callable, arguments: Callable, tmp_path: Path
) -> None:
    children = under_torchrun(arguments(tmp_path / "run"))
    for child in children:
        assert child.process.exitcode == 2
        assert re.match(r"bigbatch train: the token store .* does not exist: build it", child.stderr.splitlines()[-1])


def test_under_another_launcher_a_changed_configuration_is_an_error(
    under_torchrun: Callable, arguments: Callable, tmp_path: Path
) -> None:
    assert main(arguments(tmp_path / "run")) == 0
    for child in under_torchrun(arguments(tmp_path / "run", "--optim.lr", "0.5")):
        assert child.process.exitcode == 2
        assert "another configuration (optim.lr: 0.01 -> 0.5)" in child.stderr


def test_the_batch_must_divide_over_the_ranks(arguments: Callable, tmp_path: Path, capsys) -> None:
    argv = arguments(tmp_path / "run", "--nproc", "3", "--device", "cpu")
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].endswith("8 does not divide over 3 ranks: the nearest sizes that do are 6 and 9")
    assert not (tmp_path / "run").exists()


def test_data_that_change_under_a_run_cost_neither_its_store_nor_its_checkpoints(
    arguments: Callable, corpus: Path, tmp_path: Path, capsys
) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(corpus.read_bytes())
    argv = [*arguments(tmp_path / "run"), "--data.paths", str(mine)]
    argv.remove(str(corpus))
    argv.remove("--data.paths")
    assert main([*argv, "--schedule.samples", "48"]) == 0
    store = (tmp_path / "run" / "data" / "corpus.bin").read_bytes()
    with mine.open("a") as file:
        file.write('{"text": "one more review"}\n')
    capsys.readouterr()
    assert main([*argv, "--schedule.samples", "48"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "was built from other files than --data.paths" in error and "restore the files" in error
    assert (tmp_path / "run" / "data" / "corpus.bin").read_bytes() == store
    mine.write_bytes(corpus.read_bytes())
    assert main([*argv, "--schedule.samples", "48"]) == 0


def test_two_runs_under_outer_launchers_never_share_a_folder(
    under_torchrun: Callable, arguments: Callable, corpus: Path, tmp_path: Path
) -> None:
    prepare_store(DataConfig(paths=[str(corpus)]), tmp_path / "store", progress=False)
    with sole_user(tmp_path / "run"):
        children = under_torchrun(
            arguments(tmp_path / "run", "--data.store", str(tmp_path / "store"), "--parallel.timeout_seconds", "5")
        )
    assert children[0].process.exitcode == 2
    assert "another process trains in" in children[0].stderr
    assert children[1].process.exitcode != 0
