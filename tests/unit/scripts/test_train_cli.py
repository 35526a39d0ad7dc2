"""`bigbatch train`: from words on the command line to a configuration, and one line for each that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml
from bigbatch.models.config import LSTMConfig, MLSTMConfig
from bigbatch.models.presets import preset
from bigbatch.scripts.cli import main, with_dashes
from bigbatch.scripts.train import parse
from bigbatch.training.config import TrainConfig, changed_keys


def config_of(*argv: str) -> TrainConfig:
    return parse(with_dashes(list(argv)))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a configuration file and returns its path."""

    def make(content: str, name: str = "config.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        return str(path)

    return make


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `bigbatch train` expecting status 2 and exactly one line, which is returned."""

    def run(*argv: str) -> str:
        assert main(["train", *argv]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("bigbatch train: ")
        return captured.err

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps({"text": f"review number {i} of a thing {i * i}"}) + "\n" for i in range(400)))
    return str(path)


def test_defaults_are_those_of_the_dataclass() -> None:
    assert config_of() == TrainConfig()


def test_options_override_the_file_and_the_file_the_defaults(write: Callable[..., str]) -> None:
    file = write("optim: {lr: 0.5, beta1: 0.8}\nmodel: {hidden_size: 48}\nseed: 9\n")
    config = config_of("--config", file, "--optim.lr", "1e-3", "--precision", "fp16", "--nproc", "2", "--device", "cpu")
    assert (config.optim.lr, config.optim.beta1, config.optim.beta2) == (1e-3, 0.8, 0.999)
    assert (config.model.hidden_size, config.seed, config.precision, config.nproc) == (48, 9, "fp16", 2)


@pytest.mark.parametrize(
    "argv",
    [
        ["--run-dir", "a-b", "--log.keep-checkpoints", "7"],
        ["--run_dir", "a-b", "--log.keep_checkpoints", "7"],
        ["--run-dir=a-b", "--log.keep-checkpoints=7"],
        ["--run_dir=a-b", "--log.keep_checkpoints=7"],
    ],
)
def test_dashes_underscores_and_equals_signs_mean_the_same(argv: list[str]) -> None:
    config = config_of(*argv)
    assert (config.run_dir, config.log.keep_checkpoints) == ("a-b", 7)


@pytest.mark.parametrize(
    "argv, paths",
    [
        (["--data.paths", "a.jsonl"], ["a.jsonl"]),
        (["--data.paths=a.jsonl"], ["a.jsonl"]),
        (["--data.paths", "a.jsonl", "b-c.csv"], ["a.jsonl", "b-c.csv"]),
        (["--data.paths", "a.jsonl", "--data.paths", "b.csv"], ["a.jsonl", "b.csv"]),
        (["--data.paths", "[a.jsonl, b.csv]"], ["a.jsonl", "b.csv"]),
        (['--data.paths=["a.jsonl","b.csv"]'], ["a.jsonl", "b.csv"]),
        (["--data.paths", "[ab]*.jsonl", "x y.txt"], ["[ab]*.jsonl", "x y.txt"]),
        (["--data.paths", "2024", "null"], ["2024", "null"]),
        (["--data.paths", "demo"], ["demo"]),
    ],
)
def test_data_paths_take_files_with_and_without_brackets(argv: list[str], paths: list[str]) -> None:
    for around in (argv, ["--seed", "3", *argv], [*argv, "--seed", "3"]):
        config = config_of(*around)
        assert config.data.paths == paths
    assert config.seed == 3


def test_data_paths_in_a_file_give_way_to_those_of_the_command_line(write: Callable[..., str]) -> None:
    file = write("data: {paths: [x.csv, y.csv], seed: 4}\n")
    assert config_of("--config", file).data.paths == ["x.csv", "y.csv"]
    config = config_of("--config", file, "--data.paths", "a.jsonl")
    assert config.data.paths == ["a.jsonl"] and config.data.seed == 4


@pytest.mark.parametrize(
    "argv, on", [(["--profile"], True), (["--profile", "false"], False), (["--profile=true"], True)]
)
def test_profile_is_a_flag(argv: list[str], on: bool) -> None:
    assert config_of(*argv).profile is on
    assert config_of(*argv, "--seed", "3").profile is on and config_of("--seed", "3", *argv).seed == 3


def test_the_kind_decides_the_family(write: Callable[..., str]) -> None:
    assert isinstance(config_of().model, MLSTMConfig)
    assert isinstance(config_of("--model.kind", "lstm").model, LSTMConfig)
    assert isinstance(config_of("--model.kind=lstm").model, LSTMConfig)
    file = write("model: {kind: lstm, hidden_size: 7}\n")
    assert config_of("--config", file).model == LSTMConfig(hidden_size=7)
    with pytest.raises(ValueError, match=r"model.kind.*lstm"):  # not silently the other family
        config_of("--config", file, "--model.kind", "mlstm")


def test_a_run_folder_is_the_base_where_no_file_is_named(write: Callable[..., str], tmp_path: Path) -> None:
    write("optim: {lr: 0.25}\nseed: 5\n", "run/config.yaml")
    run = str(tmp_path / "run")
    assert config_of("--run-dir", run).optim.lr == 0.25
    assert config_of(f"--run_dir={run}", "--seed", "6").seed == 6
    other = write("optim: {lr: 0.75}\n")
    assert config_of("--config", other, "--run-dir", run).optim.lr == 0.75
    assert config_of(f"--config={other}", "--run-dir", run).seed == TrainConfig().seed


@pytest.mark.parametrize("option", ["--print_config", "--print-config"])
def test_print_config_prints_what_can_be_read_back(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "--optim.lr", "0.125", "--data.paths", "a.csv", option])
    assert caught.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["optim"]["lr"] == 0.125 and printed["data"]["paths"] == ["a.csv"]
    assert printed["model"]["kind"] == "mlstm" and printed["run_dir"] == TrainConfig().run_dir
    assert not changed_keys(printed, config_of("--optim.lr", "0.125", "--data.paths", "a.csv").to_dict())


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    for part in fields(TrainConfig):
        assert f"--{part.name}" in out
    assert "global gradient norm above which gradients are scaled down" in out and "bigbatch train --config" in out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--optim.lrr", "1"], "unrecognized arguments: --optim.lrr"),
        (["--optim.l", "1"], "unrecognized arguments: --optim.l "),  # no abbreviations: a new option would break them
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["stray"], "stray"),
        (["--optim.lr"], "argument --optim.lr: expected one argument"),
        (["--optim.lr", "fast"], "optim.lr"),
        (["--optim.lr", "-1"], "--optim.lr is -1.0: it must be above 0"),
        (["--optim.lr", "nan"], "optim.lr"),
        (["--batch.global_batch_size", "0"], "--batch.global_batch_size is 0: it must be above 0"),
        (["--batch.global_batch_size", "2.5"], "batch.global_batch_size"),
        (["--model.hidden-size", "0"], "model.hidden_size is 0: it must be a whole number of at least 1"),
        (["--model.kind", "gru"], "--model.kind is 'gru': choose one of mlstm, lstm"),
        (["--precision", "fp8"], "precision"),
        (["--schedule.decay", "sine"], "schedule.decay"),
        (["--schedule.min_lr_ratio", "2"], "--schedule.min_lr_ratio is 2.0: it must be in [0, 1]"),
        (["--seed", "-1"], "--seed is -1: it must be in [0, "),
        (["--seed", str(2**31)], "--seed is 2147483648"),
        (["--nproc", "0"], "--nproc is 0: it must be above 0"),
        (["--data.paths"], "data.paths is empty: name at least one file"),
        (["--data.paths", "[a, b"], "[a, b: no file matches"),
        (["--data.paths", "[a: b: c]"], "is not a list: write [a.jsonl, b.jsonl]"),
        (["--optim", "7"], "optim"),
        (["--config"], "argument --config: expected one argument"),
        (
            ["--config", "/nowhere/at-all.yaml"],
            "--config /nowhere/at-all.yaml: there is no such file; ready ones are in",
        ),
        (["--device", "tpu"], "--device 'tpu' is not a device to compute on: use auto, cpu, cuda or cuda:N"),
        (["--device", "meta"], "--device 'meta' is not a device to compute on"),
        (["--model.hidden-size", "99999999"], "parameters: with gradients and optimizer state that is"),
        (["--parallel.timeout-seconds", "1e30"], "--parallel.timeout_seconds is 1e+30: it must be at most 2,592,000 s"),
        (["--parallel.bucket-mb", "1e30"], "--parallel.bucket_mb is 1e+30: it must be at most 1,000,000 MiB"),
        (["--schedule.samples", "8", "--schedule.epochs", "-1"], "--schedule.epochs is -1.0: it must be above 0"),
    ],
)
def test_what_cannot_be_is_one_line(
    argv: list[str], message: str, error: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error(*argv)
    assert not list(tmp_path.rglob("*"))  # nothing half-written


@pytest.mark.parametrize(
    "content, message",
    [
        ("model: {hidden_size: [\n", "is not valid YAML"),
        ("just words", "is not a YAML mapping of option names to values"),
        ("- a\n- b\n", "is not a YAML mapping"),
        ("optim: {learning_rate: 1}\n", "learning_rate"),
        ("optimizer: {lr: 1}\n", "optimizer"),
        ("model: 3\n", "model is 3, not a mapping"),
        ("model: {kind: gru}\n", "--model.kind is 'gru': choose one of mlstm, lstm"),
        ("data: {paths: a.csv}\n", "data.paths"),
        ("optim: {lr: -1}\n", "--optim.lr is -1"),
        ("optim: 7\n", "optim is 7, not a mapping"),
        ("optim:\n", "optim is None, not a mapping"),
        ("model: [1]\n", "model is [1], not a mapping"),
        ("config: other.yaml\n", "config"),
        ("model: {kind: [a]}\n", "--model.kind is ['a']: choose one of mlstm, lstm"),
        ("model: &m\n  kind: mlstm\n  x: *m\n", "a part of it contains itself"),
    ],
)
def test_a_broken_configuration_file_is_one_line(
    content: str, message: str, write: Callable[..., str], error: Callable[..., str], tmp_path: Path
) -> None:
    file = write(content)
    assert message in error("--config", file, "--run-dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_binary_configuration_file_is_one_line(tmp_path: Path, error: Callable[..., str]) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\x80\x81\xff")
    assert "is not valid YAML" in error("--config", str(tmp_path / "config.yaml"))


SMALL = ["--model.hidden_size", "8", "--batch.global_batch_size", "4", "--batch.seq_length", "8", "--device", "cpu",
         "--schedule.samples", "8", "--data.min_heldout_bytes", "500", "--log.progress", "false"]  # fmt: skip


def test_a_changed_configuration_lists_its_keys(corpus: str, tmp_path: Path, error: Callable[..., str]) -> None:
    run = str(tmp_path / "run")
    argv = ["--data.paths", corpus, "--run-dir", run, *SMALL]
    assert main(["train", *argv]) == 0
    message = error("--run-dir", run, "--optim.lr", "0.5", "--model.hidden-size", "9")
    assert "holds a run of another configuration" in message
    assert "optim.lr: 0.0005 -> 0.5" in message and "model.hidden_size: 8 -> 9" in message
    assert "seed" not in message and "choose another --run-dir" in message
    # What decides how, not what, is computed may change.
    assert main(["train", "--run-dir", run, "--batch.micro_batch_size", "2", "--log.interval_samples", "4"]) == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (["--batch.seq_length", "5000"], "less than one window of 5000 bytes for each of 4 lanes"),
        (["--data.min_heldout_bytes", "9000"], "are too few to hold out"),
        (["--schedule.warmup_samples", "8"], "--schedule.warmup_samples is 8, but the run has 8 samples"),
        (["--data.text_key", "body"], "body"),
    ],
)
def test_a_corpus_that_does_not_fit_is_one_line(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["train", "--data.paths", corpus, "--run-dir", str(tmp_path / "run"), *SMALL, *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("bigbatch train: ")]) == 1 and message in lines[-1]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    "name, content",
    [
        ("empty.jsonl", ""),
        ("blank.txt", "\n\n"),
        ("a.jsonl", '{"text": "\\n"}\n'),
        ("a.xyz", "words"),
        ("b.csv", "x,y\n"),
    ],
)
def test_a_file_without_text_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert main(["train", "--data.paths", str(tmp_path / name), "--run-dir", str(tmp_path / "run"), *SMALL]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("bigbatch train: ") and str(tmp_path) in lines[-1]
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("*.idx"))


def test_a_file_without_labels_trains(tmp_path: Path, corpus: str) -> None:
    text = "".join(json.loads(line)["text"] + "\n" for line in Path(corpus).read_text().splitlines())
    (tmp_path / "plain.txt").write_text(text)
    assert main(["train", "--data.paths", str(tmp_path / "plain.txt"), "--run-dir", str(tmp_path / "run"), *SMALL]) == 0


def test_a_damaged_run_folder_is_one_line(write: Callable[..., str], error: Callable[..., str], tmp_path: Path) -> None:
    write("a: [\n", "run/config.yaml")
    assert "is not valid YAML" in error("--run-dir", str(tmp_path / "run"))
    write("seed: 3\n", "run/config.yaml")
    assert "is not the configuration of a run" in error("--run-dir", str(tmp_path / "run"))


def test_a_run_dir_that_is_a_file_is_one_line(corpus: str, error: Callable[..., str]) -> None:
    assert "is not a folder" in error("--run-dir", corpus)


def test_a_run_folder_under_home_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "config.yaml").write_text("model: {kind: mlstm, hidden_size: 24}\n")
    config = parse(["--run_dir=~/runs"])
    assert config.model.hidden_size == 24 and config.run_dir == str(tmp_path / "runs")


def test_a_published_size_is_a_base_that_options_change(tmp_path: Path) -> None:
    config = parse(["--preset", "gpt2-355m", "--model.vocab-size", "256"])
    assert config.model == replace(preset("gpt2-355m"), vocab_size=256)
    file = tmp_path / "gpt.yaml"
    file.write_text("preset: gpt2-355m\nmodel: {num_layers: 3}\n")
    assert parse(["--config", str(file)]).model == replace(preset("gpt2-355m"), num_layers=3)
    with pytest.raises(ValueError, match=r"--preset gpt2-124m is a gpt and --model.kind is 'lstm'"):
        parse(["--preset", "gpt2-124m", "--model.kind", "lstm"])
    with pytest.raises(ValueError, match="no model is called 'gpt3'"):
        parse(["--preset", "gpt3"])
