"""`bigbatch publish`: a trained model and its probe as a folder to hand on."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """Write a model and one probe as a folder that can be handed on: weights, configuration, probe, README.md.

  bigbatch publish --run-dir runs/mine --out kettle-reviews --licence "CC BY 4.0"
  bigbatch publish --run-dir runs/mine --task sst --out sst
  bigbatch classify --model kettle-reviews "Not bad at all."

The README names data, samples and bytes read, the held-out score, the accuracies with n and intervals, the licence and
the hashes of configuration, data and weights: only numbers that were measured on these weights. The folder holds no
text and no path of this machine, and works wherever it lies."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch publish", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", required=True, metavar="RUN", help="run folder with a probe")
    parser.add_argument("--task", help="which probe of the run (default: the newest)")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="new folder; nothing is overwritten")
    parser.add_argument(
        "--licence", default="not stated", metavar="TEXT", help="of the weights, for the README (default: not stated)"
    )
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    from bigbatch import __version__

    from ..sentiment.publish import publish

    about = publish(args.run_dir, args.out, args.task, args.licence, __version__)
    print(
        f"{args.out}: task {about['task']}, model {about['provenance']['model_sha256'][:12]}, card {Path(args.out) / 'README.md'}"
    )
    if not about["bpc"]:
        print("the card has no held-out score: bigbatch evaluate --run-dir RUN measures it")
    if not about["scores"]:
        print("the card has no accuracies: bigbatch transfer with a labelled --test measures them")
    return 0
