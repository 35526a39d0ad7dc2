"""report.html: the numbers are in it, it loads nothing, and no text of the data becomes markup."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bigbatch.data.labelled import load_labelled
from bigbatch.sentiment.report import choose_examples, read_transfers, write_report
from bigbatch.sentiment.transfer import TransferResult, run_transfer
from bigbatch.training.checkpoint import LoadedModel, load_model
from bigbatch.training.metrics import update_result


@pytest.fixture
def transferred(run_dir: Path, files: dict[str, Path]) -> tuple[LoadedModel, TransferResult]:
    loaded = load_model(run_dir)
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    parts = [
        replace(part, texts=[f"A review </i><script>alert()</script>: {text}" for text in part.texts]) for part in parts
    ]
    result = run_transfer(loaded, *parts, out_dir=run_dir, task="shop", progress=False)
    return loaded, result


def test_page_holds_the_results(run_dir: Path, transferred: tuple[LoadedModel, TransferResult]) -> None:
    loaded, result = transferred
    update_result(run_dir, {"bpc": 1.712, "bpc_gzip": 2.731, "bpc_5gram": 2.114, "bpc_bytes": 512345})
    (run_dir / "config.yaml").write_text("model: {kind: mlstm}  # <b>\n")
    page = write_report(run_dir, choose_examples(loaded.model, result), "A <title>").read_text(encoding="utf-8")
    probe = result.summary["probe"]
    for expected in (
        f"{probe['accuracy']:.1%}",
        f"{100 * probe['low']:.1f} – {100 * probe['high']:.1f}",
        "1.712",
        "2.731",
    ):
        assert expected in page
    assert "2.114" in page and "512,345" in page and "A &lt;title&gt;" in page and "# &lt;b&gt;" in page
    assert f"Single unit {result.summary['unit']['index']}" in page


def test_page_is_self_contained(run_dir: Path, transferred: tuple[LoadedModel, TransferResult]) -> None:
    loaded, result = transferred
    page = write_report(run_dir, choose_examples(loaded.model, result)).read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\(|@import|<link|<script", page)
    sources = re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)
    assert len(sources) == 2 == page.count("<img")
    assert all(base64.b64decode(source).startswith(b"\x89PNG") for source in sources)


def test_tags_are_balanced(run_dir: Path, transferred: tuple[LoadedModel, TransferResult]) -> None:
    loaded, result = transferred
    page = write_report(run_dir, choose_examples(loaded.model, result)).read_text(encoding="utf-8")
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "img"):
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Checker().feed(page)
    assert not open_tags


def test_examples_are_right_and_wrong_as_they_say(transferred: tuple[LoadedModel, TransferResult]) -> None:
    loaded, result = transferred
    assert set(result.predicted) == {0, 1}
    labels = result.predicted.copy()
    labels[:3] = 1 - labels[:3]
    result = replace(result, test=replace(result.test, labels=labels))
    examples = choose_examples(loaded.model, result, per_group=4)
    assert examples is not None
    assert len(examples.right) == 4 and len(examples.wrong) == 3
    for trace in examples.right:
        truth, read = re.match(r"(\w+), read as (\w+)", trace.caption).groups()
        assert truth == read
    assert {trace.caption.split(",")[0] for trace in examples.right} == {"negative", "positive"}
    for trace in examples.wrong:
        truth, read = re.match(r"(\w+), read as (\w+)", trace.caption).groups()
        assert truth != read
    assert examples.scale.center == result.unit.threshold_ and examples.scale.sign == result.unit.sign_


def test_no_examples_without_labels_or_unit(transferred: tuple[LoadedModel, TransferResult]) -> None:
    loaded, result = transferred
    assert choose_examples(loaded.model, replace(result, test=replace(result.test, labels=None))) is None
    assert choose_examples(loaded.model, replace(result, unit=None)) is None


def test_page_of_an_empty_folder_and_of_unlabelled_data(run_dir: Path, files: dict[str, Path]) -> None:
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert "How this was made" in page and "Accuracy" not in page
    train, val, test = (load_labelled(files[name]) for name in ("train", "val", "test"))
    run_transfer(
        load_model(run_dir), train, val, replace(test, labels=None, classes=[]), out_dir=run_dir, progress=False
    )
    assert "80 texts without labels" in write_report(run_dir).read_text(encoding="utf-8")


def test_newest_result_of_each_task(run_dir: Path, transferred: tuple[LoadedModel, TransferResult]) -> None:
    _, result = transferred
    older = run_dir / "results" / "shop-0.json"
    text = result.path.read_text()
    older.write_text(text.replace(result.summary["created"], "2001-01-01T00:00:00+00:00"))
    (run_dir / "results" / "else.json").write_text('{"kind": "sweep"}')
    assert read_transfers(run_dir) == [result.summary]
    older.write_text(text[:40])
    with pytest.raises(ValueError, match=r"shop-0\.json is damaged"):
        read_transfers(run_dir)
