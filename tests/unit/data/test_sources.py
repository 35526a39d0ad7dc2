"""Every format and packing gives the rows that were written, whatever the text; counts and guesses are reported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
import zstandard
from bigbatch.data import files
from bigbatch.data.files import SourceReport, expand_paths
from bigbatch.data.sources import BadRow, iter_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.compress(data),
}
TRICKY = [
    "plain",
    "NA",
    "null",
    "a,b",
    'say "hi"',
    "two\nlines",
    "x\x85y",
    "p\u2028q",
    "caf\xe9 \U0001f600",
    "1.0",
    "\tt",
]
text_of_a_review = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda t: t != "" and not t.isspace())


def write(path: Path, data: str | bytes) -> Path:
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(PACK[path.suffix if path.suffix in PACK else ""](data))
    return path


def as_csv(rows: list[list[str]], delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return out.getvalue()


def texts(path: Path, **options: object) -> list[str]:
    return [row.text for row in iter_rows([path], **options)]  # type: ignore[arg-type]


@pytest.fixture(params=[3, 64, 1 << 18], ids=lambda size: f"block{size}")
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Block sizes that cut lines, characters and objects in every place."""
    monkeypatch.setattr(files, "BLOCK_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "array", "txt"])
def test_every_format_and_packing(tmp_path: Path, kind: str, packing: str, block: int) -> None:
    one_line = [text for text in TRICKY if "\n" not in text and "\t" not in text]
    expected = TRICKY
    if kind == "csv":
        data = as_csv([["label", "text"], *(["1", text] for text in TRICKY)])
    elif kind == "tsv":
        data, expected = "".join(f"{line}\n" for line in ["label\ttext", *(f"1\t{t}" for t in one_line)]), one_line
    elif kind == "txt":
        data, expected = "\n\n".join(one_line), one_line
    elif kind == "array":
        data = json.dumps([{"text": t, "label": 1, "more": [{"a": "]"}]} for t in TRICKY], indent=1, ensure_ascii=False)
    else:
        data = "\n".join(json.dumps({"text": t, "label": 1}, ensure_ascii=False) for t in TRICKY)
    path = write(tmp_path / f"d.{'json' if kind == 'array' else kind}{packing}", data)
    rows = list(iter_rows([path]))
    assert [row.text for row in rows] == expected
    assert {str(row.label) for row in rows} == ({"None"} if kind == "txt" else {"1"})


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reviews=st.lists(text_of_a_review, min_size=1, max_size=8), block=st.integers(1, 40))
def test_csv_and_json_round_trips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reviews: list[str], block: int
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    path = write(tmp_path / "d.csv", as_csv([["text", "n"], *([t, "1"] for t in reviews)]))
    assert texts(path) == reviews
    path = write(tmp_path / "d.jsonl", "\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in reviews))
    assert texts(path) == reviews
    path = write(tmp_path / "d.json", json.dumps([{"text": t} for t in reviews]))
    assert texts(path) == reviews


def test_parquet(tmp_path: Path) -> None:
    table = pyarrow.table({"id": [1, 2, 3], "review": ["good", None, "bad"], "stars": [5, 3, 1]})
    parquet.write_table(table, tmp_path / "d.parquet")
    report = SourceReport()
    rows = list(iter_rows([tmp_path / "d.parquet"], report=report))
    assert [(row.text, row.label) for row in rows] == [("good", 5), ("bad", 1)]
    assert report.rows_without_text == 1


def test_gzip_of_several_members_and_zstd_of_several_frames(tmp_path: Path) -> None:
    for packing in (".gz", ".zst"):
        path = tmp_path / f"d.txt{packing}"
        path.write_bytes(b"".join(PACK[packing](f"line {i}\n".encode()) for i in range(5)))
        assert texts(path) == [f"line {i}" for i in range(5)]


def test_tsv_quotes_are_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "d.tsv", 'text\tlabel\n"unbalanced\t1\nsay "x"\t0\n')
    assert texts(path) == ['"unbalanced', 'say "x"']


def test_crlf_and_byte_order_mark(tmp_path: Path, block: int) -> None:
    path = write(tmp_path / "d.csv", b"\xef\xbb\xbftext,label\r\ngood,1\r\n")
    assert [(r.text, r.label) for r in iter_rows([path])] == [("good", "1")]
    path = write(tmp_path / "d.csv", b'n,text\r\n1,"two\r\nlines"\r\n\r\n2,lone\rone\r\n')
    assert texts(path) == ["two\r\nlines", "lone\rone"]
    path = write(tmp_path / "d.txt", b"one\r\n\r\ntwo\r\n")
    assert texts(path) == ["one", "two"]


def test_long_fields_pass(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert texts(write(tmp_path / "d.csv", as_csv([["text"], [long]]))) == [long]


def test_undecodable_bytes_are_kept_and_counted(tmp_path: Path, block: int) -> None:
    for name, data in {
        "d.txt": b"caf\xe9\nok\n",
        "d.csv": b"text\ncaf\xe9\nok\n",
        "d.jsonl": b'{"text": "caf\xe9"}\n{"text": "ok"}\n',
        "d.json": b'[{"text": "caf\xe9"}, {"text": "ok"}]',
    }.items():
        report = SourceReport()
        rows = list(iter_rows([write(tmp_path / name, data)], report=report))
        assert [row.text.encode(errors="surrogateescape") for row in rows] == [b"caf\xe9", b"ok"]
        assert report.undecodable_bytes == 1, name


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        (["label", "sentence"], "sentence", "label"),
        (["content", "text", "sentiment"], "text", "sentiment"),
        (["summary", "reviewText", "overall"], "reviewText", "overall"),
        (["ID", "Tweet", "label"], "Tweet", "label"),
        (["Review", "Rating"], "Review", "Rating"),
        (["review", "title"], "review", None),
        (["TEXT", "text"], "text", None),
        (["rating", "label", "text"], "text", "label"),
    ],
)
def test_guessed_columns(tmp_path: Path, columns: list[str], text: str, label: str | None) -> None:
    report = SourceReport()
    list(iter_rows([write(tmp_path / "d.csv", as_csv([columns, ["v"] * len(columns)]))], report=report))
    assert list(report.columns.values()) == [(text, label)]
    assert text in report.messages[0] and "--text-key" in report.messages[0]


def test_given_columns_win_and_are_not_called_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "text,body,label,y\na,b,0,1\n")
    report = SourceReport()
    (row,) = iter_rows([path], "body", "y", report=report)
    assert (row.text, row.label) == ("b", "1")
    assert not report.messages


def test_keys_missing_in_the_first_json_rows_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", '{"overall": 5}\n{"overall": 4, "reviewText": "late"}\n')
    report = SourceReport()
    assert [row.text for row in iter_rows([path], report=report)] == ["late"]
    assert report.rows_without_text == 1


BAD = '{"text": "ok"}\n{"text": null}\n\n{"label": 1}\n{"text": "  "}\n{"text": ""}\n{"text": 7}\n{"text": "NA"}\n'


def test_rows_without_text_are_skipped_counted_and_handed_over(tmp_path: Path) -> None:
    rejected: list[BadRow] = []
    report = SourceReport()
    rows = list(iter_rows([write(tmp_path / "d.jsonl", BAD)], report=report, on_reject=rejected.append))
    assert [(row.text, row.number) for row in rows] == [("ok", 1), ("NA", 8)]
    assert report.rows == 2 and report.rows_without_text == 5
    assert [bad.number for bad in rejected] == [2, 4, 5, 6, 7]
    assert rejected[1].record == {"label": 1} and "int" in rejected[-1].reason
    assert "5 rows without text skipped" in report.summary()


def test_short_csv_rows_have_no_text(tmp_path: Path) -> None:
    report = SourceReport()
    rows = list(iter_rows([write(tmp_path / "d.csv", 'n,text\n1\n2,"a\nb"\n3,c\n')], report=report))
    assert [(row.text, row.number) for row in rows] == [("a\nb", 3), ("c", 5)]
    assert report.rows_without_text == 1


def test_an_empty_text_in_a_file_of_one_column_is_counted_and_a_blank_line_is_not(tmp_path: Path) -> None:
    for end in ("\n", "\r\n"):
        path = tmp_path / "one.csv"
        path.write_bytes(end.join(["text", "good lamp", '""', "", "bad lamp", '"two', "", 'parts"', ""]).encode())
        report = SourceReport()
        rows = [row.text for row in iter_rows([path], report=report)]
        assert rows == ["good lamp", "bad lamp", f"two{end}{end}parts"] and report.rows_without_text == 1


def test_rows_wider_than_the_header_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\nfine,1\nslow, but fine,1\n"quoted, fine",0\nloud, long, dull,0\n')
    report = SourceReport()
    rows = [row.text for row in iter_rows([path], report=report)]
    assert rows == ["fine", "slow", "quoted, fine", "loud"]
    wide = [message for message in report.messages if "more fields" in message]
    assert len(wide) == 1 and "2 rows" in wide[0] and "the 2 of the header (first: line 3)" in wide[0]


def test_error_policy_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", BAD)
    with pytest.raises(ValueError, match=r"d\.jsonl:2: no text in column 'text'"):
        texts(path, on_bad_row="error")


def test_lines_broken_by_hand(tmp_path: Path) -> None:
    for line in ('{"text": "x"', "{'text': 'x'}", '{"text": "x"} {"text": "y"}', "[" * 100_000):
        path = write(tmp_path / "d.jsonl", f'{{"text": "ok"}}\n {{"text": "led by a space"}} \n{line}\n')
        with pytest.raises(ValueError, match=r"d\.jsonl:3: broken JSON") as error:
            texts(path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("d.csv", b"", "the file is empty"),
        ("d.jsonl.gz", b"", "the file is empty"),
        ("d.jsonl", b"\n\n", "no JSON object"),
        ("d.jsonl", b"[1]\n[2]\n", "no JSON object"),
        ("d.csv", b"text\n", "no row has text in column 'text'"),
        ("d.txt", b"\n \n", "no row has text"),
        ("d.csv", b"a,b\n1,2\n", "columns: 'a', 'b'"),
        ("d.csv", b'text\nfine\n"never closed\n' + b"x" * 300_000, r"d\.csv:3: .*larger than.*never closed"),
        ("d.csv", b'text\nfine\n1,"never closed\nmore\n', r"d\.csv:3: a quote that opens here is never closed"),
        ("d.json", b'[{"text": "a"}, {"text": "b"', "element 2 of the array is broken"),
        ("d.json", b'[{"text": "a"},', "ends early after element 1"),
        ("d.csv", "text\nx\n".encode("utf-16"), "UTF-16"),
        ("d.csv", gzip.compress(b"text\nx\n"), r"gzip data: name it"),
        ("d.parquet", b"PAR1 and then nothing of use", "damaged or not a parquet file"),
        ("d.parquet", b"", "the file is empty"),
    ],
)
def test_bad_files_give_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, message: str
) -> None:
    monkeypatch.setattr("bigbatch.data.sources.MAX_LINE_BYTES", 1 << 17)
    csv.field_size_limit(1 << 17)
    path = write(tmp_path / name, data)
    with pytest.raises(ValueError, match=message) as error:
        texts(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_truncated_and_damaged_archives(tmp_path: Path) -> None:
    data = b"".join(b"%d some text that does not pack too well %d\n" % (i, i * i * 7919) for i in range(20_000))
    for packing in (".gz", ".zst"):
        packed = PACK[packing](data)
        path = tmp_path / f"d.txt{packing}"
        path.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(ValueError, match="data end early"):
            texts(path)
        path.write_bytes(b"this is no archive at all\n" * 10)
        with pytest.raises(ValueError, match="damaged or not"):
            texts(path)


def test_unknown_types_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"d\.docx: unknown file type.*\.jsonl"):
        expand_paths([write(tmp_path / "d.docx", "x")])
    with pytest.raises(ValueError, match="compressed inside"):
        expand_paths([write(tmp_path / "d.parquet.gz", "x")])
    with pytest.raises(FileNotFoundError, match=r"gone\.csv: no such file"):
        expand_paths([tmp_path / "gone.csv"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        expand_paths([tmp_path / "*.csv"])
    with pytest.raises(ValueError, match="name at least one"):
        expand_paths([])


def test_unknown_column_lists_those_there(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "id,text\n1,x\n")
    with pytest.raises(ValueError, match=r"d\.csv: no column 'body' for the text; columns: 'id', 'text'"):
        texts(path, text_key="body")
    with pytest.raises(ValueError, match=r"no column 'y' for the label"):
        texts(path, label_key="y")


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("d.parquet", "pyarrow", "parquet"), ("d.txt.zst", "zstandard", "zstd")]
)
def test_missing_extra_names_the_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    path = write(tmp_path / name, "x\n")
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ValueError, match=rf"pip install 'bigbatch\[{extra}\]'"):
        texts(path)


def test_folders_globs_and_repeats(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.jsonl", "notes.md", ".hidden.txt"):
        write(tmp_path / name, "x\n")
    found = [path.relative_to(tmp_path).as_posix() for path in expand_paths([tmp_path])]
    assert found == ["a.txt", "b.txt", "sub/c.jsonl"]
    both = expand_paths([tmp_path / "b.txt", str(tmp_path / "*.txt")])
    assert [path.name for path in both] == ["b.txt", "a.txt"]
    write(tmp_path / "odd[1].txt", "x\n")
    assert expand_paths([tmp_path / "odd[1].txt"]) == [tmp_path / "odd[1].txt"]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no data files in this folder"):
        expand_paths([tmp_path / "none"])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "txt"])
def test_reading_streams(tmp_path: Path, kind: str) -> None:
    text = "a review that is neither long nor short, but here many times over " * 4
    rows = 20_000
    path = tmp_path / f"d.{kind}"
    with path.open("w") as file:
        file.write({"csv": "text\n", "json": "["}.get(kind, ""))
        for number in range(rows):
            line = {"csv": f'"{text}"\n', "txt": f"{text}\n"}.get(kind, json.dumps({"text": text}) + "\n")
            file.write(line if kind != "json" or number == 0 else "," + line)
        file.write("]" if kind == "json" else "")
    assert path.stat().st_size > 5_000_000
    tracemalloc.start()
    assert sum(1 for _ in iter_rows([path])) == rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000


def test_real_files_load_without_flags(corpora: Path) -> None:
    for name, count, label in [("sst/train.csv", 6920, "1"), ("sst/test.csv", 1821, None)]:
        rows = list(iter_rows([corpora / name]))
        assert len(rows) == count
        assert label is None or rows[0].label == label
    report = SourceReport()
    marks = sum("\x85" in row.text for row in iter_rows([corpora / "imdb/test.csv.gz"], report=report))
    assert report.rows == 20_000 and marks == 251
    latin = SourceReport()
    assert len(list(iter_rows([corpora / "messy/latin1_bytes.txt"], report=latin))) == 202
    assert latin.undecodable_bytes >= 202
    tweets = list(iter_rows([corpora / "messy/vader_tweets.tsv"]))
    assert len(tweets) == 4200
    instruments = SourceReport()
    list(iter_rows([corpora / "amazon/musical_instruments_5core_part.jsonl.gz"], report=instruments))
    assert (instruments.rows, instruments.rows_without_text) == (5048, 2)


def test_what_we_wrote_is_not_read_back_as_data(tmp_path: Path) -> None:
    wanted = [tmp_path / "a.jsonl", tmp_path / "deep" / "b.json"]
    for path in wanted:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "good"}')
    for suffix in (".bin", ".idx", ".json"):  # a token store
        (tmp_path / f"store{suffix}").write_text("{}")
    run = tmp_path / "runs" / "x"
    (run / "data").mkdir(parents=True)
    for name in ("config.yaml", ".lock", "metrics.jsonl", "result.json", "data/lm.jsonl"):
        (run / name).write_text("{}")
    assert expand_paths([tmp_path]) == wanted
    # Named by the user they are data: the corpus that the demo writes lies in a run folder.
    assert expand_paths([run / "data" / "lm.jsonl"]) == [run / "data" / "lm.jsonl"]


def test_parquet_that_is_damaged_behind_its_footer_names_the_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "d.parquet"
    parquet.write_table(pyarrow.table({"text": ["good " * 50, "bad " * 50] * 500}), path, compression="gzip")
    content = bytearray(path.read_bytes())
    content[20:120] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"d\.parquet: damaged after row 0 \(.*fetch or write the file again"):
        list(iter_rows([path]))
