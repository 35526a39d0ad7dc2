"""`bigbatch results`: what run folders hold, as one table."""

from __future__ import annotations

import argparse
import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

DESCRIPTION = """Collect runs into a table: the configuration keys that differ, samples, tokens, bits per character, accuracies with
n and 95 % intervals, seconds, skipped steps, and how each run ended.

  bigbatch results runs/*                                      Markdown on the screen
  bigbatch results runs/sweeps/lr_batch --to csv --output lr_batch.csv
  bigbatch results runs/* --table settings                     means over seeds, with n and 95 % intervals
  bigbatch results runs/* --table pairs                        each setting against the first, over shared seeds"""

TABLES = ("runs", "settings", "pairs")
FORMATS = ("md", "csv", "parquet")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch results", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="*", default=["runs/*"], metavar="RUN", help="run folders, or folders of them (default: runs/*)"
    )
    parser.add_argument("--to", choices=FORMATS, default="md", help="format (default: md)")
    parser.add_argument("--output", metavar="FILE", help="file to write; without it the table goes to the screen")
    parser.add_argument(
        "--table", choices=TABLES, default="runs", help="a row a run, a setting or a comparison (default: runs)"
    )
    parser.add_argument("--metric", default="bpc", help="column that settings and pairs compare (default: bpc)")
    return parser


def rendered(frame: pd.DataFrame, form: str) -> bytes:
    from ..analysis.results import markdown

    if form == "md":
        return (markdown(frame) + "\n").encode()
    if form == "csv":
        return frame.to_csv(index=False).encode()
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if args.to == "parquet":
        if not args.output:
            raise ValueError("--to parquet is not for the screen: name a file with --output")
        if importlib.util.find_spec("pyarrow") is None:
            raise ValueError("--to parquet needs one more package: pip install 'bigbatch[parquet]'")
    from ..analysis.results import by_setting, check_metric, paired, run_frame
    from .watch import run_folders

    frame = run_frame(run_folders(args.runs))
    if args.table != "runs":
        check_metric(frame, args.metric)
        frame = by_setting(frame, metric=args.metric) if args.table == "settings" else paired(frame, args.metric)
    frame.attrs = {}  # nothing that a file format would have to store
    data = rendered(frame, args.to)
    if not args.output:
        print(data.decode(), end="")
        return 0
    path = Path(args.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)
    print(f"wrote {path}: {len(frame)} rows")
    return 0
