"""Runs the cells of a sweep: several at a time on this machine, or as jobs of a cluster through submitit.

Finished and diverged cells are never run again, stopped ones go on, failed ones are tried anew at the next call.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.demo_reviews import write_demo_corpus
from ..data.prepare import open_or_prepare
from ..data.token_store import TokenStore, store_exists
from ..training.run import check_config, settle_config
from .cells import SubmittedCell, cell_job, read_cell, run_cell, unigram_bpc, write_json
from .sweep_folder import claim_folder
from .sweeps import Cell, Sweep

DONE = ("finished", "Div")
Finished = Callable[[str, dict[str, Any]], None]


def check_cells(sweep: Sweep) -> None:
    """Refuses what can only fail later, for all cells, before anything is written or started.

    Raises:
        ValueError, FileNotFoundError: naming the cell.
    """
    claim_folder(sweep, write=False)
    for cell in sweep.cells:
        try:
            check_config(settle_config(cell.config), cell.config.nproc)
        except ValueError as error:
            raise ValueError(f"{sweep.file}: cell {cell.name}: {error}") from None


def prepare_stores(sweep: Sweep, progress: bool = True) -> dict[str, float]:
    """Builds each token store that is missing, once for all cells; returns the entropy of its single bytes by prefix."""
    unigrams = {}
    for prefix, source in sweep.sources.items():
        if source.paths == ["demo"]:
            source = replace(source, paths=[str(write_demo_corpus(Path(prefix).parent / "demo").lm)])
        if not source.paths and not store_exists(prefix):
            raise ValueError(
                f"there is no token store {prefix}: name its text with data.paths, or build it with `bigbatch prepare`"
            )
        # A store that cells have read is never built anew under them.
        open_or_prepare(source, prefix, progress=progress, rebuild=False)
        unigrams[prefix] = unigram_bpc(TokenStore(prefix))
    return unigrams


def open_cells(sweep: Sweep) -> list[Cell]:
    """Cells that are not finished and have not diverged."""
    return [cell for cell in sweep.cells if read_cell(cell.run_dir).get("status") not in DONE]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cell_environment(slot: int, jobs: int, num_cores: int, cards: int, nproc: int) -> dict[str, str]:
    """What a cell's process is told about its share of the machine; what the user has set stays.

    Args:
        slot: number of the cell among those that run at the same time.
        jobs: cells at the same time.
        num_cores: of this machine.
        cards: CUDA devices of this machine.
        nproc: processes of the cell.
    """
    threads = str(max(1, num_cores // jobs // nproc))
    environment = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads}
    if cards and nproc == 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        environment["CUDA_VISIBLE_DEVICES"] = str(slot % cards)
    return environment


def run_local(
    sweep: Sweep,
    unigrams: dict[str, float],
    jobs: int,
    finished: Finished = lambda name, outcome: None,
    draw: Callable[[], None] = lambda: None,
    interval: float = 5.0,
    run: Callable[..., dict[str, Any]] = run_cell,
) -> dict[str, dict[str, Any]]:
    """Runs the open cells, `jobs` at a time, each on its share of the cores.

    Interrupted (Ctrl-C, SIGTERM), all cells write a checkpoint and end before the exception goes on.

    Args:
        sweep: what to run; its folder is claimed.
        unigrams: of `prepare_stores`.
        jobs: cells at the same time.
        finished: called with name and outcome of each cell, one at a time.
        draw: called every `interval` seconds.
        interval: seconds.
        run: runs one cell.

    Returns:
        Outcome of each cell that was run, by name.
    """
    import torch

    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in open_cells(sweep):
        waiting.put(cell)
    outcomes: dict[str, dict[str, Any]] = {}
    errors: list[BaseException] = []
    stopping, lock, cards = threading.Event(), threading.Lock(), torch.cuda.device_count()

    def work(slot: int) -> None:
        try:
            while not stopping.is_set():
                cell = waiting.get_nowait()
                share = cell_environment(slot, jobs, cores(), cards, cell.config.nproc)
                outcome = run(cell_job(sweep, cell, unigrams, share), stopping.is_set)
                with lock:
                    outcomes[cell.name] = outcome
                    finished(cell.name, outcome)
        except queue.Empty:
            pass
        except BaseException as error:  # raised where the caller sees it
            errors.append(error)
            stopping.set()

    workers = [threading.Thread(target=work, args=(slot,)) for slot in range(min(jobs, waiting.qsize()))]
    try:
        for worker in workers:
            worker.start()
        drawn = 0.0
        while any(worker.is_alive() for worker in workers):
            if time.monotonic() - drawn >= interval:
                draw()
                drawn = time.monotonic()
            time.sleep(min(0.1, interval))
    finally:
        stopping.set()
        for worker in workers:
            worker.join()
    if errors:
        raise errors[0]
    return outcomes


def check_submitit() -> Any:
    """The module submitit.

    Raises:
        ValueError: the extra is not installed.
    """
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise ValueError("--cluster needs one more package: pip install 'bigbatch[slurm]'") from None


def submit(sweep: Sweep, unigrams: dict[str, float], jobs: int, cluster: str) -> dict[str, str]:
    """Hands every open cell that is not in the queue to a cluster.

    Args:
        sweep: what to run; its section `slurm` holds the parameters of the jobs.
        unigrams: of `prepare_stores`.
        jobs: cells at the same time (Slurm's array parallelism).
        cluster: slurm, or local: submitit's own processes on this machine, for trying.

    Returns:
        Job number of each cell submitted, by name.

    Raises:
        ValueError: submitit is missing, there is no such cluster here, or it refuses a parameter.
    """
    submitit = check_submitit()
    folder = sweep.root / "submitit"
    known = _submitted(folder)
    todo = [cell for cell in open_cells(sweep) if not _queued(submitit, folder, known.get(cell.name))]
    if not todo:
        return {}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        parallel = {"slurm_array_parallelism": jobs} if cluster == "slurm" else {}
        executor.update_parameters(**{"name": sweep.file.stem, "timeout_min": 24 * 60, **parallel, **sweep.slurm})
        with executor.batch():
            submitted = [executor.submit(SubmittedCell(cell_job(sweep, cell, unigrams, {}))) for cell in todo]
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        raise ValueError(f"{sweep.file}: --cluster {cluster}: {' '.join(str(error).split())}") from None
    numbers = {cell.name: str(job.job_id) for cell, job in zip(todo, submitted)}
    write_json(folder / "jobs.json", known | {name: {"cluster": cluster, "job": job} for name, job in numbers.items()})
    return numbers


def _submitted(folder: Path) -> dict[str, Any]:
    path = folder / "jobs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _queued(submitit: Any, folder: Path, entry: dict[str, str] | None) -> bool:
    """Whether a job that was submitted earlier waits or runs."""
    if entry is None:
        return False
    if entry["cluster"] == "local":  # the number is that of its process
        stat = Path(f"/proc/{entry['job']}/stat")
        ended = (folder / f"{entry['job']}_0_result.pkl").exists()
        return (
            not ended and stat.is_file() and stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZX"
        )
    return not submitit.SlurmJob(folder=folder, job_id=entry["job"]).done()
