"""`bigbatch classify`: text arguments, a file or standard input in; label and probability out."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ..sentiment.classify import Classifier

DESCRIPTION = """Label texts with a trained model and its probe.

  bigbatch classify "Not bad at all, and the battery lasts."
  bigbatch classify --file new.csv --output labelled.csv --rejects rejected.jsonl
  cat reviews.txt | bigbatch classify --format jsonl | head
  bigbatch classify --model kettle-reviews "Not bad at all."

--model takes a folder of bigbatch publish. Without it and without --run-dir the newest run under runs/ that has a probe
is used, and named. Rows come out in the order in which they came in; rows without text go to the reject file with the
reason (by default OUTPUT.rejects.jsonl, or messages on standard error where there is no output file). A file is
streamed, whatever its size."""

# Texts that are sorted by length together; bounds the memory, whatever the size of the input.
CHUNK_ROWS, CHUNK_CHARACTERS = 4096, 2**24

Item = tuple[int, str]  # number of the row in its input, text


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch classify", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="texts; standard input, one text a line, if neither these nor --file"
    )
    parser.add_argument("--file", metavar="FILE", help="csv, tsv, json, jsonl, parquet or txt; plain, .gz or .zst")
    parser.add_argument(
        "--text-key", metavar="COLUMN", help="column of the text in --file; guessed and printed if not given"
    )
    parser.add_argument("--run-dir", metavar="RUN", help="run folder with a probe (default: the newest under runs/)")
    parser.add_argument("--model", metavar="FOLDER", help="folder of bigbatch publish, instead of a run folder")
    parser.add_argument("--task", help="which probe of the run (default: the newest)")
    parser.add_argument("--output", metavar="FILE", help="write here instead of standard output")
    parser.add_argument("--format", choices=("csv", "jsonl"), help="default: by the name of --output, else csv")
    parser.add_argument("--rejects", metavar="FILE", help="JSONL file for rows without text")
    parser.add_argument("--batch-size", type=int, default=128, help="texts read at once; speed only (default: 128)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    return parser


def json_line(row: dict[str, Any]) -> str:
    """One JSON line. Bytes that were no UTF-8 are escaped, so that the file as a whole is UTF-8."""
    line = json.dumps(row, ensure_ascii=False, default=str)
    try:
        line.encode()
    except UnicodeEncodeError:
        line = json.dumps(row, default=str)
    return line + "\n"


class Rejects:
    """Rows that cannot be classified: one JSON object each, in a file if there is one, else on standard error."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.count = path, 0
        self._file: TextIO | None = None
        if path is not None and path.is_file():
            path.unlink()  # of an earlier run; no file means that nothing was rejected

    def add(self, number: int, reason: str, record: Any) -> None:
        self.count += 1
        if self.path is None:
            print(f"row {number} rejected: {reason}", file=sys.stderr)
            return
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8")
        self._file.write(json_line({"row": number, "reason": reason, "record": record}))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_items(args: argparse.Namespace, rejects: Rejects) -> Iterator[Item]:
    """Numbered texts from arguments, a file or standard input; those without text go to `rejects`."""
    if args.text:
        yield from _with_text(enumerate(args.text, 1), rejects)
    elif args.file is None:
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # type: ignore[union-attr]
        yield from _with_text(
            ((n, line.removesuffix("\n").removesuffix("\r")) for n, line in enumerate(sys.stdin, 1)), rejects
        )
    else:
        from ..data.sources import SourceReport, iter_rows

        report = SourceReport()
        rows = iter_rows(
            [args.file], args.text_key, on_bad_row="skip", report=report, labels=False,
            on_reject=lambda bad: rejects.add(bad.number, bad.reason, bad.record),
        )  # fmt: skip
        for row in rows:
            yield row.number, row.text
        for message in report.messages:
            print(message, file=sys.stderr)
        if report.undecodable_bytes:
            print(
                f"{args.file}: {report.undecodable_bytes:,} bytes that are not UTF-8 kept as they are", file=sys.stderr
            )


def _with_text(items: Iterable[Item], rejects: Rejects) -> Iterator[Item]:
    for number, text in items:
        if text.strip():
            yield number, text
        else:
            rejects.add(number, "no text", text)


def make_writer(file: TextIO, kind: str, names: list[str]) -> Callable[[Item, str, Any], None]:
    """A function that writes one row: its number, label, probability of the label, all probabilities, text."""
    from ..data.cleaning import encode_text

    if kind == "csv":
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "label", "probability", *(f"probability_{name}" for name in names), "text"])

        def write_csv(item: Item, label: str, probabilities: Any) -> None:
            numbers = [f"{value:.6f}" for value in (probabilities.max(), *probabilities)]
            # Half an emoji, from a JSON escape, has no place in a file; bytes that were no UTF-8 leave as they came.
            text = encode_text(item[1]).decode(errors="surrogateescape")
            writer.writerow([item[0], label, *numbers, text])

        return write_csv

    def write_jsonl(item: Item, label: str, probabilities: Any) -> None:
        each = {name: round(float(value), 6) for name, value in zip(names, probabilities)}
        row = {
            "row": item[0],
            "label": label,
            "probability": max(each.values()),
            "probabilities": each,
            "text": item[1],
        }
        file.write(json_line(row))

    return write_jsonl


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in lists of bounded size, in rows and in characters."""
    chunk: list[Item] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += len(item[1])
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def classify_stream(
    classifier: Classifier, items: Iterable[Item], write: Callable[[Item, str, Any], None], batch_size: int
) -> int:
    """Classifies chunk by chunk; returns how many rows were written."""
    total = 0
    for chunk in chunks(items):
        probabilities = classifier.predict_proba([text for _, text in chunk], batch_size)
        labels = probabilities.argmax(axis=1)
        for item, label, row in zip(chunk, labels, probabilities):
            write(item, classifier.class_names[label], row)
        total += len(chunk)
    return total


@contextmanager
def output_file(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name only when it is complete."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if args.text and args.file:
        raise ValueError("texts and --file were both given; choose one")
    if args.run_dir and args.model:
        raise ValueError("--run-dir and --model were both given; choose one")
    output = Path(args.output) if args.output else None
    rejected = Path(args.rejects) if args.rejects else output and output.with_name(f"{output.name}.rejects.jsonl")
    for option, path in (("--output", output), ("--rejects", rejected)):
        if path and args.file and path.exists() and path.samefile(args.file):
            raise ValueError(f"{option} {path} is the input file; choose another name")
    if output and rejected and output.absolute() == rejected.absolute():
        raise ValueError(f"--output and --rejects are both {output}; choose another name for one of them")
    from ..sentiment.classify import Classifier, check_published, find_run
    from ..training.distributed import resolve_device

    if args.model:
        check_published(Path(args.model))
    named = args.run_dir or args.model
    run_dir = Path(named) if named else find_run()
    classifier = Classifier.load(run_dir, args.task, str(resolve_device(args.device)))
    tasks = sorted(path.stem for path in (run_dir / "probe").glob("*.json"))
    if named is None or (args.task is None and len(tasks) > 1):
        others = [task for task in tasks if task != classifier.about["task"]]
        more = f" (the newest; --task for {', '.join(others)})" if others and args.task is None else ""
        print(f"using {run_dir}, task {classifier.about['task']}{more}", file=sys.stderr)
    kind = args.format or ("jsonl" if output and output.suffix in (".jsonl", ".json") else "csv")
    rejects = Rejects(rejected)
    with closing(rejects), output_file(output) as file:
        write = make_writer(file, kind, classifier.class_names)
        total = classify_stream(classifier, read_items(args, rejects), write, args.batch_size)
    if rejects.count:
        where = f", written to {rejects.path}" if rejects.path else ""
        print(f"{total:,} rows classified, {rejects.count:,} rejected{where}", file=sys.stderr)
    return 0
