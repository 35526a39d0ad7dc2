"""`bigbatch demo`: the whole pipeline on a corpus it writes itself; nothing in it is a short cut.

Corpus -> mLSTM on two ranks -> held-out BPC beside gzip and an order-5 byte model -> probe, unit and baselines -> report.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Literal

from ..data.config import DataConfig
from ..fp16.config import LossScaleConfig
from ..models.config import MLSTMConfig
from ..training.config import BatchConfig, LogConfig, OptimConfig, ScheduleConfig, TrainConfig

DESCRIPTION = """Train, transfer and report on the embedded corpus of generated reviews, in a few minutes on two cores.

  bigbatch demo                      writes runs/demo with report.html
  bigbatch demo --seed 2 --run-dir runs/demo-2

Stopped in between, the same command goes on where it stopped."""

# The command may not be on the PATH: `make demo` installs it into a virtual environment.
NEXT_STEPS = """Next, on your own files (CSV, TSV, JSON lines, Parquet or text; plain, .gz or .zst):
  {bigbatch} train --data.paths reviews.jsonl --run-dir runs/mine --nproc 2
  {bigbatch} transfer --run-dir runs/mine --train train.csv --val val.csv --test test.csv
  {bigbatch} classify --run-dir runs/mine "The plot was thin, but I loved every minute of it." """


def next_steps() -> str:
    """Commands to try next, as they can be typed here."""
    script = Path(sys.argv[0])
    on_path = shutil.which("bigbatch") is not None or script.name != "bigbatch"
    return NEXT_STEPS.format(bigbatch="bigbatch" if on_path else os.path.relpath(script))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch demo", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", default="runs/demo", help="folder of the run (default: runs/demo)")
    parser.add_argument("--seed", type=int, default=1234, help="of initial weights and data order (default: 1234)")
    parser.add_argument("--nproc", type=int, default=2, help="processes that train (default: 2)")
    parser.add_argument(
        "--samples", type=int, default=0, help="length of the training in samples (default: the demo's)"
    )
    return parser


def demo_config(run_dir: str | Path, seed: int = 1234, nproc: int = 2, samples: int = 0) -> TrainConfig:
    """The demo's training; configs/mlstm/demo.yaml says the same for `bigbatch train`."""
    return TrainConfig(
        model=MLSTMConfig(hidden_size=128),
        data=DataConfig(paths=["demo"]),
        batch=BatchConfig(global_batch_size=64, seq_length=32),
        optim=OptimConfig(lr=1e-2),
        schedule=ScheduleConfig(epochs=4.0, samples=samples, warmup_samples=3200 if not samples else 0),
        log=LogConfig(eval_max_bytes=100_000),
        run_dir=str(run_dir),
        seed=seed,
        nproc=nproc,
    )


def precision_config(
    run_dir: str | Path, precision: Literal["fp32", "fp16"], store: str, seed: int = 1234
) -> TrainConfig:
    """A tiny run whose only difference is the precision: small enough for a CPU that computes fp16 slowly."""
    never = 10**9
    return TrainConfig(
        model=MLSTMConfig(hidden_size=32, embedding_size=16),
        data=DataConfig(paths=["demo"], store=store),
        batch=BatchConfig(global_batch_size=16, seq_length=32),
        optim=OptimConfig(lr=1e-2),
        schedule=ScheduleConfig(samples=3200),
        # a short growth interval, so that a run of 200 steps shows the scale grow, overflow and back off
        loss_scale=LossScaleConfig(growth_interval=15),
        log=LogConfig(interval_samples=32, eval_interval_samples=never, eval_max_bytes=20_000),
        run_dir=str(run_dir),
        precision=precision,
        seed=seed,
    )


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    started = time.time()
    from ..analysis.curves import plot_precision, plot_training
    from ..training.run import train

    run_dir = Path(args.run_dir)
    print(f"1/4  training a multiplicative LSTM on {args.nproc} processes (corpus: {run_dir}/data/demo)", flush=True)
    status = train(demo_config(run_dir, args.seed, args.nproc, args.samples))
    if status:
        return status
    print("2/4  the same small model in fp32 and in fp16 with dynamic loss scaling", flush=True)
    store = str((run_dir / "data" / "corpus").absolute())
    precisions: tuple[Literal["fp32", "fp16"], ...] = ("fp32", "fp16")
    for precision in precisions:
        status = train(precision_config(run_dir / f"precision-{precision}", precision, store, args.seed))
        if status:
            return status
    plot_precision({name: run_dir / f"precision-{name}" for name in precisions}, run_dir / "plots" / "precision.png")
    print("3/4  held-out bits per character, beside gzip -9 and an order-5 byte model", flush=True)
    from .evaluate import main as evaluate

    evaluate(["--run-dir", str(run_dir), "--baselines", "--device", "cpu"])
    from ..training.metrics import read_result

    result = read_result(run_dir)
    plot_training(
        run_dir, run_dir / "plots" / "training.png",
        {"gzip -9": result["bpc_gzip"], "order-5 byte model": result["bpc_5gram"]},
    )  # fmt: skip
    print("4/4  transfer to sentiment", flush=True)
    _transfer(run_dir, args.seed)
    print(f"\n{time.time() - started:.0f} s in all. Open {run_dir / 'report.html'}\n\n{next_steps()}")
    return 0


def _transfer(run_dir: Path, seed: int) -> None:
    """Probe, unit, baselines, pictures and the page."""
    from ..data.labelled import load_labelled
    from ..sentiment.report import choose_examples, write_report
    from ..sentiment.transfer import run_transfer
    from ..training.checkpoint import load_model
    from ..training.metrics import update_result

    folder = run_dir / "data" / "demo"
    parts = {name: load_labelled([str(folder / f"{name}.csv")]) for name in ("train", "val", "test")}
    loaded = load_model(run_dir)
    result = run_transfer(
        loaded, parts["train"], parts["val"], parts["test"], out_dir=run_dir, task="demo", seed=seed,
        cache_dir=run_dir / "cache",
    )  # fmt: skip
    keys = ("probe", "unit", "baseline_majority", "baseline_tfidf", "probe_minus_tfidf")
    update_result(run_dir, {key: result.summary[key] for key in keys})
    print(result.table())
    write_report(run_dir, choose_examples(loaded.model, result), "bigbatch demo")
