"""`bigbatch units`: which units of a model carry sentiment, and which words move the best one."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """Study the units behind a probe on labelled texts, best those that it was not fitted on.

  bigbatch units --run-dir runs/mine --data test.csv
  bigbatch units --run-dir runs/mine --data test.csv --unit 312 --top 20

Ranks units by the probe's weight, by AUC and by mutual information; takes the best 1, 2, 4, ... away, or keeps them alone;
and lists the words and texts that move the best single unit, or --unit, most. Writes a page, pictures and numbers."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch units", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", required=True, metavar="RUN", help="run folder with a probe")
    parser.add_argument("--data", required=True, nargs="+", metavar="FILE", help="labelled texts")
    parser.add_argument("--text-key", metavar="COLUMN", help="column of the text; guessed and printed if not given")
    parser.add_argument("--label-key", metavar="COLUMN", help="column of the label; guessed and printed if not given")
    parser.add_argument("--task", help="which probe of the run (default: the newest)")
    parser.add_argument("--unit", type=int, help="unit to look at closely (default: the best single unit)")
    parser.add_argument("--top", type=int, default=10, help="units in the tables (default: 10)")
    parser.add_argument(
        "--min-count", type=int, default=3, help="occurrences that words need for their mean (default: 3)"
    )
    parser.add_argument("--span-texts", type=int, default=1000, help="texts whose words are looked at (default: 1000)")
    parser.add_argument("--no-cache", action="store_true", help="do not keep features in the run folder")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    return parser


def text_table(heads: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths)) for line in lines)


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    from ..data.labelled import load_labelled
    from ..sentiment.classify import load_probed
    from ..sentiment.unit_page import ablation_rows, ranking_rows, span_rows
    from ..sentiment.unit_study import study_units
    from ..training.distributed import resolve_device

    run_dir = Path(args.run_dir)
    loaded, probe, about = load_probed(run_dir, args.task, str(resolve_device(args.device)))
    data = load_labelled(args.data, args.text_key, args.label_key, classes=about["class_names"])
    for message in data.messages:
        print(message)
    found = study_units(
        loaded, probe, about, data, run_dir, unit=args.unit, top=args.top, min_count=args.min_count,
        span_texts=args.span_texts, cache_dir=None if args.no_cache else run_dir / "cache",
    )  # fmt: skip
    print(f"\nunits by the probe's weight, task {about['task']}, {len(data):,} texts")
    print(text_table(*ranking_rows(found)))
    print("\naccuracy of the probe without its k best units, and with them alone")
    print(text_table(*ablation_rows(found)))
    heads, rows = span_rows(found, 1)
    print(f"\nwords that move unit {found['unit']['unit']} (mean change over {found['span_texts']:,} texts)")
    print(text_table(heads, rows) if rows else f"none occurs {args.min_count} times; lower --min-count")
    print("\n" + "\n".join(str(path) for path in found["files"].values()))
    return 0
