"""Processes: joining and leaving the group, starting ranks on this machine, and the few exchanges the loop needs.

Parallelism is PyTorch's (DDP over gloo or NCCL, started by torchrun's launcher). What is ours is that every wait has a
time-out, a restarted attempt never meets the store of the one that died, and a user's error on any rank ends all ranks
with one line instead of a traceback from each.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

log = logging.getLogger(__name__)

_ERROR_FILE = "BIGBATCH_ERROR_FILE"
_LAUNCHER = "BIGBATCH_LAUNCHER"
# After a time-out: how long the ranks that wait give one another to say so.
_ROLL_CALL_SECONDS = 3.0
# How long ranks that were asked to stop may take to finish their step and write a checkpoint before they are killed.
STOP_SECONDS = 600
# Errors a user can cause: they end in one line and exit status 2, wherever they happen.
USER_ERRORS = (ValueError, OSError)


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of the run."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def resolve_device(name: str) -> torch.device:
    """`auto` is cuda where there is one. Under torchrun each local rank takes its own card.

    Raises:
        ValueError: if the device does not exist on this machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: this machine has no CUDA device that torch can use; run with --device cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"--device {name!r} is not a device to compute on: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices here, numbered from 0")
    return device


def under_torchrun() -> bool:
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def launched_by_us() -> bool:
    """Whether this rank was started by `launch` rather than by an outer torchrun."""
    return _ERROR_FILE in os.environ


@contextmanager
def process_group(device_name: str, timeout_seconds: float = 600.0) -> Iterator[Ranks]:
    """Joins the group if there is one, yields this rank, and leaves the group whatever happens.

    An exchange that takes longer than `timeout_seconds` ends the attempt; the ranks that did not answer are named.

    No DDP module may outlive the block: let a function called in it hold the module.
    """
    device = resolve_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not under_torchrun():
        yield Ranks(device=device)
        return
    timeout = timedelta(seconds=timeout_seconds)
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # A restarted attempt shares the agent's store with the attempt that died: without a prefix of its own it would
    # read the dead rank's address there (pytorch#135712). Agents of several nodes count restarts differently, so there
    # docs/cluster.md has torchrun give each attempt a store of its own instead.
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        store = PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        yield Ranks(rank, world_size, device)
    except BaseException as error:
        if isinstance(error, RuntimeError) and "timed out" in str(error).lower():
            _roll_call(store, rank, world_size, timeout_seconds)
        _drop_locals(error)
        raise
    finally:
        dist.destroy_process_group()


def _roll_call(store: Any, rank: int, world_size: int, timeout_seconds: float) -> None:
    """Names the ranks that hang: those that do not say, like this one, that they wait in vain."""
    store.set(f"waits{rank}", "")
    time.sleep(_ROLL_CALL_SECONDS)
    waiting = [other for other in range(world_size) if other == rank or store.check([f"waits{other}"])]
    silent = [str(other) for other in range(world_size) if other not in waiting]
    if silent and rank == waiting[0]:
        log.error(
            "rank%s %s did not answer within %g s: it hangs, or its machine does; the attempt ends, and the launcher "
            "starts all ranks again from the last checkpoint (--parallel.timeout_seconds sets the limit)",
            "s" * (len(silent) > 1), ", ".join(silent), timeout_seconds,
        )  # fmt: skip


def _drop_locals(error: BaseException) -> None:
    """Empties the frames that an error keeps alive, so that DDP is gone before the group is.

    If DDP outlives the group it destroys it, holding the interpreter's lock while it joins a thread that may wait for
    that lock (pytorch#56297): the process would never end. Callers of `process_group` see to it on the way without errors.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def sum_over_ranks(values: list[float], ranks: Ranks) -> list[float]:
    """The sum of each value over all ranks, in fp64."""
    if ranks.world_size == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=ranks.device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def gather_lanes(local: torch.Tensor, ranks: Ranks) -> torch.Tensor | None:
    """Recurrent state (L, B_local, H) of every rank, joined in global lane order (L, B, H) on rank 0; None elsewhere."""
    if ranks.world_size == 1:
        return local.cpu()
    parts = [torch.empty_like(local) for _ in range(ranks.world_size)]
    dist.all_gather(parts, local.contiguous())
    return torch.cat(parts, dim=1).cpu() if ranks.is_main else None


def run_worker(main: Callable[[], int]) -> int:
    """Runs one rank's work; a user's error is left for the launcher to print once, and no restart is tried for it."""
    path = os.environ.get(_ERROR_FILE)
    if path is None:
        return main()
    error_file = Path(path)
    if error_file.stat().st_size:  # another rank of an earlier attempt found the run impossible
        return 0
    _end_with_launcher()
    try:
        return main()
    except USER_ERRORS as error:
        with error_file.open("a", encoding="utf-8") as file:
            file.write(f"{' '.join(str(error).split())}\n")
        return 0
    except RuntimeError:  # an exchange failed because another rank has left: its message says why
        if _reported(error_file):
            return 0
        raise


def _end_with_launcher() -> None:
    """Stops this rank, with a checkpoint, when its launcher is killed: it would go on unseen beside the next start."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != int(os.environ.get(_LAUNCHER, os.getppid())):  # killed before we asked
            sys.exit(1)


def _reported(error_file: Path, seconds: float = 3.0) -> bool:
    """Whether any rank leaves a message within a few seconds."""
    end = time.monotonic() + seconds
    while not error_file.stat().st_size and time.monotonic() < end:
        time.sleep(0.05)
    return error_file.stat().st_size > 0


def launch(nproc: int, argv: list[str], max_restarts: int = 3) -> int:
    """Runs `bigbatch ARGV` on `nproc` ranks of this machine with torchrun's launcher and waits for them.

    The cores are divided among the ranks unless OMP_NUM_THREADS is set. If a rank dies, all are started again and go on
    from the newest checkpoint.

    Returns:
        The exit status.

    Raises:
        ValueError: with the message of the first user's error on any rank.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // nproc)))
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="bigbatch",
        max_restarts=max_restarts, monitor_interval=0.1, shutdown_timeout=STOP_SECONDS,
    )  # fmt: skip
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.ERROR)  # each has a level of its own; stops and restarts are no news
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    }
    # A scheduler's warning goes the way of SIGTERM, which the launcher hands on to the ranks.
    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    with tempfile.NamedTemporaryFile(prefix="bigbatch-error-") as error_file:
        os.environ[_ERROR_FILE], os.environ[_LAUNCHER] = error_file.name, str(os.getpid())
        try:
            elastic_launch(config, sys.executable)("-m", "bigbatch.scripts.cli", *argv)
        except SignalException as stop:  # the ranks have written their checkpoint before they ended
            if not (messages := _messages(error_file.name)):
                return 128 + stop.sigval
        except ChildFailedError as failed:
            if not (messages := _messages(error_file.name)):
                rank, failure = failed.get_first_failure()
                print(f"rank {rank} ended with exit status {failure.exitcode}; see its output above", file=sys.stderr)
                return failure.exitcode if failure.exitcode > 0 else 1
        else:
            messages = _messages(error_file.name)
        finally:
            del os.environ[_ERROR_FILE], os.environ[_LAUNCHER]
            for number, handler in handlers.items():  # the launcher leaves its own behind, which would raise later on
                signal.signal(number, handler)
    if messages:
        raise ValueError(messages[0])
    return 0


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _messages(error_file: str) -> list[str]:
    return Path(error_file).read_text(encoding="utf-8").splitlines()
