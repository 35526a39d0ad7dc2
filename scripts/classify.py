"""`bigbatch classify`: text arguments, a file or standard input in; label and probability out."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sentiment.classify import Classifier
    from ..sentiment.finetuned import FinetunedClassifier
    from ..sentiment.label_files import LabelFile, Labelled

DESCRIPTION = """Label texts with a trained model and its probe, or with a fine-tuned one.

  bigbatch classify "Not bad at all, and the battery lasts."
  bigbatch classify --file new.csv --output labelled.csv --rejects rejected.jsonl
  cat reviews.txt | bigbatch classify --format jsonl | head
  bigbatch classify --model kettle-reviews "Not bad at all."

--model takes a folder of bigbatch publish. Without it and without --run-dir the newest run under runs/ that has a probe
is used, and named. Rows come out in the order in which they came in; rows without text go to the reject file with the
reason (by default OUTPUT.rejects.jsonl, or messages on standard error where there is no output file). A file is
streamed, whatever its size; stopped in between, the same command goes on where it was."""

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
    parser.add_argument(
        "--run-dir",
        metavar="RUN",
        help="run folder with a probe, or of finetune (default: the newest under runs/)",
    )
    parser.add_argument("--model", metavar="FOLDER", help="folder of bigbatch publish, instead of a run folder")
    parser.add_argument("--task", help="which probe of the run (default: the newest)")
    parser.add_argument("--output", metavar="FILE", help="write here instead of standard output")
    parser.add_argument(
        "--format", choices=("csv", "jsonl", "parquet"), help="default: by the name of --output, else csv"
    )
    parser.add_argument("--rejects", metavar="FILE", help="JSONL file for rows without text")
    parser.add_argument("--batch-size", type=int, default=128, help="texts read at once; speed only (default: 128)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    return parser


Reject = Callable[[int, str, Any], None]


def read_items(args: argparse.Namespace, reject: Reject) -> Iterator[Item]:
    """Numbered texts from arguments, a file or standard input; those without text go to `reject`."""
    if args.text:
        yield from _with_text(enumerate(args.text, 1), reject)
    elif args.file is None:
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # type: ignore[union-attr]
        yield from _with_text(
            ((n, line.removesuffix("\n").removesuffix("\r")) for n, line in enumerate(sys.stdin, 1)), reject
        )
    else:
        from ..data.sources import SourceReport, iter_rows

        report = SourceReport()
        rows = iter_rows(
            [args.file], args.text_key, on_bad_row="skip", report=report, labels=False,
            on_reject=lambda bad: reject(bad.number, bad.reason, bad.record),
        )  # fmt: skip
        for row in rows:
            yield row.number, row.text
        for message in report.messages:
            print(message, file=sys.stderr)
        if report.undecodable_bytes:
            print(
                f"{args.file}: {report.undecodable_bytes:,} bytes that are not UTF-8 kept as they are", file=sys.stderr
            )


def _with_text(items: Iterable[Item], reject: Reject) -> Iterator[Item]:
    for number, text in items:
        if text.strip():
            yield number, text
        else:
            reject(number, "no text", text)


def chunks(items: Iterable[Item], skip: int = 0) -> Iterator[list[Item]]:
    """Items but the first `skip`, in lists of bounded size, in rows and in characters."""
    chunk: list[Item] = []
    characters = 0
    for at, item in enumerate(items):
        if at < skip:
            continue
        chunk.append(item)
        characters += len(item[1])
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def label_chunk(classifier: Classifier | FinetunedClassifier, chunk: list[Item], batch_size: int) -> list[Labelled]:
    """Labels of a chunk, in its order, with their probabilities."""
    from ..sentiment.label_files import Labelled

    probabilities = classifier.predict_proba([text for _, text in chunk], batch_size)
    labels = classifier.names_of(probabilities)
    return [Labelled(*item, label, row) for item, label, row in zip(chunk, labels, probabilities)]


def to_standard_output(classifier: Classifier | FinetunedClassifier, args: argparse.Namespace, kind: str) -> None:
    from ..sentiment.label_files import write_rows

    if kind == "parquet":
        raise ValueError("--format parquet needs --output: parquet cannot be written to standard output")
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    total = rejected = 0

    def reject(number: int, reason: str, record: Any) -> None:
        nonlocal rejected
        rejected += 1
        if args.rejects is None:
            print(f"row {number} rejected: {reason}", file=sys.stderr)
        else:
            from ..sentiment.label_files import json_line

            with Path(args.rejects).open("a", encoding="utf-8") as file:
                file.write(json_line({"row": number, "reason": reason, "record": record}))

    if args.rejects:
        Path(args.rejects).unlink(missing_ok=True)  # of an earlier run
    try:
        for chunk in chunks(read_items(args, reject)):
            rows = label_chunk(classifier, chunk, args.batch_size)
            write_rows(sys.stdout, kind, classifier.class_names, rows, header=total == 0)
            total += len(rows)
    except ValueError:
        if args.rejects:
            Path(args.rejects).unlink(missing_ok=True)
        raise
    if not total:
        write_rows(sys.stdout, kind, classifier.class_names, [], header=True)
    sys.stdout.flush()
    _say(total, rejected, args.rejects if rejected else None)


def to_file(classifier: Classifier | FinetunedClassifier, args: argparse.Namespace, kind: str, rejects: Path) -> None:
    from tqdm import tqdm

    from ..sentiment.label_files import LabelFile

    key = _key(classifier, args)
    with LabelFile(Path(args.output), kind, classifier.class_names, rejects, key) as file:
        done = file.progress.rows
        if done:
            print(f"going on after {done:,} rows, which an earlier start has written", file=sys.stderr)
        with tqdm(unit="row", unit_scale=True, desc="classify", initial=done, disable=None) as bar:
            _fill(file, classifier, args, bar, done)
        file.finish()
    _say(file.progress.rows, file.progress.rejected, str(rejects))


def _fill(
    file: LabelFile, classifier: Classifier | FinetunedClassifier, args: argparse.Namespace, bar: Any, done: int
) -> None:
    for chunk in chunks(read_items(args, file.reject), done):
        rows = label_chunk(classifier, chunk, args.batch_size)
        file.add(rows)
        bar.update(len(rows))


def _key(classifier: Classifier | FinetunedClassifier, args: argparse.Namespace) -> str:
    """What the output depends on; empty where the input cannot be read again."""
    if args.file is None:
        return ""
    stat = Path(args.file).stat()
    about = {name: value for name, value in classifier.about.items() if name != "unit"}
    parts = [str(Path(args.file).absolute()), stat.st_size, stat.st_mtime_ns, args.text_key, args.format, about]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _say(total: int, rejected: int, where: str | None) -> None:
    if rejected:
        print(
            f"{total:,} rows classified, {rejected:,} rejected" + (f", written to {where}" if where else ""),
            file=sys.stderr,
        )


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
    if output and not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}; make it first")
    if args.file and not Path(args.file).is_file():
        raise ValueError(f"--file {args.file}: no such file")
    from ..sentiment.classify import check_published, find_run, load_classifier
    from ..sentiment.label_files import format_of
    from ..training.distributed import resolve_device

    if args.model:
        check_published(Path(args.model))
    named = args.run_dir or args.model
    run_dir = Path(named) if named else find_run()
    classifier = load_classifier(run_dir, args.task, str(resolve_device(args.device)))
    tasks = sorted(path.stem for path in (run_dir / "probe").glob("*.json"))
    if named is None or (args.task is None and len(tasks) > 1):
        others = [task for task in tasks if task != classifier.about["task"]]
        more = f" (the newest; --task for {', '.join(others)})" if others and args.task is None else ""
        print(f"using {run_dir}, task {classifier.about['task']}{more}", file=sys.stderr)
    kind = format_of(output, args.format)
    if output is None or rejected is None:
        to_standard_output(classifier, args, kind)
    else:
        to_file(classifier, args, kind, rejected)
    return 0
