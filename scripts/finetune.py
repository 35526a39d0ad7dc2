"""`bigbatch finetune`: a trained language model and labelled texts -> a classifier in a run folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentError, ArgumentParser

from ..training.finetune_config import FinetuneConfig
from .train import check_config_files, normalise, option_values, parser_formatter

if TYPE_CHECKING:
    from jsonargparse import Namespace

LISTS = ("--task.train", "--task.val", "--task.test", "--task.label_keys")

DESCRIPTION = """Fine-tune a trained language model with a head on top, and score it on test data.

  bigbatch finetune --encoder runs/mine --task.train train.csv --task.val val.csv --task.test test.csv --run-dir runs/mine-sst
  bigbatch finetune --config configs/finetune/recipe-1812.yaml --encoder runs/mine --task.train emotions.csv
  bigbatch classify --run-dir runs/mine-sst "what a film"

A part of --task.train is cut off where --task.val is not given. Stopped by Ctrl-C, SIGTERM or a crash, the same command
goes on from the last checkpoint. Written into the run folder: config.yaml, metrics.jsonl, checkpoints, results/finetune.json and
finetune.predictions.csv."""


def build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="bigbatch finetune", description=DESCRIPTION, exit_on_error=False, default_env=False, allow_abbrev=False,
        formatter_class=parser_formatter(),
    )  # fmt: skip
    parser.add_argument("--config", action="config", help="YAML file; options given after it override it")
    parser.add_class_arguments(FinetuneConfig)
    return parser


def parse(argv: list[str]) -> FinetuneConfig:
    """Options to a validated configuration. Without `--config`, a run folder's own configuration is the base.

    Raises:
        ValueError: an unknown option or a value that cannot be.
    """
    argv = normalise(argv, LISTS)
    run_dirs = [Path(name).expanduser() for name in option_values(argv, "--run_dir")]
    if run_dirs and not option_values(argv, "--config") and (run_dirs[-1] / "config.yaml").is_file():
        argv = ["--config", str(run_dirs[-1] / "config.yaml"), *argv]
    check_config_files(argv, FinetuneConfig)
    parser = build_parser()
    try:
        namespace: Namespace = parser.parse_args(argv)
        values = vars(parser.instantiate(namespace))
    except ArgumentError as error:
        raise ValueError(f"{' '.join(str(error).split())}; see `bigbatch finetune --help`") from None
    values.pop("config", None)
    return FinetuneConfig(**values)


def main(argv: list[str]) -> int:
    config = parse(argv)
    from ..training.distributed import run_worker
    from ..training.run import train

    status = run_worker(lambda: train(config))
    if status == 0 and config.task.test and "RANK" not in os.environ:
        from ..sentiment.finetuned import score_run

        print(score_run(Path(config.run_dir), progress=config.log.progress))
    return status
