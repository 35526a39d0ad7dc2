"""`bigbatch figures`: pictures of published and own numbers, and the experiments behind a page of docs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Figures of own runs alone, beside those of published numbers in `analysis/figures/registry.py`.
OWN = {
    "numerics": "experiments of docs/numerics.md: runs, a picture, tables",
    "lr-batch": "final BPC by learning rate and batch, samples to a target: of the sweep named with --ours",
}

DESCRIPTION = """Draw figures, each as PNG, SVG, the CSV of what is drawn, and a caption.

  bigbatch figures epoch-time bert-hours           published numbers, with the scaling model
  bigbatch figures size-curves --ours runs/mine    the same with a run of yours on the same axes
  bigbatch figures published                       all of them
  bigbatch figures --list                          their names
  bigbatch figures numerics                        the experiments of docs/numerics.md, run where they are missing
  bigbatch figures lr-batch --ours runs/sweeps/lr_batch    learning rate by batch, from a sweep

`numerics` reads $BIGBATCH_CORPORA/amazon unless --data names another text. Its runs go to --runs, pictures and tables to --out."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch figures", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "figures", nargs="*", metavar="NAME", help="which; `published` is all of --list but those of own runs"
    )
    parser.add_argument("--list", action="store_true", help="print the names and what they show")
    parser.add_argument(
        "--ours", nargs="+", default=[], metavar="FOLDER", help="run folders to draw beside the published"
    )
    parser.add_argument(
        "--out", default="docs/figures", metavar="FOLDER", help="for pictures and tables (default: docs/figures)"
    )
    parser.add_argument("--data", nargs="+", metavar="FILE", help="text files (default: $BIGBATCH_CORPORA/amazon)")
    parser.add_argument(
        "--runs", default="runs/figures", metavar="FOLDER", help="where runs go (default: runs/figures)"
    )
    parser.add_argument("--samples", type=int, default=64_000, help="length of each run (default: 64,000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the paired runs (default: 1 2 3)")
    parser.add_argument("--heldout-bytes", type=int, default=500_000, help="least validation text (default: 500,000)")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    from ..analysis.figures.registry import FIGURES, make

    if args.list:
        width = max(map(len, FIGURES))
        summaries = {**FIGURES, **OWN}
        print("\n".join(f"{name:{width}}  {summary}" for name, summary in summaries.items()))
        return 0
    names = [name for word in args.figures for name in (FIGURES if word == "published" else [word])]
    unknown = [name for name in names if name not in FIGURES and name not in OWN]
    if unknown or not names:
        what = f"there is no figure {unknown[0]!r}" if unknown else "no figure named"
        raise ValueError(f"{what}: `bigbatch figures --list` prints the names, `bigbatch figures published` draws all")
    for name in dict.fromkeys(names):
        if name == "numerics":
            numerics(args)
            continue
        if name == "lr-batch":
            lr_batch(args)
            continue
        paths, caption = make(name, [Path(folder) for folder in args.ours], Path(args.out))
        print(f"{caption}\nwrote {paths[0]} (and .svg, .csv, .txt)\n")
    return 0


def lr_batch(args: argparse.Namespace) -> None:
    """Draws a sweep of learning rate by batch."""
    from ..analysis.figures import lr_batch

    if len(args.ours) > 1:
        raise ValueError(f"lr-batch draws one sweep, and --ours names {len(args.ours)}: name one folder")
    root = Path(args.ours[0] if args.ours else "runs/sweeps/lr_batch")
    paths = lr_batch.draw(lr_batch.load(root), Path(args.out) / "lr-batch")
    print(f"wrote {paths[0]} (and .svg, .csv)")


def numerics(args: argparse.Namespace) -> None:
    """Runs what is missing of the experiments of docs/numerics.md, and draws them."""
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

    root = (Path(args.runs) / "numerics").absolute()
    plan = numerics.Plan(root, tuple(data), args.samples, tuple(args.seeds), args.heldout_bytes)
    numerics.run(plan)
    picture = numerics.plot(plan, Path(args.out) / "numerics.png")
    table = Path(args.out) / "numerics.md"
    text = numerics.page(plan)
    table.write_text(text, encoding="utf-8")
    print(f"{text}\nwrote {picture} and {table}")
