"""`bigbatch train`: one YAML plus overrides -> a run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from ..models.presets import preset as preset_sizes
from ..training.config import MODELS, TrainConfig

if TYPE_CHECKING:
    from jsonargparse import Namespace

DESCRIPTION = """Train a language model and leave a run folder: config.yaml, metrics.jsonl, checkpoints, result.json.

  bigbatch train --config configs/mlstm/tiny.yaml --run-dir runs/tiny
  bigbatch train --data.paths reviews.jsonl.gz --run-dir runs/mine --model.hidden-size 512 --nproc 2
  bigbatch train --run-dir runs/mine          goes on where that run stopped

  bigbatch train --config configs/gpt/tiny.yaml --run-dir runs/gpt-tiny

--model.kind: mlstm (if not given), lstm, the baseline, or gpt; each has its own options: bigbatch train --model.kind lstm --help.
--preset takes the sizes of a published GPT, which options change.
Stopped by Ctrl-C, SIGTERM or a crash, the same command goes on from the last checkpoint."""


def build_parser(kind: str = "mlstm", preset: str | None = None) -> ArgumentParser:
    """The parser for one family of models: a union of families would silently pick one of them.

    Args:
        kind: the family.
        preset: published sizes that are its defaults.
    """
    parser = ArgumentParser(
        prog="bigbatch train", description=DESCRIPTION, exit_on_error=False, default_env=False, allow_abbrev=False,
        formatter_class=parser_formatter(),
    )  # fmt: skip
    parser.add_argument("--config", action="config", help="YAML file; options given after it override it")
    parser.add_class_arguments(TrainConfig, skip={"model"})
    parser.add_class_arguments(MODELS[kind], "model")
    parser.add_argument(
        "--preset", metavar="NAME", help="published sizes that the model starts from, such as gpt2-124m"
    )
    if preset is not None:
        parser.set_defaults({f"model.{name}": value for name, value in asdict(preset_sizes(preset)).items()})
    return parser


def parser_formatter() -> type:
    """jsonargparse's help with the lines of the description as they are."""
    from argparse import RawDescriptionHelpFormatter

    from jsonargparse import DefaultHelpFormatter

    class Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the example lines of the description as they are."""

    return Formatter


def normalise(argv: list[str], lists: Sequence[str] = ("--data.paths",)) -> list[str]:
    """Underscores in option names, `--profile` as a flag, and all values of an option that takes several as one list.

    `--data.paths a.jsonl`, `--data.paths a.jsonl b.jsonl`, `--data.paths [a.jsonl, b.jsonl]` and repeated options all
    name files, while the parser takes a list as one YAML value.

    Args:
        argv: the options.
        lists: names of those that take several values.
    """
    words: list[str] = []
    values: dict[str, list[str]] = {}
    reading = ""
    for word, following in zip(argv, [*argv[1:], "--"]):
        if not word.startswith("--"):
            if reading:
                values[reading] += _list(reading, word)
            else:
                words.append(word)
            continue
        name, equals, value = word.partition("=")
        name = "--" + name[2:].replace("-", "_")
        reading = name if name in lists else ""
        if reading:
            if name not in values:
                values[name] = []
                words.append(name)
            values[name] += _list(name, value) if equals else []
        elif name == "--profile" and not equals and following.startswith("--"):
            words.append("--profile=true")
        else:
            words.append(name + equals + value)
    return [f"{word}={json.dumps(values[word])}" if word in values else word for word in words]


def _list(name: str, word: str) -> list[str]:
    if not (word.startswith("[") and word.endswith("]")) or Path(word).exists():
        return [word]
    try:
        return [str(path) for path in yaml.safe_load(word)]
    except yaml.YAMLError:
        raise ValueError(f"{name} {word} is not a list: write [a.jsonl, b.jsonl] or a.jsonl b.jsonl") from None


def option_values(argv: list[str], name: str) -> list[str]:
    """Values given for one option, in order."""
    found = [
        following if word == name else word.partition("=")[2]
        for word, following in zip(argv, [*argv[1:], None])
        if word == name or word.startswith(f"{name}=")
    ]
    return [value for value in found if value is not None]


def check_config_files(argv: list[str], config: type) -> list[dict[str, Any]]:
    """The files named by `--config`, read; what the parser would say in a confusing way is said here.

    Args:
        argv: the options, normalised.
        config: the dataclass that the files configure.

    Raises:
        ValueError, FileNotFoundError: a file that is not there, no YAML, or not a mapping of sections to values.
    """
    contents = []
    for file in option_values(argv, "--config"):
        if not Path(file).is_file():
            raise FileNotFoundError(f"--config {file}: there is no such file; ready ones are in configs/")
        try:
            content = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"--config {file} is not valid YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, dict):
            raise ValueError(f"--config {file} is not a YAML mapping of option names to values")
        try:
            json.dumps(content, default=str)  # the parser would follow a cycle for ever
        except ValueError:
            raise ValueError(
                f"--config {file}: a part of it contains itself (an alias inside its own anchor)"
            ) from None
        for section in (f.name for f in fields(config) if f.default_factory is not MISSING):
            if not isinstance(content.get(section, {}), dict):
                raise ValueError(
                    f"--config {file}: {section} is {content[section]!r}, not a mapping of names to values"
                )
        contents.append(content)
    return contents


def model_choice(argv: list[str]) -> tuple[str, str | None]:
    """The family asked for by `--model.kind` or a configuration file, and the published sizes, if any.

    Raises:
        ValueError: if either is none of ours or they disagree, or a configuration file cannot be read.
    """
    kind = preset = None
    for content in check_config_files(argv, TrainConfig):
        kind, preset = content.get("model", {}).get("kind", kind), content.get("preset", preset)
    kind = (option_values(argv, "--model.kind") or [kind])[-1]
    preset = (option_values(argv, "--preset") or [preset])[-1]
    return choose_model(kind, preset)


def choose_model(kind: Any, preset: Any) -> tuple[str, str | None]:
    """The family and the published sizes meant by what was given of either.

    Raises:
        ValueError: if either is none of ours or they disagree.
    """
    if preset is not None:
        family = preset_sizes(str(preset)).kind
        if kind not in (None, family):
            raise ValueError(f"--preset {preset} is a {family} and --model.kind is {kind!r}: leave one of them out")
        kind = family
    kind = "mlstm" if kind is None else kind
    if not isinstance(kind, str) or kind not in MODELS:
        raise ValueError(f"--model.kind is {kind!r}: choose one of {', '.join(MODELS)}")
    return kind, preset


def parse(argv: list[str]) -> TrainConfig:
    """Options to a validated configuration. Without `--config`, a run folder's own configuration is the base.

    Raises:
        ValueError: an unknown option or a value that cannot be.
    """
    argv = normalise(argv)
    run_dirs = [Path(name).expanduser() for name in option_values(argv, "--run_dir")]
    if run_dirs and not option_values(argv, "--config") and (run_dirs[-1] / "config.yaml").is_file():
        argv = ["--config", str(run_dirs[-1] / "config.yaml"), *argv]
    parser = build_parser(*model_choice(argv))
    try:
        namespace: Namespace = parser.parse_args(argv)
    except ArgumentError as error:
        raise ValueError(f"{' '.join(str(error).split())}; see `bigbatch train --help`") from None
    values = vars(parser.instantiate(namespace))
    for name in ("config", "preset"):
        values.pop(name, None)
    return TrainConfig(**values)


def main(argv: list[str]) -> int:
    config = parse(argv)
    from ..training.distributed import run_worker
    from ..training.run import train

    return run_worker(lambda: train(config))
