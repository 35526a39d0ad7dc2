"""`bigbatch train`: one YAML plus overrides -> a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from ..models.config import LSTMConfig, MLSTMConfig
from ..training.config import TrainConfig

if TYPE_CHECKING:
    from jsonargparse import Namespace

MODELS = {"mlstm": MLSTMConfig, "lstm": LSTMConfig}

DESCRIPTION = """Train a byte language model and leave a run folder: config.yaml, metrics.jsonl, checkpoints, result.json.

  bigbatch train --config configs/mlstm/tiny.yaml --run-dir runs/tiny
  bigbatch train --data.paths reviews.jsonl.gz --run-dir runs/mine --model.hidden-size 512 --nproc 2
  bigbatch train --run-dir runs/mine          goes on where that run stopped

Stopped by Ctrl-C, SIGTERM or a crash, the same command goes on from the last checkpoint."""


def build_parser(kind: str = "mlstm") -> ArgumentParser:
    """The parser for one family of models: a union of families would silently pick one of them."""
    parser = ArgumentParser(
        prog="bigbatch train", description=DESCRIPTION, exit_on_error=False, default_env=False,
        formatter_class=_formatter(),
    )  # fmt: skip
    parser.add_argument("--config", action="config", help="YAML file; options given after it override it")
    parser.add_class_arguments(TrainConfig, skip={"model"})
    parser.add_class_arguments(MODELS[kind], "model")
    return parser


def _formatter() -> type:
    from argparse import RawDescriptionHelpFormatter

    from jsonargparse import DefaultHelpFormatter

    class Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the example lines of the description as they are."""

    return Formatter


def option_values(argv: list[str], name: str) -> list[str]:
    """Values given for one option, `--name value` or `--name=value`, in order."""
    values = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word == name]
    return values + [word.split("=", 1)[1] for word in argv if word.startswith(f"{name}=")]


def model_kind(argv: list[str]) -> str:
    """The family asked for by `--model.kind` or a configuration file.

    Raises:
        ValueError: if it is none of ours, or a configuration file cannot be read.
    """
    kind = "mlstm"
    for file in option_values(argv, "--config"):
        if not Path(file).is_file():
            raise FileNotFoundError(f"--config {file}: there is no such file; ready ones are in configs/")
        try:
            content = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"--config {file} is not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, dict):
            raise ValueError(f"--config {file} is not a YAML mapping of option names to values")
        kind = (content.get("model") or {}).get("kind", kind)
    kind = (option_values(argv, "--model.kind") or [kind])[-1]
    if kind not in MODELS:
        raise ValueError(f"--model.kind is {kind!r}: choose one of {', '.join(MODELS)}")
    return kind


def parse(argv: list[str]) -> TrainConfig:
    """Options to a validated configuration. Without `--config`, a run folder's own configuration is the base.

    Raises:
        ValueError: an unknown option or a value that cannot be.
    """
    argv = [
        word.replace("-", "_").replace("__", "--", 1) if word.startswith("--") and "=" not in word else word
        for word in argv
    ]
    run_dirs = option_values(argv, "--run_dir")
    if run_dirs and "--config" not in argv and (Path(run_dirs[-1]) / "config.yaml").is_file():
        argv = ["--config", str(Path(run_dirs[-1]) / "config.yaml"), *argv]
    parser = build_parser(model_kind(argv))
    try:
        namespace: Namespace = parser.parse_args(argv)
    except ArgumentError as error:
        raise ValueError(f"{' '.join(str(error).split())}; see `bigbatch train --help`") from None
    fields = vars(parser.instantiate(namespace))
    fields.pop("config", None)
    return TrainConfig(**fields)


def main(argv: list[str]) -> int:
    config = parse(argv)
    from ..training.distributed import run_worker
    from ..training.run import train

    return run_worker(lambda: train(config))
