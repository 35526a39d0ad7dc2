"""`bigbatch watch`: a live table of several runs, read from their folders; it never writes and needs no server."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DESCRIPTION = """Show how runs are going: a table that is drawn anew every few seconds until Ctrl-C.

  bigbatch watch runs/*
  bigbatch watch runs/a runs/b --once        one table, then stop

It reads metrics.jsonl and result.json only, so it works while a run goes on, on another machine that sees the folder, and
afterwards. A run is "running" while its folder is locked by a training process on this machine, or has been written to
within the last two log intervals."""

TAIL_BYTES = 1 << 16
# A run without a line in its log that is older, and that no process holds, has failed at its start.
START_SECONDS = 120.0
HEADER = ("run", "state", "done", "chars", "bpc", "val", "lr", "scale", "skipped", "char/s", "left", "age")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch watch", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", default=["runs/*"], metavar="RUN", help="run folders (default: runs/*)")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two tables (default: 5)")
    parser.add_argument("--once", action="store_true", help="one table, then stop")
    return parser


def tail_rows(path: Path) -> list[dict]:
    """The last rows of a metrics.jsonl, from its last 64 KiB; a row still being written is left out."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().split(b"\n")
    whole = lines[1:-1] if size > TAIL_BYTES else lines[:-1]
    return [json.loads(line) for line in whole if line.strip()]


def describe(run_dir: Path, now: float) -> tuple[str, ...]:
    """One line of the table, as strings in the order of `HEADER`."""
    rows = tail_rows(run_dir / "metrics.jsonl")
    train = [row for row in rows if "event" not in row]
    evals = [row for row in rows if row.get("event") == "eval"]
    result = _json(run_dir / "result.json").get("train")
    total = _total_samples(result, train)
    if not train:
        config = run_dir / "config.yaml"
        state = "no run"
        if config.is_file():
            young = now - config.stat().st_mtime < START_SECONDS
            state = "starting" if young or _locked(run_dir) else "not started"
        return (
            run_dir.name,
            state,
            *[""] * (len(HEADER) - 2),
        )
    last = train[-1]
    age = now - (run_dir / "metrics.jsonl").stat().st_mtime
    tokens = last["tokens"] - (train[-2]["tokens"] if len(train) > 1 else 0)
    interval = tokens / last["tokens_per_second"] if last["tokens_per_second"] else 0.0
    state = "finished" if result else "running" if _locked(run_dir) or age < 2 * interval else "stopped"
    left = ""
    if state == "running" and total and last["tokens_per_second"]:
        tokens_per_sample = last["tokens"] / last["samples"]
        left = duration((total - last["samples"]) * tokens_per_sample / last["tokens_per_second"])
    validated = number(evals[-1].get("bpc", math.nan), ".3f") if evals else ""
    return (
        run_dir.name, state, f"{100 * last['samples'] / total:.0f} %" if total else "?", count(last["tokens"]),
        number(last.get("bpc", math.nan), ".3f"), validated, number(last["lr"], ".2e"),
        number(last["loss_scale"], "g"), str(last["skipped_steps"]), count(last["tokens_per_second"]), left, duration(age),
    )  # fmt: skip


def _json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _total_samples(result: dict | None, train: Sequence[dict]) -> int:
    """Length of the run in samples, 0 if unknown."""
    if result:
        return int(result["samples"])
    return int(train[-1].get("total_samples", 0)) if train else 0


def _locked(run_dir: Path) -> bool:
    """Whether a process of this machine holds the run folder's lock. Asks the kernel: trying it could stop one that starts."""
    try:
        inode = (run_dir / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in locks)


def number(value: float | None, form: str) -> str:
    return "inf" if value is None else format(value, form)


def count(value: float) -> str:
    """12345678 -> 12.3M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as 42s, 12m or 3h05."""
    if seconds < 100:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 100 else f"{minutes // 60}h{minutes % 60:02d}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need: the name to the left, numbers to the right."""
    lines = [HEADER, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths)))
        for line in lines
    )  # fmt: skip


def run_folders(names: Sequence[str]) -> list[Path]:
    """The folders meant: patterns are expanded here too, for shells and lists that do not.

    Raises:
        ValueError: nothing matches.
    """
    import glob

    found = [Path(path) for name in names for path in (sorted(glob.glob(name)) or [name])]
    folders = [path for path in found if path.is_dir()]
    if not folders:
        raise ValueError(f"no run folder under {', '.join(names)}: `bigbatch train --run-dir runs/mine` makes one")
    return folders


def watch(names: Sequence[str], interval: float, once: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Prints the table once or until interrupted; on a terminal each table replaces the one before."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and not once else ""
    while True:
        rows = [describe(folder, time.time()) for folder in run_folders(names)]
        print(f"{clear}{table(rows)}", flush=True)
        if once:
            return
        sleep(interval)


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if args.interval <= 0:
        raise ValueError(f"--interval is {args.interval}: it must be above 0 seconds")
    try:
        watch(args.runs, args.interval, args.once)
    except KeyboardInterrupt:
        print()
    return 0
