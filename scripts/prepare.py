"""`bigbatch prepare`: text files -> token store."""

from __future__ import annotations

import argparse
import os
import sys

from ..data.config import BAD_ROW_POLICIES, CLEANINGS, DataConfig
from ..data.files import SourceReport
from ..data.prepare import prepare_store

DESCRIPTION = """\
Read reviews or other text once and store them as a token store: PREFIX.bin, PREFIX.idx (Megatron's layout) and
PREFIX.json (counts, sources, hashes). `bigbatch train --data.store PREFIX` reads it, as often as you like.

Each row of csv, tsv, json, jsonl and parquet, and each line of txt, is one document. Files may be packed (.gz, .zst);
folders and glob patterns work. Everything streams, so memory stays small whatever the size of the input.
"""

EXAMPLES = """\
examples:
  bigbatch prepare --data reviews.jsonl.gz --out stores/reviews
  bigbatch prepare --data 'shards/*.parquet' more/ --text-key body --out stores/all
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch prepare",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE", help="files, folders or glob patterns")
    parser.add_argument("--out", required=True, metavar="PREFIX", help="where the store goes, without extension")
    parser.add_argument("--text-key", metavar="COLUMN", help="column of the text (default: guessed, and printed)")
    parser.add_argument(
        "--cleaning",
        choices=CLEANINGS,
        default="reviews",
        help="reviews: entities resolved, newlines to spaces, stripped, framed as published; none: as it is "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--on-bad-row",
        choices=BAD_ROW_POLICIES,
        default="skip",
        help="what to do with a row without text: skip and count it, or stop (default: %(default)s)",
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    return parser


def main(argv: list[str]) -> int:
    """Runs the command; errors are left to `cli.py`."""
    args = build_parser().parse_args(argv)
    config = DataConfig(
        paths=args.data, text_key=args.text_key, cleaning=args.cleaning, on_bad_row=args.on_bad_row, store=args.out
    )
    report = SourceReport()
    progress = not args.no_progress and sys.stderr.isatty()
    store = prepare_store(config, args.out, progress, report)
    for message in report.messages:
        print(message)
    print(f"read {report.summary()}")
    print(f"wrote {args.out}.bin, .idx, .json: {store.num_documents:,} documents, {store.num_tokens:,} bytes")
    print(f"next: bigbatch train --data.store {args.out} --run-dir runs/{os.path.basename(args.out)}")
    return 0
