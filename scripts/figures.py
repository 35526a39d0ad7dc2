"""`bigbatch figures`: the experiments behind a page of docs, and its pictures and tables."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

DESCRIPTION = """Run the experiments behind a page of docs and draw them. What is finished already is not run again.

  bigbatch figures numerics        FP16 against FP32, ranks, memory, a run that diverges: for docs/numerics.md

The text is $BIGBATCH_CORPORA/amazon unless --data names another. Runs go to --runs, the picture and the tables to --out."""

FIGURES = ("numerics",)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch figures", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES, help="which page")
    parser.add_argument("--data", nargs="+", metavar="FILE", help="text files (default: $BIGBATCH_CORPORA/amazon)")
    parser.add_argument(
        "--runs", default="runs/figures", metavar="FOLDER", help="where runs go (default: runs/figures)"
    )
    parser.add_argument(
        "--out", default="docs/figures", metavar="FOLDER", help="for pictures and tables (default: docs/figures)"
    )
    parser.add_argument("--samples", type=int, default=64_000, help="length of each run (default: 64,000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the paired runs (default: 1 2 3)")
    parser.add_argument("--heldout-bytes", type=int, default=500_000, help="least validation text (default: 500,000)")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    data = args.data
    if not data:
        folder = Path(os.environ.get("BIGBATCH_CORPORA", "")) / "amazon"
        if "BIGBATCH_CORPORA" not in os.environ or not folder.is_dir():
            raise ValueError(
                "no text: set BIGBATCH_CORPORA to a folder that holds amazon/ (see docs/reproduce.md), or name files with --data"
            )
        data = [str(folder)]
    if args.samples < 640:
        raise ValueError(f"--samples is {args.samples}: ten validations need at least 640")
    if not 1 <= len(args.seeds) <= 10:
        raise ValueError(f"--seeds are {len(args.seeds)}: give one to ten")
    from ..analysis.figures import numerics

    plan = numerics.Plan(
        (Path(args.runs) / args.figure).absolute(), tuple(data), args.samples, tuple(args.seeds), args.heldout_bytes
    )
    numerics.run(plan)
    picture = numerics.plot(plan, Path(args.out) / "numerics.png")
    table = Path(args.out) / "numerics.md"
    text = numerics.page(plan)
    table.write_text(text, encoding="utf-8")
    print(f"{text}\nwrote {picture} and {table}")
    return 0
