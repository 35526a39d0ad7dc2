"""Files of labelled rows: every format holds the same rows, and a start that was stopped anywhere is gone on with."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from bigbatch.scripts import classify as classify_module
from bigbatch.scripts.cli import main
from bigbatch.sentiment import label_files
from bigbatch.sentiment.classify import Classifier
from bigbatch.sentiment.label_files import FORMATS, LabelFile, format_of

ROWS = 23


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty-three texts and three rows without one, read in chunks of four."""
    monkeypatch.setattr(classify_module, "CHUNK_ROWS", 4)
    lines = [{"text": f"The lamp number {n} is {('superb', 'dull')[n % 2]} é\n{'x' * n}"} for n in range(ROWS)]
    for at in (0, 9, 25):
        lines.insert(at, {"text": " "})
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows_of(path: Path) -> list[tuple[int, str, list[float], str]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
    elif path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
        found = parquet.read_table(path).to_pylist()
    else:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [{**row, **{f"probability_{k}": v for k, v in row["probabilities"].items()}} for row in found]
    keys = ("probability", "probability_negative", "probability_positive")
    return [(int(row["row"]), row["label"], [round(float(row[key]), 6) for key in keys], row["text"]) for row in found]


def classify(run_dir: Path, source: Path, output: Path, *more: str) -> int:
    return main(["classify", "--run-dir", str(run_dir), "--file", str(source), "--output", str(output), *more])


def test_formats_hold_the_same_rows(transferred: Path, source: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    found = {}
    for kind in FORMATS:
        output = tmp_path / f"out.{kind}"
        assert classify(transferred, source, output) == 0
        found[kind] = rows_of(output)
        rejects = [
            json.loads(line)["row"] for line in (tmp_path / f"out.{kind}.rejects.jsonl").read_text().splitlines()
        ]
        assert rejects == [1, 10, 26]
        assert not list(tmp_path.glob("*.partial*"))
    assert found["csv"] == found["jsonl"] == found["parquet"] and len(found["csv"]) == ROWS
    texts = [row[3] for row in found["csv"]]
    expected = Classifier.load(transferred).predict_proba(texts)
    np.testing.assert_allclose([row[2][1:] for row in found["csv"]], expected, atol=1e-6)
    assert [row[1] for row in found["csv"]] == [("negative", "positive")[k] for k in expected.argmax(1)]


class Stop(BaseException):
    """What a signal does to the command."""


@pytest.mark.parametrize("where", ["reading", "writing", "joining"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_stopped_start_is_gone_on_with(
    kind: str, where: str, transferred: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    whole, output = tmp_path / f"whole.{kind}", tmp_path / f"out.{kind}"
    assert classify(transferred, source, whole) == 0
    computed: list[int] = []
    label_chunk = classify_module.label_chunk

    def counting(*args: object) -> list:
        if where == "reading" and len(computed) == 3:
            raise Stop
        rows = label_chunk(*args)  # pyright: ignore[reportArgumentType]
        computed.append(len(rows))
        return rows

    write_json, states = label_files.write_json, []

    def stopping_write(*args: object) -> None:
        states.append(1)
        if where == "writing" and len(states) == 4:  # the rows are in the file, the state does not know of them
            raise Stop
        write_json(*args)  # pyright: ignore[reportArgumentType]

    def stopping_finish(self: LabelFile) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(classify_module, "label_chunk", counting)
        patch.setattr(label_files, "write_json", stopping_write)
        if where == "joining":
            patch.setattr(LabelFile, "finish", stopping_finish)
        with pytest.raises(Stop):
            classify(transferred, source, output)
    assert not output.exists() and list(tmp_path.glob(f"out.{kind}.partial*"))
    monkeypatch.setattr(classify_module, "label_chunk", counting)
    computed.clear()
    capsys.readouterr()
    left, where = {"reading": 11, "writing": 11, "joining": 0}[where], ""
    assert classify(transferred, source, output) == 0
    assert sum(computed) == left and f"going on after {ROWS - left} rows" in capsys.readouterr().err
    assert rows_of(output) == rows_of(whole)
    names = [tmp_path / f"{name}.{kind}.rejects.jsonl" for name in ("whole", "out")]
    assert names[0].read_text() == names[1].read_text()
    assert not list(tmp_path.glob("*.partial*"))


def test_another_input_or_model_starts_again(
    transferred: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        patch.setattr(LabelFile, "finish", lambda self: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            classify(transferred, source, output)
    source.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert classify(transferred, source, output) == 0
    assert [row[3] for row in rows_of(output)] == ["one", "two"]
    assert not (tmp_path / "out.csv.rejects.jsonl").exists()


def test_a_state_that_lies_is_not_believed(transferred: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    assert classify(transferred, source, output) == 0
    expected = output.read_text()
    for state in (
        "garbage",
        '{"rows": 8, "key": 3}',
        '{"rows": 8, "rejected": 0, "size": 99, "rejects_size": 0, "key": ""}',
    ):
        (tmp_path / "out.csv.partial.json").write_text(state)
        (tmp_path / "out.csv.partial").write_text("row,label\n1,odd\n")
        assert classify(transferred, source, output) == 0
        assert output.read_text() == expected


def test_what_the_input_stops_leaves_nothing(transferred: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_text('{"text": ""}\n{"text": "fine"}\n{"text": broken\n')
    assert classify(transferred, source, output) == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_file() and path.name.startswith("out")] == []
    assert (
        main(["classify", "--run-dir", str(transferred), "--file", str(source), "--rejects", str(tmp_path / "r.jsonl")])
        == 2
    )
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--file", "nothing.csv"], "--file nothing.csv: no such file"),
        (["word", "--output", "no/such/out.csv"], "there is no folder no/such; make it first"),
        (["word", "--format", "parquet"], "--format parquet needs --output"),
    ],
)
def test_bad_options_are_one_line(
    argv: list[str], message: str, transferred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["classify", "--run-dir", str(transferred), *argv]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_parquet_without_its_package_is_one_line(
    transferred: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert classify(transferred, source, tmp_path / "out.parquet") == 2
    assert "pip install 'bigbatch[parquet]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "ending, kind", [("csv", "csv"), ("jsonl", "jsonl"), ("json", "jsonl"), ("parquet", "parquet"), ("", "csv")]
)
def test_formats_by_name(ending: str, kind: str) -> None:
    assert format_of(Path(f"a.{ending}" if ending else "a"), None) == kind
    assert format_of(Path(f"a.{ending}"), "jsonl") == "jsonl" and format_of(None, None) == "csv"
