"""`bigbatch transfer`: a trained model and labelled texts -> probe, best unit, baselines, report.html."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..data.labelled import LabelledData

DESCRIPTION = """Transfer a trained model to a classification task: read labelled texts with it, fit an L1 probe on its state and
a threshold on its best single unit, and score both on test data beside TF-IDF and the majority class.

  bigbatch transfer --run-dir runs/mine --train train.csv --val val.csv --test test.csv
  bigbatch transfer --run-dir runs/mine --train reviews.jsonl --test new.txt --task shop --text-key body --label-key stars

Everything is fitted on --train; C and the unit are chosen on --val (a part of --train, cut off by --seed, if it is not
given); --test is scored once. A test file without labels gives predictions only. Written into the run folder:
results/TASK-*.json and .predictions.csv, probe/TASK.*, plots/TASK-*.png, report.html."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch transfer", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run-dir", required=True, help="run folder of bigbatch train")
    add(
        "--train",
        required=True,
        nargs="+",
        metavar="FILE",
        help="labelled texts: csv, tsv, json, jsonl, parquet; plain, .gz, .zst",
    )
    add(
        "--val",
        nargs="+",
        metavar="FILE",
        help="labelled texts to choose C and the unit on (default: a part of --train)",
    )
    add("--test", required=True, nargs="+", metavar="FILE", help="texts to score; labels optional")
    add("--text-key", metavar="COLUMN", help="column of the text; guessed and printed if not given")
    add("--label-key", metavar="COLUMN", help="column of the label; guessed and printed if not given")
    add("--task", default="sentiment", metavar="NAME", help="name of the task in file names (default: sentiment)")
    add("--which", choices=("best", "latest"), default="best", help="which checkpoint (default: best)")
    add("--state", choices=("cell", "hidden"), default="cell", help="which state is the feature (default: cell)")
    add("--transform", choices=("raw", "tanh"), default="raw", help="of the state (default: raw)")
    add("--layer", type=int, default=-1, help="layer of a stack, 0 is the first (default: -1, the last)")
    add("--batch-size", type=int, default=128, help="texts read at once; speed only (default: 128)")
    add(
        "--val-fraction",
        type=float,
        default=0.1,
        help="part of --train cut off where --val is not given (default: 0.1)",
    )
    add("--seed", type=int, default=42, help="of that cut and of the solver (default: 42)")
    add(
        "--on-bad-row",
        choices=("skip", "error"),
        default="skip",
        help="a row without text or label (default: skip and count)",
    )
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--no-cache", action="store_true", help="do not keep features in RUN/cache")
    return parser


def read_splits(args: argparse.Namespace) -> tuple[LabelledData, LabelledData, LabelledData]:
    """Train, val and test as the options say; prints what was guessed, dropped or cut off."""
    from ..data.labelled import load_labelled

    keys = {"text_key": args.text_key, "label_key": args.label_key, "on_bad_row": args.on_bad_row}
    train = load_labelled(args.train, **keys)
    messages = list(train.messages)
    if args.val:
        val = load_labelled(args.val, classes=train.classes, stars=train.stars, **keys)
        messages += val.messages
    else:
        from ..sentiment.transfer import split_validation

        train, val = split_validation(train, args.val_fraction, args.seed)
        messages.append(f"no --val: {len(val):,} of the training texts are set aside for it (seed {args.seed})")
    test = load_test(args, train.classes, train.stars)
    messages += test.messages
    for part in (train, val, test):
        skipped = part.report.rows_without_text
        if skipped and (part is not val or args.val):
            messages.append(
                f"{skipped:,} rows without text skipped in {', '.join(str(p) for p, _ in part.report.files)}"
            )
    for message in dict.fromkeys(messages):
        print(message)
    return train, val, test


def load_test(args: argparse.Namespace, classes: list[str], stars: int = 0) -> LabelledData:
    """The test part. Its label column may be missing, then it is unlabelled; a named text column may not."""
    from ..data.labelled import load_labelled

    keys = {
        "text_key": args.text_key,
        "on_bad_row": args.on_bad_row,
        "allow_unlabelled": True,
        "classes": classes,
        "stars": stars,
    }
    try:
        return load_labelled(args.test, label_key=args.label_key, **keys)
    except ValueError as error:
        if args.label_key is None or f"no column {args.label_key!r} for the label" not in str(error):
            raise
    test = load_labelled(args.test, **keys)
    message = f"no column {args.label_key!r} in the test data: taken as unlabelled"
    return replace(test, labels=None, classes=[], messages=[*test.messages, message])


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    train, val, test = read_splits(args)  # before torch is loaded: a wrong name or column is said at once

    from ..analysis.curves import plot_training
    from ..sentiment.report import choose_examples, write_report
    from ..sentiment.transfer import run_transfer
    from ..training.checkpoint import load_model
    from ..training.distributed import resolve_device
    from ..training.metrics import read_metrics, read_result

    loaded = load_model(args.run_dir, str(resolve_device(args.device)), args.which)
    run_dir = loaded.path.parent.parent
    print(f"model: {loaded.path}, trained on {loaded.tokens:,} characters")
    result = run_transfer(
        loaded, train, val, test, out_dir=run_dir, task=args.task, state=args.state, transform=args.transform,
        layer=args.layer, batch_size=args.batch_size, seed=args.seed,
        cache_dir=None if args.no_cache else run_dir / "cache",
    )  # fmt: skip
    print(result.table())
    probe = result.summary["probe"]
    print(
        f"C = {probe['C']:g} chosen on {len(val):,} validation texts"
        + ("" if probe["converged"] else "; NOT CONVERGED")
    )
    if (run_dir / "metrics.jsonl").is_file() and read_metrics(run_dir):
        known = read_result(run_dir)
        marks = {"gzip -9": known.get("bpc_gzip"), "order-5 byte model": known.get("bpc_5gram")}
        references = {name: value for name, value in marks.items() if value}
        plot_training(run_dir, run_dir / "plots" / "training.png", references)
    page = write_report(run_dir, choose_examples(loaded.model, result), f"bigbatch: {Path(run_dir).name}")
    print(f"result: {result.path}\nreport: {page}")
    return 0
