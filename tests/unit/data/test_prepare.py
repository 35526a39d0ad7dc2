"""From files to a store: counts, metadata, reuse, the command, and memory that does not grow with the input."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from bigbatch.data import files, token_store
from bigbatch.data.cleaning import clean_review
from bigbatch.data.config import DataConfig
from bigbatch.data.files import SourceReport
from bigbatch.data.prepare import open_or_prepare, prepare_store
from bigbatch.data.sources import iter_rows
from bigbatch.data.token_store import store_exists
from bigbatch.scripts import prepare as command

ROWS = ['{"text": "Good &amp; cheap\\n"}', '{"text": null}', '{"text": "&nbsp;"}', '{"text": "NA", "overall": 5}']


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "d.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(ROWS))
    return path


def test_rows_become_cleaned_documents(source: Path, tmp_path: Path) -> None:
    report = SourceReport()
    store = prepare_store(DataConfig(paths=[str(source)]), tmp_path / "new" / "s", progress=True, report=report)
    assert [store.document(i).tobytes() for i in range(len(store))] == [b"\n Good & cheap ", b"\n NA "]
    assert (report.rows, report.rows_without_text) == (2, 2)
    assert store.metadata["rows"] == 2 and store.metadata["rows_without_text"] == 2
    assert store.metadata["cleaning"] == {"name": "reviews", "version": 1}
    assert store.metadata["sources"] == [{"path": str(source), "bytes": source.stat().st_size, "text_key": "text"}]


def test_cleaning_none_keeps_the_text(source: Path, tmp_path: Path) -> None:
    store = prepare_store(DataConfig(paths=[str(source)], cleaning="none"), tmp_path / "s", progress=False)
    assert store.tokens.tobytes() == b"Good &amp; cheap\n&nbsp;NA"


def test_the_error_policy_stops_and_leaves_no_store(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"d\.jsonl:2: no text"):
        prepare_store(DataConfig(paths=[str(source)], on_bad_row="error"), tmp_path / "s", progress=False)
    source.write_text("\n".join(ROWS[2:]))
    with pytest.raises(ValueError, match=r"d\.jsonl:1: no text is left after cleaning"):
        prepare_store(DataConfig(paths=[str(source)], on_bad_row="error"), tmp_path / "s", progress=False)
    assert not list(tmp_path.glob("s*"))


def test_bytes_that_are_not_utf8_reach_the_store(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_bytes(b"caf\xe9\nplain\n")
    store = prepare_store(DataConfig(paths=[str(tmp_path / "d.txt")]), tmp_path / "s", progress=False)
    assert store.tokens.tobytes() == b"\n caf\xe9 \n plain " and store.metadata["undecodable_bytes"] == 1


def test_a_store_of_the_same_files_is_reused(source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = DataConfig(paths=[str(source.parent)])
    first = open_or_prepare(config, tmp_path / "s", progress=False)
    stamp = (tmp_path / "s.bin").stat().st_mtime_ns
    moved = source.parent.rename(tmp_path / "elsewhere") / source.name
    same = open_or_prepare(DataConfig(paths=[str(moved)]), tmp_path / "s", progress=False)
    assert (tmp_path / "s.bin").stat().st_mtime_ns == stamp and same.content_hash == first.content_hash
    moved.rename(tmp_path / "hidden")
    with caplog.at_level(logging.WARNING):
        open_or_prepare(DataConfig(paths=[str(moved)]), tmp_path / "s", progress=False)
    assert "using the token store" in caplog.text
    assert open_or_prepare(DataConfig(paths=[], store=str(tmp_path / "s")), tmp_path / "s").num_documents == 2


@pytest.mark.parametrize("change", ["content", "cleaning", "column", "foreign"])
def test_a_store_of_other_input_is_built_again(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    open_or_prepare(DataConfig(paths=[str(source)]), tmp_path / "s", progress=False)
    config = DataConfig(paths=[str(source)])
    if change == "content":
        source.write_text('{"text": "changed"}')
    elif change == "cleaning":
        config.cleaning = "none"
    elif change == "column":
        source.write_text(source.read_text().replace("text", "body"))
        config.text_key = "body"
    else:
        (tmp_path / "s.json").unlink()
    with caplog.at_level(logging.WARNING):
        store = open_or_prepare(config, tmp_path / "s", progress=False)
    assert "building it again" in caplog.text
    assert store.metadata["cleaning"]["name"] == config.cleaning
    expected = {"content": b"\n changed ", "cleaning": b"Good &amp; cheap\n"}.get(change, b"\n Good & cheap ")
    assert store.document(0).tobytes() == expected


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--data", str(source), "--out", str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    assert "text from column 'text' (guessed" in out
    assert "2 rows" in out and "2 rows without text skipped" in out
    assert "2 documents, 20 bytes" in out
    assert f"next: bigbatch train --data.store {tmp_path / 's'}" in out
    with pytest.raises(ValueError, match="no column 'body'"):
        command.main(["--data", str(source), "--out", str(tmp_path / "t"), "--text-key", "body"])
    assert not store_exists(tmp_path / "t")


def test_bad_input_ends_in_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,b\n1,2\n")
    done = subprocess.run(
        [sys.executable, "-m", "bigbatch.scripts.cli", "prepare", "--data", "d.csv", "--out", "s"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "columns: 'a', 'b'" in done.stderr


def test_ingest_imports_neither_torch_nor_pandas(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from bigbatch.scripts.prepare import main\n"
        f"main(['--data', {str(source)!r}, '--out', {str(tmp_path / 's')!r}])\n"
        "assert not {'torch', 'pandas', 'pyarrow', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_memory_does_not_grow_with_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "_CHUNK", 4096)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 14)
    peaks = []
    for count in (20_000, 60_000):
        path = tmp_path / f"{count}.txt"
        path.write_text("so so\n" * count)
        tracemalloc.start()
        store = prepare_store(DataConfig(paths=[str(path)]), tmp_path / "s", progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert store.num_documents == count
    # One more int64 a document would be 320 kB.
    assert peaks[1] < peaks[0] + 100_000


def test_real_reviews_come_out_as_cleaned_one_by_one(corpora: Path, tmp_path: Path) -> None:
    path = corpora / "amazon" / "musical_instruments_5core_part.jsonl.gz"
    store = prepare_store(DataConfig(paths=[str(path)]), tmp_path / "s", progress=False)
    rows = [clean_review(row.text) for row in iter_rows([path])]
    assert store.tokens.tobytes() == b"".join(rows)
    assert json.loads((tmp_path / "s.json").read_text())["num_documents"] == len(rows) == 5048


@pytest.mark.parametrize("suffix", [".json", ".bin", ".idx"])
def test_a_store_never_overwrites_its_source(tmp_path: Path, suffix: str) -> None:
    name = "reviews.json" if suffix == ".json" else f"reviews{suffix}"
    source = tmp_path / ("text.json" if suffix != ".json" else name)
    source.write_text('{"text": "good"}')
    if suffix != ".json":  # by another name of the same file
        (tmp_path / name).hardlink_to(source)
    with pytest.raises(ValueError, match=r"would overwrite .*reviews.*, one of its sources: choose another name"):
        prepare_store(DataConfig(paths=[str(source)]), tmp_path / "reviews", progress=False)
    assert source.read_text() == '{"text": "good"}' and len(list(tmp_path.iterdir())) == 1 + (suffix != ".json")


def test_a_store_that_others_use_is_not_rebuilt(source: Path, tmp_path: Path) -> None:
    prepare_store(DataConfig(paths=[str(source)]), tmp_path / "s", progress=False)
    before = (tmp_path / "s.bin").read_bytes()
    source.write_text('{"text": "changed"}')
    with pytest.raises(
        ValueError, match=r"was built from other files than --data.paths .* not rebuilt because runs may depend"
    ):
        open_or_prepare(DataConfig(paths=[str(source)]), tmp_path / "s", progress=False, rebuild=False)
    assert (tmp_path / "s.bin").read_bytes() == before


def test_a_folder_that_was_made_for_a_store_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": ""}')
    with pytest.raises(ValueError, match="no row has text"):
        prepare_store(DataConfig(paths=[str(tmp_path / "empty.jsonl")]), tmp_path / "new" / "s", progress=False)
    assert not (tmp_path / "new").exists()
