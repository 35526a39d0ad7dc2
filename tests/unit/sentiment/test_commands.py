"""`bigbatch transfer`, `classify` and `heatmap` as a user calls them, through the command table."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from bigbatch.scripts import classify as classify_module
from bigbatch.scripts.cli import main
from bigbatch.sentiment.classify import Classifier
from bigbatch.training.config import TrainConfig
from bigbatch.training.metrics import read_result, update_result


def call(*argv: str | Path) -> int:
    return main([str(word) for word in argv])


def transfer_options(run_dir: Path, files: dict[str, Path]) -> list[str | Path]:
    options: list[str | Path] = ["transfer", "--run-dir", run_dir]
    for name in ("train", "val", "test"):
        options += [f"--{name}", files[name]]
    return options


def test_transfer_prints_the_table_and_leaves_a_page(
    run_dir: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*transfer_options(run_dir, files), "--batch_size", "16", "--task", "shop") == 0
    out = capsys.readouterr().out
    for expected in (
        "label from column 'label'",
        "probe (",
        "unit ",
        "TF-IDF",
        "majority class",
        "95 % interval",
        "report.html",
    ):
        assert expected in out
    assert (run_dir / "report.html").is_file() and (run_dir / "cache").is_dir()
    (result,) = (run_dir / "results").glob("shop-*.json")
    assert str(result) in out


def test_transfer_without_val_says_what_it_takes(
    run_dir: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["transfer", "--run-dir", run_dir, "--train", files["train"], "--test", files["test"], "--no-cache"]
    assert call(*options, "--val-fraction", "0.25") == 0
    assert "no --val: 30 of the training texts are set aside for it (seed 42)" in capsys.readouterr().out
    assert not (run_dir / "cache").exists()


def test_transfer_to_unlabelled_text(
    run_dir: Path, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files["test"] = tmp_path / "new.txt"
    files["test"].write_text("The lamp is superb\nThe film is dull\nThe cable\n")
    assert call(*transfer_options(run_dir, files), "--label-key", "label", "--text-key", "sentence") == 0
    assert "3 test texts without labels" in capsys.readouterr().out
    files["test"] = tmp_path / "new.csv"
    files["test"].write_text("sentence\nThe lamp is superb\nThe film is dull\n")
    assert call(*transfer_options(run_dir, files), "--label-key", "label") == 0
    out = capsys.readouterr().out
    assert "no column 'label' in the test data: taken as unlabelled" in out and "2 test texts without labels" in out
    files["test"].write_text("body\nThe lamp is superb\n")
    assert call(*transfer_options(run_dir, files), "--text-key", "sentence") == 2
    assert "no column 'sentence' for the text; columns: 'body'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": "label,sentence\n1,good\n1,nice\n"}, "labels of one class only (positive)"),
        ({"val": "label,sentence\n1,good\n"}, "one class"),
        ({"train": ""}, "the file is empty"),
        (
            {"test": "number,body\n1,good\n"},
            "which column is the text? Say so with --text-key (in train --data.text-key); columns: 'number', 'body'",
        ),
        ({"train": "label,sentence\n1,\n0, \n"}, "no row has text"),
    ],
)
def test_transfer_bad_files_are_one_line(
    change: dict[str, str], message: str, run_dir: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in change.items():
        files[name].write_text(content)
    assert call(*transfer_options(run_dir, files)) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert [path.name for path in run_dir.iterdir()] == ["checkpoints"]


def test_transfer_without_model_or_file(
    tmp_path: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*transfer_options(tmp_path / "nowhere", files)) == 2
    assert "bigbatch train" in capsys.readouterr().err
    files["val"] = tmp_path / "missing.csv"
    assert call(*transfer_options(tmp_path / "nowhere", files)) == 2
    assert "missing.csv" in capsys.readouterr().err


def test_classify_texts_keep_their_order(transferred: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["The lamp is dreadful", " ", 'The "film", really,\nis superb', "NA"]
    assert call("classify", *texts, "--run-dir", transferred) == 0
    captured = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert [(row["row"], row["text"]) for row in rows] == [("1", texts[0]), ("3", texts[2]), ("4", texts[3])]
    expected = Classifier.load(transferred).predict_proba([texts[0], texts[2], texts[3]])
    for row, probabilities in zip(rows, expected):
        assert row["label"] == ("negative", "positive")[probabilities.argmax()]
        assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-6)
        assert float(row["probability_positive"]) == pytest.approx(probabilities[1], abs=1e-6)
    assert "row 2 rejected: no text" in captured.err and "3 rows classified, 1 rejected" in captured.err


@pytest.mark.parametrize("chunk", [1, 3, 4096])
def test_classify_a_file_in_chunks(
    chunk: int, transferred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(classify_module, "CHUNK_ROWS", chunk)
    source = tmp_path / "in.jsonl.gz"
    rows = [{"text": f"The lamp number {i} is superb" * (1 + i % 3)} for i in range(10)] + [
        {"text": None},
        {"text": "é \ud83d"},
    ]
    with gzip.open(source, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    output = tmp_path / "out.jsonl"
    assert call("classify", "--file", source, "--run-dir", transferred, "--output", output) == 0
    written = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["row"] for row in written] == [*range(1, 11), 12]
    assert [row["text"] for row in written] == [row["text"] for row in rows if row["text"]]
    expected = Classifier.load(transferred).predict_proba([row["text"] for row in written])
    for row, probabilities in zip(written, expected):
        assert row["probabilities"]["positive"] == pytest.approx(probabilities[1], abs=1e-6)
    rejects = tmp_path / "out.jsonl.rejects.jsonl"
    assert [json.loads(line) for line in rejects.read_text().splitlines()] == [
        {"row": 11, "reason": "no text", "record": {"text": None}}
    ]
    assert "11 rows classified, 1 rejected" in capsys.readouterr().err


def test_classify_leaves_nothing_half_written(
    transferred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_text('{"text": "fine"}\n{"text": broken\n')
    assert call("classify", "--file", source, "--run-dir", transferred, "--output", output) == 2
    assert "in.jsonl:2: broken JSON" in capsys.readouterr().err
    assert not list(tmp_path.glob("out.csv*"))
    assert call("classify", "--file", source, "--run-dir", transferred, "--output", source) == 2
    assert "is the input file" in capsys.readouterr().err


def test_classify_rejects_of_an_earlier_run_do_not_stay(transferred: Path, tmp_path: Path) -> None:
    source, output, rejects = (tmp_path / name for name in ("in.csv", "out.csv", "bad.jsonl"))
    options = ["classify", "--file", source, "--run-dir", transferred, "--output", output, "--rejects", rejects]
    source.write_text("sentence,n\nfine,1\n,2\n")
    assert call(*options) == 0 and len(rejects.read_text().splitlines()) == 1
    source.write_text("sentence,n\nfine,1\nNA,2\n")
    assert call(*options) == 0 and not rejects.exists()
    assert len(output.read_text().splitlines()) == 3


def test_classify_standard_input_keeps_bytes_that_are_no_text(transferred: Path) -> None:
    command = [sys.executable, "-m", "bigbatch.scripts.cli", "classify", "--run-dir", str(transferred)]
    done = subprocess.run(command, input=b"caf\xe9 superb\n\nna\xc3\xafve\r\n", capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [line.rsplit(b",", 1)[1] for line in done.stdout.splitlines()[1:]] == [b"caf\xe9 superb", b"na\xc3\xafve"]
    assert b"row 2 rejected" in done.stderr


def test_classify_finds_the_newest_run(
    transferred: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(transferred.parent.parent)
    assert call("classify", "superb") == 0
    assert f"using {Path('runs/mine')}, task shop" in capsys.readouterr().err
    monkeypatch.chdir(transferred)
    assert call("classify", "superb") == 2
    assert "bigbatch demo" in capsys.readouterr().err


def test_heatmap_as_page_and_picture(transferred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "made" / "m.html", tmp_path / "made" / "m.png"
    assert call("heatmap", "<b>bold</b> & superb", "dull", "--run-dir", transferred, "--output", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "&lt;" in text and "<b>" not in text and "best single unit" in text and "negative (" in text
    assert text.count('class="bb-text"') == 2
    assert call("heatmap", "superb", "--run-dir", transferred, "--unit", "5", "--output", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert call("heatmap", "superb", "--run-dir", transferred, "--unit", "24", "--output", page) == 2
    assert "unit 24 does not exist: the model has units 0 to 23" in capsys.readouterr().err
    assert call("heatmap", "superb", "--run-dir", transferred, "--output", "m.pdf") == 2
    assert "must end in .html or .png" in capsys.readouterr().err
    assert (
        call("heatmap", "superb", "dull", "--run-dir", transferred, "--unit", "5,7", "--unit", "5", "--output", page)
        == 0
    )
    text = page.read_text(encoding="utf-8")
    assert text.count('class="bar"') == 2 and text.count('class="bb-text"') == 4 and "Units of mine" in text
    assert call("heatmap", "superb", "--run-dir", transferred, "--unit", "5,x", "--output", page) == 2
    assert "--unit 5,x: 'x' is no unit; units are numbers such as 3 or 3,17" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["transfer", "classify", "heatmap", "generate", "units"])
def test_help_shows_an_example_and_needs_no_torch(command: str) -> None:
    code = (
        "import sys\nfrom bigbatch.scripts.cli import main\n"
        f"try:\n    main(['{command}', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'matplotlib', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert f"  bigbatch {command} " in done.stdout


def test_classify_never_deletes_its_input(
    transferred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    source = folder / "out.csv.rejects.jsonl"
    source.write_text('{"text": "good"}\n')
    options = ["classify", "--file", source, "--run-dir", transferred]
    for more in (["--output", folder / "out.csv"], ["--rejects", source], ["--output", source]):
        assert call(*options, *more) == 2
        assert "is the input file; choose another name" in capsys.readouterr().err
        assert source.read_text() == '{"text": "good"}\n' and list(folder.iterdir()) == [source]
    same = tmp_path / "same.jsonl"
    assert call(*options, "--output", same, "--rejects", same) == 2
    assert "--output and --rejects are both" in capsys.readouterr().err


def test_classify_writes_half_an_emoji_and_broken_bytes_to_csv(
    transferred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_bytes(b'{"text": "good \\ud83d film"}\n{"text": "caf\xe9"}\n')
    assert call("classify", "--file", source, "--run-dir", transferred, "--output", output) == 0
    assert "good \ufffd film".encode() in output.read_bytes() and b"caf\xe9" in output.read_bytes()
    assert "1 bytes that are not UTF-8 kept as they are" in capsys.readouterr().err


def test_predictions_name_the_line_of_the_test_file(run_dir: Path, files: dict[str, Path], tmp_path: Path) -> None:
    lines = files["test"].read_text().splitlines(keepends=True)
    with_gap = tmp_path / "gap.csv"
    header = lines[0].strip().split(",")
    empty = ",".join("" if name in ("text", "sentence") else "1" for name in header) + "\n"
    with_gap.write_text("".join([lines[0], empty, *lines[1:]]))
    options = ["transfer", "--run-dir", run_dir, "--train", files["train"], "--val", files["val"], "--test", with_gap]
    assert call(*options, "--task", "gap") == 0
    (path,) = (run_dir / "results").glob("gap-*.predictions.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["index"] for row in rows[:2]] == ["0", "1"] and [row["row"] for row in rows[:2]] == ["3", "4"]


def test_rows_without_text_are_counted_in_every_part(
    run_dir: Path, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = files["val"].read_text().splitlines(keepends=True)
    val = tmp_path / "val.csv"
    header = lines[0].strip().split(",")
    val.write_text(
        "".join([lines[0], ",".join("" if n in ("text", "sentence") else "1" for n in header) + "\n", *lines[1:]])
    )
    options = ["transfer", "--run-dir", run_dir, "--train", files["train"], "--val", val, "--test", files["test"]]
    assert call(*options) == 0
    assert f"1 rows without text skipped in {val}" in capsys.readouterr().out


EVALUATED = ("bpc", "bpc_bytes", "bpc_lanes", "bpc_of", "bpc_trained_bytes")


def test_evaluating_other_files_leaves_the_runs_own_score_alone(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "other.txt"
    text.write_text("a good film\na bad film\n" * 20)
    update_result(run_dir, {"bpc": 1.0, "bpc_of": "another text", "bpc_gzip": 2.0, "bpc_5gram": 1.5})
    assert call("evaluate", "--run-dir", run_dir, "--data", text, "--lanes", "4") == 0
    whole = read_result(run_dir)
    assert [whole[key] for key in ("bpc", "bpc_of", "bpc_gzip", "bpc_5gram")] == [1.0, "another text", 2.0, 1.5]
    result = whole["other_text"][str(text)]
    # Each of the 40 documents is framed by three bytes.
    assert result["bpc_bytes"] == 20 * (11 + 10 + 6) and result["bpc_lanes"] == 4 and result["bpc"] > 0
    assert "bpc_gzip" not in result and "bpc_5gram" not in result and set(EVALUATED) <= set(result)
    assert "540 bytes of" in capsys.readouterr().out
    assert call("evaluate", "--run-dir", run_dir, "--lanes", "0") == 2
    assert "--lanes is 0: it must be at least 1" in capsys.readouterr().err


def test_a_run_folder_that_has_moved_is_evaluated_on_its_own_data(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run_dir, moved)
    shutil.rmtree(moved / "data", ignore_errors=True)
    before = TrainConfig(run_dir=str(tmp_path / "before")).to_dict()
    (moved / "config.yaml").write_text(yaml.safe_dump(before))
    code = call("evaluate", "--run-dir", moved)
    assert code == 2 and f"{moved}/data/corpus does not exist" in capsys.readouterr().err
