"""`bigbatch sweep`: many runs from one file, several at a time, and what they have found."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis.sweeps import Sweep
    from ..training.config import TrainConfig

DESCRIPTION = """Train every cell of a grid, a list or an ablation, each in a run folder of its own.

  bigbatch sweep configs/sweeps/lr_batch.yaml --jobs 2
  bigbatch sweep configs/sweeps/lr_batch.yaml --report          what it has found so far
  bigbatch sweep configs/sweeps/lr_batch.yaml --list            the cells and how far they are; starts nothing
  bigbatch sweep configs/sweeps/lr_batch.yaml --cluster slurm   the same cells as jobs of a cluster

Stopped in between, the same command goes on: finished cells are not run again. A cell that diverges is ended and marked
Div. A cell that crashes is tried once more. The file's format is docs/sweeps.md."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch sweep", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE", help="sweep file; ready ones are in configs/sweeps/")
    parser.add_argument(
        "--out", metavar="FOLDER", help="folder of the runs (default: the file's out, else runs/sweeps/NAME)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time; they share the cores (default: 1)")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two tables (default: 5)")
    parser.add_argument(
        "--cluster", choices=("slurm", "local"),
        help="submit the cells through submitit: to Slurm, or as its own processes here, for trying",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--report", action="store_true", help="print what the cells have found so far, and start nothing")
    what.add_argument("--list", action="store_true", help="print the cells and how far they are, and start nothing")
    return parser


def validator() -> Callable[[dict[str, Any]], TrainConfig]:
    """What `bigbatch train` makes of nested options: types, defaults and checks are the same."""
    from jsonargparse import ArgumentError

    from ..training.config import TrainConfig
    from .train import build_parser, choose_model

    parser_of = cache(build_parser)

    def validate(values: dict[str, Any]) -> TrainConfig:
        parser = parser_of(*choose_model(values.get("model", {}).get("kind"), values.get("preset")))
        try:
            options = vars(parser.instantiate(parser.parse_object(values)))
        except ArgumentError as error:
            raise ValueError(" ".join(str(error).split())) from None
        for name in ("config", "preset"):
            options.pop(name, None)
        return TrainConfig(**options)

    return validate


class Table:
    """The table of a sweep that goes on: anew every few seconds on a terminal, else one line for each cell that ends."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.started = sweep, time.monotonic()
        self.ended: dict[str, dict[str, Any]] = {}
        self.live = sys.stdout.isatty()

    def finished(self, name: str, outcome: dict[str, Any]) -> None:
        self.ended[name] = outcome
        if not self.live:
            print(f"{name}: {self.ending(outcome)}; {self.progress()}", flush=True)

    @staticmethod
    def ending(outcome: dict[str, Any]) -> str:
        again = " at the second attempt" * (outcome["attempts"] > 1)
        return f"{outcome['status']}{again}" + (f" ({outcome['reason']})" if outcome["reason"] else "")

    def progress(self) -> str:
        """`12 of 56 done, 2 Div, 0 failed, about 1h20 left`, from the mean time of the cells that ended in this call."""
        from ..analysis.cells import read_cell
        from ..analysis.sweep_runner import DONE
        from .watch import duration

        status = [read_cell(cell.run_dir).get("status") for cell in self.sweep.cells]
        done = sum(s in DONE for s in status)
        ended, left = sum(outcome["status"] in DONE for outcome in self.ended.values()), len(status) - done
        rate = (time.monotonic() - self.started) / ended if ended else 0.0
        about = f", about {duration(rate * left)} left" if rate and left else ""
        return f"{done} of {len(status)} done, {status.count('Div')} Div, {status.count('failed')} failed{about}"

    def draw(self) -> None:
        from .watch import describe, table

        if not self.live:
            return
        running = [cell.run_dir for cell in self.sweep.cells if (cell.run_dir / "cell.yaml").is_file()]
        running = [folder for folder in running if not (folder / "cell.json").is_file()]
        troubles = [f"{n}: {self.ending(o)}" for n, o in self.ended.items() if o["status"] in ("Div", "failed")]
        lines = [self.progress(), "", table([describe(folder, time.time()) for folder in running]), "", *troubles[-8:]]
        print("\x1b[H\x1b[2J" + "\n".join(lines), flush=True)


def listing(sweep: Sweep) -> str:
    """A line a cell: name and state, as `bigbatch watch` shows it; or how it ended."""
    from ..analysis.cells import read_cell
    from .watch import describe

    lines = []
    for cell in sweep.cells:
        state, done, *_ = describe(cell.run_dir, time.time())[1:]
        ended = read_cell(cell.run_dir)
        lines.append(
            f"{cell.name}  {ended['status'] if ended else state.replace('no run', 'not started')}  {done}".rstrip()
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if args.jobs < 1:
        raise ValueError(f"--jobs is {args.jobs}: it must be at least 1")
    if args.interval <= 0:
        raise ValueError(f"--interval is {args.interval}: it must be above 0 seconds")
    from ..analysis.sweep_folder import claim_folder
    from ..analysis.sweeps import load_sweep

    sweep = load_sweep(args.file, validator(), args.out)
    if args.list:
        claim_folder(sweep, write=False)
        print(listing(sweep))
        return 0
    if args.report:
        from ..analysis.sweep_report import report

        claim_folder(sweep, write=False)
        print(report(sweep))
        return 0
    repeat = f"bigbatch sweep {args.file}" + (f" --out {args.out}" if args.out else "")
    return run(sweep, args.jobs, args.interval, args.cluster, repeat)


def run(sweep: Sweep, jobs: int, interval: float, cluster: str | None, repeat: str) -> int:
    """Validates all cells, builds what they share, and runs or submits them; returns 1 if a cell has failed."""
    from ..analysis import sweep_runner
    from ..analysis.sweep_folder import claim_folder

    if cluster:
        sweep_runner.check_submitit()
    sweep_runner.check_cells(sweep)
    claim_folder(sweep)
    unigrams = sweep_runner.prepare_stores(sweep)
    if cluster:
        jobs_by_cell = sweep_runner.submit(sweep, unigrams, jobs, cluster)
        for name, number in jobs_by_cell.items():
            print(f"{name}: job {number}")
        print(
            f"{len(jobs_by_cell)} of {len(sweep.cells)} cells submitted; `{repeat} --report` says what they have found"
        )
        return 0
    table = Table(sweep)
    # A terminal that closes, as a scheduler's SIGTERM: the cells write their checkpoints before this process ends.
    signal.signal(signal.SIGHUP, lambda number, frame: sys.exit(128 + number))
    outcomes = sweep_runner.run_local(sweep, unigrams, jobs, table.finished, table.draw, interval)
    failed = [name for name, outcome in outcomes.items() if outcome["status"] == "failed"]
    print(f"{table.progress()}; `{repeat} --report` says what they have found")
    for name in failed:
        print(f"failed: {Path(sweep.root) / name}: {outcomes[name]['reason']}", file=sys.stderr)
    return 1 if failed else 0
