"""Several labels and numbers from files of every common form; what is neither is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.targets import load_multilabel, load_numbers, load_texts


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_one_column_for_each_label(tmp_path: Path) -> None:
    table = write(tmp_path / "d.csv", "text,joy,anger,fear\na,1,0,no\nb,TRUE,false,1.0\nc,0,0,0\n")
    data = load_multilabel(table, ["anger", "joy", "fear"])
    assert data.labels is not None and data.labels.dtype == np.int64
    assert data.labels.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert data.classes == ["anger", "joy", "fear"] and data.texts == ["a", "b", "c"] and data.rows == [2, 3, 4]
    lines = [{"text": t, "joy": bool(j), "anger": a} for t, j, a in (("a", 1, 0), ("b", 0, 1))]
    rows = write(tmp_path / "d.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert load_multilabel([rows], ("joy", "anger")).labels.tolist() == [[1, 0], [0, 1]]  # type: ignore[union-attr]
    one = load_multilabel(table, ["joy"]).labels
    assert one is not None and one.shape == (3, 1)


def test_parquet_with_several_label_columns(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "joy": [1, 0], "anger": [True, False], "x": [1, 2]}), path)
    assert load_multilabel(path, ["joy", "anger"]).labels.tolist() == [[1, 1], [0, 0]]  # type: ignore[union-attr]


def test_rows_that_lack_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "text,joy,anger\na,1,\nb,1,0\n")
    data = load_multilabel(path, ["joy", "anger"])
    assert data.texts == ["b"] and data.num_without_label == 1
    assert any("1 rows without a label left out" in message for message in data.messages)
    with pytest.raises(ValueError, match=r"d\.csv:2: no label: mend the row"):
        load_multilabel(path, ["joy", "anger"], on_bad_row="error")


def test_bad_labels_are_one_clear_line(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "text,joy,anger\na,1,0\nb,2,0\n")
    with pytest.raises(ValueError, match=r"d\.csv:3: label joy is '2'; it has to be 0 or 1"):
        load_multilabel(path, ["joy", "anger"])
    with pytest.raises(ValueError, match="the label columns are joy, joy; name each one once"):
        load_multilabel(path, ["joy", "joy"])
    with pytest.raises(ValueError, match="the label columns are none"):
        load_multilabel(path, [])
    with pytest.raises(ValueError, match="no column 'fear' for the label; columns: 'text', 'joy', 'anger'"):
        load_multilabel(path, ["joy", "fear"])
    empty = write(tmp_path / "e.csv", "text,joy,anger\na,,\n")
    with pytest.raises(ValueError, match="no labels: name their column"):
        load_multilabel(empty, ["joy", "anger"])
    unlabelled = load_multilabel(empty, ["joy", "anger"], allow_unlabelled=True)
    assert unlabelled.labels is None and unlabelled.texts == ["a"]


def test_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "text,stars\na,4.5\nb,-1e2\nc,\nd,3\n")
    data = load_numbers(path)
    assert data.labels is not None and data.labels.dtype == np.float64
    assert data.labels.tolist() == [4.5, -100.0, 3.0] and data.classes == [] and data.num_without_label == 1
    with pytest.raises(ValueError, match=r"d\.csv:2: the label 'many' is no number; regression needs numbers"):
        load_numbers(write(tmp_path / "d.csv", "text,stars\na,many\n"))
    with pytest.raises(ValueError, match=r"the label 'inf' is no number"):
        load_numbers(write(tmp_path / "d.csv", "text,stars\na,inf\n"))


def test_real_emotions(corpora: Path) -> None:
    rows = (corpora / "messy" / "semeval" / "val.csv").read_text(encoding="utf-8")
    names = rows.partition("\n")[0].strip().split(",")[3:]
    data = load_multilabel(corpora / "messy" / "semeval" / "val.csv", names, text_key="Tweet")
    assert data.labels is not None and data.labels.shape[1] == 11 and set(np.unique(data.labels)) == {0, 1}
    with pytest.raises(ValueError, match="no column 'anger' for the label"):
        load_multilabel(corpora / "messy" / "semeval" / "test.csv", names, text_key="Tweet", allow_unlabelled=True)


def test_texts_alone_take_no_column_for_a_label(tmp_path: Path) -> None:
    data = load_texts(write(tmp_path / "d.csv", "text,stars\na,3\nb,5\n,4\n"))
    assert (
        data.labels is None and data.texts == ["a", "b"] and data.rows == [2, 3] and data.report.rows_without_text == 1
    )
    assert data.messages == ["d.csv: text from column 'text' (guessed; --text-key to choose)"]
